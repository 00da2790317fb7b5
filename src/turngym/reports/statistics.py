"""The numbers of a report, each a pure function.

Axis letters: S seed, P point of a curve, R resample.

Intervals are 95 % percentile bootstrap over seeds. From S values, S are sampled with replacement R
times; the interval runs from the 2.5th to the 97.5th percentile of the R statistics. A difference
of two algorithms is resampled by seed, both alike, because the runs of one seed begin
with one model and meet the same tasks. The generator has a fixed seed, so a report never changes.
With few seeds such an interval is too narrow: it knows only the seeds that were run.

Source:
    Efron and Tibshirani 1993, An Introduction to the Bootstrap, chapter 13.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from turngym.trainers.samples import FloatArray

RESAMPLES = 10_000


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
        low, high = percentiles(values_S[resamples(len(values_S))].mean(1))
        return cls(mean=mean, low=low, high=high)

    def to_json(self) -> list[float | None]:
        """Return ``[mean, low, high]``."""
        return [self.mean, self.low, self.high]


def resamples(size: int) -> NDArray[np.int64]:
    """Return which of ``size`` seeds each resample holds, shape [R, S]; the same at every call."""
    return np.random.default_rng(0).integers(size, size=(RESAMPLES, size))


def percentiles(values_R: FloatArray) -> tuple[float, float]:
    """Return the 2.5th and the 97.5th percentile; infinite values are larger than all others."""
    low, high = np.percentile(values_R, [2.5, 97.5], method="closest_observation")
    return float(low), float(high)


def at(grid_P: FloatArray, x: FloatArray, y: FloatArray) -> FloatArray:
    """Return the curve ``y`` over ``x`` at the points of ``grid_P``, linear between its own."""
    return np.interp(grid_P, x, y)


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
    above_RP = y_RP >= level_R[:, None]
    found_R = above_RP.any(1)
    first_R = above_RP.argmax(1)
    before_R = np.maximum(first_R - 1, 0)
    rows = np.arange(len(y_RP))
    low_R, high_R = y_RP[rows, before_R], y_RP[rows, first_R]
    rise_R = np.where(high_R > low_R, high_R - low_R, 1.0)
    part_R = np.where(first_R > 0, (level_R - low_R) / rise_R, 0.0)
    reached_R = x_P[before_R] + part_R * (x_P[first_R] - x_P[before_R])
    return np.where(found_R, reached_R, np.inf)
