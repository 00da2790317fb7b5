"""What a command did, and what goes on meanwhile: processes, terminals, ports, sessions."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Self, TypedDict, Unpack

from turngym.errors import SandboxClosed, SandboxFault, SandboxFileError
from turngym.sandbox.backends.channel import Channel, to_int
from turngym.sandbox.guest import wire

CHUNK = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a process ended; exactly one of the two is set."""

    exit_code: int | None
    signal: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """What one command did. A failing, slow or greedy command is a result, not an exception."""

    exit_code: int | None
    """None exactly when a signal ended it. 127: no such program; 126: it cannot be executed."""
    signal: int | None
    stdout: bytes
    """The first and last bytes, at most ``max_output`` in all."""
    stderr: bytes
    stdout_total: int
    """Bytes that were written, kept or not."""
    stderr_total: int
    timed_out: bool
    idle_timed_out: bool
    oom_killed: bool
    """The memory limit killed a process during this command."""
    killed_leftovers: int
    """Processes that the command left behind and that were ended with it."""
    duration_s: float

    @property
    def truncated(self) -> bool:
        """True when not all output was kept."""
        return self.stdout_total > len(self.stdout) or self.stderr_total > len(self.stderr)

    @property
    def ok(self) -> bool:
        """True for exit code 0 in time."""
        return self.exit_code == 0 and not (self.timed_out or self.idle_timed_out)


class RunOptions(TypedDict, total=False):
    """What any command that is run to its end may be given besides."""

    env: Mapping[str, str] | None
    """Variables in addition to the sandbox's."""
    idle_timeout_s: float | None
    """Seconds without output after which it is killed; no limit by default."""
    max_output: int
    """Bytes kept of each stream, 1 MiB by default."""
    keep_background: bool
    """Leave what it started running, instead of killing it at the end."""


def read_exit(how: bytes, number: bytes) -> Exit:
    """Return what the fields ``how`` and ``number`` of an answer say about an end."""
    value = to_int(number, 1 << 16)
    return Exit(
        exit_code=None if how == b"signal" else value, signal=value if how == b"signal" else None
    )


class Stream:
    """A connection to a port of a sandbox. Bytes go through the guest; no network is involved."""

    def __init__(self, channel: Channel, job: bytes) -> None:
        self._channel = channel
        self._job = job
        self._is_closed = False

    async def read(self, size: int = CHUNK) -> bytes:
        """Return the next bytes, at most ``size``; empty at the end."""
        return await self._read(1, size)

    async def _read(self, stream: int, size: int) -> bytes:
        if size < 1:
            raise ValueError(f"read: wanted a size of at least 1, got {size}")
        [data] = await self._channel.call("read", self._job, wire.number(stream), wire.number(size))
        return data[:size]

    async def write(self, data: bytes) -> None:
        """Send ``data``, waiting while it is not read.

        Raises:
            SandboxFileError: The other side is closed.
        """
        for start in range(0, len(data), CHUNK):
            await self._channel.call("write", self._job, data[start : start + CHUNK])

    async def write_eof(self) -> None:
        """Say that nothing more comes."""
        await self._channel.call("eof", self._job)

    async def close(self) -> None:
        """Let go. Harmless twice, and after the sandbox is gone."""
        if self._is_closed:
            return
        self._is_closed = True
        with contextlib.suppress(SandboxClosed, SandboxFault, SandboxFileError):
            await self._channel.call("drop", self._job)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


class Process(Stream):
    """A command in the background. ``read`` is its standard output."""

    def __init__(self, channel: Channel, job: bytes, pid: int) -> None:
        super().__init__(channel, job)
        self.pid = pid
        """Its number inside the sandbox."""

    async def read_stderr(self, size: int = CHUNK) -> bytes:
        """Return the next bytes of standard error, empty at the end."""
        return await self._read(2, size)

    async def signal(self, number: int = signal.SIGTERM) -> None:
        """Send a signal to the process and those of its group.

        Raises:
            SandboxFileError: It has ended.
        """
        await self._channel.call("signal", self._job, wire.number(number))

    async def wait(self, timeout_s: float | None = None) -> Exit:
        """Wait for the end. What the process started is ended with it.

        Raises:
            TimeoutError: It goes on after ``timeout_s`` seconds, and is left alone.
        """
        async with asyncio.timeout(timeout_s):
            how, number = (await self._channel.call("wait", self._job))[:2]
        return read_exit(how, number)

    async def kill(self) -> Exit:
        """End the process and all it started, and say how it ended."""
        with contextlib.suppress(SandboxFileError):
            await self._channel.call("stop", self._job)
        return await self.wait()


