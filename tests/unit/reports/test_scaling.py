"""The sigmoid of success over episodes finds what was planted, and says when it cannot know."""

from __future__ import annotations

import numpy as np
import pytest

from turngym.reports.scaling import FARTHER, fit

BUDGET = 1920.0
X_P = np.linspace(0, BUDGET, 16)


def planted(ceiling: float, half: float, exponent: float, start: float = 0.1) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return start + (ceiling - start) / (1 + (half / X_P) ** exponent)


def sampled(curve_P: np.ndarray, seeds: int, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [(X_P, rng.binomial(128, curve_P) / 128) for _ in range(seeds)]


@pytest.mark.parametrize(
    ("ceiling", "half", "exponent"), [(0.9, 300.0, 2.0), (0.55, 500.0, 3.0), (0.7, 200.0, 1.3)]
)
def test_planted_parameters_are_found_exactly_without_noise(ceiling, half, exponent):
    curve = planted(ceiling, half, exponent)
    found = fit([(X_P, curve), (X_P, curve)], BUDGET)
    assert found is not None
    assert found.ceiling.mean == pytest.approx(ceiling, abs=0.01)
    assert found.half.mean == pytest.approx(half, rel=0.03)
    assert found.exponent.mean == pytest.approx(exponent, rel=0.03)
    assert found.farther.mean == pytest.approx(
        0.1 + (ceiling - 0.1) / (1 + (half / FARTHER / BUDGET) ** exponent), abs=0.01
    )
    assert found.error < 0.003


def test_planted_parameters_lie_within_most_intervals():
    inside = []
    for seed in range(12):
        rng = np.random.default_rng([7, seed])
        truth = rng.uniform(0.5, 0.95), rng.uniform(150, 700), rng.uniform(1.2, 3.0)
        found = fit(sampled(planted(*truth), 10, seed), BUDGET)
        assert found is not None
        for value, one in zip(truth, (found.ceiling, found.half, found.exponent), strict=True):
            inside.append(one.low <= value <= one.high)
    assert np.mean(inside) > 0.8


def test_a_curve_that_only_rises_leaves_its_ceiling_open():
    rising = planted(0.95, 6 * BUDGET, 1.0)
    found = fit(sampled(rising, 5, 0), BUDGET)
    assert found is not None
    assert found.ceiling.high - found.ceiling.low > 0.3


def test_a_curve_that_falls_has_a_ceiling_below_its_start():
    found = fit(sampled(planted(0.05, 300.0, 2.0, start=0.4), 5, 0), BUDGET)
    assert found is not None
    assert found.ceiling.high < 0.2


def test_one_seed_or_few_points_have_no_fit():
    curve = planted(0.9, 300.0, 2.0)
    assert fit([(X_P, curve)], BUDGET) is None
    assert fit([(X_P[::4], curve[::4])] * 3, BUDGET) is None
