"""Intervals of shares, means and pass@k, and of differences between two evaluations.

Axis letters: T task, R resample.

Attempts at one task are not independent of each other, so what is drawn again is the task with all
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

from turngym.rollouts.evaluation import Interval, mean_interval, wilson_interval

FloatArray = NDArray[np.float64]

RESAMPLES = 5_000
_CELLS = 2_000_000
"""Resampled numbers in memory at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A number with its 95 % interval."""

    value: float
    interval: Interval | None = None
    """None with fewer than two tasks."""

    @classmethod
    def share(cls, successes: int, trials: int) -> Self | None:
        """Return a share of independent trials with its Wilson interval; None without trials."""
        if not trials:
            return None
        return cls(value=successes / trials, interval=wilson_interval(successes, trials))

    @classmethod
    def mean(cls, values_by_task: Iterable[Sequence[float]]) -> Self | None:
        """Return the mean of all values; None when there are none.

        With one value a task the interval is the mean plus and minus 1.96 standard errors; with
        several it is a bootstrap over tasks.

        Args:
            values_by_task: The values of each task's episodes.
        """
        tasks = [list(values) for values in values_by_task if values]
        if not tasks:
            return None
        flat = [value for values in tasks for value in values]
        value = math.fsum(flat) / len(flat)
        if len(flat) == len(tasks):
            return cls(value=value, interval=mean_interval(flat))
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
        drawn_RT = random.integers(tasks, size=(min(at_once, RESAMPLES - start), tasks))
        parts.append(sums_T[drawn_RT].sum(1) / counts_T[drawn_RT].sum(1))
    low, high = np.percentile(np.concatenate(parts), [2.5, 97.5])
    return float(low), float(high)


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
