"""A mixture-of-experts learner computes with the experts that the engine chose."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    MixtralConfig,
    Qwen2MoeConfig,
    Qwen3MoeConfig,
)

from helpers import models
from helpers.samples import random_samples
from helpers.trajectories import episode, turn
from turngym.agents.engine.models import add_lora
from turngym.agents.engine.protocol import Generation, spans_of
from turngym.errors import ConfigError, TrainingError
from turngym.trainers.samples import TrainingSample, to_samples
from turngym.trainers.settings.loss import LossConfig
from turngym.trainers.settings.optimizer import LearnerConfig
from turngym.trainers.update import routing
from turngym.trainers.update.compute import place
from turngym.trainers.update.forward import body_of
from turngym.trainers.update.learner import TorchLearner
from turngym.trainers.update.optimizer import full_state

LAYERS, EXPERTS, TOP_K = 3, 8, 2
SHAPE: dict[str, Any] = {
    "vocab_size": 330,
    "hidden_size": 32,
    "intermediate_size": 32,
    "moe_intermediate_size": 16,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_experts_per_tok": TOP_K,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
KINDS: dict[str, Any] = {
    "mixtral": MixtralConfig(**SHAPE, num_local_experts=EXPERTS),
    "qwen2": Qwen2MoeConfig(**SHAPE, num_experts=EXPERTS, shared_expert_intermediate_size=16),
    "qwen3": Qwen3MoeConfig(**SHAPE, num_experts=EXPERTS, norm_topk_prob=True, mlp_only_layers=[1]),
}


def made(kind: str) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return AutoModelForCausalLM.from_config(KINDS[kind]).float().eval()


def routers(model: Any) -> dict[int, Any]:
    """Return the routers by the numbers of their layers."""
    found = {n: getattr(layer.mlp, "gate", None) for n, layer in enumerate(model.model.layers)}
    return {n: router for n, router in found.items() if router is not None}


def engine(model: Any) -> Any:
    """Return a model that now and then chooses other experts."""
    other = copy.deepcopy(model)
    for router in routers(other).values():
        router.weight.data += 0.1 * torch.sin(router.weight.data * 90)
    return other


def chosen(model: Any, ids: Any) -> Any:
    """Return the experts at each token of a sequence, [T, layers, K], zeros without experts."""
    found = np.zeros((len(ids), LAYERS, TOP_K), dtype=np.uint16)
    hooks = [
        router.register_forward_hook(
            lambda _, __, out, n=n: found.__setitem__((slice(None), n), out[2].numpy())
        )
        for n, router in routers(model).items()
    ]
    with torch.no_grad():
        model(torch.tensor([list(ids)]))
    for hook in hooks:
        hook.remove()
    return found


def reported(model: Any, sample: TrainingSample) -> TrainingSample:
    """Return ``sample`` with the experts that ``model`` chooses on the way to each token."""
    experts = chosen(model, sample.token_ids)
    return replace(sample, routing=np.concatenate([experts[:1], experts[:-1]]))


def forced(model: Any, sample: TrainingSample, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the log-probs of a sample where every choice of the model is the reported one."""
    assert sample.routing is not None
    at = torch.from_numpy(sample.routing[1:].astype(np.int64))
    wanted = iter([at[:, layer] for layer in routers(model)])

    def topk(values: Any, k: int, dim: int) -> Any:
        chosen = next(wanted)
        return values.gather(-1, chosen), chosen

    ids = torch.from_numpy(sample.token_ids)
    with monkeypatch.context() as patch, torch.no_grad():
        patch.setattr(torch, "topk", topk)
        rows = model(ids[None, :-1]).logits[0].log_softmax(-1)
    found = rows.gather(-1, ids[1:, None])[:, 0].numpy()
    return np.where(sample.loss_mask[1:], found, 0)


def learner(model: Any, how: str = "replay", **config: Any) -> TorchLearner:
    settings = LearnerConfig(lr=1e-2, routing=how, **config)
    return TorchLearner(place(copy.deepcopy(model), settings), settings, LossConfig())


