"""Environments are lent, timed, replaced when broken, and all closed in the end."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any, ClassVar

import pytest
from gymnasium.wrappers import TimeLimit

from helpers.envs import AsyncLadderEnv, LadderEnv, make_ladder
from turngym.coroutines import COMPUTING
from turngym.environments.core.env import Outcome
from turngym.environments.gym.face import as_gym
from turngym.errors import ConfigError, EnvironmentFault, UnknownNameError
from turngym.rollouts.scheduler.config import DeadlineConfig
from turngym.rollouts.scheduler.pool import EnvPool, Isolation, open_all
from turngym.tasks.base import Task
from turngym.tasks.problem import FileProblem, judge
from turngym.trainers.settings.train import RolloutConfig

HANG = "break hang"


async def test_an_environment_that_comes_back_is_lent_again() -> None:
    pool = EnvPool(LadderEnv, size=2)
    await pool.open()
    first = await pool.lease()
    await first.reset(seed=0)
    first.release()
    second = await pool.lease()
    second.release()
    await pool.close()
    assert pool.stats.made == 1
    assert pool.stats.leases == 2


async def test_a_broken_environment_is_replaced_and_closed() -> None:
    made: list[LadderEnv] = []

    def make() -> LadderEnv:
        made.append(LadderEnv())
        return made[-1]

    pool = EnvPool(make, size=1)
    lease = await pool.lease()
    lease.release(broken=True)
    lease.release(broken=True)  # safe to call twice
    (await pool.lease()).release()
    await pool.close()
    assert [env.closed for env in made] == [1, 1]
    assert pool.stats.replaced == 1


async def test_where_one_of_several_pools_cannot_open_the_others_are_closed() -> None:
    made: list[LadderEnv] = []

    def make() -> LadderEnv:
        made.append(LadderEnv())
        return made[-1]

    def broken() -> LadderEnv:
        raise ConfigError("no such difficulty")

    with pytest.raises(ConfigError, match="no such difficulty"):
        await open_all([EnvPool(make, size=1), EnvPool(broken, size=1)])
    assert [env.closed for env in made] == [1]


class Counted(AsyncLadderEnv):
    """Knows how many of its kind began an episode at one time."""

    running = most = 0

    async def begin(self, task: Task) -> Outcome:
        """Take a while."""
        Counted.running += 1
        Counted.most = max(Counted.most, Counted.running)
        await asyncio.sleep(0)
        Counted.running -= 1
        return await super().begin(task)


async def test_calls_that_wait_for_something_outside_take_turns() -> None:
    Counted.most = 0
    pool = EnvPool(Counted, size=6, calls=asyncio.Semaphore(2))
    leases = [await pool.lease() for _ in range(6)]
    await asyncio.gather(*(lease.reset(seed=0) for lease in leases))
    for lease in leases:
        lease.release()
    await pool.close()
    assert Counted.most == 2


class SlowToClose(LadderEnv):
    """Knows how many of its kind were closed at one time."""

    running = most = 0
    lock = threading.Lock()

    def close(self) -> None:
        """Take a while."""
        with self.lock:
            SlowToClose.running += 1
            SlowToClose.most = max(SlowToClose.most, SlowToClose.running)
        time.sleep(0.05)
        with self.lock:
            SlowToClose.running -= 1
        super().close()


async def test_ends_take_turns_as_calls_do() -> None:
    pool = EnvPool(SlowToClose, size=6, isolation="thread", calls=asyncio.Semaphore(2))
    for lease in [await pool.lease() for _ in range(6)]:
        await lease.reset(seed=0)
        lease.release()
    await pool.close()
    assert SlowToClose.most == 2


async def test_what_computes_in_the_event_loop_waits_for_no_turn() -> None:
    calls = asyncio.Semaphore(1)
    await calls.acquire()
    pool = EnvPool(LadderEnv, size=1, calls=calls)
    lease = await pool.lease()
    await lease.reset(seed=0)
    lease.release()
    await pool.close()


async def test_no_more_than_size_are_lent_and_waiting_is_in_order() -> None:
    pool = EnvPool(LadderEnv, size=1)
    order: list[int] = []
    lease = await pool.lease()

    async def use(number: int) -> None:
        mine = await pool.lease()
        order.append(number)
        mine.release()

    users = [asyncio.create_task(use(number)) for number in range(3)]
    await asyncio.sleep(0)
    assert order == []
    lease.release()
    await asyncio.gather(*users)
    assert order == [0, 1, 2]
    await pool.close()


async def test_who_asks_again_at_once_waits_behind_those_that_wait() -> None:
    pool = EnvPool(LadderEnv, size=1)
    first = await pool.lease()
    waiting = asyncio.create_task(pool.lease())
    await asyncio.sleep(0)
    first.release()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await pool.lease()
    (await waiting).release()
    await pool.close()


@pytest.mark.parametrize("isolation", ["inline", "thread"])
async def test_a_step_that_takes_too_long_is_a_fault(isolation: Isolation) -> None:
    make: Any = AsyncLadderEnv if isolation == "inline" else LadderEnv
    pool = EnvPool(make, size=1, isolation=isolation, deadlines=DeadlineConfig(step_s=0.05))
    lease = await pool.lease()
    await lease.reset(seed=0)
    with pytest.raises(EnvironmentFault, match=r"step: no answer within 0\.05 s"):
        await lease.step(HANG if isolation == "inline" else "break sleep 0.3")
    lease.release(broken=True)
    await pool.close()
    assert pool.stats.timeouts == 1


async def test_a_process_that_hangs_is_killed_and_replaced() -> None:
    before = set(threading.enumerate())
    deadlines = DeadlineConfig(step_s=0.2)
    pool = EnvPool(make_ladder, size=1, isolation="process", deadlines=deadlines)
    lease = await pool.lease()
    await lease.reset(seed=0)
    with pytest.raises(EnvironmentFault, match="no answer"):
        await lease.step("break sleep 60")
    lease.release(broken=True)
    await pool.close()
    for thread in set(threading.enumerate()) - before:
        thread.join(20.0)
    assert set(threading.enumerate()) <= before


async def test_a_deadline_that_cannot_be_kept_is_refused() -> None:
    pool = EnvPool(LadderEnv, size=1, deadlines=DeadlineConfig(reset_s=1.0))
    with pytest.raises(ConfigError, match=r"deadlines\.reset_s is set, but isolation='inline'"):
        await pool.open()


async def test_an_environment_that_cannot_be_made_is_a_fault_and_frees_its_place() -> None:
    def make() -> LadderEnv:
        raise ValueError("no such level")

    pool = EnvPool(make, size=1)
    for _ in range(2):
        with pytest.raises(EnvironmentFault, match="make: ValueError: no such level"):
            await pool.lease()
    await pool.close()


async def test_an_environment_that_does_not_close_is_given_up() -> None:
    class Stubborn(AsyncLadderEnv):
        async def close(self) -> None:
            await asyncio.sleep(60)

    pool = EnvPool(Stubborn, size=1, deadlines=DeadlineConfig(close_s=0.02))
    (await pool.lease()).release()
    await pool.close()
    assert pool.stats.abandoned == 1


class Meeting:
    """Two episodes that are inside a call at the same time; alone, a call waits in vain."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(2, timeout=900)

    def blocking(self) -> LadderEnv:
        barrier = self.barrier

        class Blocking(LadderEnv):
            blocks = True

            def step(self, action: str) -> Any:
                barrier.wait()
                return super().step(action)

        return Blocking()

    def coroutines(self) -> Any:
        barrier = self.barrier

        class Waiting(AsyncLadderEnv):
            async def step(self, action: str) -> Any:
                await asyncio.to_thread(barrier.wait)
                return await super().step(action)

        return as_gym(Waiting())

    def wrapped(self) -> Any:
        return TimeLimit(self.blocking(), 10)


