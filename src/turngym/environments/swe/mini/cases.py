"""Calls submitted functions in a sandbox, and says what each call gave.

One sandbox and one supervisor in it serve the whole process; each submission gets a process of its
own there (``guest.py``). Where the supervisor is ended or answers nonsense, the submission gave
nothing, and the next one finds a new sandbox.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from turngym.environments.core.loop_thread import LoopThread
from turngym.environments.swe.mini.problems import Call
from turngym.environments.workspace.host import SandboxHost
from turngym.errors import EnvironmentFault, TurnGymError
from turngym.sandbox.backends.guest_sandbox import GuestSandbox
from turngym.sandbox.base import Limits
from turngym.sandbox.processes import Process
from turngym.shared_resource import SharedResource

LIMITS = Limits(
    memory_bytes=256 << 20, pids=32, cpus=1.0, disk_bytes=1 << 20, inodes=64, enforce="best_effort",
)  # fmt: skip
SECONDS = 2.0
"""Longest run of one submission, all calls together."""
_ANSWER_S = 30.0
"""Longest wait for the supervisor, which itself ends a submission after ``SECONDS``."""
_MAX_ANSWER = 1 << 17

Value = int | str | None
"""What a call gave: a number, what else it was or the exception it raised, or nothing at all."""
T = TypeVar("T")


class CaseRunner(SharedResource):
    """The one supervisor of this process; ``lease`` gives it, ``release`` gives it back.

    It has a thread with an event loop, so that environments may ask from wherever they run.
    """

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._thread: LoopThread | None = None
        self._host: SandboxHost | None = None
        self._sandbox: GuestSandbox | None = None
        self._process: Process | None = None
        self._known = lru_cache(maxsize=4096)(self._ask)

    def release(self) -> None:
        """Give a lease back; the last one ends sandbox and thread."""
        if not self._end_lease():
            return
        with self._turn:
            if self._thread is not None:
                self._wait(self._stop())
                self._thread.stop()
                self._thread = None

    def call(self, files: Mapping[str, str], calls: Sequence[Call]) -> tuple[Value, ...]:
        """Return what each call gives in a project of ``files``.

        The same files and calls are run once: attempts at one task often submit the same thing.

        Raises:
            EnvironmentFault: No sandbox can be started.
        """
        with self._turn:
            return self._known(tuple(files.items()), tuple(calls))

    def _ask(
        self, files: tuple[tuple[str, str], ...], calls: tuple[Call, ...]
    ) -> tuple[Value, ...]:
        order = {
            "files": files,
            "calls": [[call.function, call.arguments] for call in calls],
            "seconds": SECONDS,
        }
        return self._wait(self._order(json.dumps(order).encode() + b"\n", len(calls)))

    async def _order(self, order: bytes, count: int) -> tuple[Value, ...]:
        if self._process is None:
            await self._start()
        process, answer = self._process, b""
        assert process is not None
        with suppress(TurnGymError, TimeoutError, ValueError):
            async with asyncio.timeout(_ANSWER_S):
                await process.write(order)
                while not answer.endswith(b"\n") and len(answer) < _MAX_ANSWER:
                    chunk = await process.read()
                    if not chunk:
                        break
                    answer += chunk
            values = json.loads(answer)
            if isinstance(values, list) and len(values) == count:
                return tuple(map(_value, values))
        await self._stop()  # the submission ended it
        return (None,) * count

    async def _start(self) -> None:
        self._host = SandboxHost.lease("bubblewrap")
        try:
            self._sandbox = await self._host.start(None, limits=LIMITS)
            source = Path(__file__).with_name("guest.py").read_text(encoding="utf-8")
            self._process = await self._sandbox.spawn(
                ["/usr/bin/python3", "-I", "-S", "-B", "-c", source]
            )
        except TurnGymError as error:
            await self._stop()
            raise EnvironmentFault(f"swe/bugs-mini: no sandbox to judge in: {error}") from error

    async def _stop(self) -> None:
        host, sandbox = self._host, self._sandbox
        self._host = self._sandbox = self._process = None
        if sandbox is not None:
            await sandbox.close()
        if host is not None:
            await host.release()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` in the runner's own event loop."""
        if self._thread is None:
            self._thread = LoopThread("turngym-cases")
        return self._thread.start(work).result()


def _value(found: object) -> Value:
    return found if isinstance(found, int | str) and not isinstance(found, bool) else None
