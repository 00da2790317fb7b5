import asyncio
import logging
import math
import re
from contextlib import suppress
from dataclasses import replace
from typing import Any

import gymnasium
import pytest

from helpers.broken_envs import Switch
from helpers.envs import AsyncLadderEnv, LadderEnv
from helpers.policies import Saying
from turngym.agents.policy import EpisodeContext
from turngym.agents.scripted import ExpertPolicy, RandomPolicy
from turngym.environments.core.limits import InvalidActionLimit, TurnLimit
from turngym.environments.gym.hosts import ISOLATIONS, as_async
from turngym.environments.gym.wrappers import limited
from turngym.errors import ConfigError, EnvironmentFault, PolicyFault
from turngym.rollouts.episode import EpisodeSpec, rollout
from turngym.rollouts.replay import ReplayDiffers, restore
from turngym.types import StopReason

TASK = LadderEnv().task("train", 3)
SEEDS = {"env_seed": 5, "policy_seed": 17, "member": 2}
SPEC = EpisodeSpec(env_id="helpers/ladder", task=TASK, **SEEDS)
SWITCH = EpisodeSpec(env_id="helpers/switch", task=Switch().task("train", 0), **SEEDS)


class Stopping:
    """Ends an episode after its second turn."""

    stop = None

    def before_act(self, played, observation, info):
        pass

    def sampled(self, turn):
        pass

    def stepped(self, turn, observation):
        return StopReason.TRUNCATED_TOKENS if turn.action.content == "fly" else None


def ladder(**options: Any) -> LadderEnv:
    return LadderEnv(**{"slip": 0.0, **options})


def answering(**changes: Any):
    """Return an environment whose step answers something odd."""

    class Odd(LadderEnv):
        def step(self, action):
            names = ("observation", "reward", "terminated", "truncated", "info")
            answer = dict(zip(names, super().step(action), strict=True)) | changes
            return tuple(answer.values())

    return Odd(slip=0.0)


def scoring(score: Any):
    """Return an environment that judges like this."""

    class Judged(LadderEnv):
        def score(self):
            if isinstance(score, Exception):
                raise score
            return score

    return Judged(slip=0.0, top=9)


# What is recorded.


async def test_an_episode_is_recorded_as_it_was_played():
    env, policy = ladder(top=3), Saying("up", "fly", "jump 2")
    made = await rollout(env, policy, SPEC)
    assert (made.env_id, made.task_id, made.member) == ("helpers/ladder", TASK.id, 2)
    assert (made.env_seed, made.policy_seed) == (5, 17)
    assert (made.stop_reason, made.score, made.error) == (StopReason.TERMINATED, 1.0, None)
    assert [turn.action.content for turn in made.turns] == ["up", "fly", "jump 2"]
    assert [turn.reward for turn in made.turns] == [1.0, 0.0, 0.5]
    assert made.turns[2].reward_parts == {"climbed": 1.0, "tired": -0.5}
    assert [turn.invalid_action is None for turn in made.turns] == [True, False, True]
    number = env.ladder.number
    assert [turn.state_key for turn in made.turns] == [f"{number} 0", f"{number} 1", f"{number} 1"]
    assert made.turns[1].observation[0].content == f"ladder {number}: rung 1 of 3"
    assert made.final_observation[0].content == f"ladder {number}: rung 3 of 3"


async def test_the_policy_is_told_what_it_may_know():
    policy = Saying("up")
    env = ladder(top=1)
    await rollout(env, policy, SPEC)
    (context,) = policy.contexts
    assert isinstance(context, EpisodeContext)
    assert (context.env_id, context.task_id, context.seed) == ("helpers/ladder", TASK.id, 17)
    assert context.instructions == env.instructions
    assert context.expert is not None
    assert context.expert() == "jump 3"


async def test_the_environment_is_not_closed():
    env = ladder(top=1)
    await rollout(env, Saying("up"), SPEC)
    assert env.closed == 0


async def test_the_session_is_closed_whatever_happens():
    for text in ("up", "break value", "crash", "overflow"):
        policy = Saying(text)
        await rollout(ladder(top=2), policy, SPEC)
        assert policy.closed == 1


async def test_an_async_environment_plays_the_same_episode():
    ours = await rollout(LadderEnv(), RandomPolicy(), SPEC)
    theirs = await rollout(AsyncLadderEnv(), RandomPolicy(), SPEC)
    assert [turn.action for turn in ours.turns] == [turn.action for turn in theirs.turns]
    assert ours.final_observation == theirs.final_observation
    assert ours.stop_reason is theirs.stop_reason is StopReason.TERMINATED


