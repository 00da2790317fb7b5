"""The learner gives each loss the ratios of whole turns and episodes, however a step is cut."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from helpers import models
from helpers.samples import random_samples
from turngym.trainers.learner import Learner
from turngym.trainers.loss_config import (
    LossConfig,
    PpoClip,
    RatioAnchor,
    RegularizerConfig,
    Squared,
)
from turngym.trainers.optimizer_config import LearnerConfig
from turngym.trainers.samples import TrainingSample

RNG = np.random.default_rng(11)
STALE = [
    replace(
        s,
        behaviour_logprobs=np.where(
            s.loss_mask, s.behaviour_logprobs + RNG.normal(0, 0.3, s.loss_mask.shape), 0
        ).astype(np.float32),
    )
    for s in random_samples(models.model(), count=6)
]
"""Drawn by another policy, so that ratios differ from 1."""


def cut_in_segments(samples: Sequence[TrainingSample]) -> list[TrainingSample]:
    """Return each episode as two samples, one for each of its turns; contexts stay the same."""
    return [
        replace(
            s,
            loss_mask=s.turn_ids == turn,
            turn_ids=np.where(s.turn_ids == turn, turn, -1),
        )
        for s in samples
        for turn in (0, 1)
    ]


def learner(loss: LossConfig, **config: float) -> Learner:
    settings = LearnerConfig(**{"lr": 1e-3, "grad_clip": 1e9, **config})  # type: ignore[arg-type]
    return Learner(copy.deepcopy(models.model()), settings, loss)


def outcome(made: Learner, samples: Sequence[TrainingSample]) -> tuple[float, torch.Tensor]:
    """Return the loss and the gradient of one update."""
    loss = made.update(samples)["train/loss"]
    weights = made.model.parameters()
    return loss, torch.cat([p.grad.flatten() for p in weights if p.grad is not None])


WHOLES = [
    LossConfig(
        ratio_level="sequence_geo", ratio_anchor="behaviour", aggregation="seq_mean_token_mean"
    ),
    LossConfig(
        surrogate=Squared(type="squared"),
        ratio_level="sequence_prod",
        ratio_anchor="behaviour",
        aggregation="seq_mean_token_sum",
    ),
    LossConfig(ratio_level="turn", ratio_anchor="behaviour", aggregation="turn_mean"),
    LossConfig(ratio_anchor="behaviour", aggregation="prompt_mean"),
]


@pytest.mark.parametrize("loss", WHOLES, ids=lambda c: c.ratio_level)
@pytest.mark.parametrize("microbatch_tokens", [1, 50, 100])
def test_segments_and_micro_batches_do_not_change_the_gradient(
    loss: LossConfig, microbatch_tokens: int
) -> None:
    wanted, gradient = outcome(learner(loss), STALE)
    for samples in (STALE, cut_in_segments(STALE)):
        found, other = outcome(learner(loss, microbatch_tokens=microbatch_tokens), samples)
        assert found == pytest.approx(wanted, rel=1e-6)
        torch.testing.assert_close(other, gradient, atol=1e-6, rtol=1e-4)


def test_an_episode_that_has_left_the_band_is_clipped_as_one() -> None:
    loss = LossConfig(
        surrogate=PpoClip(clip_low=3e-4, clip_high=4e-4),
        ratio_level="sequence_geo",
        ratio_anchor="behaviour",
        aggregation="seq_mean_token_mean",
    )
    found = learner(loss).update(STALE)
    clipped = 0
    for sample in STALE:
        mask = sample.loss_mask
        [now] = learner(loss).logprobs([sample])
        ratio = np.exp((now - sample.behaviour_logprobs)[mask].mean())
        praised = sample.advantages[mask][0] > 0
        if (praised and ratio > 1 + 4e-4) or (not praised and ratio < 1 - 3e-4):
            clipped += sample.num_action_tokens
    assert clipped > 0
    assert found["train/clip_fraction"] == pytest.approx(
        clipped / sum(s.num_action_tokens for s in STALE)
    )


def test_a_live_anchor_ignores_who_drew_the_tokens() -> None:
    live, _ = outcome(learner(LossConfig(ratio_anchor="live")), STALE)
    one_step, _ = outcome(learner(LossConfig()), STALE)
    behaviour, _ = outcome(learner(LossConfig(ratio_anchor="behaviour")), STALE)
    assert live == one_step != behaviour


@pytest.mark.parametrize(("anchor", "clips"), [("prox", True), ("live", False)])
def test_a_live_anchor_never_clips(anchor: RatioAnchor, clips: bool) -> None:
    made = learner(LossConfig(ratio_anchor=anchor), num_epochs=4, lr=0.01)
    assert (made.update(STALE)["train/clip_fraction"] > 0) == clips


def test_the_level_changes_nothing_in_one_step_per_batch() -> None:
    mode = "seq_mean_token_mean"
    wanted = outcome(learner(LossConfig(aggregation=mode)), STALE)
    found = outcome(learner(LossConfig(aggregation=mode, ratio_level="sequence_geo")), STALE)
    assert found[0] == pytest.approx(wanted[0], abs=1e-7)
    torch.testing.assert_close(found[1], wanted[1], atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("surrogate", ["ppo_clip", "pg"])
def test_an_unbiased_divergence_knows_the_policy_that_the_batch_began_with(surrogate: str) -> None:
    """Its ratio starts at 1; k3 and its unbiased form part from the second step on."""
    updates = {}
    for kind in ("k3", "k3_unbiased"):
        made = Learner(
            copy.deepcopy(models.model()),
            LearnerConfig(lr=3e-3, num_epochs=2),
            LossConfig.model_validate({"surrogate": {"type": surrogate}}),
            RegularizerConfig.model_validate({"kl_coefficient": 1.0, "kl_estimator": kind}),
            reference=models.model(),
        )
        first = made.update(STALE)["train/kl_ref"]
        updates[kind] = first
    assert updates["k3_unbiased"] != pytest.approx(updates["k3"], rel=1e-3)
