"""Policy losses as sums over tokens, independent of how a batch is cut into pieces.

    loss = sum over sampled tokens of  coefficient * (weight * surrogate + kl_coefficient * kl
                                                    - entropy_coefficient * entropy)

The coefficients hold the aggregation, the weights correct for who sampled the tokens
(``corrections.py``), the surrogate is a function of a log-ratio and an advantage
(``surrogates.py``). Coefficients come from the whole batch before any backward pass, so
micro-batches simply add up.

Axis letters: L position in a sample, N sampled tokens laid out flat.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turngym.trainers.losses.surrogates import (
    MAX_LOG_RATIO,
    SurrogateInputs,
    level_log_ratios,
    surrogate_losses,
    with_token_gradients,
)
from turngym.trainers.samples import TrainingSample
from turngym.trainers.settings.loss import Aggregation, KlEstimator, LossConfig, RegularizerConfig
from turngym.trainers.settings.surrogates import Balanced, LogClipGeo, PpoClip, SecondMoment

MAX_KL = 10.0
"""The k3 estimate is clamped to this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTerms:
    """What the loss needs to know of N sampled tokens. Every tensor has shape [N]."""

    policy_logprobs: Tensor
    """Of the policy that is trained; carries the gradient."""
    old_logprobs: Tensor
    """Denominator of the ratio; no gradient."""
    advantages: Tensor
    coefficients: Tensor
    weights: Tensor | None = None
    """Correction of each token's surrogate, 0 for a rejected one; None for 1 everywhere."""
    sequences: Tensor | None = None
    """From ``sequence_ids``; not used where ``ratio_level`` is ``token``."""
    sequence_log_ratios: Tensor | None = None
    """Log-ratios of ``sequences``; None when all their tokens are here to compute them from."""
    ref_logprobs: Tensor | None = None
    start_values: Tensor | None = None
    """As in ``SurrogateInputs``."""
    held_back: Tensor | None = None
    """From ``covariant_tokens``; None where no token is."""
    entropies: Tensor | None = None
    """Of the distributions the tokens were sampled from; with gradient when they are rewarded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossParts:
    """A loss and what it is made of; scalars, sums over the tokens."""

    total: Tensor
    """To be minimised."""
    policy: Tensor
    kl: Tensor
    """Sum of the estimates, without any coefficient."""
    clipped: Tensor
    """Number of tokens whose gradient the surrogate bounded or removed."""


def policy_loss(terms: TokenTerms, config: LossConfig, regularizer: RegularizerConfig) -> LossParts:
    """Return the loss of some tokens as a plain sum, so that parts of a batch add up.

    Args:
        terms: The tokens. No token at all gives 0.
        config: The policy's part of the loss.
        regularizer: What is added to it.

    Raises:
        ValueError: A term that ``config`` or ``regularizer`` reads is missing.
    """
    # Corrections weigh the surrogate alone: KL and entropy pull towards the reference wherever the
    # token came from, also where the token itself is rejected (not with denominator="kept", where
    # it has no coefficient).
    weights_N = terms.coefficients
    weighted_coefficients_N = weights_N if terms.weights is None else weights_N * terms.weights
    inputs = SurrogateInputs(
        log_ratios=_log_ratios(terms, config),
        policy_logprobs=terms.policy_logprobs,
        old_logprobs=terms.old_logprobs,
        advantages=terms.advantages,
        start_values=terms.start_values,
    )
    losses_N, clipped_N = surrogate_losses(inputs, config.surrogate)
    if terms.held_back is not None and config.covariance.rule == "clip":
        losses_N = losses_N.masked_fill(terms.held_back, 0.0)
        clipped_N = clipped_N | terms.held_back
    elif terms.held_back is not None:
        leash_N = config.covariance.coefficient * inputs.log_ratios.abs()
        losses_N = losses_N + torch.where(terms.held_back, leash_N, 0.0)
    policy = (weighted_coefficients_N * losses_N).sum()
    total, kl = policy, weights_N.new_zeros(())
    if regularizer.kl_coefficient > 0:
        divergences_N = _divergences(terms, regularizer.kl_estimator)
        total = total + regularizer.kl_coefficient * (weights_N * divergences_N).sum()
        kl = divergences_N.sum()
    if regularizer.entropy_coefficient > 0:
        if terms.entropies is None:
            raise ValueError("entropy_coefficient > 0 needs entropies")
        total = total - regularizer.entropy_coefficient * (weights_N * terms.entropies).sum()
    return LossParts(total=total, policy=policy, kl=kl, clipped=clipped_N.sum())


def kl_estimate(
    policy_logprobs_N: Tensor, ref_logprobs_N: Tensor, estimator: KlEstimator
) -> Tensor:
    """Return an estimate of KL(policy, reference) from each sampled token, shape [N].

    ``k1_plus`` and ``k3_plus`` have the gradient of k2. ``k3_unbiased`` is k3 here; the loss
    multiplies it with the token's ratio.

    Args:
        policy_logprobs_N: Under the policy that is trained, with gradient.
        ref_logprobs_N: Under the reference.
        estimator: Which estimate.

    Source:
        Schulman 2020, "Approximating KL divergence"; the clamps are ours.
    """
    gaps_N = policy_logprobs_N - ref_logprobs_N
    if estimator == "k1":
        return gaps_N
    square_N = gaps_N.square() / 2
    if estimator == "k2":
        return square_N
    if estimator == "k1_plus":
        return gaps_N.detach() + square_N - square_N.detach()
    # exp of an unbounded gap overflows, and one such token would be the whole gradient.
    bounded_N = gaps_N.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    estimates_N = ((-bounded_N).exp() + bounded_N - 1).clamp(max=MAX_KL)
    if estimator == "k3_plus":
        return estimates_N.detach() + square_N - square_N.detach()
    return estimates_N


def token_log_ratios(tokens: TokenTerms | SurrogateInputs, config: LossConfig) -> Tensor:
    """Return the tokens' own log-ratios to the old policy, [N], clipped where the surrogate clips.

    Only ``log_clip_geo`` clips before it averages: positive advantages from above, negative ones
    from below. A clipped log-ratio has no gradient.

    Args:
        tokens: The signs of their advantages say on which side each is clipped.
        config: Holds the surrogate.

    Source:
        GMPO, arXiv:2507.20673.
    """
    gaps_N = tokens.policy_logprobs - tokens.old_logprobs
    if not isinstance(config.surrogate, LogClipGeo):
        return gaps_N
    capped_N = gaps_N.clamp(max=config.surrogate.clip_high)
    raised_N = gaps_N.clamp(min=-config.surrogate.clip_low)
    return torch.where(tokens.advantages > 0, capped_N, raised_N)


def _log_ratios(terms: TokenTerms, config: LossConfig) -> Tensor:
    own_N = token_log_ratios(terms, config)
    if config.ratio_level == "token":
        return own_N
    if terms.sequence_log_ratios is not None:
        return with_token_gradients(own_N, terms.sequence_log_ratios)
    if terms.sequences is None:
        raise ValueError(f"ratio_level={config.ratio_level!r} needs sequences")
    return with_token_gradients(own_N, level_log_ratios(own_N, terms.sequences, config.ratio_level))


def _divergences(terms: TokenTerms, estimator: KlEstimator) -> Tensor:
    if terms.ref_logprobs is None:
        raise ValueError("kl_coefficient > 0 needs ref_logprobs")
    estimates_N = kl_estimate(terms.policy_logprobs, terms.ref_logprobs, estimator)
    if estimator != "k3_unbiased":
        return estimates_N
    gaps_N = terms.policy_logprobs - terms.old_logprobs
    return gaps_N.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp() * estimates_N


def aggregation_coefficients(
    samples: Sequence[TrainingSample], mode: Aggregation, *, constant_length: int | None = None
) -> list[NDArray[np.float32]]:
    """Return what each token's loss is multiplied with before everything is summed.

    With L_i sampled tokens in episode i (over all its segments) and B episodes that have any:
    ``token_mean`` 1/ΣL_j; ``seq_mean_token_mean`` 1/(B·L_i); ``seq_mean_token_sum`` 1/B;
    ``seq_mean_token_sum_const`` 1/(B·S); ``prompt_mean`` 1/(number of groups · tokens of the
    group); ``turn_mean`` 1/(number of turns · tokens of the turn). Samples of weight 0 count
    nowhere; other weights multiply the result. Replayed samples are counted apart from the others.

    Args:
        samples: One whole optimizer batch, never a part of one.
        mode: The aggregation.
        constant_length: S, for ``seq_mean_token_sum_const``.

    Returns:
        One array [L] per sample, 0 where ``loss_mask`` is False; all 0 when nothing was sampled.

    Raises:
        ValueError: ``prompt_mean`` meets a sample that belongs to no group.

    Source:
        GRPO arXiv:2402.03300 (seq_mean_token_mean), DAPO arXiv:2503.14476 (token_mean),
        Dr. GRPO arXiv:2503.20783 (seq_mean_token_sum_const), ScaleRL (prompt_mean).
    """
    counted = [s for s in samples if s.weight > 0 and s.num_action_tokens]
    if mode == "prompt_mean" and any(s.group < 0 for s in counted):
        raise ValueError("aggregation='prompt_mean' needs samples that say their group, got -1")
    counts = {
        replayed: _Counts.of([s for s in counted if s.replayed == replayed])
        for replayed in (False, True)
    }
    results = [np.zeros(sample.token_ids.shape, dtype=np.float32) for sample in samples]
    for sample, result in zip(samples, results, strict=True):
        if sample.weight > 0 and sample.num_action_tokens:
            sizes = counts[sample.replayed].sizes(sample, mode, constant_length or 1)
            result[sample.loss_mask] = sample.weight / sizes
    return results


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counts:
    """Sampled tokens of a batch, by episode, by group and by turn."""

    episodes: Counter[int] = field(default_factory=Counter)
    groups: Counter[int] = field(default_factory=Counter)
    turns: Counter[tuple[int, int]] = field(default_factory=Counter)

    @classmethod
    def of(cls, samples: Sequence[TrainingSample]) -> _Counts:
        counts = cls()
        for sample in samples:
            counts.episodes[sample.trajectory] += sample.num_action_tokens
            counts.groups[sample.group] += sample.num_action_tokens
            for turn in sample.turn_ids[sample.loss_mask].tolist():
                counts.turns[sample.trajectory, turn] += 1
        return counts

    def sizes(
        self, sample: TrainingSample, mode: Aggregation, constant_length: int
    ) -> float | NDArray[np.float64]:
        """Return by what the loss of the sample's sampled tokens is divided."""
        match mode:
            case "token_mean":
                return float(self.episodes.total())
            case "seq_mean_token_mean":
                return float(len(self.episodes) * self.episodes[sample.trajectory])
            case "seq_mean_token_sum" | "seq_mean_token_sum_const":
                return float(len(self.episodes) * constant_length)
            case "prompt_mean":
                return float(len(self.groups) * self.groups[sample.group])
            case "turn_mean":
                turns = sample.turn_ids[sample.loss_mask].tolist()
                tokens = [self.turns[sample.trajectory, turn] for turn in turns]
                return len(self.turns) * np.array(tokens, dtype=np.float64)