class Pty(Process):
    """A command on a terminal. ``read`` is what it shows, ``write`` is what is typed."""

    async def resize(self, rows: int, cols: int) -> None:
        """Tell the command that the terminal has so many ``rows`` and ``cols`` now."""
        await self._channel.call("resize", self._job, wire.number(rows), wire.number(cols))


_BEGIN, _END = "# state of the shell", "# complete"
_OWN_NAMES = (
    "builtin command declare alias eval exec exit export printf readonly return set shift shopt "
    "source trap unset . :"
)
_WRAPPER = rf"""
__turngym_plain() {{ unset -f {_OWN_NAMES}; }}
__turngym_keep() {{
  POSIXLY_CORRECT=1
  \__turngym_plain
  \unset -v POSIXLY_CORRECT
  \exec >&9
  \printf '\n{_BEGIN}\ncd -- %q\n' "$PWD"
  \declare -p; \declare -f; \alias
  \printf '{_END}\n'
}}
. /dev/fd/8 2>/dev/null
POSIXLY_CORRECT=1
\unset -f {_OWN_NAMES} 2>/dev/null
\unset -v POSIXLY_CORRECT
\exec 8<&-
\shopt -s expand_aliases
\trap '__turngym_keep 2>/dev/null' EXIT
\eval "\set --"$'\n'"$1"
"""
"""What a session runs in a fresh bash. In POSIX mode, for which an assignment is enough, nothing
is called in place of ``unset``, and then nothing in place of the rest. The script is an argument,
which no ``readonly`` reaches. A command with its own EXIT trap and an explicit exit keeps its state
to itself."""


class Session:
    """A shell that remembers, without a shell that could hang.

    Each command runs in a fresh bash that first restores the state the last one left: directory,
    variables, functions, aliases. So no input can get the session out of step: a command that
    waits for input gets end-of-file, an open quote is an error message, ``exec`` and ``exit`` end
    that one command. Functions named like commands that this needs itself (eval, unset, declare,
    ...) are not kept, and neither is a state of more than 8 MB.

    Belongs to one sandbox. One command at a time.
    """

    def __init__(self, run_with_state: Callable[..., Awaitable[tuple[ExecResult, bytes]]]) -> None:
        self._run = run_with_state
        self._state = b""

    async def run(
        self, script: str, *, timeout_s: float, **options: Unpack[RunOptions]
    ) -> ExecResult:
        """Run a script; ``timeout_s`` and ``options`` as in `Sandbox.exec`.

        A command that is killed leaves the state as it was before it.
        """
        result, state = await self._run(
            _WRAPPER, script, self._state, timeout_s=timeout_s, **options
        )
        self._state = _read_state(state) or self._state
        return result


def _read_state(state: bytes) -> bytes:
    """Return the state that the next shell can restore, b"" when the state did not come whole.

    Dropped are our own names and what bash does not let be set.
    """
    _, begin, state = state.partition(b"\n" + _BEGIN.encode() + b"\n")
    if not begin or not state.endswith(_END.encode() + b"\n"):
        return b""
    return b"\n".join(line for line in state.split(b"\n") if not _OURS.match(line))


_OURS = re.compile(
    rb"declare -[a-zA-Z]*r[a-zA-Z]* (BASH|POSIXLY_CORRECT|SHELLOPTS|EUID|PPID|UID|__turngym)"
    rb"|declare -- BASH|declare -[a-zA-Z-]+ POSIXLY_CORRECT"
)
