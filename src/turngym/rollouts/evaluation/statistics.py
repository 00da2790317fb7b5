"""Statistics of evaluations and of runs: intervals, pass@k, curves over seeds.

Axis letters: T task, S seed, P point of a curve, R resample.

Attempts at one task are not independent of each other: what is resampled is the task with all its
attempts, and a share has the trials that tasks differ by. Runs are resampled by seed (S of S with
replacement, 2.5th to 97.5th percentile), both algorithms of a difference alike, because the runs of
one seed begin with one model and meet the same tasks. With few seeds such an interval is too
narrow: it knows only the seeds that were run.
The generators have a fixed seed: the same rows always give the same interval.

Source:
    Efron and Tibshirani 1993, An Introduction to the Bootstrap, chapters 8 and 13.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from turngym.types import Trajectory

FloatArray = NDArray[np.float64]

Interval = tuple[float, float]

RESAMPLES = 5_000
_CELLS = 2_000_000
"""Resampled numbers in memory at once."""
_Z95 = 1.959963984540054
"""97.5 % point of the normal distribution."""
_T975 = (
    12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004, 2.262157,
    2.228139, 2.200985, 2.178813, 2.160369, 2.144787, 2.131450, 2.119905, 2.109816, 2.100922,
    2.093024, 2.085963, 2.079614, 2.073873, 2.068658, 2.063899, 2.059539, 2.055529, 2.051831,
    2.048407, 2.045230, 2.042272,
)  # fmt: skip
"""97.5 % points of Student's t for 1 to 30 degrees of freedom."""


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
    def solved(cls, counts: Sequence[tuple[int, int]]) -> Self | None:
        """Return the solved share of all attempts; None without any.

        Its interval is that of ``ratio_interval``.

        Args:
            counts: Judged attempts, at least one, and solved ones, of each task.
        """
        if not counts:
            return None
        attempts_T, solved_T = np.array(counts, dtype=np.float64).T
        attempts = float(attempts_T.sum())
        return cls(
            value=float(solved_T.sum()) / attempts,
            interval=ratio_interval(solved_T, attempts_T, attempts=attempts),
        )

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


def ratio_interval(sums_T: FloatArray, counts_T: FloatArray, *, attempts: float) -> Interval:
    """Return the 95 % interval of ``p = sum(sums) / sum(counts)``, a share, over tasks.

    Wilson's, with as many trials as would leave p as uncertain as the tasks do:
    ``p (1 - p) / v``, where ``v = sum((sums - p counts)²) / sum(counts)²``. So tasks are the trials
    where each counts 0 or 1, and also where no task differs, which says nothing of others.

    Args:
        sums_T: What each task adds above, up to its count.
        counts_T: What each task adds below, more than 0.
        attempts: Of all tasks together: there are never more trials.

    Source:
        Korn and Graubard 1998, Survey Methodology 24, 193; linearized variance of a ratio.
    """
    total = float(counts_T.sum())
    share = min(1.0, float(sums_T.sum()) / total)
    variance = float(((sums_T - share * counts_T) ** 2).sum()) / total**2
    trials = float(len(sums_T))
    if variance > 1e-12:
        trials = max(1.0, min(attempts, share * (1 - share) / variance))
    return wilson_interval(share * trials, trials)


def half_width(count: int, deviation: float) -> float:
    """Return ``t · s / sqrt(n)``, half the 95 % interval of a mean; inf for fewer than two.

    Args:
        count: n.
        deviation: s, the sample standard deviation.
    """
    if count < 2:
        return math.inf
    degrees = count - 1
    point = _T975[degrees - 1] if degrees <= len(_T975) else _Z95
    return point * deviation / math.sqrt(count)