def solve_clip_bounds(clip: PpoClip, log_ratios_N: Tensor, advantages_N: Tensor) -> PpoClip:
    """Return ``clip`` with the bounds that suit the tokens of one optimizer step.

    Args:
        clip: The settings.
        log_ratios_N: Current over old policy, of all tokens of the step.
        advantages_N: Of the same tokens.
    """
    log_ratios_N = log_ratios_N.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    if isinstance(clip.bounds, SecondMoment):
        tau = second_moment_bound(log_ratios_N, advantages_N, clip.bounds.budget)
        low = max(1 - math.exp(-tau), clip.bounds.least_low)
        high = max(math.exp(tau) - 1, clip.bounds.least_high)
    elif isinstance(clip.bounds, Balanced):
        lowest, highest = balanced_bounds(log_ratios_N.exp(), advantages_N, clip.bounds, clip)
        low, high = 1 - lowest, highest - 1
    else:
        return clip
    return clip.model_copy(update={"clip_low": low, "clip_high": high})


def covariant_tokens(
    inputs: SurrogateInputs, config: LossConfig, rng: np.random.Generator
) -> Tensor:
    """Return which tokens of one optimizer step are held back, boolean [N].

    Args:
        inputs: All sampled tokens of the step.
        config: Its ``covariance``; tokens that the surrogate clips are not counted by ``clip``.
        rng: Picks among the tokens between the bounds.
    """
    covariance = config.covariance
    gaps_N = inputs.advantages - inputs.advantages.mean()
    covariances_N = gaps_N * (inputs.policy_logprobs - inputs.policy_logprobs.mean())
    count = max(1, int(covariance.share * len(covariances_N)))
    held_N = torch.zeros_like(covariances_N, dtype=torch.bool)
    if covariance.rule == "kl":
        held_N[covariances_N.topk(min(count, len(covariances_N))).indices] = True
        return held_N
    _, clipped_N = surrogate_losses(inputs, config.surrogate)
    inside_N = (covariances_N > covariance.low) & (covariances_N < covariance.high) & ~clipped_N
    places = rng.permutation(inside_N.nonzero().flatten().numpy())[:count]
    held_N[torch.from_numpy(places)] = True
    return held_N