@pytest.mark.parametrize("kind", ["blocking", "coroutines", "wrapped"])
async def test_environments_that_wait_do_not_hold_up_each_other(kind: str) -> None:
    pool = EnvPool(getattr(Meeting(), kind), size=2, isolation=RolloutConfig().isolation)

    async def play() -> str:
        lease = await pool.lease()
        await lease.reset(seed=0)
        observation, *_ = await lease.step("up")
        lease.release()
        return str(observation["text"])

    assert all("rung" in text for text in await asyncio.gather(play(), play()))
    await pool.close()


async def test_an_environment_that_computes_stays_in_the_event_loop() -> None:
    pool = EnvPool(LadderEnv, size=1)
    lease = await pool.lease()
    observation, _ = await lease.reset(seed=0)
    assert "rung" in observation["text"]
    assert lease.thread() == threading.get_ident()
    lease.release()
    await pool.close()


async def test_attributes_are_those_of_the_environment() -> None:
    pool = EnvPool(LadderEnv, size=1)
    lease = await pool.lease()
    await lease.reset(seed=0)
    assert lease.expert_action() == "jump 3"
    with pytest.raises(AttributeError):
        _ = lease.no_such_thing
    lease.release()
    await pool.close()
    with pytest.raises(EnvironmentFault, match="the environment pool is closed"):
        await pool.lease()


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match="size must be at least 1, got 0"):
        EnvPool(LadderEnv, size=0)
    with pytest.raises(UnknownNameError, match="Did you mean 'process'"):
        EnvPool(LadderEnv, size=1, isolation="proces")  # type: ignore[arg-type]