def wilson_interval(successes: float, trials: float) -> Interval:
    """Return the 95 % Wilson score interval of a share.

    ``(p + z²/2n ± z·sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n)``. Unlike ``p ± z·se`` it stays inside
    [0, 1] and keeps its width when every trial, or none, succeeded.

    Args:
        successes: Number of successes, 0 to ``trials``; parts of one where a trial half succeeded.
        trials: Number of independent trials, 1 or more, or of what is worth as many.

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

    Its interval is that of ``ratio_interval``.

    Args:
        k: 1 or more.
        counts: Judged attempts and solved ones, of each task. Tasks with fewer than ``k`` attempts
            are left out.
    """
    kept = [(n, pass_at(k, n, c)) for n, c in counts if n >= k]
    if not kept:
        return None
    attempts, values = zip(*kept, strict=True)
    values_T, ones_T = np.array(values), np.ones(len(values))
    return Measure(
        value=math.fsum(values) / len(values),
        interval=ratio_interval(values_T, ones_T, attempts=float(sum(attempts))),
    )


SEED_RESAMPLES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over seeds with its interval."""

    mean: float
    low: float | None = None
    """None with one seed."""
    high: float | None = None

    @classmethod
    def of(cls, values_S: FloatArray) -> Self:
        """Return the mean of ``values_S`` and its interval."""
        mean = float(values_S.mean())
        if len(values_S) < 2:
            return cls(mean=mean)
        return cls.around(mean, values_S[resamples(len(values_S))].mean(1))

    @classmethod
    def around(cls, mean: float, values_R: FloatArray) -> Self:
        """Return ``mean`` with the interval that resampled values give."""
        low, high = percentiles(values_R)
        return cls(mean=float(mean), low=low, high=high)

    def to_json(self) -> list[float | None]:
        """Return ``[mean, low, high]``."""
        return [self.mean, self.low, self.high]


def resamples(size: int) -> NDArray[np.int64]:
    """Return which of ``size`` seeds each resample holds, shape [R, S]; the same at every call."""
    return np.random.default_rng(0).integers(size, size=(SEED_RESAMPLES, size))


def percentiles(values_R: FloatArray) -> tuple[float, float]:
    """Return the 2.5th and the 97.5th percentile; infinite values are larger than all others."""
    low, high = np.percentile(values_R, [2.5, 97.5], method="closest_observation")
    return float(low), float(high)


def at(grid_P: FloatArray, x: FloatArray, y: FloatArray) -> FloatArray:
    """Return the curve ``y`` over ``x`` at the points of ``grid_P``, linear between its own."""
    return np.interp(grid_P, x, y)


def aligned(
    curves: Sequence[tuple[FloatArray, FloatArray]], end: float
) -> tuple[FloatArray, FloatArray]:
    """Return curves at every point of any of them up to ``end``, and at ``end``.

    Args:
        curves: For each seed its points, increasing, and heights.
        end: Where curves are cut, or go on at their last height.

    Returns:
        Points [P] and heights [S, P].
    """
    points = np.unique(np.concatenate([x for x, _ in curves]))
    x_P = np.append(points[points < end], end)
    return x_P, np.stack([at(x_P, x, y) for x, y in curves])


def area_under_curve(x_P: FloatArray, y_P: FloatArray, budget: float) -> float:
    """Return the mean height of a curve from 0 to ``budget``: its trapezoids over ``budget``.

    In [0, 1] when the curve is. It is cut at ``budget``, or goes on at its last height.

    Args:
        x_P: Increasing, from 0.
        y_P: Heights.
        budget: More than 0.
    """
    inside_P = np.append(x_P[x_P < budget], budget)
    heights_P = at(inside_P, x_P, y_P)
    widths = np.diff(inside_P)
    return float((widths * (heights_P[1:] + heights_P[:-1]) / 2).sum() / budget)


def first_reach(x_P: FloatArray, y_RP: FloatArray, level_R: FloatArray) -> FloatArray:
    """Return where each curve first is at ``level_R`` or above, shape [R]; infinity if nowhere.

    Between two points the curve is a straight line.

    Args:
        x_P: Increasing.
        y_RP: One curve a row.
        level_R: One level a row.
    """
    above_RP = y_RP >= level_R[:, None] - 1e-9  # the same mean, summed in another order
    found_R = above_RP.any(1)
    first_R = above_RP.argmax(1)
    before_R = np.maximum(first_R - 1, 0)
    rows = np.arange(len(y_RP))
    low_R, high_R = y_RP[rows, before_R], y_RP[rows, first_R]
    rise_R = np.where(high_R > low_R, high_R - low_R, 1.0)
    part_R = np.where(first_R > 0, np.minimum((level_R - low_R) / rise_R, 1.0), 0.0)
    reached_R = x_P[before_R] + part_R * (x_P[first_R] - x_P[before_R])
    return np.where(found_R, reached_R, np.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What a set of episodes says about a policy.

    Episodes that broke (``faults``) and episodes that could not be judged (``unscored``) are not
    failures: they are left out of ``success``, and the first also out of the means.
    """

    episodes: int
    """Episodes played, whatever became of them."""
    faults: int
    """Episodes that ended by an error of the environment, the policy or the reward."""
    unscored: int
    """Episodes without a fault whose success could not be judged."""
    solved: int
    success: float | None
    """Solved share of the judged episodes, in [0, 1]; None when none was judged."""
    success_ci95: Interval | None
    """95 % interval of ``success``, as of ``Measure.solved``."""
    mean_score: float | None
    """Mean partial success in [0, 1] of the judged episodes."""
    mean_return: float | None
    mean_return_ci95: Interval | None
    """95 % bootstrap interval over tasks; None with fewer than two."""
    mean_turns: float | None
    truncated: int
    """Episodes that a limit cut off."""
    invalid_actions: int
    """Actions that could not be carried out, over all episodes."""

    @property
    def solved_share(self) -> float:
        """Solved share of all episodes without a fault, in [0, 1]: at least so good it is."""
        return self.solved / max(1, self.episodes - self.faults)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values; an interval is a list of two numbers."""
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in asdict(self).items()
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Return what ``to_json`` described."""
        fields: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in content.items()
        }
        return cls(**fields)


