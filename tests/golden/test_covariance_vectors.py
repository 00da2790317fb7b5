"""Clip-Cov, KL-Cov and ACE: vectors worked out from their formulas."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from helpers.credit import algo, rows_of
from helpers.losses import ADVANTAGES, F1, LOGP, f1_loss
from helpers.trajectories import episode, group, turn
from turngym.config import load_config
from turngym.errors import ConfigError
from turngym.trainers.losses.policy_loss import covariant_tokens
from turngym.trainers.losses.surrogates import SurrogateInputs
from turngym.trainers.losses.token_weights import with_confidence_penalty
from turngym.trainers.samples import FloatArray, TrainingSample
from turngym.trainers.settings.train import TrainConfig

RNG = np.random.default_rng(0)
SIGNS = torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=torch.float64)
LOGPROBS = torch.tensor([-0.1, -3.0, -0.2, -4.0], dtype=torch.float64)
"""Covariances 1.725, -1.175, -1.625, 2.175."""


def held(name: str, *, old: torch.Tensor = LOGPROBS, **changes: float) -> list[bool]:
    loss = algo(name).loss
    covariance = loss.covariance.model_copy(update=changes)
    inputs = SurrogateInputs(
        log_ratios=LOGPROBS - old, policy_logprobs=LOGPROBS, old_logprobs=old, advantages=SIGNS
    )
    found = covariant_tokens(inputs, loss.model_copy(update={"covariance": covariance}), RNG)
    return [bool(value) for value in found]


def test_the_largest_covariances_pay() -> None:
    assert held("kl_cov") == [False, False, False, True]
    assert held("kl_cov", share=0.5) == [True, False, False, True]
    assert held("kl_cov", share=1.0) == [True] * 4


def test_covariances_between_the_bounds_are_clipped_and_one_at_least() -> None:
    assert held("clip_cov", share=0.5) == [True, False, False, True]
    assert sum(held("clip_cov")) == 1
    assert held("clip_cov", low=2.0) == [False, False, False, True]
    assert held("clip_cov", low=3.0) == [False] * 4
    # The first token's ratio is 3, which the clip of 2 holds back already.
    moved = LOGPROBS - torch.tensor([math.log(3), 0, 0, 0], dtype=torch.float64)
    assert held("clip_cov", old=moved, share=0.5) == [False, False, False, True]


def test_a_clipped_token_has_no_gradient_and_still_counts() -> None:
    """F1's ratios: 1.349859 1 .606531 1.105171 | 3.669297 .740818; bounds 0 and 2."""
    chosen = torch.tensor([True, False, False, False, False, True])
    parts, gradient = f1_loss(algo("clip_cov").loss, held_back=chosen)
    wanted = -1.0 - 0.606531 - 1.105171 + 3.669297
    assert parts.total.item() == pytest.approx(wanted / 6, abs=1e-5)
    assert gradient[0] == gradient[5] == 0
    assert gradient[3] == pytest.approx(-1.105171 / 6, abs=1e-5)
    assert parts.clipped.item() == 2


def test_a_token_of_large_covariance_pays_for_its_log_ratio() -> None:
    chosen = torch.tensor([True, False, False, False, False, True])
    parts, gradient = f1_loss(algo("kl_cov").loss, held_back=chosen)
    plain = -1.349859 - 1 - 0.606531 - 1.105171 + 3.669297 + 0.740818
    assert parts.total.item() == pytest.approx((plain + 0.3 + 0.3) / 6, abs=1e-5)
    # Log-ratios 0.3 and -0.3: the leash pulls each back to where it was.
    assert gradient[0] == pytest.approx((-1.349859 + 1) / 6, abs=1e-5)
    assert gradient[5] == pytest.approx((0.740818 - 1) / 6, abs=1e-5)


def test_confident_failures_are_blamed_more() -> None:
    """Factors 1 + softplus(c) for c = 2, 0, -2: 3.126928, 1.693147, 1.126928; praise is left."""
    lengths = [s.num_action_tokens for s in F1]
    advantages = [ADVANTAGES[:4].numpy(), np.array([-1.0, -0.5])]
    samples = [replace(s, advantages=_spread(s, a)) for s, a in zip(F1, advantages, strict=True)]
    current = [_spread(s, LOGP.numpy()[:n]) for s, n in zip(F1, lengths, strict=True)]
    for c, factor in ((2.0, 3.126928), (0.0, 1.693147), (-2.0, 1.126928), (9.0, 6.006715)):
        # The second attempt's two tokens are c above the reference on average.
        gaps = np.array([c - 1, c + 1])
        references = [current[0], current[1] - _spread(F1[1], gaps)]
        praised, blamed = with_confidence_penalty(samples, current, references, alpha=1.0)
        np.testing.assert_allclose(praised.advantages, samples[0].advantages)
        wanted = np.array([-factor, -factor / 2])
        np.testing.assert_allclose(blamed.advantages[F1[1].loss_mask], wanted, atol=1e-5)


def _spread(sample: TrainingSample, values: FloatArray) -> FloatArray:
    """Return an array [L] with ``values`` at the sampled tokens."""
    spread = np.zeros(sample.loss_mask.shape)
    spread[sample.loss_mask] = values
    return spread


def test_a_flawed_success_stands_half_way() -> None:
    clean, flawed = [turn(0.0), turn(1.0)], [turn(0.0, invalid=True), turn(1.0)]
    failed = [turn(0.0, invalid=True), turn(0.0)]
    made = [episode(t, member=k) for k, t in enumerate((clean, flawed, failed, failed))]
    found = [row[0] for row in rows_of(algo("fapo"), group(*made))]
    # 1, 1/2, 0, 0: mean .375, sample deviation .478714.
    np.testing.assert_allclose(found, [1.305582, 0.261116, -0.783349, -0.783349], atol=1e-5)


def test_what_covariance_cannot_judge_is_refused() -> None:
    with pytest.raises(ConfigError, match="'clip' judges single tokens"):
        algo_with("clip_cov", "ratio_level=sequence_geo", "aggregation=seq_mean_token_mean")
    with pytest.raises(ConfigError, match="low=7 must be less than high=5"):
        algo_with("clip_cov", "covariance.low=7")
    with pytest.raises(ConfigError, match="old_policy='estimated' spares a forward pass"):
        algo_with("clip_cov", "old_policy=estimated")


def algo_with(name: str, *overrides: str) -> None:
    below = [f"algo.loss.{text}" for text in overrides]
    load_config(TrainConfig, ["env.id=text/maze", f"algo={name}", *below])
