"""Coroutines: awaited, run at once without a loop, or sent to a loop in a thread of its own."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """An event loop to which every other thread may send coroutines.

    Runs from the start until ``stop``; what is left then is cancelled.

    Args:
        name: Of the thread, which is a daemon.
    """

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_run, args=(self.loop,), name=name, daemon=True)
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run ``work`` in the loop; the future may be waited for in any thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def stop(self) -> None:
        """Let the loop end. May be called from any thread, its own included."""
        self.loop.call_soon_threadsafe(self.loop.stop)

    def join(self, timeout_s: float) -> None:
        """Wait until the thread has ended, but no longer than ``timeout_s``."""
        self._thread.join(timeout_s)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


async def awaited(result: Any) -> Any:
    """Return ``result``, or what it is a coroutine of."""
    return await result if inspect.isawaitable(result) else result


def finished(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that has nothing to wait for, without an event loop.

    Raises:
        TypeError: It waits.
    """
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise TypeError("a TurnEnv has no coroutines; inherit from AsyncTurnEnv")


async def forked(n: int, clone: Callable[[], T], restore: Callable[[T], Any]) -> list[T]:
    """Return ``n`` clones, each restored; they are closed when one fails.

    Args:
        n: Number of clones.
        clone: Makes one.
        restore: Brings it to its state; may be a coroutine.
    """
    children: list[Any] = []
    try:
        for _ in range(n):
            children.append(clone())
            await awaited(restore(children[-1]))
    except BaseException:
        for child in children:
            await awaited(child.close())
        raise
    return children
