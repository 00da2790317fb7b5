import asyncio
import re
import threading
from typing import Any

import pytest

from helpers.envs import AsyncLadderEnv, LadderEnv
from helpers.policies import BreakingIn, Saying
from turngym.agents.scripted import ExpertPolicy, RandomPolicy
from turngym.environments.gym.face import as_gym
from turngym.errors import ConfigError
from turngym.rollouts.episode import EpisodeSpec, group_specs
from turngym.rollouts.evaluation.evaluate import collect
from turngym.rollouts.scheduler.config import DeadlineConfig
from turngym.seeding import derive_seed
from turngym.types import StopReason, TrajectoryGroup

TASKS = [LadderEnv().task("train", index) for index in range(3)]


def specs(num: int) -> list[EpisodeSpec]:
    return [
        EpisodeSpec(env_id="ladder", task=TASKS[n % 3], env_seed=n % 3, policy_seed=n, member=n)
        for n in range(num)
    ]


class Maker:
    """Makes ladders and remembers them."""

    def __init__(self, kind: Any = LadderEnv, **options: Any) -> None:
        self.kind = kind
        self.options = {"slip": 0.0, "top": 3, **options}
        self.made: list[Any] = []

    def __call__(self) -> Any:
        self.made.append(self.kind(**self.options))
        return self.made[-1]

    @property
    def closed(self) -> list[int]:
        return [env.closed for env in self.made]


# Groups.


def test_attempts_of_a_group_share_the_environment_seed_and_differ_in_the_policy_seed():
    group = group_specs("ladder", TASKS[0], seed=11, group_size=4)
    assert len({spec.env_seed for spec in group}) == 1
    assert len({spec.policy_seed for spec in group}) == 4
    assert [spec.member for spec in group] == [0, 1, 2, 3]
    assert {spec.task for spec in group} == {TASKS[0]}


def test_the_seeds_of_a_group_come_from_its_place_in_the_seed_tree():
    (spec,) = group_specs("ladder", TASKS[1], seed=11, group_size=1)
    assert spec.env_seed == derive_seed(11, TASKS[1].id, "env")
    assert spec.policy_seed == derive_seed(11, TASKS[1].id, "policy", 0)
    assert group_specs("ladder", TASKS[1], seed=11, group_size=3)[:1] == [spec]
    (other,) = group_specs("ladder", TASKS[1], seed=12, group_size=1)
    assert (other.env_seed, other.policy_seed) != (spec.env_seed, spec.policy_seed)


async def test_trajectories_come_back_in_the_order_that_was_asked():
    wanted = [
        spec
        for task in (TASKS[2], TASKS[0])
        for spec in group_specs("ladder", task, seed=1, group_size=3)
    ]
    mixed = wanted[::2] + wanted[1::2]
    made = await collect(Maker(), RandomPolicy(), mixed, concurrency=2)
    assert [(m.task_id, m.member) for m in made] == [(s.task.id, s.member) for s in mixed]


# Many at once.


@pytest.mark.parametrize("concurrency", [1, 3, 50])
async def test_all_episodes_come_back_in_the_order_asked(concurrency):
    wanted = specs(10)
    maker, seen = Maker(AsyncLadderEnv), []
    made = await collect(
        maker,
        ExpertPolicy(),
        wanted,
        concurrency=concurrency,
        on_episode=lambda episode, _: seen.append(episode),
    )
    assert [m.policy_seed for m in made] == [spec.policy_seed for spec in wanted]
    assert [m.task_id for m in made] == [spec.task.id for spec in wanted]
    assert len(maker.made) == min(concurrency, 10)
    assert maker.closed == [1] * len(maker.made)
    assert sorted(m.policy_seed for m in seen) == list(range(10))


async def test_no_more_episodes_are_alive_than_allowed():
    policy = Saying("up")
    await collect(Maker(AsyncLadderEnv), policy, specs(12), concurrency=4)
    assert policy.most_alive == 4
    assert policy.closed == 12


async def test_an_episode_does_not_depend_on_how_many_are_alive():
    alone = await collect(Maker(slip=0.4), RandomPolicy(), specs(9), concurrency=1)
    together = await collect(Maker(slip=0.4), RandomPolicy(), specs(9), concurrency=9)
    assert alone == together


async def test_environments_that_wait_do_so_beside_each_other():
    meeting = threading.Barrier(2, timeout=900)

    class Meeting(AsyncLadderEnv):
        async def reset(self, **kwargs: Any) -> Any:
            await asyncio.to_thread(meeting.wait)
            return await super().reset(**kwargs)

    def make() -> Any:
        return as_gym(Meeting(slip=0.0, top=3))

    found = await collect(make, ExpertPolicy(), specs(4), concurrency=2)

    assert [t.stop_reason for t in found] == [StopReason.TERMINATED] * 4


async def test_nothing_asked_is_nothing_made():
    maker = Maker()
    assert await collect(maker, Saying("up"), [], concurrency=3) == []
    assert maker.made == []


