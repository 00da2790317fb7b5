"""Scales: values within their baseline group, comparisons among each other, and a whole batch.

Axis letters: N values or turns, P baseline groups, B episodes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from turngym.errors import TrainingError
from turngym.trainers.credit.base import TurnBatch
from turngym.trainers.samples import FloatArray, IntArray
from turngym.trainers.settings.group import BatchScale, Combination, GatedSum, GroupFilter, Term

_EPS = 1e-6
ZERO_SPREAD = 1e-6
"""Values of one baseline group that differ by less count as equal: float rewards are not exact."""


def normalize(
    values_N: FloatArray, baseline_N: IntArray, term: Term, *, counts_N: FloatArray | None = None
) -> FloatArray:
    """Return ``(x - centre) / (scale + eps)`` of each value within its baseline group, shape [N].

    A baseline group of equal values becomes ``-offset`` (0 but for AsymRE) when it is centred and
    is not divided when it is not. A baseline group of one becomes what ``term.group_of_one`` says
    when it is centred and is not divided either.

    Args:
        values_N: What is compared, finite, shape [N].
        baseline_N: Any number for each baseline group; values in baseline group -1 take no part and
            become 0.
        term: Centre, scale, eps, least scale and what a baseline group of one becomes.
        counts_N: How often a value counts in the statistics, whole numbers. With 0 it is compared
            with the others and does not count itself. None counts each once.

    Raises:
        TrainingError: ``scale="mean"`` meets a baseline group whose mean is negative.
    """
    result_N = np.zeros(values_N.shape)
    counts = np.ones(values_N.shape) if counts_N is None else counts_N
    # Where nothing counts, as among turns that are context alone, nothing is compared.
    inside_N = np.isin(baseline_N, baseline_N[(baseline_N >= 0) & (counts > 0)])
    if not inside_N.any():
        return result_N
    groups = _Groups.of(values_N[inside_N], baseline_N[inside_N], counts[inside_N])
    spread_P = groups.largest(groups.values_N) + groups.largest(-groups.values_N)
    is_one_P, is_equal_P = groups.size_P <= 1, spread_P < ZERO_SPREAD
    centred_N = groups.values_N - _centre(groups, term)[groups.index_N] - term.offset
    if term.centre == "leave_one_out":
        # x - mean of the others = (x - mean of all) · n / (n - 1)
        centred_N *= (groups.size_P / np.maximum(groups.size_P - 1, 1))[groups.index_N]
    # Equal values are not divided: their spread is rounding noise, and dividing would blow it up.
    divisor_P = np.where(is_one_P | is_equal_P, 1.0, _scale(groups, term))
    scaled_N = centred_N / divisor_P[groups.index_N]
    if term.centre not in ("none", "constant"):
        alone_N = groups.values_N if term.group_of_one == "raw" else np.zeros(groups.values_N.shape)
        scaled_N = np.where(is_equal_P[groups.index_N], -term.offset, scaled_N)
        scaled_N = np.where(is_one_P[groups.index_N], alone_N, scaled_N)
    result_N[inside_N] = scaled_N
    return result_N


def lower_medians(values_N: FloatArray, baseline_N: IntArray, counts_N: FloatArray) -> FloatArray:
    """Return the (lower) median of each value's baseline group, shape [N].

    Args:
        values_N: Shape [N].
        baseline_N: Number of the baseline group of each value, 0 or more.
        counts_N: How often each counts.
    """
    groups = _Groups.of(values_N, baseline_N, counts_N)
    return groups.medians(values_N)[groups.index_N]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Groups:
    """N values in P groups and how often each counts."""

    values_N: FloatArray
    index_N: IntArray
    counts_N: FloatArray
    size_P: FloatArray
    """How much counts in a baseline group."""

    @classmethod
    def of(cls, values_N: FloatArray, baseline_N: IntArray, counts_N: FloatArray) -> _Groups:
        index_N = np.unique(baseline_N, return_inverse=True)[1]
        size_P = np.bincount(index_N, counts_N).astype(np.float64)
        return cls(values_N=values_N, index_N=index_N, counts_N=counts_N, size_P=size_P)

    def largest(self, values_N: FloatArray) -> FloatArray:
        """Return the largest of ``values_N`` in each baseline group, shape [P]."""
        found_P = np.full(self.size_P.shape, -np.inf)
        counted = self.counts_N > 0
        np.maximum.at(found_P, self.index_N[counted], values_N[counted])
        return found_P

    def means(self) -> FloatArray:
        return np.bincount(self.index_N, self.counts_N * self.values_N) / self.size_P

    def log_mean_exp(self, tau: float) -> FloatArray:
        """Return ``tau · log mean exp(x / tau)`` of each baseline group, shape [P]."""
        largest_P = self.largest(self.values_N)
        grown_N = np.exp((self.values_N - largest_P[self.index_N]) / tau)
        means_P = np.bincount(self.index_N, self.counts_N * grown_N) / self.size_P
        found_P: FloatArray = largest_P + tau * np.log(means_P)
        return found_P

    def deviations(self, *, ddof: int) -> FloatArray:
        gaps_N = self.values_N - self.means()[self.index_N]
        squares_P = np.bincount(self.index_N, self.counts_N * gaps_N**2)
        spread_P: FloatArray = np.sqrt(squares_P / np.maximum(self.size_P - ddof, 1))
        return spread_P

    def medians(self, values_N: FloatArray) -> FloatArray:
        """Return the lower median of ``values_N`` in each baseline group, shape [P]."""
        order = np.lexsort((values_N, self.index_N))
        first_P = np.cumsum(self.size_P) - self.size_P
        within_N = np.cumsum(self.counts_N[order]) - first_P[self.index_N[order]]
        is_past_N = within_N >= self.size_P[self.index_N[order]] / 2
        groups, places = np.unique(self.index_N[order][is_past_N], return_index=True)
        found_P = np.zeros(self.size_P.shape)
        found_P[groups] = values_N[order][is_past_N][places]
        return found_P


def _centre(groups: _Groups, term: Term) -> FloatArray:
    if term.centre in ("none", "constant"):
        return np.zeros(groups.size_P.shape)
    if term.centre == "log_mean_exp":
        return groups.log_mean_exp(term.tau)
    return groups.medians(groups.values_N) if term.centre == "median" else groups.means()


def _scale(groups: _Groups, term: Term) -> FloatArray:
    """Return what is divided by, ``eps`` included, shape [P]."""
    if term.scale == "none":
        return np.ones(groups.size_P.shape)
    if term.scale == "mean":
        scale_P = groups.means()
        if scale_P.min() < 0:
            raise TrainingError(
                f"scale='mean': the returns of a group have mean {scale_P.min():g}, wanted 0 or "
                "more; count successes with the term's 'above', or choose another scale"
            )
    elif term.scale == "batch_std":
        whole = np.zeros(groups.values_N.shape, dtype=np.int64)
        deviation = _Groups.of(groups.values_N, whole, groups.counts_N).deviations(ddof=1)
        scale_P = np.full(groups.size_P.shape, deviation.item())
    elif term.scale == "mad":
        gaps_N = np.abs(groups.values_N - groups.medians(groups.values_N)[groups.index_N])
        scale_P = groups.medians(gaps_N)
    else:
        spread_P = groups.deviations(ddof=1 if term.scale == "std" else 0)
        scale_P = np.sqrt(spread_P**2 + term.variance_eps) if term.variance_eps else spread_P
    return np.maximum(scale_P, term.least_scale) + term.eps


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
    # sigmoid(-std of the group's outcomes / temperature), in (0, 0.5]
    doubt_B = group_deviations(turns.outcome_B, turns) / config.temperature
    gate_N = np.exp(-np.logaddexp(0.0, doubt_B))[turns.episode_N]
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
    if not counted_N.size or np.ptp(counted_N) < ZERO_SPREAD:
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


def group_deviations(values_B: FloatArray, turns: TurnBatch) -> FloatArray:
    """Return the sample standard deviation of an episode's group, 0 for a group of one, shape [B].

    Args:
        values_B: One value per episode.
        turns: The batch.
    """
    groups = _Groups.of(values_B, turns.group_B, np.ones(values_B.shape))
    return groups.deviations(ddof=1)[groups.index_N]


def spread_groups(values_B: FloatArray, turns: TurnBatch, config: GroupFilter) -> set[int]:
    """Return the numbers of the groups in which values differ as much as the filter wants.

    Groups with the same spread are kept in their order; ``keep_top`` keeps at least one group.

    Args:
        values_B: One value per episode.
        turns: The batch.
        config: The filter.

    Source:
        ``keep_top``: StarPO-S, arXiv:2504.20073. ``min_std``: UI-S1, arXiv:2509.11543.
    """
    groups_G, first_G = np.unique(turns.group_B, return_index=True)
    spread_G = group_deviations(values_B, turns)[first_G]
    count = max(1, math.floor(config.keep_top * groups_G.size + 1e-9))
    chosen = np.argsort(-spread_G, kind="stable")[:count]
    if config.min_std is not None:
        chosen = chosen[spread_G[chosen] > config.min_std]
    return set(groups_G[chosen].tolist())


def _token_deviation(values_N: FloatArray, turns: TurnBatch) -> float:
    """Return the sample standard deviation over all sampled tokens of the batch."""
    size = turns.tokens_N.sum()
    if size < 2:
        return 0.0
    gaps_N = values_N - (turns.tokens_N * values_N).sum() / size
    return math.sqrt((turns.tokens_N * gaps_N**2).sum() / (size - 1))
