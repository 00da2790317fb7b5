"""Losses that fit log-ratios, against autograd of the formulas of their papers on whole attempts.

The references here know nothing of samples, micro-batches or surrogates: they read the logits of a
small model in one pass per attempt and write the loss down as the paper does.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from helpers import models
from helpers.credit import algo
from helpers.samples import random_samples
from turngym.trainers.losses.regressions import (
    classification_advantages,
    first_tokens,
    preference_advantages,
    turn_weights,
    with_balanced_advantages,
    with_next_values,
)
from turngym.trainers.samples import TrainingSample
from turngym.trainers.settings.loss import LossConfig
from turngym.trainers.settings.optimizer import LearnerConfig
from turngym.trainers.settings.surrogates import Balance, Classify, Prefer
from turngym.trainers.update.learner import TorchLearner

TEMPERATURE = 0.8
LABELS = (1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0)
GROUPS = (0, 0, 0, 1, 1, 1, 2, 2, 2)
"""A group with both, one of failures, one with both; the first has two successes."""


def attempts(earned: Sequence[float] = LABELS) -> list[TrainingSample]:
    """Return attempts of two turns in groups of three, each with one advantage."""
    made = random_samples(models.model(), count=len(earned), longest=16)
    return [
        replace(s, group=g, advantages=np.where(s.loss_mask, a, 0).astype(np.float32))
        for s, a, g in zip(made, earned, GROUPS, strict=True)
    ]


def learner(loss: LossConfig, model: Any = None, **config: float) -> TorchLearner:
    """Return a learner of a copy of a small model, whose first weights are its reference."""
    settings = LearnerConfig(**{"lr": 0.01, "grad_clip": 1e9, **config})  # type: ignore[arg-type]
    return TorchLearner(
        copy.deepcopy(model or models.model()),
        settings,
        loss,
        temperature=TEMPERATURE,
        reference=models.model(),
    )


def gradient(model: Any) -> Tensor:
    """Return what the last backward pass left in a model."""
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


class Read:
    """Log-probs of an attempt's sampled tokens [A] and the logits that they were sampled from."""

    def __init__(self, model: Any, sample: TrainingSample) -> None:
        ids = torch.from_numpy(sample.token_ids)[None]
        at = torch.from_numpy(np.flatnonzero(sample.loss_mask))
        self.logits_AV = model(ids).logits[0, at - 1].float() / TEMPERATURE
        logprobs_AV = self.logits_AV.log_softmax(-1)
        self.logprobs_A = logprobs_AV[torch.arange(len(at)), ids[0, at]]
        self.mean_logprobs_A = logprobs_AV.mean(-1)


def reference_gradient(model: Any, loss: Callable[[Any], Tensor]) -> Tensor:
    """Return the gradient of ``loss`` with the weights of a model."""
    copied = copy.deepcopy(model)
    copied.zero_grad()
    loss(copied).backward()
    return gradient(copied)


def log_ratios(model: Any, other: Any, samples: Sequence[TrainingSample]) -> Tensor:
    """Return the log-ratio of each whole attempt, [B]."""
    with torch.no_grad():
        old = [Read(other, s).logprobs_A for s in samples]
    pairs = zip(samples, old, strict=True)
    return torch.stack([(Read(model, s).logprobs_A - o).sum() for s, o in pairs])


def assert_same(found: Tensor, wanted: Tensor) -> None:
    """Compare two gradients."""
    assert wanted.norm() > 1e-3
    torch.testing.assert_close(found, wanted, atol=1e-3 * float(wanted.abs().max()), rtol=1e-3)


def moved(loss: LossConfig, samples: Sequence[TrainingSample]) -> tuple[Any, Tensor]:
    """Return the model after one step on a batch, and the gradient that a second step has there."""
    once = learner(loss)
    once.update(samples)
    twice = learner(loss, num_epochs=2)
    twice.update(samples)
    return once.model, gradient(twice.model)


def test_a_star_po_is_the_squared_gap_of_the_price_and_the_reward_less_the_value() -> None:
    """Away from the reference, where prices count: beta2 of the script is too small to see."""
    loss = algo("a_star_po").loss.model_copy(
        update={"surrogate": Balance(type="balance", beta=0.05, value="none", in_rewards=True)}
    )
    samples, other = attempts([r - 0.7 for r in LABELS]), models.model("qwen2")
    made = learner(loss, other)
    made.update(samples)
    earned = torch.tensor(LABELS) - 0.7
    wanted = reference_gradient(
        other,
        lambda m: (0.05 * log_ratios(m, models.model(), samples) - earned).square().mean(),
    )
    assert_same(gradient(made.model), wanted)


def test_tbrm_trains_the_value_that_the_logits_give_the_start() -> None:
    loss, samples = algo("tbrm").loss, attempts()
    assert isinstance(loss.surrogate, Balance)
    beta = loss.surrogate.beta
    made = learner(loss)
    made.update(samples)

    def residuals(model: Any) -> Tensor:
        values = torch.stack([Read(model, s).logits_AV[0].logsumexp(-1) for s in samples])
        gaps = log_ratios(model, models.model(), samples)
        return (gaps - torch.tensor(LABELS) / beta + values).square().mean()

    assert_same(gradient(made.model), reference_gradient(models.model(), residuals))