async def test_no_concurrency_at_all_is_a_wrong_setting():
    with pytest.raises(ConfigError, match="concurrency must be at least 1, got 0"):
        await collect(Maker(), Saying("up"), specs(2), concurrency=0)


# One that breaks holds up no other.


@pytest.mark.parametrize(
    ("how", "stop"),
    [
        ("break value", StopReason.ERROR_ENV),
        ("break timeout", StopReason.ERROR_ENV),
        ("crash", StopReason.ERROR_POLICY),
        ("speak for another", StopReason.ERROR_POLICY),
    ],
)
@pytest.mark.parametrize("concurrency", [1, 4])
async def test_siblings_of_a_broken_episode_are_unaffected(how, stop, concurrency):
    wanted = group_specs("ladder", TASKS[0], seed=1, group_size=6)
    policy = BreakingIn([1, 4], how, "jump 3")
    made = await collect(Maker(), policy, wanted, concurrency=concurrency)
    assert [m.stop_reason for m in made].count(stop) == 2
    fine = [m for m in made if m.stop_reason is StopReason.TERMINATED]
    assert [m.score for m in fine] == [1.0] * 4
    assert list(TrajectoryGroup(group_id="one", trajectories=tuple(made)).usable) == fine
    assert all(m.score is None and m.error for m in made if m not in fine)


async def test_a_call_that_takes_too_long_ends_its_episode_in_evaluations_too():
    limits = DeadlineConfig(step_s=0.05)
    made = await collect(
        Maker(AsyncLadderEnv), Saying("break hang"), specs(2), concurrency=2, deadlines=limits
    )
    assert [m.stop_reason for m in made] == [StopReason.ERROR_ENV] * 2
    assert "no answer within 0.05 s" in str(made[0].error)


async def test_an_environment_that_broke_is_closed_and_replaced():
    maker = Maker()
    policy = BreakingIn([1], "break value", "jump 3")
    made = await collect(maker, policy, specs(4), concurrency=1)
    assert [m.stop_reason.is_error for m in made] == [False, True, False, False]
    assert len(maker.made) == 2
    assert maker.closed == [1, 1]


def ladder_in_a_thread(**options: Any) -> Any:
    return as_gym(AsyncLadderEnv(**options))


@pytest.mark.parametrize("kind", [AsyncLadderEnv, ladder_in_a_thread])
async def test_an_environment_that_was_cut_off_in_a_call_is_replaced(kind):
    maker = Maker(kind)
    policy = BreakingIn([0], "break hang", "jump 3")
    made = await collect(maker, policy, specs(3), concurrency=1, timeout_s=3.0)
    assert [m.stop_reason for m in made] == [
        StopReason.TRUNCATED_TIME,
        StopReason.TERMINATED,
        StopReason.TERMINATED,
    ]
    assert len(maker.made) == 2


async def test_a_broken_environment_that_does_not_close_holds_up_nothing():
    class Clinging(LadderEnv):
        def close(self):
            raise OSError("cannot close")

    made = await collect(
        Maker(Clinging), BreakingIn([0], "break value", "jump 3"), specs(3), concurrency=1
    )
    assert [m.stop_reason.is_error for m in made] == [True, False, False]


async def test_an_environment_that_cannot_be_made_costs_its_episode_only():
    maker = Maker()

    def sometimes():
        env = maker()
        if len(maker.made) in (1, 3):
            raise ConnectionError("no room")
        return env

    made = await collect(sometimes, BreakingIn([0], "crash", "jump 3"), specs(5), concurrency=1)
    assert [m.stop_reason for m in made] == [
        StopReason.ERROR_ENV,
        StopReason.ERROR_POLICY,
        StopReason.ERROR_ENV,
        StopReason.TERMINATED,
        StopReason.TERMINATED,
    ]
    assert re.fullmatch(
        r"make: ConnectionError: no room \(test_collect\.py:\d+ in sometimes\)", str(made[0].error)
    )


async def test_wrong_settings_are_raised_bare_and_close_everything():
    class Picky(LadderEnv):
        def begin(self, task):
            if task == TASKS[2]:
                raise ConfigError("set the path first")
            return super().begin(task)

    maker = Maker(Picky)
    with pytest.raises(ConfigError, match="set the path first"):
        await collect(maker, Saying("up"), specs(6), concurrency=2)
    assert maker.closed == [1] * len(maker.made)


async def test_wrong_settings_of_the_maker_are_raised():
    def refuse():
        raise ConfigError("no such environment")

    with pytest.raises(ConfigError, match="no such environment"):
        await collect(refuse, Saying("up"), specs(3), concurrency=3)


async def test_cancellation_closes_sessions_and_environments():
    maker, policy = Maker(AsyncLadderEnv), Saying("up", "think for ever")
    task = asyncio.create_task(collect(maker, policy, specs(8), concurrency=3))
    while len(policy.contexts) < 3:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert policy.closed == len(policy.contexts) == 3
    assert maker.closed == [1, 1, 1]
