"""Policy losses as sums over tokens, independent of how a batch is cut into pieces.

    loss = sum over drawn tokens of  coefficient * (surrogate + kl_coefficient * kl
                                                    - entropy_coefficient * entropy)

The coefficients hold the aggregation. They come from the whole batch before any backward pass, so
micro-batches simply add up.

Axis letters: L position in a sample, N drawn tokens laid out flat.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turngym.trainers.loss_config import (
    Aggregation,
    KlEstimator,
    LossConfig,
    PpoClip,
    RegularizerConfig,
)
from turngym.trainers.samples import TrainingSample

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to this before ``exp``; a clamped one has no gradient."""
MAX_KL = 10.0
"""The k3 estimate is clamped to this."""


def aggregation_coefficients(
    samples: Sequence[TrainingSample],
    mode: Aggregation,
    *,
    constant_length: int | None = None,
) -> list[NDArray[np.float32]]:
    """Return what each token's loss is multiplied with before everything is summed.

    With L_i drawn tokens in episode i (over all its segments) and B episodes that have any:
    ``token_mean`` 1/ΣL_j; ``seq_mean_token_mean`` 1/(B·L_i); ``seq_mean_token_sum`` 1/B;
    ``seq_mean_token_sum_const`` 1/(B·S); ``turn_mean`` 1/(number of turns · tokens of the turn).
    Samples of weight 0 count nowhere; other weights multiply the result.

    Args:
        samples: One whole optimizer batch, never a part of one.
        mode: The aggregation.
        constant_length: S, for ``seq_mean_token_sum_const``.

    Returns:
        One array [L] per sample, 0 where ``loss_mask`` is False; all 0 when nothing was drawn.

    Source:
        GRPO arXiv:2402.03300 (seq_mean_token_mean), DAPO arXiv:2503.14476 (token_mean),
        Dr. GRPO arXiv:2503.20783 (seq_mean_token_sum_const).
    """
    counted = [s for s in samples if s.weight > 0]
    episode_tokens: Counter[int] = Counter()
    turn_tokens: Counter[tuple[int, int]] = Counter()
    for sample in counted:
        episode_tokens[sample.trajectory] += sample.num_action_tokens
        for turn in sample.turn_ids[sample.loss_mask].tolist():
            turn_tokens[sample.trajectory, turn] += 1
    episodes = sum(tokens > 0 for tokens in episode_tokens.values())
    length = float(constant_length or 1)

    def coefficients(sample: TrainingSample) -> NDArray[np.float32]:
        result = np.zeros(sample.token_ids.shape)
        mask = sample.loss_mask
        if sample.weight <= 0 or not mask.any():
            return result.astype(np.float32)
        if mode == "token_mean":
            result[mask] = 1 / episode_tokens.total()
        elif mode == "seq_mean_token_mean":
            result[mask] = 1 / (episodes * episode_tokens[sample.trajectory])
        elif mode == "turn_mean":
            turns = sample.turn_ids[mask].tolist()
            sizes = [turn_tokens[sample.trajectory, turn] for turn in turns]
            result[mask] = 1 / (len(turn_tokens) * np.array(sizes))
        else:
            result[mask] = 1 / (episodes * length)
        return (result * sample.weight).astype(np.float32)

    return [coefficients(sample) for sample in samples]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTerms:
    """What the loss needs to know of N drawn tokens. Every tensor has shape [N]."""

    policy_logprobs: Tensor
    """Of the policy that is trained; carries the gradient."""
    anchor_logprobs: Tensor
    """Denominator of the ratio; no gradient."""
    advantages: Tensor
    coefficients: Tensor
    ref_logprobs: Tensor | None = None
    entropies: Tensor | None = None
    """Of the distributions the tokens were drawn from; with gradient when they are rewarded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossParts:
    """A loss and what it is made of; scalars, sums over the tokens."""

    total: Tensor
    """To be minimised."""
    policy: Tensor
    kl: Tensor
    """Sum of coefficient times the estimate, before ``kl_coefficient``."""
    clipped: Tensor
    """Number of tokens whose gradient the clip removed."""


def policy_loss(terms: TokenTerms, config: LossConfig, regularizer: RegularizerConfig) -> LossParts:
    """Return the loss of some tokens as a plain sum, so that parts of a batch add up.

    Args:
        terms: The tokens. No token at all gives 0.
        config: The policy's part of the loss.
        regularizer: What is added to it.

    Raises:
        ValueError: A term that ``regularizer`` weighs is missing.
    """
    advantages_N, weights_N = terms.advantages, terms.coefficients
    if isinstance(config.surrogate, PpoClip):
        losses_N, clipped_N = ppo_clip(
            terms.policy_logprobs - terms.anchor_logprobs, advantages_N, config.surrogate
        )
    else:
        losses_N = -advantages_N * terms.policy_logprobs
        clipped_N = torch.zeros_like(losses_N, dtype=torch.bool)
    policy = (weights_N * losses_N).sum()
    total, kl = policy, torch.zeros_like(policy)
    if regularizer.kl_coefficient > 0:
        if terms.ref_logprobs is None:
            raise ValueError("kl_coefficient > 0 needs ref_logprobs")
        estimate_N = kl_estimate(
            terms.policy_logprobs, terms.ref_logprobs, regularizer.kl_estimator
        )
        kl = (weights_N * estimate_N).sum()
        total = total + regularizer.kl_coefficient * kl
    if regularizer.entropy_coefficient > 0:
        if terms.entropies is None:
            raise ValueError("entropy_coefficient > 0 needs entropies")
        total = total - regularizer.entropy_coefficient * (weights_N * terms.entropies).sum()
    return LossParts(total=total, policy=policy, kl=kl, clipped=clipped_N.sum())


def ppo_clip(log_ratios_N: Tensor, advantages_N: Tensor, config: PpoClip) -> tuple[Tensor, Tensor]:
    """Return the clipped surrogate of each token and where it has no gradient.

    ``l = -min(r·A, clip(r, 1-lo, 1+hi)·A)``, and for ``A < 0`` with a dual clip c
    ``l = min(l, -c·A)``. The gradient with respect to the log-prob is ``-r·A`` where it is not
    clipped.

    Args:
        log_ratios_N: log of the ratio policy / anchor, shape [N].
        advantages_N: Shape [N].
        config: lo, hi and c.

    Returns:
        Losses [N] and a boolean mask [N].

    Source:
        Schulman et al. 2017, arXiv:1707.06347, equation 7; separate bounds: DAPO,
        arXiv:2503.14476; dual clip: Ye et al. 2020, arXiv:1912.09729.
    """
    ratios_N = log_ratios_N.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    banded_N = ratios_N.clamp(1 - config.clip_low, 1 + config.clip_high)
    losses_N = -torch.minimum(ratios_N * advantages_N, banded_N * advantages_N)
    high_N = (advantages_N > 0) & (ratios_N > 1 + config.clip_high)
    low_N = (advantages_N < 0) & (ratios_N < 1 - config.clip_low)
    clipped_N = high_N | low_N
    if config.dual_clip is not None:
        bounded_N = torch.minimum(losses_N, -config.dual_clip * advantages_N)
        losses_N = torch.where(advantages_N < 0, bounded_N, losses_N)
        clipped_N = clipped_N | ((advantages_N < 0) & (ratios_N > config.dual_clip))
    return losses_N, clipped_N


def kl_estimate(
    policy_logprobs_N: Tensor, ref_logprobs_N: Tensor, estimator: KlEstimator
) -> Tensor:
    """Return an estimate of KL(policy, reference) from each drawn token, shape [N].

    Source:
        Schulman 2020, "Approximating KL divergence"; the clamps are ours.
    """
    gaps_N = policy_logprobs_N - ref_logprobs_N
    if estimator == "k1":
        return gaps_N
    if estimator == "k2":
        return gaps_N.square() / 2
    gaps_N = gaps_N.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return ((-gaps_N).exp() + gaps_N - 1).clamp(max=MAX_KL)