class Sleepy(LadderEnv):
    """Waits in every turn, and does not say so."""

    def turn(self, action: Any) -> Any:
        time.sleep(0.1)
        return super().turn(action)


class SleepyCoroutine(AsyncLadderEnv):
    """The same where it should await."""

    async def turn(self, action: Any) -> Any:
        time.sleep(0.1)
        return await super().turn(action)


class Thinking(LadderEnv):
    """Computes in every turn."""

    def turn(self, action: Any) -> Any:
        ends = time.thread_time() + 0.1
        while time.thread_time() < ends:
            pass
        return super().turn(action)


@pytest.mark.parametrize("kind", [Sleepy, SleepyCoroutine, Thinking])
async def test_an_environment_that_blocks_the_event_loop_is_named_once(
    kind: type[Any], caplog: pytest.LogCaptureFixture
) -> None:
    pool = EnvPool(lambda: kind(top=99), size=2)
    leases = [await pool.lease(), await pool.lease()]
    for lease in leases:
        await lease.reset(seed=0)
        for _ in range(10):
            await lease.step("up")
        lease.release()
    await pool.close()
    named = [text for text in caplog.messages if f"{kind.__name__} blocks the event loop" in text]
    assert len(named) == (kind is not Thinking)
    assert len(caplog.messages) == len(named)


class Sleeper(FileProblem):
    """A judge that blocks."""

    prompt = "Sleep."

    async def judge(self, world: Any) -> float:
        await asyncio.sleep(0.01)
        time.sleep(0.8)
        return 1.0

    def expert(self) -> list[str]:
        return ["true"]


async def test_a_judge_that_blocks_the_event_loop_is_named_and_not_its_environment(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Judged(AsyncLadderEnv):
        async def turn(self, action: Any) -> Any:
            await judge(Sleeper(), None, "sleeper")  # type: ignore[type-var]
            return await super().turn(action)

    pool = EnvPool(Judged, size=1)
    lease = await pool.lease()
    await lease.reset(seed=0)
    await lease.step("up")
    lease.release()
    await pool.close()
    assert [text.split(",")[0] for text in caplog.messages] == [
        "judge of Sleeper blocks the event loop"
    ]


class Patient(AsyncLadderEnv):
    """Waits as it should, and lets what it is told through."""

    told: ClassVar[list[str]]

    async def turn(self, action: Any) -> Any:
        try:
            await asyncio.sleep(0.1)
        except asyncio.CancelledError:
            self.told.append("cancelled")
            raise
        return await super().turn(action)


async def test_a_watched_call_waits_raises_and_is_cancelled_as_it_would_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    Patient.told = []
    pool = EnvPool(lambda: Patient(top=99), size=1)
    lease = await pool.lease()
    await lease.reset(seed=0)
    assert pool.watch is not None
    for _ in range(10):
        await lease.step("up")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await lease.step("up")
    assert Patient.told == ["cancelled"]
    assert not any(COMPUTING.values())
    lease.release(broken=True)
    await pool.close()
    assert caplog.messages == []
