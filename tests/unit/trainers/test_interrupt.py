"""The first signal cancels at the next wait, the second at once, and handlers come back."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from turngym.coroutines import cancelled_by_signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_cancels_at_the_next_wait_and_not_before(number: signal.Signals) -> None:
    reached: list[str] = []

    async def work() -> None:
        with cancelled_by_signals():
            os.kill(os.getpid(), number)
            reached.append("before the wait")
            await asyncio.sleep(30)
            reached.append("after the wait")

    before = signal.getsignal(number)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(work())
    assert reached == ["before the wait"]
    assert signal.getsignal(number) == before


def test_a_second_signal_stops_on_the_spot() -> None:
    async def work() -> None:
        with cancelled_by_signals():
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(work())


def test_outside_of_the_main_thread_nothing_is_touched() -> None:
    async def work() -> str:
        with cancelled_by_signals():
            await asyncio.sleep(0)
            return "done"

    before = signal.getsignal(signal.SIGINT)

    async def elsewhere() -> str:
        return await asyncio.to_thread(lambda: asyncio.run(work()))

    assert asyncio.run(elsewhere()) == "done"
    assert signal.getsignal(signal.SIGINT) == before