def second_moment_bound(log_ratios_N: Tensor, advantages_N: Tensor, budget: float) -> float:
    """Return τ, the largest log-ratio at which ``mean(min(Δ, τ)²) <= budget``; inf for no bound.

    The mean is over the tokens that are pushed further from the old policy (A > 0 and r > 1, or A <
    0 and r < 1), with Δ the size of their log-ratio.

    Args:
        log_ratios_N: Current over old policy.
        advantages_N: Of the same tokens.
        budget: Largest mean square.

    Source:
        M2PO. The authors' code takes the largest log-ratio below τ, which clips more; ours is
        exact, and over the whole mini-batch instead of a micro-batch.
    """
    away_N = log_ratios_N * advantages_N.sign() > 0
    sizes_N = log_ratios_N[away_N].abs().sort().values
    count = len(sizes_N)
    if count == 0 or float(sizes_N.square().mean()) <= budget:
        return math.inf
    # In ascending order, cutting at the k-th size leaves the squares below it and count - k times
    # τ²; the first k whose τ does not pass its own size is the answer.
    below_N = sizes_N.square().cumsum(0) - sizes_N.square()  # squares of all that are smaller
    left_N = torch.arange(count, 0, -1, dtype=sizes_N.dtype)  # those that are cut
    bounds_N = ((budget * count - below_N).clamp(min=0) / left_N).sqrt()
    first = int((bounds_N <= sizes_N).nonzero()[0, 0])  # from here on all are larger than τ
    return float(bounds_N[first])


