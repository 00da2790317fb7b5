"""An environment that the gateway plays runs in the event loop of the server."""

from __future__ import annotations

import asyncio

from helpers.envs import AsyncLadderEnv
from turngym.environments.gym.face import as_gym
from turngym.rollouts.gateway.hosted import HostedEnv


async def test_an_environment_made_of_coroutines_does_not_stall_the_server() -> None:
    inner = AsyncLadderEnv(slip=0.0)
    hosted = HostedEnv(as_gym(inner), env_id="helpers/Ladder-v0")
    await hosted.reset(hosted.task(0), seed=1)
    answer = await hosted.call("jump", {"rungs": 2})
    assert "rung 2 of 6" in answer.text
    assert inner.loops == {asyncio.get_running_loop()}
    await hosted.close()
    assert inner.closed == 1
