"""One update: its gradient, its independence of how it is cut up, its limits."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from numpy.random import default_rng

from helpers import models
from helpers.samples import random_samples
from turngym.agents.engine.models import add_lora
from turngym.errors import CheckpointError, TrainingError
from turngym.trainers.samples import TrainingSample, dealt
from turngym.trainers.settings.loss import LossConfig, RegularizerConfig
from turngym.trainers.settings.optimizer import LearnerConfig, OptimizerConfig
from turngym.trainers.settings.surrogates import PolicyGradient, PpoClip
from turngym.trainers.update.forward import score
from turngym.trainers.update.learner import TorchLearner
from turngym.trainers.update.optimizer import Optimizer, full_state

SAMPLES = random_samples(models.model(), count=6)


def fresh() -> Any:
    return copy.deepcopy(models.model())


def learner(
    loss: LossConfig | None = None,
    regularizer: RegularizerConfig | None = None,
    *,
    reference: Any = None,
    temperature: float = 1.0,
    model: Any = None,
    **config: Any,
) -> TorchLearner:
    return TorchLearner(
        model or fresh(),
        LearnerConfig(**{"lr": 1e-3, **config}),
        loss or LossConfig(),
        regularizer,
        reference=reference,
        temperature=temperature,
    )


def weights_after(made: TorchLearner, samples: Sequence[TrainingSample] = SAMPLES) -> torch.Tensor:
    made.update(samples)
    return torch.cat([p.detach().flatten() for p in made.model.parameters()])


def gradient(made: TorchLearner, samples: Sequence[TrainingSample] = SAMPLES) -> torch.Tensor:
    made.update(samples)
    return torch.cat([p.grad.flatten() for p in made.model.parameters() if p.grad is not None])


def test_the_likelihood_of_praised_tokens_rises_and_of_blamed_ones_falls() -> None:
    made = learner()
    before = made.logprobs(SAMPLES)
    made.update(SAMPLES)
    for sample, old, new in zip(SAMPLES, before, made.logprobs(SAMPLES), strict=True):
        praise = sample.advantages[sample.loss_mask][0]
        assert np.sign((new - old).sum()) == np.sign(praise)


@pytest.mark.parametrize(
    "loss",
    [
        LossConfig(aggregation="token_mean"),
        LossConfig(aggregation="seq_mean_token_mean"),
        LossConfig(aggregation="turn_mean"),
        LossConfig(surrogate=PolicyGradient(type="pg"), aggregation="seq_mean_token_sum"),
    ],
)
def test_micro_batches_do_not_change_the_gradient(loss: LossConfig) -> None:
    regularizer = RegularizerConfig(entropy_coefficient=0.01)
    whole = gradient(learner(loss, regularizer, grad_clip=1e9))
    cut = gradient(learner(loss, regularizer, grad_clip=1e9, microbatch_tokens=30))
    torch.testing.assert_close(cut, whole, atol=1e-6, rtol=1e-4)


def test_the_order_of_the_samples_does_not_change_the_gradient() -> None:
    forward = gradient(learner(grad_clip=1e9))
    backward = gradient(learner(grad_clip=1e9), SAMPLES[::-1])
    torch.testing.assert_close(backward, forward, atol=1e-6, rtol=1e-4)


def test_the_first_step_is_the_same_for_every_surrogate_and_old_policy() -> None:
    """All ratios are one: the clip, its bounds and the old policy cannot matter yet."""
    losses = [
        LossConfig(surrogate=PpoClip(clip_high=0.28, dual_clip=3.0)),
        LossConfig(old_policy="behaviour"),
        LossConfig(surrogate=PolicyGradient(type="pg")),
    ]
    wanted = gradient(learner(grad_clip=1e9))
    for loss in losses:
        found = gradient(learner(loss, grad_clip=1e9))
        torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-4)


def test_a_stale_behaviour_policy_is_corrected_only_when_it_is_the_old_policy() -> None:
    stale = [replace(s, behaviour_logprobs=s.behaviour_logprobs - 0.1) for s in SAMPLES]
    prox = gradient(learner(grad_clip=1e9), stale)
    torch.testing.assert_close(prox, gradient(learner(grad_clip=1e9)))
    behaviour = gradient(learner(LossConfig(old_policy="behaviour"), grad_clip=1e9), stale)
    torch.testing.assert_close(behaviour, prox * np.exp(0.1), atol=1e-6, rtol=1e-3)


def test_several_steps_per_batch_move_the_ratio_away_from_one() -> None:
    one = learner(lr=0.01)
    many = learner(lr=0.01, num_epochs=4, num_minibatches=2)
    assert one.update(SAMPLES)["train/clip_fraction"] == 0.0
    assert many.update(SAMPLES)["train/clip_fraction"] > 0.0
    assert (one.optimizer.steps, many.optimizer.steps) == (1, 8)


def test_minibatches_deal_out_every_episode_once_per_pass() -> None:
    found = list(dealt(SAMPLES, default_rng, epochs=2, steps=3))
    assert [len(part) for part in found] == [2] * 6
    assert sorted(chain(*found[:3])) == sorted(chain(*found[3:])) == list(range(6))
    assert found[:3] != found[3:]


def test_segments_of_one_episode_share_a_minibatch() -> None:
    cut = [replace(s, trajectory=i // 2) for i, s in enumerate(SAMPLES)]
    for part in dealt(cut, default_rng, steps=3):
        assert part[0] // 2 == part[1] // 2


def test_the_attempts_of_a_group_share_a_minibatch_where_a_loss_compares_them() -> None:
    grouped = [replace(s, group=i % 3) for i, s in enumerate(SAMPLES)]
    parts = dealt(grouped, default_rng, steps=3, by_group=True)
    assert sorted(parts) == [[0, 3], [1, 4], [2, 5]]


def test_metrics_say_what_happened() -> None:
    found = learner(grad_clip=1e-9).update(SAMPLES)
    assert found["train/behaviour_gap_max"] < 1e-5
    assert found["train/tokens"] == sum(s.num_action_tokens for s in SAMPLES)
    assert 0 < found["train/entropy"] <= np.log(len(models.tokenizer()))
    assert found["train/grad_clipped"] == 1.0
    assert found["train/learning_rate"] == 1e-3
    assert found["train/policy_lag"] == 0.0


def test_policy_lag_counts_updates_since_the_tokens_were_drawn() -> None:
    made = learner()
    made.update(SAMPLES)
    made.update(SAMPLES)
    assert made.update(SAMPLES)["train/policy_lag"] == 2.0


def test_the_gap_between_engine_and_learner_is_seen() -> None:
    wrong = [replace(SAMPLES[0], behaviour_logprobs=SAMPLES[0].behaviour_logprobs - 0.5)]
    found = learner().update(wrong)
    assert found["train/behaviour_gap_max"] == pytest.approx(0.5, abs=1e-4)
    assert found["train/behaviour_gap_mean"] == pytest.approx(0.5, abs=1e-4)
    of_these_weights = {name: found[f"mismatch/fresh_{name}"] for name in ("mean", "p99", "kl")}
    kl = np.exp(0.5) - 1 - 0.5
    assert of_these_weights == pytest.approx({"mean": 0.5, "p99": 0.5, "kl": kl}, abs=1e-4)
    assert "mismatch/stale_mean" not in found
    old = [replace(wrong[0], policy_versions=wrong[0].policy_versions - 1)]
    found = learner().update(old)
    assert found["mismatch/stale_max"] == pytest.approx(0.5, abs=1e-4)
    assert "mismatch/fresh_mean" not in found


def test_sampling_at_another_temperature_is_followed() -> None:
    assert learner(temperature=0.5).update(SAMPLES)["train/behaviour_gap_max"] > 0.1


def test_entropy_bonus_keeps_entropy_up() -> None:
    level = [replace(s, advantages=s.advantages * 0) for s in SAMPLES]
    made = learner(None, RegularizerConfig(entropy_coefficient=1.0))
    entropies = [made.update(level)["train/entropy"] for _ in range(5)]
    assert entropies[-1] > entropies[0]


def test_the_reference_pulls_the_policy_back() -> None:
    still = [replace(s, advantages=s.advantages * 0) for s in SAMPLES]
    strayed = learner(lr=0.01)
    strayed.update(SAMPLES)
    made = learner(
        LossConfig(),
        RegularizerConfig(kl_coefficient=1.0, kl_estimator="k2"),
        reference=models.model(),
        model=strayed.model,
        lr=3e-3,
    )
    divergences = [made.update(still)["train/kl_ref"] for _ in range(8)]
    assert divergences[0] > 0
    assert divergences[-1] < 0.5 * divergences[0]


@pytest.mark.parametrize("aggregation", ["token_mean", "seq_mean_token_sum", "turn_mean"])
def test_the_divergence_is_in_nats_a_token_however_the_loss_weighs_them(aggregation: Any) -> None:
    reference = copy.deepcopy(models.model())
    with torch.no_grad():
        reference.lm_head.weight.mul_(1.1)
    logs = [
        score(model, [s.token_ids for s in SAMPLES], [s.loss_mask for s in SAMPLES], max_tokens=64)
        for model in (models.model(), reference)
    ]
    gaps = np.concatenate([(a - b)[s.loss_mask] for a, b, s in zip(*logs, SAMPLES, strict=True)])
    made = learner(
        LossConfig(aggregation=aggregation),
        RegularizerConfig(kl_coefficient=0.1),
        reference=reference,
        microbatch_tokens=48,
    )
    wanted = float((np.expm1(-gaps) + gaps).mean())
    assert made.update(SAMPLES)["train/kl_ref"] == pytest.approx(wanted, rel=1e-3)


def test_a_reference_is_required_by_its_weight() -> None:
    with pytest.raises(ValueError, match="needs a reference policy"):
        learner(None, RegularizerConfig(kl_coefficient=0.1))


def test_nothing_to_learn_changes_nothing_but_counts() -> None:
    made = learner()
    before = full_state(made.model)["model.norm.weight"].clone()
    for samples in ([], [replace(SAMPLES[0], weight=0.0)]):
        found = made.update(samples)
        assert found["train/tokens"] == 0
    assert made.updates == 2
    assert torch.equal(full_state(made.model)["model.norm.weight"], before)


def test_a_learning_rate_of_zero_changes_no_weight() -> None:
    control = weights_after(learner(lr=0.0))
    wanted = torch.cat([p.detach().flatten() for p in models.model().parameters()])
    assert torch.equal(control, wanted)


def test_a_loss_that_is_not_finite_stops_before_any_weight_changes() -> None:
    made = learner()
    before = {name: p.detach().clone() for name, p in made.model.named_parameters()}
    made.update([])
    with torch.no_grad():
        weight = made.model.lm_head.weight
        weight[:, 0] = float("nan")
        before["model.embed_tokens.weight"][:, 0] = float("nan")
    with pytest.raises(TrainingError, match=r"update 1: loss is nan, .* weights were not changed"):
        made.update(SAMPLES)
    for name, p in made.model.named_parameters():
        torch.testing.assert_close(p.detach(), before[name], equal_nan=True, rtol=0, atol=0)


def test_a_run_of_updates_can_be_taken_up_to_the_bit() -> None:
    config = {"num_epochs": 2, "num_minibatches": 2, "lr_warmup_steps": 6}
    straight = learner(**config)
    for _ in range(4):
        straight.update(SAMPLES)
    first = learner(**config)
    for _ in range(2):
        first.update(SAMPLES)
    second = learner(**config, model=copy.deepcopy(first.model))
    second.load_state(first.state(), updates=first.updates, steps=first.optimizer.steps)
    for _ in range(2):
        second.update(SAMPLES)
    for a, b in zip(straight.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_an_optimizer_state_of_another_model_is_refused() -> None:
    made = learner()
    made.update(SAMPLES)
    state = made.state()
    del state["0.exp_avg"], state["0.exp_avg_sq"], state["0.step"]
    with pytest.raises(CheckpointError, match="another shape"):
        learner().load_state(state, updates=1, steps=1)


def test_an_optimizer_state_of_renamed_weights_is_refused_though_shapes_agree() -> None:
    def linear(first: str, second: str) -> Optimizer:
        layers = {name: torch.nn.Linear(2, 2, bias=False) for name in (first, second)}
        found = Optimizer(torch.nn.ModuleDict(layers), OptimizerConfig(), total_steps=4)
        for weight in layers.values():
            weight.weight.grad = torch.ones(2, 2)
        return found

    made = linear("up", "down")
    made.step(1.0, where="here")
    linear("up", "down").load_state(made.state(), steps=1)
    with pytest.raises(
        CheckpointError, match=r"its weight 0 is 'up.weight', and here it is 'down.weight'$"
    ):
        linear("down", "up").load_state(made.state(), steps=1)
    older = {key: tensor for key, tensor in made.state().items() if key != "names"}
    linear("down", "up").load_state(older, steps=1)  # of a version that wrote no names


@pytest.mark.extra("peft")
def test_adapters_are_trained_alone_and_reach_the_engine_merged() -> None:
    base = fresh()
    before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    model = add_lora(base, 2, seed=0)
    made = learner(model=model, lr=0.01)
    state = full_state(model)
    assert state.keys() == before.keys()
    for name, tensor in state.items():  # adapters start as nothing
        assert torch.equal(tensor, before[name])
    made.update(SAMPLES)
    made.update(SAMPLES)
    merged = fresh()
    merged.load_state_dict(full_state(model))
    assert not torch.equal(
        merged.model.layers[0].self_attn.q_proj.weight,
        before["model.layers.0.self_attn.q_proj.weight"],
    )
    frozen = [p for name, p in model.named_parameters() if "base_layer" in name]
    assert frozen
    assert not any(p.requires_grad for p in frozen)
    wanted = made.logprobs(SAMPLES)
    found = learner(model=merged).logprobs(SAMPLES)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