def cut_in_two(whole: Sequence[TrainingSample]) -> list[TrainingSample]:
    """Return attempts of two turns with a segment for each turn."""
    return [
        replace(s, loss_mask=s.turn_ids == turn, turn_ids=np.where(s.turn_ids == turn, turn, -1),
                advantages=np.where(s.turn_ids == turn, s.advantages, 0))
        for s in whole
        for turn in (0, 1)
    ]  # fmt: skip


def test_tbrm_of_a_rewritten_history_begins_once() -> None:
    """An attempt in two segments has one start, that of its first segment."""
    whole = attempts()
    cut = cut_in_two(whole)
    assert [int(mask.sum()) for mask in first_tokens(cut)] == [1, 0] * len(whole)
    found = [learner(algo("tbrm").loss) for _ in range(2)]
    for made, samples in zip(found, (whole, cut), strict=True):
        made.update(samples)
    assert_same(gradient(found[1].model), gradient(found[0].model))


def scores(gaps_B: Tensor, beta: float) -> Tensor:
    """Return ``beta`` times each log-ratio less the mean of the two others of its group."""
    gaps_GA = gaps_B.reshape(-1, 3)
    others_GA = (gaps_GA.sum(1, keepdim=True) - gaps_GA) / 2
    return beta * (gaps_GA - others_GA).reshape(-1)


WEIGHTS = torch.tensor([0.75, 1.5, 0.75, 1.0, 1.0, 1.0, 0.75, 0.75, 1.5])
"""3 / (2 * number of the same label) where a group has both."""


@pytest.mark.parametrize("balanced", [True, False])
def test_pacs_is_the_cross_entropy_of_success(balanced: bool) -> None:
    config = Classify(type="classify", beta=1.5, balanced=balanced)
    gaps = torch.linspace(-1.2, 2.0, 9, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor(LABELS, dtype=torch.float64)
    weights = WEIGHTS.double() if balanced else None
    loss = binary_cross_entropy_with_logits(scores(gaps, 1.5), labels, weight=weights)
    loss.backward()
    assert gaps.grad is not None
    found = classification_advantages(labels, gaps.detach(), torch.tensor(GROUPS), config)
    torch.testing.assert_close(found, -9 * gaps.grad)


def test_pacs_begins_as_rloo_and_goes_on_as_a_classifier() -> None:
    plain = Classify(type="classify", balanced=False)
    nowhere = torch.zeros(9, dtype=torch.float64)
    labels = torch.tensor(LABELS, dtype=torch.float64)
    begun = classification_advantages(labels, nowhere, torch.tensor(GROUPS), plain)
    assert begun.tolist() == pytest.approx([0.5, -1, 0.5, 0, 0, 0, 0.5, 0.5, -1])
    loss, samples = algo("pacs").loss, attempts()
    model, found = moved(loss, samples)

    def cross_entropy(model: Any) -> Tensor:
        made = scores(log_ratios(model, models.model(), samples), 1.0)
        return binary_cross_entropy_with_logits(made, torch.tensor(LABELS), weight=WEIGHTS)

    assert_same(found, reference_gradient(model, cross_entropy))


def test_pacs_keeps_the_attempts_of_a_group_in_one_step() -> None:
    """Three steps on three groups of three: each is that of a group alone."""
    loss, samples = algo("pacs").loss, attempts()
    apart = learner(loss, num_minibatches=3, lr=1e-9)
    found = apart.update(samples)
    assert found["train/loss"] == pytest.approx(
        np.mean([learner(loss).update(samples[i : i + 3])["train/loss"] for i in (0, 3, 6)]),
        rel=1e-4,
    )


def test_an_attempt_alone_is_classified_by_its_own_log_ratio() -> None:
    one, zero = torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.long)
    found = classification_advantages(one, 2 * one, zero, Classify(type="classify"))
    assert found.item() == pytest.approx(1 - 1 / (1 + np.exp(-2)))


PAIRS = ((0, 1), (2, 1), (6, 8), (7, 8))
"""A success and a failure of one group, by place in ``LABELS``."""


@pytest.mark.parametrize("name", ["dpo", "dmpo"])
def test_preferences_are_the_loss_of_all_pairs_of_a_group(name: str) -> None:
    """Away from the reference; DMPO counts the first of two turns fully and the last by 0.7/1.7."""
    loss, samples, other = algo(name).loss, attempts(), models.model("qwen2")
    assert isinstance(loss.surrogate, Prefer)
    last, beta = (1.0 if name == "dpo" else 0.7 / 1.7), loss.surrogate.beta
    made = learner(loss, other)
    made.update(samples)

    def of_pairs(model: Any) -> Tensor:
        gaps = []
        for sample in samples:
            with torch.no_grad():
                old = Read(models.model(), sample).logprobs_A
            turns_A = torch.from_numpy(sample.turn_ids[sample.loss_mask])
            counts_A = torch.where(turns_A == 0, 1.0, last)
            gaps.append((counts_A * (Read(model, sample).logprobs_A - old)).sum())
        losses = [-(beta * (gaps[won] - gaps[lost])).sigmoid().log() for won, lost in PAIRS]
        return torch.stack(losses).mean()

    assert_same(gradient(made.model), reference_gradient(other, of_pairs))


