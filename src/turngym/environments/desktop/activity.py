"""Whether the programs of a desktop have finished what they do, as the kernel reports.

A screen is read when no process runs, none waits for a processor, and none sleeps with an alarm set
for soon. That is a fact about the programs, not a guess from the clock: data that one of them sends
wakes the receiver at once, and a timer of a toolkit is the time limit of the call it sleeps in.
"""

from __future__ import annotations

import platform
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SOON_S = 0.7
"""An alarm this near is waited for: menus, hints and buttons that pop up again are nearer."""
_LEAST_SHARE = 0.05
"""Of the true time that passes for a desktop that gets no processor, so that all waits end."""
_NOT_WATCHED = "sh"
_SERVER = "Xvfb"
"""Sleeps only for keys that are held down, which none is once we look."""
_SLEEPS = {
    "x86_64": {7: (2, "ms"), 23: (4, "us"), 35: (0, "ns"), 230: (2, "till"), 232: (3, "ms"),
               270: (4, "ns"), 271: (2, "ns"), 281: (3, "ms")},
    "aarch64": {22: (3, "ms"), 72: (4, "ns"), 73: (2, "ns"), 101: (0, "ns"), 115: (2, "till")},
}.get(platform.machine(), {})  # fmt: skip
"""System calls that sleep until something comes or a time is over: which argument says how long, in
milliseconds or as the address of seconds and a rest; "till" may be a time of the clock."""
_PARTS = {"us": 1e-6, "ns": 1e-9, "till": 1e-9}


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """What all programs together did so far, and do now."""

    turns: int
    """Times that one of them got a processor."""
    waited_s: float
    """Time that they waited for one although they could run."""
    is_busy: bool
    """One runs, waits for a processor, or for a disk."""
    has_alarm: bool
    """One sleeps, but not for long."""


class Activities:
    """The programs of one desktop, and a clock that is fair to them.

    Args:
        proc: ``/proc`` of the desktop.
    """

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._names: dict[str, str] = {}
        self._time = 0.0
        self._looked_at = time.monotonic()
        self._waited_s = self.look().waited_s

    def look(self) -> Activity:
        """Return what programs do at this moment.

        Raises:
            OSError: The desktop is gone.
        """
        turns, waited_ns, is_busy, has_alarm = 0, 0, False, False
        for pid in [path.name for path in self._proc.iterdir() if path.name.isdigit()]:
            with suppress(OSError):  # it ended while we looked
                if pid not in self._names:
                    self._names[pid] = (self._proc / pid / "comm").read_text().strip()
                if self._names[pid] == _NOT_WATCHED:
                    continue
                for thread in (self._proc / pid / "task").iterdir():
                    ran = (thread / "schedstat").read_text().split()
                    turns, waited_ns = turns + int(ran[2]), waited_ns + int(ran[1])
                    state = (thread / "stat").read_text().rsplit(")", 1)[1].split()[0]
                    is_busy |= state in "RD"
                    if state == "S" and self._names[pid] != _SERVER:
                        has_alarm |= sleeps_s(thread) <= SOON_S
        return Activity(turns=turns, waited_s=waited_ns / 1e9, is_busy=is_busy, has_alarm=has_alarm)

    def now(self) -> float:
        """Return seconds that passed for the programs: those without a processor hardly count.

        So what hangs differs from what is slow, on a machine that has other things to do, too.

        Raises:
            OSError: The desktop is gone.
        """
        looked_at, waited_s = time.monotonic(), self.look().waited_s
        passed, waited = looked_at - self._looked_at, max(0.0, waited_s - self._waited_s)
        self._looked_at, self._waited_s = looked_at, waited_s
        self._time += max(passed - waited, passed * _LEAST_SHARE)
        return self._time


def sleeps_s(thread: Path) -> float:
    """Return how long a thread, a folder of /proc, sleeps unless it is woken; inf when for ever.

    Where the kernel does not say what it waits in, that is inf, too.
    """
    with suppress(OSError, ValueError, LookupError):
        call, *arguments = (thread / "syscall").read_text().split()
        place, unit = _SLEEPS[int(call)]
        value = int(arguments[place], 16)
        if unit == "ms":
            signed = (value & 0xFFFFFFFF) - ((value & 0x80000000) << 1)
            return signed / 1e3 if signed >= 0 else float("inf")
        if value:
            found = _read_time(thread / "mem", value, _PARTS[unit])
            is_moment = unit == "till" and int(arguments[1], 16) & 1
            return found - time.clock_gettime(int(arguments[0], 16)) if is_moment else found
    return float("inf")


def _read_time(memory: Path, address: int, part: float) -> float:
    """Return the time of two words at ``address``: seconds, and a rest in units of ``part``."""
    with memory.open("rb", buffering=0) as file:
        file.seek(address)
        words = file.read(16)
    seconds, rest = (int.from_bytes(words[at : at + 8], "little") for at in (0, 8))
    return seconds + rest * part