def summarize(trajectories: Sequence[Trajectory], *, interval: bool = True) -> Evaluation:
    """Return what ``trajectories`` say about the policy that played them.

    Args:
        trajectories: Episodes, those that ended by a fault included.
        interval: Whether to give intervals; to bootstrap them takes longest by far.
    """
    usable = [t for t in trajectories if not t.stop_reason.is_error]
    scores = [t.score for t in usable if t.score is not None]
    returns = [t.episode_return for t in usable]
    solved = sum(t.is_success for t in usable)
    success, episode_return = _by_task(usable) if interval else (None, None)
    return Evaluation(
        episodes=len(trajectories),
        faults=len(trajectories) - len(usable),
        unscored=len(usable) - len(scores),
        solved=solved,
        success=solved / len(scores) if scores else None,
        success_ci95=None if success is None else success.interval,
        mean_score=float(np.mean(scores)) if scores else None,
        mean_return=float(np.mean(returns)) if returns else None,
        mean_return_ci95=None if episode_return is None else episode_return.interval,
        mean_turns=float(np.mean([len(t.turns) for t in usable])) if usable else None,
        truncated=sum(t.stop_reason.is_truncated for t in usable),
        invalid_actions=sum(
            turn.invalid_action is not None for t in usable for turn in t.own_turns
        ),
    )


def _by_task(usable: Sequence[Trajectory]) -> tuple[Measure | None, Measure | None]:
    """Return success and return, with intervals that know which episodes are of one task."""
    tasks: dict[tuple[str, str], list[Trajectory]] = {}
    for t in usable:
        tasks.setdefault((t.env_id, t.task_id), []).append(t)
    judged = [[t.is_success for t in ts if t.score is not None] for ts in tasks.values()]
    return (
        Measure.solved([(len(found), sum(found)) for found in judged if found]),
        Measure.mean([t.episode_return for t in ts] for ts in tasks.values()),
    )
