"""Several comparisons become one advantage per turn, and a whole batch one scale.

Axis letters: B episodes, N turns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from turngym.trainers.credit.base import TurnBatch
from turngym.trainers.credit.group.normalize import ZERO_SPREAD
from turngym.trainers.samples import FloatArray
from turngym.trainers.settings.group import BatchScale, Combination, GatedSum

_EPS = 1e-6


def combine_terms(
    terms: Sequence[FloatArray], turns: TurnBatch, config: Combination, *, update: int
) -> FloatArray:
    """Return the sum of weighted terms, or the gated one, shape [N].

    Args:
        terms: One array [N] per term, each times its weight.
        turns: The batch.
        config: How.
        update: Number of the update, from 0.
    """
    if not isinstance(config, GatedSum) or len(terms) == 1:
        total_N: FloatArray = np.sum(terms, axis=0)
        return total_N
    first_N, others_N = terms[0], np.sum(terms[1:], axis=0)
    beta = config.beta * math.exp(-config.decay * update)
    least = _token_deviation(others_N, turns) + _EPS
    widest = max(_token_deviation(first_N, turns) + _EPS, 1.0)
    gate_N = _gates(turns, config)[turns.episode_N]
    combined_N: FloatArray = first_N + beta * min(1.0, widest / least) * gate_N * others_N
    return combined_N


def scale_batch(values_N: FloatArray, counts_N: FloatArray, config: BatchScale) -> FloatArray:
    """Return ``(x - mean) / std`` over a whole batch, cut at ``clamp``, shape [N].

    The standard deviation is the sample's. Equal values become 0.

    Args:
        values_N: Advantages, shape [N].
        counts_N: How often each counts in mean and deviation; 0 for those that only follow.
        config: eps and clamp.
    """
    size = counts_N.sum()
    counted_N = values_N[counts_N > 0]
    if size < 1 or np.ptp(counted_N) < ZERO_SPREAD:
        return np.zeros(values_N.shape)
    centred_N = values_N - (counts_N * values_N).sum() / size
    variance = (counts_N * centred_N**2).sum() / max(size - 1, 1)
    if config.eps_inside:
        divisor = math.sqrt(variance + config.eps)
    else:
        divisor = math.sqrt(variance) + config.eps
    scaled_N: FloatArray = centred_N / divisor
    if config.clamp is not None:
        scaled_N = np.clip(scaled_N, -config.clamp, config.clamp)
    return scaled_N


def batch_counts(turns: TurnBatch, config: BatchScale) -> FloatArray:
    """Return how often each turn counts in the statistics of a batch, shape [N]."""
    if config.unit == "token":
        return turns.tokens_N.astype(np.float64)
    if config.unit == "episode":
        return np.where(turns.turn_N == 0, 1.0, 0.0)
    return np.ones(len(turns.turn_N))


def group_deviations(values_B: FloatArray, turns: TurnBatch) -> FloatArray:
    """Return the sample standard deviation of an episode's group, 0 for a group of one, shape [B].

    Args:
        values_B: One value per episode.
        turns: The batch.
    """
    size = np.maximum(np.bincount(turns.group_B), 1)
    mean = np.bincount(turns.group_B, values_B) / size
    squares = np.bincount(turns.group_B, (values_B - mean[turns.group_B]) ** 2)
    spread: FloatArray = np.sqrt(squares / np.maximum(size - 1, 1))
    return spread[turns.group_B]


def _gates(turns: TurnBatch, config: GatedSum) -> FloatArray:
    """Return ``sigmoid(-std of the group's outcomes / temperature)``, in (0, 0.5], shape [B]."""
    doubt_B = group_deviations(turns.outcome_B, turns) / config.temperature
    gates_B: FloatArray = np.exp(-np.logaddexp(0.0, doubt_B))
    return gates_B


def _token_deviation(values_N: FloatArray, turns: TurnBatch) -> float:
    """Return the sample standard deviation over all sampled tokens of the batch."""
    size = turns.tokens_N.sum()
    if size < 2:
        return 0.0
    gaps_N = values_N - (turns.tokens_N * values_N).sum() / size
    return math.sqrt((turns.tokens_N * gaps_N**2).sum() / (size - 1))