def test_an_attempt_in_segments_is_preferred_as_a_whole() -> None:
    whole = attempts()
    cut = cut_in_two(whole)
    for segment, counts_L in zip(cut, turn_weights(cut, 0.5), strict=True):
        wanted = 1.0 if segment.turn_ids.max() == 0 else 0.5 / 1.5
        assert counts_L[segment.loss_mask] == pytest.approx(wanted)
    found = [learner(algo("dmpo").loss) for _ in range(2)]
    for made, samples in zip(found, (whole, cut), strict=True):
        made.update(samples)
    assert_same(gradient(found[1].model), gradient(found[0].model))


def test_a_turn_counts_by_its_place_where_those_before_it_are_too_old_to_be_trained() -> None:
    whole = attempts()[0]
    is_new = whole.turn_ids == 1
    part = replace(whole, loss_mask=is_new, turn_ids=np.where(is_new, 1, -1))
    for discount, wanted in ((0.5, 0.5 / 1.5), (1.0, 0.5)):
        for one in (whole, part):
            assert turn_weights([one], discount)[0][is_new] == pytest.approx(wanted)


def test_where_nobody_is_better_there_is_no_preference() -> None:
    zeros, groups = torch.zeros(4, dtype=torch.float64), torch.tensor([0, 0, 1, 2])
    rewards = torch.tensor([1.0, 1.0, 0.0, 1.0], dtype=torch.float64)
    found = preference_advantages(rewards, zeros, groups, Prefer(type="prefer"))
    assert found.tolist() == [0.0] * 4


@pytest.mark.parametrize(
    ("link", "near", "far"), [("logistic", 0.5, 0.182), ("square", 0.0, -2.0), ("hinge", 1.0, 0.0)]
)
def test_a_pair_pulls_less_the_further_it_is_apart(link: Any, near: float, far: float) -> None:
    """The pull of a pair of beta 1 whose log-ratios are equal (a square: half apart); and 1.5."""
    config, rewards = Prefer(type="prefer", beta=1.0, link=link), torch.tensor([1.0, 0.0])
    start = 0.5 if link == "square" else 0.0
    for apart, wanted in ((start, near), (1.5, far)):
        gaps = torch.tensor([apart, 0.0], dtype=torch.float64)
        found = preference_advantages(rewards, gaps, torch.zeros(2), config)
        assert found.tolist() == pytest.approx([2 * wanted, -2 * wanted], abs=1e-3)


def test_rover_fits_log_ratios_to_the_reward_and_the_value_of_what_follows() -> None:
    loss, samples = algo("rover").loss, attempts([r - 0.5 for r in LABELS])
    model, found = moved(loss, samples)

    def squares(model: Any) -> Tensor:
        losses = []
        for sample, reward in zip(samples, LABELS, strict=True):
            with torch.no_grad():
                old = Read(models.model(), sample)
            new = Read(model, sample)
            values_A = new.mean_logprobs_A - old.mean_logprobs_A
            next_A = torch.cat([values_A[1:], torch.zeros(1)])
            target_A = (reward - 0.5 + next_A).detach()
            losses.append((new.logprobs_A - old.logprobs_A - target_A).square())
        return torch.cat(losses).mean()

    assert_same(found, reference_gradient(model, squares))


def test_the_next_value_passes_over_what_the_environment_said_and_over_segments() -> None:
    first, second = attempts()[:2]
    second = replace(second, trajectory=first.trajectory)
    new, old = [
        [np.where(s.loss_mask, np.arange(s.token_ids.size) * scale, 99.0).astype(np.float32)
         for s in (first, second)]
        for scale in (0.5, 0.0)
    ]  # fmt: skip
    blank = [replace(s, advantages=np.zeros_like(s.advantages)) for s in (first, second)]
    found = with_next_values(blank, new, old)
    own = [0.5 * np.flatnonzero(s.loss_mask) for s in (first, second)]
    assert found[0].advantages[first.loss_mask].tolist() == [*own[0][1:], own[1][0]]
    assert found[1].advantages[second.loss_mask].tolist() == [*own[1][1:], 0.0]
    assert not found[0].advantages[~first.loss_mask].any()


def test_a_residual_without_a_value_by_hand() -> None:
    """1 - 0.5 * 0.4 = 0.8, for every token of the attempt."""
    sample = attempts()[0]
    lengths = np.where(sample.loss_mask, 0.4 / sample.num_action_tokens, 0).astype(np.float32)
    config = Balance(type="balance", beta=0.5, value="none")
    found = with_balanced_advantages([sample], [lengths], [lengths * 0], config)
    assert found[0].advantages[sample.loss_mask] == pytest.approx(1 - 0.5 * 0.4)
