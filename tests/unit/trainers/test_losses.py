"""Losses and gradients of the fixture F1, worked out in float64 with central differences.

Two sequences of four and two drawn tokens, with advantages +1 and -1.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from turngym.config import load_config
from turngym.errors import ConfigError
from turngym.trainers.aggregation import aggregation_coefficients
from turngym.trainers.loss_config import (
    Aggregation,
    LossConfig,
    PolicyGradient,
    PpoClip,
    RegularizerConfig,
)
from turngym.trainers.losses import (
    LossParts,
    TokenTerms,
    kl_estimate,
    policy_loss,
)
from turngym.trainers.samples import TrainingSample
from turngym.trainers.surrogates import Push, ppo_clip

LENGTHS = (4, 2)
LOGP = torch.tensor([-0.4, -1.0, -2.0, -0.2, -0.3, -0.7], dtype=torch.float64)
PROX = torch.tensor([-0.7, -1.0, -1.5, -0.3, -1.6, -0.4], dtype=torch.float64)
BEHAVIOUR = torch.tensor([-0.9, -0.8, -1.5, -0.3, -1.0, -1.2], dtype=torch.float64)
ADVANTAGES = torch.tensor([1, 1, 1, 1, -1, -1], dtype=torch.float64)
NO_REGULARIZER = RegularizerConfig()


def sample(turns: list[int], *, index: int, weight: float = 1.0) -> TrainingSample:
    """Return a sample whose tokens belong to ``turns``, -1 for a token that was not drawn."""
    turn_ids = np.array([-1, *turns])
    zeros = np.zeros(turn_ids.shape, dtype=np.float32)
    return TrainingSample(
        token_ids=np.ones(turn_ids.shape, dtype=np.int64),
        loss_mask=turn_ids >= 0,
        turn_ids=turn_ids,
        behaviour_logprobs=zeros,
        advantages=zeros,
        policy_versions=np.where(turn_ids >= 0, 0, -1),
        trajectory=index,
        weight=weight,
    )


F1 = [sample([0] * length, index=i) for i, length in enumerate(LENGTHS)]


def coefficients(
    samples: list[TrainingSample], mode: Aggregation, constant: int | None = None
) -> torch.Tensor:
    arrays = aggregation_coefficients(samples, mode, constant_length=constant)
    picked = [array[s.loss_mask] for array, s in zip(arrays, samples, strict=True)]
    return torch.from_numpy(np.concatenate(picked)).double()


def f1_loss(
    config: LossConfig,
    regularizer: RegularizerConfig = NO_REGULARIZER,
    **changes: torch.Tensor,
) -> tuple[LossParts, list[float]]:
    """Return the loss of F1 and its gradient with respect to the log-probs."""
    logprobs = changes.pop("policy_logprobs", LOGP).clone().requires_grad_(True)
    terms = TokenTerms(
        policy_logprobs=logprobs,
        anchor_logprobs=PROX,
        advantages=ADVANTAGES,
        coefficients=coefficients(F1, config.aggregation, config.constant_length),
    )
    parts = policy_loss(replace(terms, **changes), config, regularizer)
    parts.total.backward()
    assert logprobs.grad is not None
    return parts, logprobs.grad.tolist()


DAPO = PpoClip(clip_low=0.2, clip_high=0.28)
DUAL = PpoClip(clip_low=0.2, clip_high=0.28, dual_clip=3.0)
F1_VECTORS = [
    (
        LossConfig(aggregation="token_mean"),
        0.092933,
        [0, -0.166667, -0.101088, -0.184195, 0.611549, 0],
    ),
    (
        LossConfig(surrogate=DAPO, aggregation="token_mean"),
        0.079599,
        [0, -0.166667, -0.101088, -0.184195, 0.611549, 0],
    ),
    (
        LossConfig(surrogate=DUAL, aggregation="token_mean"),
        -0.031950,
        [0, -0.166667, -0.101088, -0.184195, 0, 0],
    ),
    (
        LossConfig(aggregation="seq_mean_token_mean"),
        0.628361,
        [0, -0.125, -0.075816, -0.138146, 0.917324, 0],
    ),
    (
        LossConfig(aggregation="seq_mean_token_sum"),
        0.278798,
        [0, -0.5, -0.303265, -0.552585, 1.834648, 0],
    ),
    (
        LossConfig(aggregation="seq_mean_token_sum_const", constant_length=8),
        0.034850,
        [0, -0.0625, -0.037908, -0.069073, 0.229331, 0],
    ),
]


@pytest.mark.parametrize(("config", "loss", "gradient"), F1_VECTORS)
def test_loss_and_gradient_match_the_published_vectors(
    config: LossConfig, loss: float, gradient: list[float]
) -> None:
    parts, found = f1_loss(config)
    assert parts.total.item() == pytest.approx(loss, abs=1e-5)
    assert found == pytest.approx(gradient, abs=1e-5)


@pytest.mark.parametrize(
    ("advantage", "ratio", "loss"),
    [(1, 1.5, -1.28), (1, 0.5, -0.5), (-1, 1.5, 1.5), (-1, 0.5, 0.8), (-1, 5.0, 3.0)],
)
def test_the_dual_clip_bounds_negative_advantages_only(
    advantage: float, ratio: float, loss: float
) -> None:
    log_ratio = torch.tensor([ratio], dtype=torch.float64).log()
    push = Push(
        log_ratios=log_ratio,
        policy_logprobs=log_ratio - 1,
        anchor_logprobs=torch.full_like(log_ratio, -1.0),
        advantages=torch.tensor([advantage], dtype=torch.float64),
    )
    found, _ = ppo_clip(push, DUAL)
    assert found.item() == pytest.approx(loss, abs=1e-9)


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


@pytest.mark.parametrize(
    "mode", ["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "turn_mean"]
)
def test_every_surrogate_has_the_same_gradient_where_the_ratio_is_one(mode: Aggregation) -> None:
    surrogates = (PpoClip(), DAPO, DUAL, PolicyGradient(type="pg"))
    gradients = [
        f1_loss(LossConfig(surrogate=s, aggregation=mode), anchor_logprobs=LOGP)[1]
        for s in surrogates
    ]
    for gradient in gradients[1:]:
        assert gradient == pytest.approx(gradients[0], abs=1e-12)


def test_micro_batches_add_up_to_the_whole_batch() -> None:
    """A mean per micro-batch would give 0.451 here instead of -0.032."""
    config = LossConfig(surrogate=DUAL)
    weights = coefficients(F1, "token_mean")
    pieces = 0.0
    for part in (slice(0, 4), slice(4, 6)):
        terms = TokenTerms(
            policy_logprobs=LOGP[part],
            anchor_logprobs=PROX[part],
            advantages=ADVANTAGES[part],
            coefficients=weights[part],
        )
        pieces += policy_loss(terms, config, NO_REGULARIZER).total.item()
    assert pieces == pytest.approx(-0.031950, abs=1e-5)


def test_nothing_drawn_gives_a_loss_of_zero() -> None:
    empty = torch.zeros(0, requires_grad=True)
    terms = TokenTerms(
        policy_logprobs=empty, anchor_logprobs=empty, advantages=empty, coefficients=empty
    )
    parts = policy_loss(terms, LossConfig(), NO_REGULARIZER)
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


def test_a_filler_of_weight_zero_changes_nothing() -> None:
    filled = [*F1, sample([0, 0, 0], index=9, weight=0.0)]
    for mode in ("token_mean", "seq_mean_token_mean", "turn_mean"):
        found = coefficients(filled, mode)[: sum(LENGTHS)]
        assert found.tolist() == coefficients(F1, mode).tolist()
        assert coefficients(filled, mode)[sum(LENGTHS) :].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("k1", [0.1, -0.5, 2.0]),
        ("k2", [0.005, 0.125, 2.0]),
        ("k3", [0.004837, 0.148721, 1.135335]),
    ],
)
def test_kl_estimates_match_the_published_values(kind: str, wanted: list[float]) -> None:
    gaps = torch.tensor([0.1, -0.5, 2.0], dtype=torch.float64)
    found = kl_estimate(gaps - 3, torch.full_like(gaps, -3), kind)  # type: ignore[arg-type]
    assert found.tolist() == pytest.approx(wanted, abs=1e-6)


def test_k3_of_the_shared_vector() -> None:
    found = kl_estimate(torch.tensor([-1.0]), torch.tensor([-1.2]), "k3")
    assert found.item() == pytest.approx(0.018731, abs=1e-6)


def test_regularizers_share_the_aggregation_of_the_policy_term() -> None:
    regularizer = RegularizerConfig(kl_coefficient=0.5, entropy_coefficient=0.1)
    entropies = torch.tensor([1, 1, 1, 1, 2, 2], dtype=torch.float64)
    config = LossConfig(aggregation="seq_mean_token_mean")
    plain, _ = f1_loss(config)
    parts, _ = f1_loss(config, regularizer, ref_logprobs=LOGP - 0.1, entropies=entropies)
    expected = plain.total.item() + 0.5 * 0.004837 - 0.1 * 1.5
    assert parts.total.item() == pytest.approx(expected, abs=1e-6)
    assert parts.kl.item() == pytest.approx(0.004837, abs=1e-6)


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


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ('surrogate={"type": "ppo_clip", "dual_clip": 1.1}', r"dual_clip=1.1 must be more than"),
        ('surrogate={"type": "pg", "dual_clip": 3}', r"surrogate.dual_clip: unknown key"),
        ("aggregation=seq_mean_token_sum_const", "constant_length belongs to"),
        ("constant_length=8", "constant_length belongs to"),
        ("surrogate.clip_low=-0.2", r"surrogate.clip_low: .*greater than 0 \(got -0.2\)"),
    ],
)
def test_settings_that_cannot_work_are_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(LossConfig, [override])
