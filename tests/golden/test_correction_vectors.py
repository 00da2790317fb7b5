"""Corrections, bounds and step scales of the fixture F1 and beside it, worked out by hand.

Numbers are those of the published formulas in float64; where a port of a paper does otherwise, the
comment says so.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from helpers.losses import ADVANTAGES, BEHAVIOUR, F1, LOGP, PROX, coefficients, f1_loss
from turngym.config import load_config
from turngym.trainers.losses.corrections import (
    PolicyLogprobs,
    correction_weights,
    effective_share,
    estimated_old_logprobs,
    step_scale,
    without_rejected,
)
from turngym.trainers.losses.policy_loss import (
    balanced_bounds,
    positive_share,
    second_moment_bound,
    solve_clip_bounds,
)
from turngym.trainers.losses.regressions import balanced_advantages
from turngym.trainers.losses.surrogates import level_log_ratios, sequence_ids, unflat
from turngym.trainers.settings.corrections import CorrectionConfig, Rejection, StepScale
from turngym.trainers.settings.loss import LossConfig
from turngym.trainers.settings.surrogates import Balanced, PpoClip, SecondMoment

SEQUENCES = torch.from_numpy(
    np.concatenate([ids[s.loss_mask] for ids, s in zip(sequence_ids(F1), F1, strict=True)])
)
DAPO = {"type": "ppo_clip", "clip_low": 0.2, "clip_high": 0.28}
DUAL = {**DAPO, "dual_clip": 3.0}


def logprobs(**changes: torch.Tensor) -> PolicyLogprobs:
    made = PolicyLogprobs(
        behaviour=BEHAVIOUR, proximal=PROX, current=LOGP, advantages=ADVANTAGES, sequences=SEQUENCES
    )
    return replace(made, **changes)


def weights(**settings: Any) -> torch.Tensor:
    return correction_weights(logprobs(), load_config(CorrectionConfig, [settings]))


def corrected(surrogate: dict[str, Any], **settings: Any) -> tuple[float, list[float]]:
    """Return loss and gradient of F1 with a correction."""
    correction = load_config(CorrectionConfig, [settings])
    config = LossConfig.model_validate({"surrogate": surrogate})
    found = correction_weights(logprobs(), correction)
    changes = {"weights": found}
    if correction.denominator == "kept":
        samples = without_rejected(F1, unflat(found, F1))
        made = torch.zeros(6, dtype=torch.float64)
        made[found > 0] = coefficients(samples, "token_mean")
        changes["coefficients"] = made
    parts, gradient = f1_loss(config, **changes)
    return parts.total.item(), gradient


def test_f1_is_what_it_should_be() -> None:
    assert (LOGP - PROX).exp().tolist() == pytest.approx(
        [1.349859, 1, 0.606531, 1.105171, 3.669297, 0.740818], abs=1e-6
    )
    assert (PROX - BEHAVIOUR).exp().tolist() == pytest.approx(
        [1.221403, 0.818731, 1, 1, 0.548812, 2.225541], abs=1e-6
    )


def test_decoupled_ppo_with_truncated_weights() -> None:
    loss, gradient = corrected(DAPO, weight="truncate", high=2.0)
    assert loss == pytest.approx(-0.080013, abs=1e-5)
    assert gradient == pytest.approx([0, -0.136455, -0.101088, -0.184195, 0.335625, 0], abs=1e-5)


def test_decoupled_ppo_on_two_tokens() -> None:
    logp, prox, mu = (torch.tensor(x).double() for x in ([-1, -0.5], [-1.2, -0.6], [-1.5, -0.3]))
    pair = PolicyLogprobs(behaviour=mu, proximal=prox, current=logp, advantages=torch.ones(2))
    found = correction_weights(pair, CorrectionConfig(weight="raw"))
    assert found.tolist() == pytest.approx([1.349859, 0.740818], abs=1e-6)
    ratios = (logp - prox).exp()
    losses = -found * torch.minimum(ratios, ratios.clamp(0.8, 1.2))
    assert losses.tolist() == pytest.approx([-1.619831, -0.818731], abs=1e-6)


@pytest.mark.parametrize(
    ("settings", "value"),
    [
        ({"weight": "truncate"}, -0.141232),
        ({"weight": "truncate", "level": "sequence_prod"}, 0.108271),
        ({"weight": "band", "low": 0.5, "high": 2.0}, -0.407899),
        ({"weight": "band", "low": 0.5, "high": 2.0, "denominator": "kept"}, -0.489479),
    ],
    ids=["token TIS", "sequence TIS", "IcePop", "IcePop over what is kept"],
)
def test_weighted_losses(settings: dict[str, Any], value: float) -> None:
    assert corrected(DUAL, **settings)[0] == pytest.approx(value, abs=1e-5)


def test_weights_of_every_level() -> None:
    first, last = slice(0, 4), slice(4, 6)
    product = weights(weight="raw", level="sequence_prod")
    assert product[first].tolist() == pytest.approx([1.0] * 4, abs=1e-6)
    assert product[last].tolist() == pytest.approx([1.221403] * 2, abs=1e-6)
    geometric = weights(weight="raw", level="sequence_geo")
    assert geometric[last].tolist() == pytest.approx([1.105171] * 2, abs=1e-6)
    by_turn = weights(weight="raw", level="turn")
    wanted = [math.sqrt(1.221403 * 0.818731)] * 2 + [1, 1, 0.548812, 2.225541]
    assert by_turn.tolist() == pytest.approx(wanted, abs=1e-5)
    normalized = weights(weight="truncate", high=2.0, normalize=True)
    assert normalized.tolist() == pytest.approx(
        [1.112229, 0.745549, 0.910616, 0.910616, 0.499757, 1.821232], abs=1e-6
    )


@pytest.mark.parametrize(
    ("statistic", "wanted"),
    [
        ("k2", [0.02, 0.02, 0, 0, 0.18, 0.32]),
        ("k3", [0.021403, 0.018731, 0, 0, 0.148812, 0.425541]),
    ],
)
def test_statistics_of_tokens(statistic: str, wanted: list[float]) -> None:
    """A token goes exactly when its statistic is above the bound."""
    for bound in (0.01, 0.0195, 0.1, 0.15, 0.2, 0.4):
        rejection = {"statistic": statistic, "high": bound}
        kept = weights(reject=[rejection]) > 0
        assert kept.tolist() == [value <= bound for value in wanted]


def test_statistics_of_sequences() -> None:
    k3 = {"statistic": "k3", "level": "sequence_mean"}
    assert weights(reject=[{**k3, "high": 0.287177}]).tolist() == [1] * 6
    assert weights(reject=[{**k3, "high": 0.287175}]).tolist() == [1] * 4 + [0] * 2
    assert weights(reject=[{**k3, "high": 0.010032}]).tolist() == [0] * 6
    k3["level"] = "sequence_sum"
    assert weights(reject=[{**k3, "high": 0.574354}]).tolist() == [1] * 6
    assert weights(reject=[{**k3, "high": 0.574352}]).tolist() == [1] * 4 + [0] * 2
    assert weights(reject=[{**k3, "high": 0.040133}]).tolist() == [0] * 6


def test_asymmetric_bounds_are_on_the_ratio_and_not_on_its_inverse() -> None:
    """verl compares -d with the logarithms of the bounds, and rejects 0.5488 in [0.5, 1.3]."""
    kept = weights(reject=[{"low": 0.5, "high": 1.3}]) > 0
    assert kept.tolist() == [True, True, True, True, True, False]


def test_one_bad_token_takes_its_episode_with_it() -> None:
    vetoed = weights(reject=[{"level": "any_token", "high": 2.0}])
    assert vetoed.tolist() == [1, 1, 1, 1, 0, 0]
    largest = weights(reject=[{"level": "sequence_max", "high": 2.3}])
    assert largest.tolist() == [1] * 6


def test_opsm_drops_only_blamed_episodes_that_the_policy_has_left() -> None:
    """The means of behaviour - current are 0.025 and -0.6."""

    def kept(bound: float, advantages: torch.Tensor = ADVANTAGES) -> list[float]:
        opsm = Rejection(
            pair="current_behaviour", statistic="k1", level="sequence_mean", high=bound,
            only_negative=True,
        )  # fmt: skip
        config = CorrectionConfig(reject=(opsm,))
        return correction_weights(logprobs(advantages=advantages), config).tolist()

    assert kept(0.1) == [1] * 6
    assert kept(0.02, -ADVANTAGES) == [0] * 4 + [1] * 2
    assert kept(0.026, -ADVANTAGES) == [1] * 6
    assert kept(-0.61) == kept(-0.61, ADVANTAGES / 100) == [1] * 4 + [0] * 2


def test_a_guess_of_the_policy_that_the_update_began_with() -> None:
    """Training towards version 5, the update began with 4; tokens of 4 and 3."""
    current, behaviour = torch.tensor([-1.0, -1.0]), torch.tensor([-1.4, -1.4])
    found = estimated_old_logprobs(current, behaviour, torch.tensor([3, 4]), 4)
    assert found.tolist() == pytest.approx([-1.2, -1.4])


def test_products_and_least_ratios_of_prefixes() -> None:
    gaps = LOGP - PROX
    assert level_log_ratios(gaps, SEQUENCES, "prefix_prod").exp().tolist() == pytest.approx(
        [1.349859, 1.349859, 0.818731, 0.904837, 3.669297, 2.718282], abs=1e-6
    )
    assert level_log_ratios(gaps, SEQUENCES, "prefix_min").exp().tolist() == pytest.approx(
        [1.349859, 1.349859, 0.606531, 0.670320, 3.669297, 2.718282], abs=1e-6
    )


def test_the_bound_that_a_second_moment_needs() -> None:
    gaps = torch.tensor([0.3, -0.5, 0.05, 1.3, -0.3, 0.0], dtype=torch.float64)
    signs = torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0, 1.0], dtype=torch.float64)
    tau = second_moment_bound(gaps, signs, 0.04)
    assert tau == pytest.approx(0.242384, abs=1e-6)
    clip = solve_clip_bounds(PpoClip(bounds=SecondMoment(type="second_moment")), gaps, signs)
    assert 1 - clip.clip_low == pytest.approx(0.784755, abs=1e-6)
    assert 1 + clip.clip_high == pytest.approx(1.274283, abs=1e-6)
    assert second_moment_bound(gaps, signs, 0.0609) == math.inf
    floored = SecondMoment(type="second_moment", least_low=0.3, least_high=0.5)
    wide = solve_clip_bounds(PpoClip(bounds=floored), gaps, signs)
    assert (wide.clip_low, wide.clip_high) == (0.3, 0.5)


def test_the_share_that_is_pushed_up() -> None:
    ratios = torch.tensor([1.3, 0.7, 1.05, 1.6, 0.5, 0.95], dtype=torch.float64)
    signs = torch.tensor([1, 1, 1, -1, -1, -1], dtype=torch.float64)
    for low, high, share in ((0.6, 1.2, 0.406977), (1.0, 1.2, 0.522388), (0.8, 1.4, 0.544643)):
        assert positive_share(ratios, signs, low, high) == pytest.approx(share, abs=1e-6)
    far = torch.where(ratios == 0.95, 0.93, ratios)
    bounds = Balanced(type="balanced", low_end=0.98, share=0.5)
    low, high = balanced_bounds(far, signs, bounds, PpoClip())
    assert (low, high) == (pytest.approx(0.95), pytest.approx(1.2))  # where 0.93 is left out
    clip = solve_clip_bounds(PpoClip(bounds=bounds), far.log(), signs)
    assert (clip.clip_low, clip.clip_high) == (pytest.approx(0.05), pytest.approx(0.2))
    stuck = Balanced(type="balanced", share=0.5)
    low, high = balanced_bounds(ratios, signs, stuck, PpoClip())
    assert (low, high) == (pytest.approx(0.9), pytest.approx(1.3))  # then the upper one


def test_the_effective_share_and_the_step_that_it_allows() -> None:
    logs = [math.log(w) for w in (1, 0.5, 4, 0.25)]
    assert effective_share(logs) == pytest.approx(0.477437, abs=1e-6)
    for rule, base, scale in (
        ("sqrt", 1.0, 0.690968), ("sqrt", 0.55, 0.931701), ("linear", 1.0, 0.477437),
        ("none", 1.0, 1.0),
    ):  # fmt: skip
        config = StepScale.model_validate({"rule": rule, "base": base})
        assert step_scale(effective_share(logs), config) == pytest.approx(scale, abs=1e-6)


def test_trajectory_balance_and_its_gradient() -> None:
    beta = 0.5
    lp, lref, rewards = (
        torch.tensor(x, dtype=torch.float64)
        for x in ([-10, -12, -9], [-11, -11.5, -9.5], [1, 0, 1])
    )
    log_z = (lref - lp + rewards / beta).mean()
    assert float(log_z) == pytest.approx(1.0)
    values = balanced_advantages(rewards, lp - lref, torch.zeros(3), beta=beta)
    assert float((values / beta).square().mean()) == pytest.approx(0.166667, abs=1e-6)
    gradient = -2 / (3 * beta) * values
    assert gradient.tolist() == pytest.approx([0, 0.333333, -0.333333], abs=1e-6)
    residuals = log_z + lp - lref - rewards / beta
    assert (-values / beta).tolist() == pytest.approx(residuals.tolist())
