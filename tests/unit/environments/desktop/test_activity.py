"""What the kernel tells about programs: who runs, who sleeps and for how long."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from pathlib import Path

import pytest

from turngym.environments.desktop import activity
from turngym.environments.desktop.activity import Activities, sleeps_s

WAITS = {
    "import time; time.sleep(300)": 300.0,
    "import select; select.select([], [], [], 300)": 300.0,
    "import select; select.poll().poll(300_000)": 300.0,
    "import select; select.epoll().poll(300)": 300.0,
    "import select; select.poll().poll()": math.inf,
    "import signal; signal.pause()": math.inf,
}


@pytest.mark.parametrize("code", WAITS)
def test_a_sleeping_program_tells_how_long_it_sleeps(code):
    child = subprocess.Popen([sys.executable, "-c", f"print(1, flush=True); {code}"],
                             stdout=subprocess.PIPE)  # fmt: skip
    try:
        child.stdout.readline()
        thread = Path(f"/proc/{child.pid}/task/{child.pid}")
        deadline = time.monotonic() + 60
        while not 200 < (found := sleeps_s(thread)) <= WAITS[code] and time.monotonic() < deadline:
            time.sleep(0.01)  # it may not have come to its wait yet
        assert 200 < found <= WAITS[code]
        assert math.isinf(found) == math.isinf(WAITS[code])
    finally:
        child.kill()
        child.communicate()


def test_what_is_gone_or_keeps_silent_sleeps_for_ever(tmp_path):
    assert sleeps_s(tmp_path / "gone") == math.inf
    (tmp_path / "syscall").write_text("running\n")
    assert sleeps_s(tmp_path) == math.inf


class Proc:
    """A folder like /proc, with one program."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.thread = folder / "7" / "task" / "7"
        self.thread.mkdir(parents=True)
        self.call("program")

    def call(self, name="program", *, state="S", ran=(0, 0, 0), syscall="7 0x0 0x1 0xffffffff"):
        (self.folder / "7" / "comm").write_text(f"{name}\n")
        (self.thread / "schedstat").write_text(" ".join(map(str, ran)))
        (self.thread / "stat").write_text(f"7 (a) b) {state} 1 1\n")
        (self.thread / "syscall").write_text(f"{syscall} 0x0 0x0 0x0\n")


@pytest.fixture
def proc(tmp_path, monkeypatch):
    monkeypatch.setattr(activity, "_SLEEPS", {7: (2, "ms")})
    return Proc(tmp_path)


def test_programs_are_busy_or_have_an_alarm_or_are_at_rest(proc):
    found = Activities(proc.folder).look()
    assert (found.is_busy, found.has_alarm) == (False, False)
    proc.call(state="R", ran=(5, 2_000_000_000, 3))
    found = Activities(proc.folder).look()
    assert (found.turns, found.waited_s, found.is_busy) == (3, 2.0, True)
    proc.call(syscall="7 0x0 0x1 0x2bc")  # 700 ms
    assert Activities(proc.folder).look().has_alarm
    proc.call(syscall="7 0x0 0x1 0x2bd")
    assert not Activities(proc.folder).look().has_alarm
    proc.call("Xvfb", syscall="7 0x0 0x1 0x10")
    assert not Activities(proc.folder).look().has_alarm
    proc.call("sh", state="R", ran=(1, 1, 1))
    assert Activities(proc.folder).look().turns == 0


def test_the_clock_hardly_goes_while_programs_wait_for_a_processor(proc, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(activity.time, "monotonic", lambda: clock[0])
    found = Activities(proc.folder)
    clock[0] += 1.0
    assert found.now() == pytest.approx(1.0)
    clock[0] += 2.0
    proc.call(ran=(0, 1_500_000_000, 1))
    assert found.now() == pytest.approx(1.5)
    clock[0] += 10.0
    proc.call(ran=(0, 99_000_000_000, 1))  # many threads waited together
    assert found.now() == pytest.approx(2.0)
    clock[0] += 1.0
    assert found.now() == pytest.approx(3.0)
