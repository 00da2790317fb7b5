"""What more episodes would bring: a sigmoid over the logarithm of compute, fitted to curves.

``R(c) = R0 + (A - R0) / (1 + (half / c)^B)``: from the success before training to a ceiling ``A``,
half of the way at ``half``, the faster the larger ``B``. Intervals are 95 %, seeds resampled.

Axis letters: P point of a curve, R resample, S seed, M midpoint, B exponent.

Source:
    ScaleRL, arXiv:2510.13786, equation 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from turngym.rollouts.evaluation.statistics import Estimate, aligned
from turngym.trainers.samples import FloatArray

LEAST_POINTS = 6
"""Of a curve, the one before training included."""
FARTHER = 4
"""Success is foretold for so many times the budget."""
_RESAMPLES = 500
_EXPONENTS = (0.3, 8.0)
_MIDPOINTS = (0.02, 10.0)
"""Bounds in units of the budget."""
_FIRST, _NEXT = 25, 5
"""Values of each parameter that are tried: at first, and in each of the rounds around the best."""
_ROUNDS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The sigmoid of one algorithm; values at the ends of an interval may be those of a bound."""

    ceiling: Estimate
    """A, in [0, 1]."""
    half: Estimate
    """Episodes at which half of the way from the start to the ceiling is done."""
    exponent: Estimate
    """B."""
    farther: Estimate
    """Success at ``FARTHER`` times the budget."""
    error: float
    """Root of the mean squared distance to the mean curve."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        estimates = ("ceiling", "half", "exponent", "farther")
        return {name: getattr(self, name).to_json() for name in estimates} | {"error": self.error}


def fit(curves: Sequence[tuple[FloatArray, FloatArray]], budget: float) -> Fit | None:
    """Return the sigmoid of the mean of some curves; None where there are too few points or seeds.

    Args:
        curves: For each seed episodes, from 0, and success.
        budget: Episodes up to which they count.
    """
    x_P, y_SP = aligned(curves, budget)
    if len(curves) < 2 or len(x_P) < LEAST_POINTS or x_P[0] > 0:
        return None
    rows_RS = np.random.default_rng(0).integers(len(curves), size=(_RESAMPLES, len(curves)))
    y_RP = np.concatenate([y_SP.mean(0)[None], y_SP[rows_RS].mean(1)])
    half_R, exponent_R, ceiling_R, squares_R = _fitted(x_P[1:] / budget, y_RP)
    start_R = y_RP[:, 0]
    farther_R = start_R + (ceiling_R - start_R) / (1 + (half_R / FARTHER) ** exponent_R)

    def estimate(values_R: FloatArray) -> Estimate:
        return Estimate.around(values_R[0], values_R[1:])

    return Fit(
        ceiling=estimate(ceiling_R),
        half=estimate(half_R * budget),
        exponent=estimate(exponent_R),
        farther=estimate(farther_R),
        error=float(np.sqrt(squares_R[0] / (len(x_P) - 1))),
    )


def _fitted(x_P: FloatArray, y_RP: FloatArray) -> tuple[FloatArray, ...]:
    """Return midpoint, exponent, ceiling and squared error of each row, shapes [R].

    For a midpoint and an exponent the best ceiling has a closed form, so only these two are
    searched: on a grid of logarithms, then on ever finer ones around the best point of each row.

    Args:
        x_P: Points after the start, in units of the budget.
        y_RP: Curves, with the start as their first point.
    """
    start_R1, way_RP = y_RP[:, :1], y_RP[:, 1:] - y_RP[:, :1]
    bounds = [(float(np.log(low)), float(np.log(high))) for low, high in (_MIDPOINTS, _EXPONENTS)]
    grids = [np.linspace(*bound, _FIRST)[None].repeat(len(y_RP), 0) for bound in bounds]
    steps = [(high - low) / (_FIRST - 1) for low, high in bounds]
    every = np.arange(len(y_RP))
    for _ in range(_ROUNDS):
        # Squared error is |way|^2 - 2 gain <way, s> + gain^2 <s, s> of the shape s.
        shapes_RMBP = 1 / (
            1
            + np.exp(
                np.exp(grids[1])[:, None, :, None]
                * (grids[0][:, :, None, None] - np.log(x_P)[None, None, None])
            )
        )
        along_RMB = np.einsum("rmbp,rp->rmb", shapes_RMBP, way_RP)
        size_RMB = (shapes_RMBP**2).sum(-1)
        gain_RMB = np.clip(along_RMB / size_RMB, -start_R1[..., None], 1 - start_R1[..., None])
        squares_RMB = gain_RMB * (gain_RMB * size_RMB - 2 * along_RMB)
        best_R = squares_RMB.reshape(len(y_RP), -1).argmin(1)
        rows, columns = np.unravel_index(best_R, squares_RMB.shape[1:])
        middles = grids[0][every, rows], grids[1][every, columns]
        gain_R = gain_RMB[every, rows, columns]
        squares_R = squares_RMB[every, rows, columns] + (way_RP**2).sum(1)
        steps = [step / 2 for step in steps]
        around = np.arange(_NEXT) - _NEXT // 2
        grids = [
            np.clip(middle_R[:, None] + step * around, *bound)
            for middle_R, step, bound in zip(middles, steps, bounds, strict=True)
        ]
    half_R, exponent_R = (np.exp(middle_R) for middle_R in middles)
    return half_R, exponent_R, start_R1[:, 0] + gain_R, squares_R
