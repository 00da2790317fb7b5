"""An environment that the gateway plays runs in the event loop of the server."""

from __future__ import annotations

import asyncio
import math

import pytest

from helpers.envs import AsyncLadderEnv, LadderEnv
from turngym.environments.core.actions import Action
from turngym.environments.core.env import Outcome
from turngym.environments.gym.face import as_gym
from turngym.errors import EnvironmentFault
from turngym.rollouts.gateway.hosted import OVER, HostedEnv
from turngym.tasks.base import Task


class WrongLadder(LadderEnv):
    """Pays, or scores, what is no reward or score; cannot begin every task, and cannot close."""

    def begin(self, task: Task) -> Outcome:
        if task.id.endswith("/7"):
            raise OSError("no ladder")
        return super().begin(task)

    def turn(self, action: Action) -> Outcome:
        if action.name == "up":
            return Outcome(text="up", reward=math.nan)
        return Outcome(text="off", reward=1.0, terminated=True, info={"score": 7})

    def end_at_limit(self) -> Outcome:
        return Outcome(text="", reward=math.inf)

    def score(self) -> float:
        return math.nan

    def close(self) -> None:
        raise OSError("it is stuck")


async def test_an_environment_made_of_coroutines_does_not_stall_the_server() -> None:
    inner = AsyncLadderEnv(slip=0.0)
    hosted = HostedEnv(as_gym(inner), env_id="helpers/Ladder-v0")
    await hosted.reset(hosted.task(0), seed=1)
    answer = await hosted.call("jump", {"rungs": 2})
    assert "rung 2 of 6" in answer.text
    assert inner.loops == {asyncio.get_running_loop()}
    await hosted.close()
    assert inner.closed == 1


@pytest.mark.parametrize(
    ("said", "why"), [("up", "step: .* must be finite, got nan"), ("jump 1", r"in \[0, 1\]")]
)
async def test_a_reward_or_score_that_is_none_is_a_fault_as_in_a_rollout(
    said: str, why: str
) -> None:
    hosted = HostedEnv(WrongLadder(), env_id="helpers/Ladder-v0")
    await hosted.reset(hosted.task(0), seed=1)
    with pytest.raises(EnvironmentFault, match=why):
        await hosted.say(said)
    assert (await hosted.say("up")).text == OVER


async def test_so_is_one_of_the_state_that_is_left() -> None:
    hosted = HostedEnv(WrongLadder(), env_id="helpers/Ladder-v0")
    await hosted.reset(hosted.task(0), seed=1)
    with pytest.raises(EnvironmentFault, match=r"judge: .* must be finite, got inf"):
        await hosted.end()
    with pytest.raises(EnvironmentFault, match=r"score: .* in \[0, 1\]"):
        hosted.score()


class SaysItsScore(LadderEnv):
    """What an end is worth stands in its ``info`` alone."""

    def turn(self, action: Action) -> Outcome:
        over = action.name == "jump"
        return Outcome(text="", terminated=over, info={"score": 0.75} if over else None)

    def end_at_limit(self) -> Outcome:
        return Outcome(text="", reward=0.5, info={"score": 0.5})

    def score(self) -> None:
        return None


async def test_the_score_is_what_the_end_said() -> None:
    hosted = HostedEnv(SaysItsScore(), env_id="helpers/Ladder-v0")
    await hosted.reset(hosted.task(0), seed=1)
    await hosted.say("up")
    assert hosted.score() is None
    assert (await hosted.end(), hosted.score()) == (0.5, 0.5)
    await hosted.reset(hosted.task(0), seed=1)
    assert hosted.score() is None
    await hosted.say("jump 1")
    assert (await hosted.end(), hosted.score()) == (0.0, 0.75)


async def test_a_reset_that_fails_leaves_no_episode_and_a_close_that_fails_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hosted = HostedEnv(WrongLadder(), env_id="helpers/Ladder-v0")
    await hosted.reset(hosted.task(0), seed=1)
    with pytest.raises(EnvironmentFault, match="no ladder"):
        await hosted.reset(hosted.task(7), seed=1)
    assert hosted.is_over
    await hosted.close()
    assert "did not close: OSError: it is stuck" in caplog.text
