"""A sandbox as seen through its guest; what all back ends share.

A back end subclasses `GuestSandbox` and adds what only it can know: how files are committed, how
everything is frozen, and how all of it is removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self, Unpack

from turngym.errors import SandboxClosed, SandboxDied, SandboxFault, SnapshotError
from turngym.sandbox import trees
from turngym.sandbox.backends.channel import Channel, GuestError, RequestLock, to_int
from turngym.sandbox.base import (
    MAX_ARGUMENT_BYTES,
    Change,
    Enforcement,
    Isolation,
    LayerRef,
    SandboxSpec,
    Stats,
    TreeReport,
)
from turngym.sandbox.guest import wire
from turngym.sandbox.processes import (
    ExecResult,
    Process,
    Pty,
    RunOptions,
    Session,
    Stream,
    read_exit,
)

STOP_GRACE_S = 10.0
"""After a time-out the guest has this long to end the command before the sandbox counts as dead."""
_INLINE_SCRIPT_BYTES = 100_000
"""A longer script does not fit into an argument and goes through a file."""

DEFAULT_ENV = {
    "HOME": "/home/agent",
    "LANG": "C.UTF-8",
    "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
    "TERM": "dumb",
    "USER": "agent",
}


class GuestSandbox(ABC):
    """One running sandbox. Made by a back end, never directly.

    ``workspace`` is where commands start. `close` removes every trace; ``async with`` does so too.
    """

    isolation: Isolation

    def __init__(
        self,
        channel: Channel,
        spec: SandboxSpec,
        *,
        id: str = "",
        workspace: str = "/workspace",
        enforced: Mapping[str, Enforcement],
    ) -> None:
        self.id = id or uuid.uuid4().hex[:12]
        self.spec = spec
        self.workspace = workspace
        self.enforced = dict(enforced)
        self._channel = channel
        self._lock = RequestLock()
        self._is_closed = False
        self._closing: asyncio.Task[None] | None = None
        self._base_env = {**DEFAULT_ENV, **spec.env}
        self._is_paused = False
        self.when_closed: list[Callable[[], None]] = []
        """Called once when the last trace is gone."""
        self._expiry: asyncio.TimerHandle | None = None
        if spec.limits.lifetime_s is not None:
            loop = asyncio.get_running_loop()
            self._expiry = loop.call_later(spec.limits.lifetime_s, self._expire)

    def _expire(self) -> None:
        error = SandboxDied(
            f"sandbox {self.id} died: its {self.spec.limits.lifetime_s:g} s are over"
        )
        self._channel.kill(error)
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    # Commands

    async def exec(
        self,
        command: Sequence[str] | str,
        *,
        timeout_s: float,
        cwd: str | None = None,
        stdin: bytes | None = None,
        **options: Unpack[RunOptions],
    ) -> ExecResult:
        script = b""
        if isinstance(command, str) and len(_encode(command)) > _INLINE_SCRIPT_BYTES:
            script, command = _encode(command), ("bash", "/dev/fd/8")
        flags = "m" if script else ""
        fields = self._start_request(
            command, cwd=cwd, stdin=stdin or b"", flags=flags, state=script, **options
        )
        result, _ = await self._run(fields, timeout_s)
        return result

    async def run_with_state(
        self,
        wrapper: str,
        script: str,
        state: bytes,
        *,
        timeout_s: float,
        **options: Unpack[RunOptions],
    ) -> tuple[ExecResult, bytes]:
        """Run ``wrapper``, which restores ``state``, runs ``script`` and writes the new state.

        Returns:
            Its result and the state after it, b"" for none. Other arguments as `Sandbox.exec`.
        """
        # Each as one quoted word, so that a state that is broken does not break the script.
        source = b"set -- " + _quoted(_encode(script)) + b"\neval " + _quoted(state) + b"\n"
        command = ["bash", "--norc", "--noprofile", "-c", wrapper, "bash"]
        fields = self._start_request(command, flags="m", state=source, **options)
        return await self._run(fields, timeout_s)

    async def _run(self, fields: list[bytes], timeout_s: float) -> tuple[ExecResult, bytes]:
        if timeout_s <= 0:
            raise ValueError(f"exec: wanted a timeout_s of more than 0, got {timeout_s}")
        before = self._oom_kills()
        number, future = await self._send("start", *fields)
        timed_out = False
        try:
            # `wait`, not `wait_for`: a late command is stopped and still has a result.
            done, _ = await asyncio.wait([future], timeout=timeout_s)
            if not done:
                timed_out = True
                await self._stop(number, future)
        except asyncio.CancelledError:
            # The caller is gone: end the command, and do not let that be cancelled too.
            await asyncio.shield(asyncio.ensure_future(self._stop(number, future)))
            raise
        answer = future.result()
        result = _read_result(answer, int(fields[4]), timed_out=timed_out)
        if self._oom_kills() > before:
            result = replace(result, oom_killed=True)
        return result, answer[9]

    async def _stop(self, number: bytes, future: asyncio.Future[list[bytes]]) -> None:
        if self._is_paused:
            await self.resume()
        try:
            _, stopping = await self._channel.send("stop", number)
            await asyncio.wait([future, stopping], timeout=STOP_GRACE_S)
            done, _ = await asyncio.wait([future], timeout=STOP_GRACE_S)
        except (SandboxClosed, SandboxFault):
            return  # the future holds the same error
        if not done:
            self._channel.kill(
                SandboxDied(f"sandbox {self.id} died: it could not end a command in time")
            )

    def _start_request(
        self,
        command: Sequence[str] | str,
        *,
        cwd: str | None = None,
        stdin: bytes = b"",
        flags: str = "",
        state: bytes = b"",
        rows: int = 24,
        cols: int = 80,
        **options: Unpack[RunOptions],
    ) -> list[bytes]:
        """Return the fields of a start request.

        Raises:
            ValueError: An argument is empty, holds a NUL, or all of them are too long.
        """
        argv = ["bash", "-c", command] if isinstance(command, str) else list(command)
        if not argv or not argv[0]:
            raise ValueError("exec: the command is empty")
        variables = {**self._base_env, **(options.get("env") or {})}
        pairs = [text for name, value in variables.items() for text in (name, value)]
        encoded = [_encode(text) for text in [*argv, *pairs, cwd or ""]]
        size = sum(map(len, encoded)) + len(stdin) + len(state)
        if size > MAX_ARGUMENT_BYTES:
            raise ValueError(
                f"exec: {size} bytes of arguments, input and environment, allowed are "
                f"{MAX_ARGUMENT_BYTES}; write them to a file with write_file"
            )
        max_output = options.get("max_output", 1 << 20)
        if not 0 <= max_output <= wire.MAX_FRAME_BYTES // 4:
            raise ValueError(
                f"exec: wanted a max_output of 0 to {wire.MAX_FRAME_BYTES // 4}, got {max_output}"
            )
        return [
            wire.dump(encoded[: len(argv)]),
            wire.dump(encoded[len(argv) : -1]),
            self._path(cwd or "."),
            stdin,
            wire.number(max_output),
            flags.encode() + b"b" * options.get("keep_background", False),
            wire.number((options.get("idle_timeout_s") or 0) * 1000),
            state,
            wire.number(rows),
            wire.number(cols),
        ]

    async def spawn(
        self,
        command: Sequence[str] | str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Process:
        """See `Sandbox.spawn`.

        Raises:
            SandboxFileError: The program cannot be started.
        """
        fields = self._start_request(command, cwd=cwd, env=env, flags="s")
        return Process(self._channel, *await self._start_process(fields))

    async def open_pty(
        self,
        command: Sequence[str] | str = ("bash",),
        *,
        rows: int = 24,
        cols: int = 80,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Pty:
        """See `Sandbox.open_pty`.

        Raises:
            SandboxFileError: The program cannot be started.
        """
        variables = {"TERM": "xterm-256color", **(env or {})}
        fields = self._start_request(
            command, cwd=cwd, env=variables, flags="st", rows=rows, cols=cols
        )
        return Pty(self._channel, *await self._start_process(fields))

    async def _start_process(self, fields: list[bytes]) -> tuple[bytes, int]:
        number, future = await self._send("start", *fields)
        [pid, *_] = await future
        return number, to_int(pid)

    def session(self) -> Session:
        return Session(self.run_with_state)

    async def dial(self, port: int) -> Stream:
        """See `Sandbox.dial`.

        Raises:
            SandboxFileError: No process listens there.
        """
        if not 0 < port < 65536:
            raise ValueError(f"dial: wanted a port of 1 to 65535, got {port}")
        number, future = await self._send("dial", wire.number(port))
        try:
            await future
        except asyncio.CancelledError:
            # The caller is gone: the guest shall not wait either.
            await asyncio.shield(asyncio.ensure_future(Stream(self._channel, number).close()))
            raise
        return Stream(self._channel, number)

    # Files

    def _path(self, path: str) -> bytes:
        if not path:
            raise ValueError("the path is empty")
        return os.path.join(_encode(self.workspace), _encode(path))

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        async with self._using():
            with _named(path):
                await trees.write_file(self._channel, self._path(path), data, mode)

    async def read_file(self, path: str, *, max_bytes: int) -> bytes:
        """See `Sandbox.read_file`.

        Raises:
            SandboxFileError: It cannot be read; the message names it.
        """
        async with self._using():
            with _named(path):
                return (await trees.read_file(self._channel, self._path(path), max_bytes))[0]

    async def put_tree(self, source: Path, target: str) -> None:
        async with self._using():
            await trees.put_tree(self._channel, source, self._path(target))

    async def get_tree(
        self, source: str, target: Path, *, max_bytes: int, max_files: int
    ) -> TreeReport:
        async with self._using():
            return await trees.get_tree(
                self._channel, self._path(source), target, max_bytes=max_bytes, max_files=max_files
            )

    # What a back end adds

    async def _send(self, method: str, *fields: bytes) -> tuple[bytes, asyncio.Future[list[bytes]]]:
        async with self._using():
            return await self._channel.send(method, *fields)

    @contextlib.asynccontextmanager
    async def _using(self) -> AsyncIterator[None]:
        """Hold the sandbox as it is for the length of a request; a back end may have to wait."""
        async with self._lock.shared():
            await self._settled()
            yield

    async def _settled(self) -> None:
        """Wait until the sandbox can take requests; a back end may have to start it again first.

        Raises:
            SandboxClosed: It was closed.
        """
        if self._is_closed:
            raise SandboxClosed(f"sandbox {self.id} is closed")

    def _oom_kills(self) -> int:
        """Return how many processes the kernel has killed for want of memory."""
        return 0

    @abstractmethod
    async def diff(self) -> list[Change]: ...

    @abstractmethod
    async def snapshot(self) -> LayerRef: ...

    async def fork(self, n: int) -> list[GuestSandbox | Exception]:
        """See `Sandbox.fork`.

        Raises:
            ValueError: ``n`` is less than 1.
        """
        if n < 1:
            raise ValueError(f"fork: wanted at least 1, got {n}")
        return await self._fork(n)

    @abstractmethod
    async def _fork(self, n: int) -> list[GuestSandbox | Exception]: ...

    async def pause(self) -> None:
        async with self._using():
            await self._freeze(True)
            self._is_paused = True

    async def resume(self) -> None:
        async with self._using():
            await self._freeze(False)
            self._is_paused = False

    async def _freeze(self, frozen: bool) -> None:
        await self._channel.call("freeze", wire.number(19 if frozen else 18))

    async def stats(self) -> Stats:
        async with self._using():
            found, (disk, inodes) = await asyncio.gather(
                self._channel.call("stats"), self._disk_use()
            )
        processes, memory, _ = found[:3]
        return Stats(
            processes=to_int(processes), memory_bytes=to_int(memory), disk_bytes=disk, inodes=inodes
        )

    async def _disk_use(self) -> tuple[int | None, int | None]:
        return None, None

    async def close(self) -> None:
        self._is_closed = True
        if self._expiry is not None:
            self._expiry.cancel()
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        # The removal goes on when the caller is cancelled.
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            await self._channel.close()
            await self._release()
        finally:
            for act in self.when_closed:
                act()

    @abstractmethod
    async def _release(self) -> None:
        """Remove every trace. Called once."""


def settled(outcomes: Sequence[GuestSandbox | BaseException]) -> list[GuestSandbox | Exception]:
    """Return what became of each fork; an interruption of the whole is raised.

    Raises:
        CancelledError: One was interrupted.
    """
    forks: list[GuestSandbox | Exception] = []
    for outcome in outcomes:
        if not isinstance(outcome, GuestSandbox | Exception):
            raise outcome
        forks.append(outcome)
    return forks


def layer_of(spec: SandboxSpec, known: Container[str]) -> str:
    """Return the id, one of ``known``, of the layer that a sandbox starts from; "" for none.

    Raises:
        SnapshotError: Its back end does not have it any more.
    """
    if spec.workspace is not None and spec.workspace.id not in known:
        raise SnapshotError(f"layer {spec.workspace.id!r} of {spec.workspace.backend!r} is gone")
    return spec.workspace.id if spec.workspace else ""


def _encode(text: str) -> bytes:
    if "\0" in text:
        raise ValueError(f"arguments and paths cannot hold a NUL: {text[:80]!r}")
    return text.encode("utf-8", "surrogateescape")


def _quoted(text: bytes) -> bytes:
    return b"'" + text.replace(b"'", b"'\\''") + b"'"


def _read_result(answer: list[bytes], max_output: int, *, timed_out: bool) -> ExecResult:
    if len(answer) != 10:
        raise SandboxDied(f"the guest broke the protocol: a result of {len(answer)} fields")
    how, number, stdout, stdout_total, stderr, stderr_total, why, leftovers, micros, _ = answer
    end = read_exit(how, number)
    return ExecResult(
        exit_code=end.exit_code,
        signal=end.signal,
        stdout=stdout[:max_output],
        stderr=stderr[:max_output],
        stdout_total=to_int(stdout_total),
        stderr_total=to_int(stderr_total),
        timed_out=timed_out,
        idle_timed_out=why == b"idle",
        oom_killed=why == b"memory",
        killed_leftovers=to_int(leftovers),
        duration_s=to_int(micros) / 1e6,
    )


@contextlib.contextmanager
def _named(path: str) -> Iterator[None]:
    """Name the file that an error of the guest is about."""
    try:
        yield
    except GuestError as error:
        raise GuestError(error.errno, f"{error.strerror}: {path!r}") from None
