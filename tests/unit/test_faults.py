"""Who asked for an exit or a cancellation, and what is said of an error of foreign code."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

import gymnasium
import pytest

import turngym
from turngym.environments.gym.process import open_reply, pack_error
from turngym.errors import ConfigError, EnvironmentFault
from turngym.faults import Boundary, ExitBoundary, Tolerated, describe, message_of, place_of


def boundary() -> Boundary:
    return Boundary("step", EnvironmentFault, ConfigError)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)  # a signal is handled between two instructions


@contextmanager
def handled(handler: Any) -> Iterator[None]:
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def second_time(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("handler", [signal.default_int_handler, second_time])
@pytest.mark.parametrize("kind", [boundary, partial(Tolerated, "closing")])
def test_the_users_own_interrupt_passes(handler: Any, kind: Callable[[], Any]) -> None:
    with handled(handler), pytest.raises(KeyboardInterrupt), kind():
        interrupt()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration])
def test_an_exit_that_foreign_code_raises_is_a_fault(error: type[BaseException]) -> None:
    said = rf"^step: {error.__name__} \(test_faults\.py:\d+"
    with pytest.raises(EnvironmentFault, match=said), boundary():
        raise error
    with pytest.raises(EnvironmentFault, match=r"^call: "), ExitBoundary("call", EnvironmentFault):
        raise error
    with Tolerated("closing") as closing:
        raise error
    assert type(closing.error) is error


def test_an_exit_in_another_thread_is_never_the_users() -> None:
    found: list[EnvironmentFault] = []

    def work() -> None:
        try:
            with boundary():
                sys.exit(1)
        except EnvironmentFault as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(found) == 1


async def test_a_cancellation_passes_only_when_the_task_was_cancelled() -> None:
    async def wait() -> None:
        with boundary():
            await asyncio.sleep(1e6)

    async def leak() -> None:
        with boundary():
            raise asyncio.CancelledError

    asked = asyncio.create_task(wait())
    await asyncio.sleep(0)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    with pytest.raises(EnvironmentFault, match="step: CancelledError"):
        await leak()


async def test_a_coroutine_that_is_closed_ends_without_a_fault() -> None:
    async def wait() -> None:
        with boundary():
            await asyncio.sleep(1e6)

    work = wait()
    work.send(None)
    work.close()  # raises RuntimeError if GeneratorExit became another error


def test_errors_name_their_place_and_can_be_written() -> None:
    def boom() -> None:
        raise ValueError("boom\nand more")

    with pytest.raises(ValueError, match="boom") as caught:
        boom()
    line = boom.__code__.co_firstlineno + 1
    assert describe(caught.value) == f"ValueError: boom (test_faults.py:{line} in boom)\nand more"
    assert message_of(ValueError("\ud800\0")) == "\\ud800\\x00"
    assert len(message_of(ValueError("x" * 10**6))) < 20_000
    group = ExceptionGroup("some", [caught.value])
    assert describe(group).startswith("ExceptionGroup: some (1 sub-exception): ValueError: boom (")


def test_the_place_is_the_users_and_not_the_librarys() -> None:
    def act() -> object:
        return pickle.loads(b"nonsense" * 3)

    with pytest.raises(pickle.UnpicklingError) as caught:
        act()
    line = act.__code__.co_firstlineno + 1
    assert place_of(caught.value) == f"test_faults.py:{line} in act"


def test_a_package_that_only_passes_an_error_of_ours_on_is_no_place_of_it() -> None:
    env = gymnasium.Wrapper[Any, Any, Any, Any](turngym.make("text/maze"))
    with ThreadPoolExecutor(1) as thread:  # or this test is the place
        error = thread.submit(env.reset, options={"task": "none"}).exception()
    assert error is not None
    assert place_of(error) is None


def test_the_place_survives_the_way_to_another_process() -> None:
    def act() -> None:
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom") as caught:
        act()
    reply = pack_error("step", caught.value)
    with pytest.raises(ValueError, match="boom") as again:
        open_reply("step", reply)
    assert describe(again.value).endswith(
        f"(test_faults.py:{act.__code__.co_firstlineno + 1} in act)"
    )
