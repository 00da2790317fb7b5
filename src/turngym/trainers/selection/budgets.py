"""How many attempts each task of a step gets.

Axis letter: K tasks of one step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pkgutil import resolve_name

import numpy as np

from turngym.trainers.samples import FloatArray
from turngym.trainers.settings.selection import BudgetConfig, ConfidenceBudget, VarianceBudget

_T975 = (
    12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004, 2.262157,
    2.228139, 2.200985, 2.178813, 2.160369, 2.144787, 2.131450, 2.119905, 2.109816, 2.100922,
    2.093024, 2.085963, 2.079614, 2.073873, 2.068658, 2.063899, 2.059539, 2.055529, 2.051831,
    2.048407, 2.045230, 2.042272,
)  # fmt: skip
"""97.5 % points of Student's t for 1 to 30 degrees of freedom."""
_NORMAL975 = 1.959964


def attempts_for(
    success_K: FloatArray, seen: Sequence[int], *, mean: int, config: BudgetConfig
) -> list[int]:
    """Return the number of attempts at each task, ``mean`` on average where bounds allow it.

    Args:
        success_K: Estimated success at the tasks, in [0, 1].
        seen: Attempts at each of them so far.
        mean: ``rollout.group_size``.
        config: The rule; it names its function as ``builder``.
    """
    assert config.builder is not None
    counts: list[int] = resolve_name(config.builder)(success_K, seen, mean=mean, config=config)
    return counts


def fixed(
    success_K: FloatArray, seen: Sequence[int], *, mean: int, config: BudgetConfig
) -> list[int]:
    """Return ``mean`` for each task."""
    return [mean] * len(seen)


def by_variance(
    success_K: FloatArray, seen: Sequence[int], *, mean: int, config: VarianceBudget
) -> list[int]:
    """Return attempts in proportion to the standard deviation of success; see ``attempts_for``."""
    wanted_K = variance_shares(success_K * (1 - success_K), mean=mean)
    return rounded(wanted_K, total=len(seen) * mean, least=config.least, most=config.most)


def variance_shares(variance_K: FloatArray, *, mean: float) -> FloatArray:
    """Return ``n ∝ sqrt(variance)`` with the given mean, [K]; the mean where nothing varies.

    Source:
        GDRO, arXiv:2601.19280, the allocation under a mean budget.
    """
    roots_K = np.sqrt(variance_K)
    if roots_K.sum() <= 0:
        return np.full(variance_K.shape, float(mean))
    shares_K: FloatArray = mean * len(roots_K) * roots_K / roots_K.sum()
    return shares_K


def rounded(wanted_K: FloatArray, *, total: int, least: int, most: int) -> list[int]:
    """Return whole numbers near ``wanted_K`` that sum to ``total`` if bounds allow it.

    What is missing or too much goes where it comes closest to what was wanted.

    Args:
        wanted_K: Any numbers.
        total: Sum of the result.
        least: Lower bound of each.
        most: Upper bound of each.
    """
    counts_K = np.clip(np.floor(wanted_K), least, most)
    while (short := total - int(counts_K.sum())) != 0:
        sign = 1 if short > 0 else -1
        movable_K = counts_K < most if short > 0 else counts_K > least
        if not movable_K.any():
            break
        gaps_K = np.where(movable_K, sign * (wanted_K - counts_K), -np.inf)
        counts_K[int(np.argmax(gaps_K))] += sign
    return [int(count) for count in counts_K]


def half_width(attempts: int, deviation: float) -> float:
    """Return ``t · s / sqrt(n)``, half the 95 % interval of a mean; inf for fewer than two.

    Args:
        attempts: n.
        deviation: s, the sample standard deviation.
    """
    if attempts < 2:
        return math.inf
    degrees = attempts - 1
    point = _T975[degrees - 1] if degrees <= len(_T975) else _NORMAL975
    return point * deviation / math.sqrt(attempts)


def by_confidence(
    success_K: FloatArray, seen: Sequence[int], *, mean: int, config: ConfidenceBudget
) -> list[int]:
    """Return the attempts at each task when they are dealt out one by one, by what they promise.

    The next attempt goes to the task with the largest ``h(n) - h(n + 1)`` plus the bonus, with n
    the attempts that this step gives it and h ``half_width``. Arguments as of ``attempts_for``.

    Source:
        XRPO, arXiv:2510.06672, from its abstract; it deals them out in rounds within one step, we
        once per step with what earlier steps taught.
    """
    deviations = np.sqrt(success_K * (1 - success_K)).tolist()
    counts = [config.least] * len(seen)
    before = sum(seen)

    def promise(k: int) -> float:
        if counts[k] >= config.most:
            return -math.inf
        gained = half_width(counts[k], deviations[k]) - half_width(counts[k] + 1, deviations[k])
        here = seen[k] + counts[k]
        return gained + config.bonus * math.sqrt(math.log(1 + before + sum(counts)) / here)

    while sum(counts) < len(seen) * mean:
        best = max(range(len(counts)), key=promise)
        if counts[best] >= config.most:
            break
        counts[best] += 1
    return counts