@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_an_adapter_plays_the_same_episode_with_the_expert(isolation):
    ours = await rollout(LadderEnv(), ExpertPolicy(), SPEC)
    async with as_async(LadderEnv, isolation=isolation) as env:
        assert await rollout(env, ExpertPolicy(), SPEC) == ours


# How an episode ends.


@pytest.mark.parametrize(
    ("limit", "stop"),
    [
        (lambda env: limited(env, TurnLimit(2)), StopReason.TRUNCATED_TURNS),
        (lambda env: limited(env, InvalidActionLimit(1)), StopReason.TRUNCATED_INVALID),
    ],
)
async def test_a_limit_gives_its_reason_and_the_score_so_far(limit, stop):
    made = await rollout(limit(ladder()), Saying("jump 3", "fly"), SPEC)
    assert (made.stop_reason, made.score) == (stop, 0.5)


async def test_an_environment_without_reasons_ends_by_its_flags():
    for terminated, stop in ((True, StopReason.TERMINATED), (False, StopReason.TRUNCATED_ENV)):
        info = {"task_id": TASK.id}
        env = answering(terminated=terminated, truncated=not terminated, info=info)
        assert (await rollout(env, Saying("up"), SPEC)).stop_reason is stop


async def test_a_full_context_truncates_with_the_score_so_far():
    made = await rollout(ladder(), Saying("jump 3", "overflow"), SPEC)
    assert (made.stop_reason, made.score) == (StopReason.TRUNCATED_CONTEXT, 0.5)
    assert len(made.turns) == 1


async def test_a_slow_policy_is_cut_off_with_the_score_so_far():
    policy = Saying("jump 3", "think for ever")
    made = await rollout(ladder(), policy, SPEC, timeout_s=0.05)
    assert (made.stop_reason, made.score) == (StopReason.TRUNCATED_TIME, 0.5)
    assert policy.closed == 1


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("end", ["think for ever", "overflow", "watch"])
async def test_what_the_rollout_cuts_off_is_judged_as_at_a_limit(isolation, end):
    async with as_async(Switch, isolation=isolation) as env:
        watch = Stopping() if end == "watch" else None
        policy = Saying("press", "fly" if watch else end)
        limit_s = 3.0 if end == "think for ever" else None
        await env.reset(seed=0)  # a process is there, however long it took to start
        made = await rollout(env, policy, SWITCH, timeout_s=limit_s, watch=watch)
    assert made.stop_reason.is_truncated
    assert (made.episode_return, made.score, made.turns[-1].reward) == (1.0, 1.0, 1.0)
    assert made.judged_at_limit
    assert not restore(Switch(), made, 2).is_over  # what the judge paid is no difference
    unlike = replace(made, turns=(replace(made.turns[0], reward=0.5), *made.turns))
    with pytest.raises(ReplayDiffers, match="turn 1: replayed, it pays 0"):
        restore(Switch(), unlike, 2)


async def test_what_a_time_limit_around_the_environment_cuts_off_is_judged_too():
    made = await rollout(gymnasium.wrappers.TimeLimit(Switch(), 1), Saying("press"), SWITCH)
    assert (made.stop_reason, made.score) == (StopReason.TRUNCATED_ENV, 1.0)
    assert made.turns[-1].reward == 1.0


async def test_what_a_limit_of_the_environment_judged_is_not_judged_again():
    class Unscored(Switch):
        def score(self):
            return None

    made = await rollout(limited(Unscored(), TurnLimit(1)), Saying("press"), SWITCH)
    assert (made.stop_reason, made.episode_return) == (StopReason.TRUNCATED_TURNS, 1.0)
    assert made.judged_at_limit
    assert not (await rollout(limited(ladder(), TurnLimit(1)), Saying("up"), SPEC)).judged_at_limit


async def test_before_the_first_turn_and_within_a_step_there_is_nothing_to_judge():
    made = await rollout(Switch(), Saying("overflow"), SWITCH)
    assert (made.turns, made.score) == ((), 0.0)

    class Slow(AsyncLadderEnv):
        def end_at_limit(self):
            raise AssertionError

    made = await rollout(Slow(slip=0.0), Saying("jump 3", "break hang"), SPEC, timeout_s=0.05)
    assert (made.stop_reason, made.score) == (StopReason.TRUNCATED_TIME, 0.5)


async def test_what_is_cut_off_within_its_reset_is_a_fault_and_has_no_score_of_the_episode_before():
    class Sleepy(AsyncLadderEnv):
        async def begin(self, task):
            if hasattr(self, "ladder"):  # the second time
                await asyncio.Event().wait()
            return await super().begin(task)

    env = Sleepy(slip=0.0, top=3)
    assert (await rollout(env, Saying("jump 3"), SPEC)).score == 1.0
    made = await rollout(env, Saying("jump 3"), SPEC, timeout_s=0.05)
    assert (made.stop_reason, made.turns, made.score) == (StopReason.ERROR_ENV, (), None)
    assert made.error == "reset: the episode had not begun after 0.05 s, its time limit"


