"""Loss parts on the fixture F1. The vectors of losses and gradients are in ``tests/golden``."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers.losses import (
    ADVANTAGES,
    F1,
    LENGTHS,
    LOGP,
    NO_REGULARIZER,
    PROX,
    coefficients,
    f1_loss,
    f1_terms,
    sample,
)
from turngym.trainers.losses.policy_loss import TokenTerms, aggregation_coefficients, policy_loss
from turngym.trainers.losses.surrogates import (
    SurrogateInputs,
    level_log_ratios,
    log_clip_geo,
    ppo_clip,
)
from turngym.trainers.settings.loss import (
    Aggregation,
    LossConfig,
    RatioLevel,
    RegularizerConfig,
)
from turngym.trainers.settings.surrogates import (
    ClippedWeight,
    DivergenceMask,
    LogClipGeo,
    PolicyGradient,
    PpoClip,
    SoftGate,
    Squared,
    Surrogate,
    ZeroedWeight,
)

DAPO = PpoClip(clip_low=0.2, clip_high=0.28)
DUAL = PpoClip(clip_low=0.2, clip_high=0.28, dual_clip=3.0)


@pytest.mark.parametrize(
    ("advantage", "ratio", "loss"),
    [(1, 1.5, -1.28), (1, 0.5, -0.5), (-1, 1.5, 1.5), (-1, 0.5, 0.8), (-1, 5.0, 3.0)],
)
def test_the_dual_clip_bounds_negative_advantages_only(
    advantage: float, ratio: float, loss: float
) -> None:
    log_ratio = torch.tensor([ratio], dtype=torch.float64).log()
    inputs = SurrogateInputs(
        log_ratios=log_ratio,
        policy_logprobs=log_ratio - 1,
        old_logprobs=torch.full_like(log_ratio, -1.0),
        advantages=torch.tensor([advantage], dtype=torch.float64),
    )
    found, _ = ppo_clip(inputs, DUAL)
    assert found.item() == pytest.approx(loss, abs=1e-9)


def test_tokens_that_a_geometric_mean_has_clipped_are_counted() -> None:
    gaps, signs = (found.flatten() for found in torch.meshgrid(
        torch.tensor([-0.5, -0.3, 0.3, 0.5]), torch.tensor([-0.5, 0.5]), indexing="ij"
    ))  # fmt: skip
    inputs = SurrogateInputs(
        log_ratios=gaps, policy_logprobs=gaps, old_logprobs=0 * gaps, advantages=signs
    )
    _, clipped = log_clip_geo(inputs, LogClipGeo(type="log_clip_geo", clip_low=0.4, clip_high=0.4))
    assert clipped.nonzero().flatten().tolist() == [0, 7]  # down and away, up and away


def test_clipped_tokens_are_those_without_gradient() -> None:
    parts, gradient = f1_loss(LossConfig(surrogate=DUAL))
    assert parts.clipped.item() == sum(g == 0 for g in gradient) == 3


def test_an_extreme_ratio_stays_finite() -> None:
    config = LossConfig()
    parts, gradient = f1_loss(config, policy_logprobs=LOGP + 500)
    assert np.isfinite(parts.total.item())
    assert np.isfinite(gradient).all()


def test_the_policy_gradient_is_minus_coefficient_times_advantage() -> None:
    config = LossConfig(surrogate=PolicyGradient(type="pg"), aggregation="seq_mean_token_sum")
    parts, gradient = f1_loss(config)
    assert gradient == pytest.approx([-0.5] * 4 + [0.5] * 2)
    assert parts.total.item() == pytest.approx(0.5 * (3.6 - 1.0))


SURROGATES: dict[str, Surrogate] = {
    "ppo_clip": PpoClip(),
    "dapo": DAPO,
    "dual": DUAL,
    "is_clip": ClippedWeight(type="is_clip"),
    "is_zero": ZeroedWeight(type="is_zero"),
    "soft_gate": SoftGate(type="soft_gate"),
    "squared": Squared(type="squared"),
}
"""Those that work at every level."""
MODES: tuple[Aggregation, ...] = (
    "token_mean",
    "seq_mean_token_mean",
    "seq_mean_token_sum",
    "prompt_mean",
    "turn_mean",
)
LEVELS: tuple[RatioLevel, ...] = ("turn", "sequence_geo", "sequence_prod")


def at_ratio_one(config: LossConfig) -> list[float]:
    return f1_loss(config, old_logprobs=LOGP)[1]


@pytest.mark.parametrize("mode", MODES)
def test_every_surrogate_has_the_same_gradient_where_the_ratio_is_one(mode: Aggregation) -> None:
    wanted = at_ratio_one(LossConfig(surrogate=PolicyGradient(type="pg"), aggregation=mode))
    for surrogate in (*SURROGATES.values(), DivergenceMask(type="div_mask")):
        found = at_ratio_one(LossConfig(surrogate=surrogate, aggregation=mode))
        assert found == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("level", LEVELS)
def test_the_level_does_not_matter_where_the_ratio_is_one(level: RatioLevel) -> None:
    mode: Aggregation = "seq_mean_token_mean"
    wanted = at_ratio_one(LossConfig(aggregation=mode))
    for surrogate in SURROGATES.values():
        config = LossConfig(surrogate=surrogate, ratio_level=level, aggregation=mode)
        assert at_ratio_one(config) == pytest.approx(wanted, abs=1e-12)
    geo = LogClipGeo(type="log_clip_geo")
    config = LossConfig(surrogate=geo, ratio_level="sequence_geo", aggregation=mode)
    assert at_ratio_one(config) == pytest.approx(wanted, abs=1e-12)


def test_a_sequence_ratio_leaves_each_turn_its_own_advantage() -> None:
    """Through ``exp(mean)`` itself every token would get the mean advantage."""
    advantages = torch.tensor([2, 2, -1, -1, -1, 3], dtype=torch.float64)
    config = LossConfig(
        surrogate=PpoClip(clip_low=0.9, clip_high=9),
        ratio_level="sequence_geo",
        aggregation="seq_mean_token_mean",
    )
    _, found = f1_loss(config, advantages=advantages)
    first, second = np.exp(-0.025), np.exp(0.5)
    wanted = [-first * a / 8 for a in (2, 2, -1, -1)] + [-second * a / 4 for a in (-1, 3)]
    assert found == pytest.approx(wanted, abs=1e-9)


def test_a_product_ratio_is_the_geometric_mean_to_the_power_of_the_length() -> None:
    config = LossConfig(ratio_level="sequence_geo", aggregation="seq_mean_token_mean")
    sequences = f1_terms(config).sequences
    assert sequences is not None
    gaps = LOGP - PROX
    mean, total = (
        level_log_ratios(gaps, sequences, level) for level in ("sequence_geo", "sequence_prod")
    )
    assert total.tolist() == pytest.approx([-0.1] * 4 + [1.0] * 2)
    lengths = torch.tensor([4.0] * 4 + [2.0] * 2, dtype=torch.float64)
    assert total.tolist() == pytest.approx((mean * lengths).tolist())


def test_the_dual_clip_is_the_two_sided_bound_of_others() -> None:
    """``min(min(r, δ)·A, clip(r)·A)`` bounds negative advantages exactly where ``c = δ`` does."""
    ratios = torch.linspace(0.05, 9.0, 200, dtype=torch.float64)
    for sign in (1.0, -1.0):
        advantages = torch.full_like(ratios, sign)
        inputs = SurrogateInputs(
            log_ratios=ratios.log(),
            policy_logprobs=ratios.log() - 3,
            old_logprobs=torch.full_like(ratios, -3.0),
            advantages=advantages,
        )
        banded = ratios.clamp(0.8, 1.28) * advantages
        wanted = -torch.minimum(ratios.clamp(max=3.0) * advantages, banded)
        torch.testing.assert_close(ppo_clip(inputs, DUAL)[0], wanted)


@pytest.mark.parametrize("kind", sorted(SURROGATES.keys() - {"squared"}))
def test_a_group_without_advantage_adds_nothing_but_counts(kind: str) -> None:
    """All but ``squared``, whose leash holds tokens without advantage too."""
    config = LossConfig(surrogate=SURROGATES[kind])
    _, both = f1_loss(config)
    _, found = f1_loss(config, advantages=torch.cat([ADVANTAGES[:4], torch.zeros(2)]))
    assert found[:4] == pytest.approx(both[:4])
    assert found[4:] == [0, 0]


def test_micro_batches_add_up_to_the_whole_batch() -> None:
    """A mean per micro-batch would give 0.451 here instead of -0.032."""
    config = LossConfig(surrogate=DUAL)
    weights = coefficients(F1, "token_mean")
    pieces = 0.0
    for part in (slice(0, 4), slice(4, 6)):
        terms = TokenTerms(
            policy_logprobs=LOGP[part],
            old_logprobs=PROX[part],
            advantages=ADVANTAGES[part],
            coefficients=weights[part],
        )
        pieces += policy_loss(terms, config, NO_REGULARIZER).total.item()
    assert pieces == pytest.approx(-0.031950, abs=1e-5)


@pytest.mark.parametrize("surrogate", SURROGATES.values(), ids=SURROGATES)
@pytest.mark.parametrize("level", ["token", *LEVELS])
def test_nothing_drawn_gives_a_loss_of_zero(surrogate: Surrogate, level: RatioLevel) -> None:
    empty = torch.zeros(0, requires_grad=True)
    terms = TokenTerms(
        policy_logprobs=empty,
        old_logprobs=empty.detach(),
        advantages=empty.detach(),
        coefficients=empty.detach(),
        sequences=torch.zeros(0, dtype=torch.int64),
    )
    config = LossConfig(surrogate=surrogate, ratio_level=level, aggregation="seq_mean_token_mean")
    parts = policy_loss(terms, config, NO_REGULARIZER)
    parts.total.backward()
    assert parts.total.item() == 0.0


@pytest.mark.parametrize("mode", ["token_mean", "seq_mean_token_mean", "turn_mean"])
def test_a_batch_without_drawn_tokens_has_coefficients_of_zero(mode: Aggregation) -> None:
    for array in aggregation_coefficients([sample([-1, -1], index=0)], mode):
        assert array.tolist() == [0, 0, 0]


def test_a_fully_masked_sequence_does_not_count_among_the_sequences() -> None:
    padded = [*F1, sample([-1, -1], index=2)]
    found = coefficients(padded, "seq_mean_token_sum")
    assert found.tolist() == coefficients(F1, "seq_mean_token_sum").tolist()


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [
        ("token_mean", [1 / 5] * 5),
        ("seq_mean_token_mean", [1 / 6] * 3 + [1 / 4] * 2),
        ("seq_mean_token_sum", [1 / 2] * 5),
        ("prompt_mean", [1 / 5] * 5),
        ("turn_mean", [1 / 6, 1 / 6, 1 / 3, 1 / 6, 1 / 6]),
    ],
)
def test_coefficients_follow_their_definitions(mode: Aggregation, wanted: list[float]) -> None:
    """Episode 0 draws two tokens in turn 0 and one in turn 1; episode 1 two in one turn."""
    samples = [sample([0, 0, -1, 1], index=0), sample([0, 0], index=1)]
    assert coefficients(samples, mode).tolist() == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize(
    "mode", ["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "turn_mean"]
)
def test_segments_of_one_episode_weigh_as_one_episode(mode: Aggregation) -> None:
    whole = [sample([0, 0, -1, 1], index=0), sample([0, 0], index=1)]
    cut = [sample([0, 0], index=0), sample([1], index=0), sample([0, 0], index=1)]
    assert coefficients(cut, mode).tolist() == coefficients(whole, mode).tolist()


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [
        ("token_mean", 2.5),
        ("seq_mean_token_sum", 5.0),
        ("seq_mean_token_mean", 3.0),
        ("prompt_mean", 3.0),
    ],
)
def test_token_losses_are_averaged_as_published(mode: Aggregation, wanted: float) -> None:
    samples = [sample([0, 0, 0], index=0, group=0), sample([0], index=1, group=1)]
    losses = torch.tensor([1, 2, 3, 4], dtype=torch.float64)
    assert (coefficients(samples, mode) * losses).sum().item() == pytest.approx(wanted)


def test_each_group_weighs_alike_whatever_its_lengths() -> None:
    samples = [
        sample([0, 0, 0], index=0, group=4),
        sample([0], index=1, group=4),
        sample([0, 0], index=2, group=7),
    ]
    assert coefficients(samples, "prompt_mean").tolist() == pytest.approx([1 / 8] * 4 + [1 / 4] * 2)


def test_a_mean_over_groups_needs_groups() -> None:
    with pytest.raises(ValueError, match="prompt_mean"):
        coefficients([sample([0], index=0, group=-1)], "prompt_mean")


def test_a_whole_ratio_needs_to_know_its_tokens() -> None:
    terms = TokenTerms(
        policy_logprobs=LOGP, old_logprobs=PROX, advantages=ADVANTAGES, coefficients=ADVANTAGES
    )
    with pytest.raises(ValueError, match="ratio_level='turn' needs sequences"):
        policy_loss(terms, LossConfig(ratio_level="turn"), NO_REGULARIZER)


def test_a_filler_of_weight_zero_changes_nothing() -> None:
    filled = [*F1, sample([0, 0, 0], index=9, weight=0.0)]
    for mode in ("token_mean", "seq_mean_token_mean", "turn_mean"):
        found = coefficients(filled, mode)[: sum(LENGTHS)]
        assert found.tolist() == coefficients(F1, mode).tolist()
        assert coefficients(filled, mode)[sum(LENGTHS) :].tolist() == [0, 0, 0]


def test_regularizers_share_the_aggregation_of_the_policy_term() -> None:
    regularizer = RegularizerConfig(kl_coefficient=0.5, entropy_coefficient=0.1)
    entropies = torch.tensor([1, 1, 1, 1, 2, 2], dtype=torch.float64)
    config = LossConfig(aggregation="seq_mean_token_mean")
    plain, _ = f1_loss(config)
    parts, _ = f1_loss(config, regularizer, ref_logprobs=LOGP - 0.1, entropies=entropies)
    expected = plain.total.item() + 0.5 * 0.004837 - 0.1 * 1.5
    assert parts.total.item() == pytest.approx(expected, abs=1e-6)
    assert parts.kl.item() == pytest.approx(sum(LENGTHS) * 0.004837, abs=1e-5)


@pytest.mark.parametrize(
    ("regularizer", "missing"),
    [
        (RegularizerConfig(kl_coefficient=0.1), "ref_logprobs"),
        (RegularizerConfig(entropy_coefficient=0.1), "entropies"),
    ],
)
def test_a_regularizer_without_its_numbers_is_an_error(
    regularizer: RegularizerConfig, missing: str
) -> None:
    with pytest.raises(ValueError, match=missing):
        f1_loss(LossConfig(), regularizer)
