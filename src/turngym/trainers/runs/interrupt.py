"""Stopping on request: the first signal ends the run in order, the second at once."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def cancelled_by_signals() -> Iterator[None]:
    """Cancel the running task when the process is asked to stop.

    Inside the block SIGINT and SIGTERM cancel the task that entered it, wherever it next waits;
    code between two waits is never cut in half. A second signal raises ``KeyboardInterrupt`` on the
    spot. Outside of the main thread, where Python allows no handlers, the block does nothing.
    """
    task = asyncio.current_task()
    if task is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    asked = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        loop.call_soon_threadsafe(task.cancel)

    before = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