async def test_a_judge_that_breaks_at_a_limit_leaves_no_reward():
    class Broken(Switch):
        def end_at_limit(self):
            raise OSError("the judge is gone")

    made = await rollout(Broken(), Saying("press", "overflow"), SWITCH)
    assert (made.stop_reason, made.score) == (StopReason.ERROR_REWARD, None)
    assert made.error is not None
    assert "judge: OSError: the judge is gone" in made.error


async def test_parts_of_a_reward_sum_to_it_after_a_limit():
    class Parted(Switch):
        def turn(self, action):
            outcome = super().turn(action)
            return replace(outcome, reward=0.5, info={"reward_parts": {"press": 0.5}})

    made = await rollout(Parted(), Saying("press", "overflow"), SWITCH)
    assert made.turns[-1].reward_parts == {"press": 0.5, "end": 1.0}


async def test_a_slow_environment_is_cut_off():
    made = await rollout(AsyncLadderEnv(), Saying("break hang"), SPEC, timeout_s=0.05)
    assert made.stop_reason is StopReason.TRUNCATED_TIME
    assert made.turns == ()


async def test_a_limit_holds_where_an_environment_keeps_the_cancellation_to_itself():
    class Stubborn(AsyncLadderEnv):
        async def turn(self, action):
            with suppress(BaseException):
                await asyncio.sleep(60)
            return await super().turn(action)

    made = await rollout(Stubborn(slip=0.0), Saying("jump 3"), SPEC, timeout_s=0.05)
    assert (made.stop_reason, made.turns) == (StopReason.TRUNCATED_TIME, ())


# Faults are never a reward of 0.


@pytest.mark.parametrize("kind", [LadderEnv, AsyncLadderEnv])
@pytest.mark.parametrize(
    ("action", "error"),
    [
        ("break value", r"step: ValueError: broke by order \(envs\.py:\d+ in \w+\)"),
        ("break timeout", r"step: TimeoutError: the server did not answer \(envs\.py:\d+ in \w+\)"),
    ],
)
async def test_an_environment_that_breaks_is_an_error_without_a_score(kind, action, error):
    made = await rollout(kind(slip=0.0), Saying("jump 3", action), SPEC, timeout_s=60)
    assert made.stop_reason is StopReason.ERROR_ENV
    assert re.fullmatch(error, str(made.error)), made.error
    assert made.score is None
    assert len(made.turns) == 1  # the reward that came before is kept, but the episode is masked


async def test_a_reset_that_breaks_is_an_error_too():
    class Unready(LadderEnv):
        def begin(self, task):
            raise OSError("no disk")

    policy = Saying("up")
    made = await rollout(Unready(), policy, SPEC)
    assert made.stop_reason is StopReason.ERROR_ENV
    assert re.fullmatch(
        r"reset: OSError: no disk \(test_episode\.py:\d+ in begin\)", str(made.error)
    )
    assert policy.contexts == []


async def test_a_fault_that_the_environment_raised_itself_keeps_its_words():
    class Lost(LadderEnv):
        def turn(self, action):
            raise EnvironmentFault("the sandbox is gone")

    made = await rollout(Lost(), Saying("up"), SPEC)
    assert (made.stop_reason, made.error) == (StopReason.ERROR_ENV, "the sandbox is gone")


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"reward": math.nan}, "reward must be finite"),
        ({"reward": "much"}, "could not convert string to float"),
        ({"info": {"reward_parts": {"a": 3.0}}}, "reward_parts sum to 3.0"),
        ({"observation": {}}, "KeyError: 'text'"),
        ({"observation": None}, "TypeError"),
        ({"observation": {"text": None}}, "text is of type NoneType"),
        ({"info": {"invalid_action": 3}}, "invalid_action must be a str, got 3"),
        ({"info": None}, "AttributeError"),
        (
            {"truncated": True, "info": {"stop_reason": "bored"}},
            "'bored' is not a valid StopReason",
        ),
        ({"terminated": True, "info": {"score": 7}}, r"score must lie in \[0, 1\]"),
        ({"terminated": True, "info": {"stop_reason": "error_env"}}, "reported instead of raised"),
        ({"extra": 6}, "TypeError"),
    ],
)
async def test_an_answer_that_makes_no_sense_is_a_fault_of_the_environment(changes, error):
    made = await rollout(answering(**changes), Saying("up"), SPEC)
    assert made.stop_reason is StopReason.ERROR_ENV
    assert re.search(error, str(made.error)), made.error
    assert str(made.error).startswith("step: ")
    assert made.score is None


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("crash", r"act: ZeroDivisionError: the engine is gone \(policies\.py:\d+ in act\)"),
        ("time out", r"act: TimeoutError: the server did not answer \(policies\.py:\d+ in act\)"),
        ("speak for another", "act: ValueError: the action is a message of role 'user'"),
    ],
)
async def test_a_policy_that_breaks_is_an_error_without_a_score(text, error):
    made = await rollout(ladder(), Saying("jump 3", text), SPEC, timeout_s=60)
    assert made.stop_reason is StopReason.ERROR_POLICY
    assert re.fullmatch(error, str(made.error)), made.error
    assert made.score is None
    assert len(made.turns) == 1


