"""Bounds of a clip that follow a mini-batch. Nothing here has a gradient.

Axis letter: N sampled tokens laid out flat.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from turngym.trainers.losses.surrogates import MAX_LOG_RATIO
from turngym.trainers.settings.correction import Balanced, SecondMoment
from turngym.trainers.settings.loss import PpoClip


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
