"""Intervals of shares, means and pass@k, and of differences between two evaluations.

Axis letters: T task, R resample.

Attempts at one task are not independent of each other, so what is resampled is the task with all
its attempts. The generator has a fixed seed: the same rows always give the same interval.

Source:
    Efron and Tibshirani 1993, An Introduction to the Bootstrap, chapters 8 and 13.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

Interval = tuple[float, float]

RESAMPLES = 5_000
_CELLS = 2_000_000
"""Resampled numbers in memory at once."""
_Z95 = 1.959963984540054
"""97.5 % point of the normal distribution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A number with its 95 % interval."""

    value: float
    interval: Interval | None = None
    """None with fewer than two tasks."""

    @classmethod
    def share(cls, successes: int, trials: int) -> Self | None:
        """Return the share of ``successes`` with its Wilson interval; None without trials."""
        if not trials:
            return None
        return cls(value=successes / trials, interval=wilson_interval(successes, trials))

    @classmethod
    def mean(cls, values_by_task: Iterable[Sequence[float]]) -> Self | None:
        """Return the mean of all values with a bootstrap over tasks; None when there are none.

        The interval never passes the smallest or the largest value: seconds are never below 0.

        Args:
            values_by_task: The values of each task's episodes.
        """
        tasks = [list(values) for values in values_by_task if values]
        if not tasks:
            return None
        value = math.fsum(value for values in tasks for value in values) / sum(map(len, tasks))
        sums_T = np.array([math.fsum(values) for values in tasks])
        counts_T = np.array([float(len(values)) for values in tasks])
        return cls(value=value, interval=bootstrap_ratio(sums_T, counts_T))

    def to_json(self) -> list[float | None]:
        """Return ``[value, low, high]``."""
        low, high = self.interval or (None, None)
        return [self.value, low, high]


def bootstrap_ratio(sums_T: FloatArray, counts_T: FloatArray) -> Interval | None:
    """Return the 95 % percentile interval of ``sum(sums) / sum(counts)`` over resampled tasks.

    Args:
        sums_T: What each task adds above.
        counts_T: What each task adds below, more than 0.

    Returns:
        None with fewer than two tasks.
    """
    tasks = len(sums_T)
    if tasks < 2:
        return None
    random = np.random.default_rng(0)
    at_once = max(1, _CELLS // tasks)
    parts = []
    for start in range(0, RESAMPLES, at_once):
        sampled_RT = random.integers(tasks, size=(min(at_once, RESAMPLES - start), tasks))
        parts.append(sums_T[sampled_RT].sum(1) / counts_T[sampled_RT].sum(1))
    low, high = np.percentile(np.concatenate(parts), [2.5, 97.5])
    return float(low), float(high)


def mean_interval(values: Sequence[float]) -> Interval | None:
    """Return the bootstrap interval of a mean; None with fewer than two values."""
    return bootstrap_ratio(np.array(values, dtype=np.float64), np.ones(len(values)))


def wilson_interval(successes: float, trials: int) -> Interval:
    """Return the 95 % Wilson score interval of a share.

    ``(p + z²/2n ± z·sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n)``. Unlike ``p ± z·se`` it stays inside
    [0, 1] and keeps its width when every trial, or none, succeeded.

    Args:
        successes: Number of successes, 0 to ``trials``; parts of one where a trial half succeeded.
        trials: Number of independent trials, 1 or more.

    Raises:
        ValueError: The counts are out of range.

    Source:
        Wilson 1927, J. Am. Stat. Assoc. 22, 209.
    """
    if trials < 1 or not 0 <= successes <= trials:
        raise ValueError(
            f"wanted 0 <= successes <= trials and trials >= 1, got {successes}/{trials}"
        )
    share, z2 = successes / trials, _Z95**2
    centre = share + z2 / (2 * trials)
    half = _Z95 * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials**2))
    low, high = (centre - half) / (1 + z2 / trials), (centre + half) / (1 + z2 / trials)
    return (
        0.0 if successes == 0 else max(0.0, low),
        1.0 if successes == trials else min(1.0, high),
    )


def paired_interval(ours_T: FloatArray, theirs_T: FloatArray) -> Interval:
    """Return the 95 % interval of ``mean(ours) - mean(theirs)`` of successes at the same tasks.

    Newcombe's method 10: the distances from both shares to the ends of their Wilson intervals,
    added as squares, less what their correlation explains. It keeps its width where both solved
    all tasks, or none, and stays inside [-1, 1].

    Args:
        ours_T: Success at each task, in [0, 1].
        theirs_T: The other's, of the same length, 1 or more.

    Source:
        Newcombe 1998, Statistics in Medicine 17, 2635.
    """
    tasks = len(ours_T)
    both, neither = float(ours_T @ theirs_T), float((1 - ours_T) @ (1 - theirs_T))
    only_ours, only_theirs = float(ours_T @ (1 - theirs_T)), float((1 - ours_T) @ theirs_T)
    ours, theirs = both + only_ours, both + only_theirs
    product = ours * (tasks - ours) * theirs * (tasks - theirs)
    excess = both * neither - only_ours * only_theirs
    if excess > 0:
        excess = max(0.0, excess - tasks / 2)
    phi = excess / math.sqrt(product) if product > 0 else 0.0
    share, other = ours / tasks, theirs / tasks
    low, high = wilson_interval(ours, tasks)
    other_low, other_high = wilson_interval(theirs, tasks)

    def distance(one: float, two: float) -> float:
        return math.sqrt(max(0.0, one**2 - 2 * phi * one * two + two**2))

    return (
        share - other - distance(share - low, other_high - other),
        share - other + distance(high - share, other - other_low),
    )


def pass_at(k: int, attempts: int, solved: int) -> float:
    """Return the chance that at least one of ``k`` attempts solves a task.

    ``1 - C(n - c, k) / C(n, k)``: the share of all choices of k of the n attempts that hold one of
    the c solved ones. Unbiased, unlike ``1 - (1 - c/n)^k``.

    Args:
        k: 1 to ``attempts``.
        attempts: Judged attempts n.
        solved: Solved ones c, 0 to n.

    Raises:
        ValueError: The counts are out of range.

    Source:
        Chen et al. 2021, arXiv:2107.03374, equation 1.
    """
    if not 1 <= k <= attempts or not 0 <= solved <= attempts:
        raise ValueError(
            f"wanted 1 <= k <= attempts and 0 <= solved <= attempts, got k={k}, "
            f"attempts={attempts}, solved={solved}"
        )
    if attempts - solved < k:
        return 1.0
    missed = 1.0
    for i in range(attempts - solved + 1, attempts + 1):
        missed *= 1.0 - k / i
    return 1.0 - missed


def pass_at_measure(k: int, counts: Iterable[tuple[int, int]]) -> Measure | None:
    """Return the mean of ``pass_at`` over tasks; None when no task has ``k`` judged attempts.

    The interval is Wilson's while every task counts 0 or 1, else a bootstrap over tasks.

    Args:
        k: 1 or more.
        counts: Judged attempts and solved ones, of each task. Tasks with fewer than ``k`` attempts
            are left out.
    """
    values = [pass_at(k, n, c) for n, c in counts if n >= k]
    if not values:
        return None
    value = math.fsum(values) / len(values)
    if all(v in (0.0, 1.0) for v in values):
        return Measure(value=value, interval=wilson_interval(round(sum(values)), len(values)))
    return Measure(value=value, interval=bootstrap_ratio(np.array(values), np.ones(len(values))))
