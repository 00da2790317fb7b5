"""Values compared within groups: what is subtracted and what is divided by.

Axis letters: N values, P groups.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from turngym.errors import TrainingError
from turngym.trainers.samples import FloatArray, IntArray
from turngym.trainers.settings.group import Term

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
    inside_N = baseline_N >= 0
    if not inside_N.any():
        return result_N
    counts = np.ones(values_N.shape) if counts_N is None else counts_N
    groups = _Groups.of(values_N[inside_N], baseline_N[inside_N], counts[inside_N])
    spread_P = groups.largest() - groups.smallest()
    is_one_P, is_equal_P = groups.size_P <= 1, spread_P < ZERO_SPREAD
    centred_N = groups.values_N - _centre(groups, term)[groups.index_N] - term.offset
    if term.centre == "leave_one_out":
        centred_N *= (groups.size_P / np.maximum(groups.size_P - 1, 1))[groups.index_N]
    divisor_P = np.where(is_one_P | is_equal_P, 1.0, _scale(groups, term))
    scaled_N = centred_N / divisor_P[groups.index_N]
    if term.centre != "none":
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

    def smallest(self) -> FloatArray:
        return self._extreme(np.minimum, np.inf)

    def largest(self) -> FloatArray:
        return self._extreme(np.maximum, -np.inf)

    def _extreme(self, choose: np.ufunc, start: float) -> FloatArray:
        found_P = np.full(self.size_P.shape, start)
        counted = self.counts_N > 0
        choose.at(found_P, self.index_N[counted], self.values_N[counted])
        return found_P

    def means(self) -> FloatArray:
        return np.bincount(self.index_N, self.counts_N * self.values_N) / self.size_P

    def log_mean_exp(self, tau: float) -> FloatArray:
        """Return ``tau · log mean exp(x / tau)`` of each baseline group, shape [P]."""
        largest_P = self.largest()
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
    if term.centre == "none":
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
    elif term.scale == "mad":
        gaps_N = np.abs(groups.values_N - groups.medians(groups.values_N)[groups.index_N])
        scale_P = groups.medians(gaps_N)
    else:
        scale_P = groups.deviations(ddof=1 if term.scale == "std" else 0)
    return np.maximum(scale_P, term.least_scale) + term.eps