def samples_of(model: Any, count: int = 5) -> list[TrainingSample]:
    return [reported(engine(model), one) for one in random_samples(models.model(), count=count)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("more", [{}, {"microbatch_tokens": 40}, {"packing": "always"}])
def test_log_probs_are_those_of_the_experts_that_the_engine_chose(
    kind: str, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = made(kind)
    samples = samples_of(model)
    replayed, own = (learner(model, how, **more).logprobs(samples) for how in ("replay", "own"))
    for sample, found in zip(samples, replayed, strict=True):
        np.testing.assert_allclose(found[1:], forced(model, sample, monkeypatch), atol=2e-5)
    assert max(np.abs(a - b).max() for a, b in zip(replayed, own, strict=True)) > 0.01
    same = learner(model, **more).logprobs([reported(model, sample) for sample in samples])
    for a, b in zip(same, own, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6)


def test_a_learner_at_the_engines_weights_has_its_log_probs_only_with_its_experts() -> None:
    """What the replay is for: in bfloat16 an engine chooses otherwise."""
    model = made("qwen3")
    rough = copy.deepcopy(model).bfloat16()
    samples = [reported(rough, one) for one in random_samples(models.model(), count=24)]
    gaps = {}
    for how in ("own", "replay"):
        found = learner(model, how).logprobs(samples)
        gaps[how] = max(
            np.abs(a - b)[s.loss_mask].max()
            for a, b, s in zip(found, _logprobs(rough, samples), samples, strict=True)
        )
    assert gaps["replay"] < gaps["own"] / 2


def _logprobs(model: Any, samples: Sequence[TrainingSample]) -> list[Any]:
    found = []
    for sample in samples:
        ids = torch.from_numpy(sample.token_ids)
        with torch.no_grad():
            rows = model(ids[None]).logits[0, :-1].float().log_softmax(-1)
        found.append(np.concatenate([[0], rows.gather(-1, ids[1:, None])[:, 0].numpy()]))
    return found


def test_the_gradient_is_that_of_the_same_experts_however_it_is_computed() -> None:
    model = made("qwen3")
    samples = samples_of(model)

    def after(**more: Any) -> torch.Tensor:
        used = learner(model, **more)
        used.update(samples)
        return torch.cat([p.detach().flatten() for p in used.model.parameters()])

    plain = after()
    torch.testing.assert_close(after(recompute=True), plain, rtol=0, atol=0)
    # Adam's first step is 1e-2 whatever the gradient, so rounding shows where that is nearly 0.
    torch.testing.assert_close(after(microbatch_tokens=40), plain, rtol=0, atol=1e-3)


def test_a_sample_without_routing_is_left_to_the_model() -> None:
    model = made("mixtral")
    one, two = samples_of(model, count=2)
    mixed = learner(model).logprobs([replace(one, routing=None), two])
    own = learner(model, "own").logprobs([one, two])
    np.testing.assert_allclose(mixed[0], own[0], atol=2e-6)
    assert np.abs(mixed[1] - own[1]).max() > 0


def test_a_copy_of_the_model_replays_nothing_that_it_was_not_given() -> None:
    """Critics and references begin as copies."""
    model = made("qwen3")
    used = learner(model)
    used.update(samples_of(model))
    other = TorchLearner(copy.deepcopy(used.model), LearnerConfig(), LossConfig())
    [sample] = random_samples(models.model(), count=1)
    np.testing.assert_array_equal(other.logprobs([sample])[0], used.logprobs([sample])[0])


def test_what_cannot_be_replayed_is_one_line() -> None:
    with pytest.raises(ConfigError, match="has no router of experts that is known here"):
        learner(models.model())
    deepseek = AutoModelForCausalLM.from_config(
        DeepseekV3Config(**SHAPE, n_routed_experts=EXPERTS, first_k_dense_replace=1)
    )
    with pytest.raises(ConfigError, match="weighs experts in a way that is not known"):
        routing.set_routing(deepseek, "replay")
    [sample] = samples_of(made("qwen3"), count=1)
    assert sample.routing is not None
    with pytest.raises(TrainingError, match=r"reports \(2, 2\) layers and experts .* has \(3, 2\)"):
        learner(made("qwen3")).logprobs([replace(sample, routing=sample.routing[:, :2])])
    with pytest.raises(ValueError, match="experts of 3 tokens, not"):
        replace(sample, routing=sample.routing[:3])


@pytest.mark.parametrize("most", [200, 300])
def test_spans_become_a_sample_with_the_experts_of_all_turns(most: int) -> None:
    experts = np.arange(7 * 3 * 2).reshape(7, 3, 2).astype(np.uint16)
    experts[-1] = most  # in one byte or in two
    first = Generation(
        token_ids=(5, 6),
        logprobs=(-1.0, -1.0),
        versions=(0, 1),
        finish="end",
        routing=experts[:4],
    )
    second = Generation(
        token_ids=(8, 9), logprobs=(-1.0, -1.0), versions=(1, 1), finish="end", routing=experts[4:]
    )
    turns = [
        replace(turn(), spans=spans_of((1, 2), first)),
        replace(turn(), spans=spans_of((7,), second)),
    ]
    [sample] = to_samples(episode(turns), np.zeros(4), index=0)
    assert sample.routing is not None
    np.testing.assert_array_equal(sample.routing, experts)
    turns[1] = turn()
    [mixed] = to_samples(episode(turns), np.zeros(4), index=0)
    assert mixed.routing is None


@pytest.mark.extra("peft")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["own", "replay"])
def test_adapters_of_experts_and_routers_are_trained_and_reach_the_engine_merged(
    kind: str, how: Literal["own", "replay"]
) -> None:
    samples = [reported(engine(made(kind)), s) for s in random_samples(made(kind), count=4)]
    model = add_lora(made(kind), 2, seed=0)
    before = full_state(model)
    assert before.keys() == made(kind).state_dict().keys()
    config = LearnerConfig(lr=0.01, routing=how)
    learner = TorchLearner(model, config, LossConfig())
    learner.update(samples)
    learner.update(samples)
    merged = made(kind)
    merged.load_state_dict(full_state(model))
    moved = {name for name, weight in merged.state_dict().items() if (weight != before[name]).any()}
    experts = {f"model.layers.0.mlp.experts.{name}" for name in ("gate_up_proj", "down_proj")}
    assert experts <= moved or kind == "qwen2"  # whose experts peft leaves alone
    assert "model.layers.0.self_attn.q_proj.weight" in moved
    found = TorchLearner(merged, config, LossConfig()).logprobs(samples)
    for a, b in zip(found, learner.logprobs(samples), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)
    ids, (body, _) = torch.from_numpy(samples[0].token_ids)[None], body_of(model)
    for own in (body, merged.model):
        routing.replay(own, None)
    with torch.no_grad():
        pair = [own(ids).last_hidden_state for own in (body, merged.model)]
    torch.testing.assert_close(*pair, atol=1e-4, rtol=1e-4)
