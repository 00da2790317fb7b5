"""The parts of a comparison, one flag at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from turngym.errors import TrainingError
from turngym.trainers.credit.group.normalize import lower_medians, normalize
from turngym.trainers.settings.group import Term

GRADED = [1.0, 0.0, 0.5, 0.0]
ONE_POOL = np.zeros(4, dtype=np.int64)


def normal(values: list[float], pools: list[int] | None = None, **flags: Any) -> list[float]:
    found = normalize(
        np.array(values), np.array(pools or [0] * len(values), dtype=np.int64), Term(**flags)
    )
    return found.tolist()


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        ({}, [1.305580, -0.783348, 0.261116, -0.783348]),
        ({"eps": 1e-4}, [1.305310, -0.783186, 0.261062, -0.783186]),
        ({"scale": "none"}, [0.625, -0.375, 0.125, -0.375]),
        ({"centre": "leave_one_out", "scale": "none"}, [0.833333, -0.5, 0.166667, -0.5]),
        ({"scale": "mean"}, [1.666667, -1.0, 0.333333, -1.0]),
        ({"scale": "population_std"}, [1.507556, -0.904534, 0.301511, -0.904534]),
        ({"centre": "none", "scale": "none"}, GRADED),
        ({"least_scale": 2.0, "eps": 1e-9}, [0.3125, -0.1875, 0.0625, -0.1875]),
    ],
)
def test_published_values_for_graded_returns(flags: dict[str, Any], wanted: list[float]) -> None:
    """GRPO in verl and in TRL, Dr. GRPO, RLOO and MaxRL, in this order."""
    assert_allclose(normal(GRADED, **flags), wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("flags", "solved", "failed"),
    [
        ({}, 1.620182, -0.540061),
        ({"scale": "population_std"}, 1.732047, -0.577349),
        ({"centre": "leave_one_out", "scale": "none"}, 0.857143, -0.285714),
    ],
)
def test_published_values_for_two_successes_in_eight(
    flags: dict[str, Any], solved: float, failed: float
) -> None:
    rewards = [1.0, 0, 0, 1, 0, 0, 0, 0]
    wanted = [solved if r else failed for r in rewards]
    assert_allclose(normal(rewards, **flags), wanted, atol=1e-5)


def test_two_of_a_pool_are_a_root_of_a_half_apart_or_one() -> None:
    assert_allclose(normal([1.0, 0.0]), [0.7071, -0.7071], atol=1e-4)
    assert_allclose(normal([1.0, 0.0], scale="population_std"), [1.0, -1.0], atol=1e-4)


def test_a_batch_of_webagent_r1_matches_its_eps() -> None:
    assert_allclose(normal([1, 0, 0, 1], eps=1e-4), [0.8659, -0.8659, -0.8659, 0.8659], atol=1e-4)


def test_median_and_median_deviation_match_mc_grpo() -> None:
    found = normal([0.9, 0.1, 0.4, 0.2, 0.7], centre="median", scale="mad", eps=1e-3)
    assert_allclose(found, [1.661130, -0.996678, 0.0, -0.664452, 0.996678], atol=1e-5)


def test_a_median_deviation_of_zero_explodes_unless_the_scale_has_a_floor() -> None:
    solved = [1.0, 0, 0, 0, 0]
    flags = {"centre": "median", "scale": "mad", "eps": 1e-3}
    assert_allclose(normal(solved, **flags), [1000.0, 0, 0, 0, 0])
    assert_allclose(normal(solved, **flags, least_scale=0.25), [3.984064, 0, 0, 0, 0], atol=1e-5)


def test_the_median_of_an_even_number_is_the_lower_one() -> None:
    counts = np.ones(4)
    found = lower_medians(np.array([4.0, 1.0, 3.0, 2.0]), ONE_POOL, counts)
    assert found.tolist() == [2.0] * 4


def test_a_median_counts_each_value_as_often_as_told() -> None:
    values, counts = np.array([1.0, 5.0, 7.0]), np.array([1.0, 0.0, 4.0])
    assert lower_medians(values, np.zeros(3, dtype=np.int64), counts).tolist() == [7.0] * 3


def test_pools_do_not_see_each_other_and_may_have_any_number() -> None:
    found = normal([1.0, 10.0, 0.0, 30.0], [7, 2, 7, 2], scale="none")
    assert found == [0.5, -10.0, -0.5, 10.0]


def test_what_is_in_no_pool_takes_no_part() -> None:
    found = normal([1.0, 99.0, 0.0], [0, -1, 0], scale="none")
    assert found == [0.5, 0.0, -0.5]
    assert normal([3.0], [-1]) == [0.0]


def test_values_weigh_as_often_as_they_count() -> None:
    """Two tokens of one turn are two values; what counts 0 times is compared all the same."""
    counted = normalize(
        np.array([0.5, 0.3, -0.1, 9.0]), ONE_POOL, Term(), counts_N=np.array([2.0, 1, 3, 0])
    )
    written_out = normal([0.5, 0.5, 0.3, -0.1, -0.1, -0.1])
    assert_allclose(counted[:3], [written_out[0], written_out[2], written_out[3]])
    assert counted[3] > counted[0]


def test_floating_point_noise_is_no_difference() -> None:
    """GRPO would blow a spread of 1e-9 up to advantages of a thousandth."""
    assert normal([0.7, 0.7 + 1e-9]) == [0.0, 0.0]
    assert normal([0.7, 0.7 + 1e-9], centre="none") == [0.7, 0.7 + 1e-9]


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        ({}, 0.0),
        ({"group_of_one": "raw"}, 3.0),
        ({"centre": "leave_one_out", "group_of_one": "raw", "scale": "none"}, 3.0),
        ({"centre": "none"}, 3.0),
    ],
)
def test_a_pool_of_one_is_nothing_or_itself(flags: dict[str, Any], wanted: float) -> None:
    assert normal([3.0], **flags) == [wanted]


def test_dividing_by_a_negative_mean_is_refused() -> None:
    with pytest.raises(TrainingError, match=r"scale='mean': .* mean -0.5, wanted 0 or more"):
        normal([-1.0, 0.0], scale="mean")


@pytest.mark.parametrize("centre", ["mean", "leave_one_out", "median", "log_mean_exp"])
@pytest.mark.parametrize("scale", ["std", "batch_std", "mad", "none"])
def test_a_group_in_which_nothing_counts_is_not_compared(centre: Any, scale: Any) -> None:
    """OPO counts sampled tokens, and a prefix that all members are given has none."""
    values, groups = np.array([1.0, 0.0, 1.0, 0.0]), np.array([0, 0, 1, 1])
    counts = np.array([0.0, 0.0, 3.0, 2.0])
    found = normalize(values, groups, Term(centre=centre, scale=scale), counts_N=counts)
    assert found[:2].tolist() == [0, 0]
    assert found[2] != found[3]