@pytest.mark.parametrize(
    ("raised", "error"),
    [
        (
            RuntimeError("no engine"),
            r"start: RuntimeError: no engine \(test_episode\.py:\d+ in start\)",
        ),
        (PolicyFault("gone"), "gone"),
    ],
)
async def test_a_policy_that_cannot_start_is_an_error(raised, error):
    class Unready(Saying):
        def start(self, context):
            raise raised

    made = await rollout(ladder(), Unready("up"), SPEC)
    assert made.stop_reason is StopReason.ERROR_POLICY
    assert re.fullmatch(error, str(made.error)), made.error


async def test_what_a_policy_returns_is_named_where_it_is_something_else():
    class Sessionless(Saying):
        def start(self, context):
            return None

    class Texts(Saying):
        def start(self, context):
            return self

        async def act(self, observation, info):
            return "up"

        def close(self):
            return None

    for policy, error in (
        (Sessionless("up"), "start: TypeError: wanted a session with act, got NoneType"),
        (Texts("up"), "act: TypeError: wanted a PolicyTurn, got str"),
    ):
        made = await rollout(ladder(), policy, SPEC)
        assert made.stop_reason is StopReason.ERROR_POLICY
        assert made.error == error


async def test_an_environment_that_breaks_while_its_expert_is_asked_is_the_environments_fault():
    class Lost(LadderEnv):
        def expert_action(self):
            raise EnvironmentFault("the engine is gone")

    made = await rollout(Lost(), ExpertPolicy(), SPEC)
    assert made.stop_reason is StopReason.ERROR_ENV


@pytest.mark.parametrize(
    ("score", "error"),
    [
        (
            OSError("the judge is gone"),
            r"score: OSError: the judge is gone \(test_episode\.py:\d+ in score\)",
        ),
        (7.0, r"score: ValueError: score must lie in \[0, 1\] or be None, got 7\.0"),
    ],
)
async def test_a_judge_that_breaks_leaves_the_episode_without_a_reward(score, error):
    made = await rollout(scoring(score), Saying("up", "overflow"), SPEC)
    assert (made.stop_reason, made.score) == (StopReason.ERROR_REWARD, None)
    assert re.fullmatch(f"truncated_context: {error}", str(made.error)), made.error


@pytest.mark.parametrize("score", [1 - 2**-53, 1 + 2**-52])
async def test_a_score_that_misses_one_by_its_rounding_is_a_success(score):
    made = await rollout(scoring(score), Saying("up", "overflow"), SPEC)
    assert (made.stop_reason, made.score) == (StopReason.TRUNCATED_CONTEXT, 1.0)


async def test_an_episode_that_cannot_be_judged_has_no_score_and_is_no_error():
    made = await rollout(scoring(None), Saying("up", "overflow"), SPEC)
    assert (made.stop_reason, made.score) == (StopReason.TRUNCATED_CONTEXT, None)


async def test_a_session_that_does_not_close_is_told_and_changes_nothing(caplog):
    class Clinging(Saying):
        def start(self, context):
            session = super().start(context)
            session.close = lambda: 1 / 0
            return session

    with caplog.at_level(logging.WARNING):
        made = await rollout(ladder(top=1), Clinging("up"), SPEC)
    assert made.score == 1.0
    assert "a policy session did not close: ZeroDivisionError" in caplog.text


# What is raised.


async def test_wrong_settings_are_raised():
    class Picky(LadderEnv):
        def begin(self, task):
            raise ConfigError("set the path first")

    with pytest.raises(ConfigError, match="set the path first"):
        await rollout(Picky(), Saying("up"), SPEC)
    with pytest.raises(ConfigError, match="has no expert"):
        await rollout(gymnasium.Wrapper(NoExpert()), ExpertPolicy(), SPEC)


class NoExpert(LadderEnv):
    def expert_action(self):
        raise ConfigError("environment 'ladder' has no expert")


async def test_cancellation_is_raised_and_closes_the_session():
    policy = Saying("up", "think for ever")
    task = asyncio.create_task(rollout(ladder(top=99), policy, SPEC))
    while not policy.contexts:
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert policy.closed == 1
