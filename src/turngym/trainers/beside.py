"""Work in a thread beside the event loop, and to its end when the task is cancelled meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")
Work = Callable[[], Coroutine[Any, Any, T]]

_home: ContextVar[asyncio.AbstractEventLoop | None] = ContextVar("home", default=None)


async def beside(work: Work[T]) -> T:
    """Run a coroutine in a thread, in an event loop of its own, while this one goes on."""
    home = asyncio.get_running_loop()

    def there() -> T:
        _home.set(home)
        return asyncio.run(work())

    return await asyncio.to_thread(there)


async def at_home(work: Coroutine[Any, Any, T]) -> T:
    """Await ``work`` in the event loop that called ``beside``; right here if none did.

    For what belongs to that loop and may not be used by another thread, as the engine is.
    """
    home = _home.get()
    if home is None:
        return await work
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, home))


class Uncut:
    """Awaits work to its end; a cancellation of the task waits until ``check``."""

    def __init__(self) -> None:
        self._is_cancelled = False

    async def __call__(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what ``work`` returns."""
        task = asyncio.ensure_future(work)
        while not task.done():
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError:
                self._is_cancelled = True
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([task])
        return task.result()

    def check(self) -> None:
        """Raise the cancellation that came meanwhile.

        Raises:
            CancelledError: There was one.
        """
        if self._is_cancelled:
            raise asyncio.CancelledError
