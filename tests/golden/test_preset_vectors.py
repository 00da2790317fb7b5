"""Presets that are choices among existing parts, against numbers worked out from their papers."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.credit import algo, credit_of, rows_of
from helpers.losses import f1_loss
from helpers.trajectories import episode, group, turn
from turngym.types import TrajectoryGroup

GRADED = ([1.0, 0.0, 0.5, 0.0], [10, 40, 20, 30])
ONE_OF_FOUR = ([1.0, 0.0, 0.0, 0.0], [2, 4, 4, 2])
THREE_OF_FOUR = ([1.0, 1.0, 1.0, 0.0], [1, 3, 2, 2])
ALL_OF_FOUR = ([1.0] * 4, [2] * 4)


def attempts(rewards: list[float], lengths: list[int]) -> TrajectoryGroup:
    """Return attempts of one turn each, of so many sampled tokens."""
    made = [turn(r, drawn=range(3, 3 + n)) for r, n in zip(rewards, lengths, strict=True)]
    return group(*[episode([t], member=number) for number, t in enumerate(made)])


HIGH, LOW = 1.193734, -0.795822
SPREAD = np.sqrt(1.875 / 7)
"""Sample deviation of five successes in eight."""


@pytest.mark.parametrize(
    ("name", "groups", "wanted"),
    [
        ("nsr", [GRADED], [0, -1, 0, -1]),
        ("psr", [GRADED], [1, 0, 1, 0]),
        ("w_reinforce", [GRADED], [0.1, -1, 0.1, -1]),
        ("noise_corrected", [ONE_OF_FOUR], [1.285714, *[-0.142857] * 3]),
        ("noise_corrected_forward", [ONE_OF_FOUR], [0.2, *[-0.8] * 3]),
        ("opo", [GRADED], [0.8, -0.2, 0.3, -0.2]),
        ("lite_ppo", [ONE_OF_FOUR, ALL_OF_FOUR], [0.75 / SPREAD, *[-0.25 / SPREAD] * 3, *[0] * 4]),
        ("scale_rl", [ONE_OF_FOUR, ALL_OF_FOUR], [0.75 / SPREAD, *[-0.25 / SPREAD] * 3, *[0] * 4]),
        ("reinforce_pp", [ONE_OF_FOUR, THREE_OF_FOUR], [HIGH, *[LOW] * 3, *[HIGH] * 3, LOW]),
        (
            "reinforce_pp_baseline",
            [ONE_OF_FOUR, THREE_OF_FOUR],
            [1.949359, *[-0.487340] * 3, *[0.731010] * 3, -1.705689],
        ),
    ],
)
def test_advantages_are_those_of_the_paper(
    name: str, groups: list[tuple[list[float], list[int]]], wanted: list[float]
) -> None:
    found = rows_of(algo(name), *[attempts(*one) for one in groups])
    np.testing.assert_allclose(np.ravel(found), wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("nsr", 0.092933),
        ("lite_ppo", 0.092933),
        ("reinforce_pp", 0.092933),
        ("opo", 0.433333),
        ("noise_corrected", 0.433333),
        ("noise_corrected_forward", 0.433333),
        ("gmpo", 0.336706),
        ("dppo", 0.082433),
        ("kimi", 0.451083),
    ],
)
def test_losses_are_those_of_the_paper(name: str, value: float) -> None:
    assert f1_loss(algo(name).loss)[0].total.item() == pytest.approx(value, abs=1e-5)


@pytest.mark.parametrize(("name", "trained"), [("nsr", 8), ("lite_ppo", 8), ("scale_rl", 4)])
def test_groups_that_are_all_right_count_where_the_authors_count_them(
    name: str, trained: int
) -> None:
    credit = credit_of(algo(name), attempts(*ONE_OF_FOUR), attempts(*ALL_OF_FOUR))
    assert len(credit.samples) == trained


def test_an_attempt_alone_can_be_pushed_down() -> None:
    """No baseline: neither a group of one nor a group of equals is worth 0."""
    assert rows_of(algo("nsr"), attempts([0.0], [2])) == [[-1.0]]
    assert len(credit_of(algo("nsr"), attempts([0.0], [2])).samples) == 1
    both = rows_of(algo("noise_corrected"), attempts([0.0, 0.0], [2, 2]))
    assert np.ravel(both).tolist() == pytest.approx([-0.1 / 0.7] * 2)