def balanced_bounds(
    ratios_N: Tensor, advantages_N: Tensor, bounds: Balanced, clip: PpoClip
) -> tuple[float, float]:
    """Return the bounds of the ratio at which the positive share of the gradient is reached.

    The lower bound moves first. Both end where they may, whether that is enough or not.

    Args:
        ratios_N: Current over old policy.
        advantages_N: Of the same tokens.
        bounds: Starts, ends, step and the share.
        clip: Its dual clip bounds negative tokens from above.

    Source:
        BAPO, arXiv:2510.18927. A token counts while its gradient is not clipped, ``r·|A|``; in the
        authors' code clipped values count too, so that the lower bound moves the wrong way.
    """
    low, high = bounds.low_start, bounds.high_start

    def enough() -> bool:
        return positive_share(ratios_N, advantages_N, low, high, clip.dual_clip) >= bounds.share

    while low < bounds.low_end and not enough():
        low = min(low + bounds.step, bounds.low_end)
    while high < bounds.high_end and not enough():
        high = min(high + bounds.step, bounds.high_end)
    return low, high


def positive_share(
    ratios_N: Tensor, advantages_N: Tensor, low: float, high: float, dual_clip: float | None = None
) -> float:
    """Return the part of the whole gradient, as ``r·|A|``, that pushes up; 1 where nothing pushes.

    Args:
        ratios_N: Of the tokens.
        advantages_N: Of the same tokens.
        low: A negative token with a smaller ratio is clipped.
        high: A positive token with a larger ratio is clipped.
        dual_clip: A negative token with a larger ratio is clipped; None for no such bound.
    """
    sizes_N = ratios_N * advantages_N.abs()
    up = float(sizes_N[(advantages_N > 0) & (ratios_N <= high)].sum())
    falling_N = (advantages_N < 0) & (ratios_N >= low)
    if dual_clip is not None:
        falling_N &= ratios_N <= dual_clip
    down = float(sizes_N[falling_N].sum())
    return up / (up + down) if up + down > 0 else 1.0
