"""An event loop whose clock jumps: nothing is waited for, and every run takes the same course."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_THREADS_S = 5.0
"""Real seconds that a thread gets to answer before the loop is called stuck."""


class _JumpingSelector(selectors.SelectSelector):
    """Turns waiting for a time into setting the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is there to be read; if nothing is, let ``timeout`` pass at once."""
        if timeout is not None and timeout <= 0:
            return super().select(0)
        ready = super().select(0 if timeout is not None else _THREADS_S)
        if ready:
            return ready
        if timeout is None:
            raise RuntimeError("virtual clock: every task waits, and nothing is going to happen")
        self.now += timeout
        return []


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """Runs tasks in virtual time, which passes only when all of them wait.

    ``asyncio.sleep`` and timeouts work as ever and take no real time. Two runs of the same
    coroutine take the same course as long as it uses no thread and no real clock.
    """

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Return the virtual time in seconds, from 0."""
        return self._jumping.now


def run_virtually(work: Coroutine[Any, Any, T]) -> T:
    """Return what ``work`` returns, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        return runner.run(work)
