"""Vectors worked out by hand or taken from the authors' code, for every shipped choice of parts."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.trajectories import episode, group
from turngym.config import load_config
from turngym.errors import ConfigError
from turngym.trainers.advantages import GroupRelative, assign_credit, relative_to_pool, reward_to_go
from turngym.trainers.config import TrainConfig

MEAN = GroupRelative(scale="none")
LOO = GroupRelative(scale="none", baseline="leave_one_out")


def preset(name: str, *overrides: str) -> GroupRelative:
    sources = ["env.id=text/maze", f"algo={name}", *overrides]
    return load_config(TrainConfig, sources).algo.advantage


def per_turn(config: GroupRelative, *rewards: list[float]) -> list[list[float]]:
    credit = assign_credit(group(*rewards), config)
    assert credit.dropped is None
    return [array.round(6).tolist() for array in credit.advantages]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("grpo", [1.305580, -0.783348, 0.261116, -0.783348]),
        ("dr_grpo", [0.625, -0.375, 0.125, -0.375]),
        ("rloo", [0.833333, -0.5, 0.166667, -0.5]),
    ],
)
def test_presets_give_the_published_values_for_graded_rewards(
    name: str, wanted: list[float]
) -> None:
    found = per_turn(preset(name), [1.0], [0.0], [0.5], [0.0])
    np.testing.assert_allclose(np.ravel(found), wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "solved", "failed"),
    [("grpo", 1.620182, -0.540061), ("rloo", 0.857143, -0.285714)],
)
def test_presets_give_the_published_values_for_two_successes_in_eight(
    name: str, solved: float, failed: float
) -> None:
    rewards = [1, 0, 0, 1, 0, 0, 0, 0]
    found = per_turn(preset(name), *[[float(r)] for r in rewards])
    wanted = [solved if r else failed for r in rewards]
    np.testing.assert_allclose(np.ravel(found), wanted, atol=1e-5)


def test_grpo_divides_by_the_sample_standard_deviation() -> None:
    found = relative_to_pool(np.array([1.0, 0.0]), GroupRelative())
    np.testing.assert_allclose(found, [0.707106, -0.707106], atol=1e-5)


def test_eps_is_added_to_the_standard_deviation() -> None:
    found = relative_to_pool(np.array([1, 0, 0.5, 0]), GroupRelative(eps=1e-4))
    np.testing.assert_allclose(found, [1.305310, -0.783186, 0.261062, -0.783186], atol=1e-6)


def test_an_outcome_is_credited_to_every_turn_alike() -> None:
    assert per_turn(MEAN, [0.0, 0.0, 1.0], [0.0]) == [[0.5, 0.5, 0.5], [-0.5]]


def test_turn_credit_compares_each_turn_with_the_same_turn_of_the_others() -> None:
    """Dr. Kernel's own example: the third attempt ends after two turns."""
    found = per_turn(preset("turn_rtg"), [0.2, 0.0, 1.0], [0.0, 0.5], [0.1, 0.0, 0.0])
    assert found == [[0.9, 0.75, 1.0], [-0.15, 0.0], [-0.75, -0.75, -1.0]]


@pytest.mark.parametrize(
    ("gamma", "wanted"),
    [
        (1.0, [[0.75, 0.85, 0.7], [-0.75, -0.95, -0.7], [0.0, 0.1]]),
        (0.9, [[0.5885, 0.765, 0.7], [-0.637, -0.93, -0.7], [0.0485, 0.165]]),
    ],
)
def test_turn_credit_discounts_per_turn(gamma: float, wanted: list[list[float]]) -> None:
    config = preset("turn_rtg", f"algo.advantage.gamma={gamma}")
    found = per_turn(config, [0.0, 0.5, 1.0], [0.2, 0.0, 0.3], [0.0, 1.0])
    for row, expected in zip(found, wanted, strict=True):
        np.testing.assert_allclose(row, expected, atol=1e-9)


def test_turn_credit_with_a_plain_mean_matches_the_comparison_in_the_authors_code() -> None:
    config = preset("turn_rtg", "algo.advantage.baseline=mean")
    found = per_turn(config, [0.0, 0.5, 1.0], [0.2, 0.0, 0.3], [0.0, 1.0])
    wanted = [[0.5, 0.566667, 0.35], [-0.5, -0.633333, -0.35], [0.0, 0.066667]]
    for row, expected in zip(found, wanted, strict=True):
        np.testing.assert_allclose(row, expected, atol=1e-6)


def test_a_turn_that_one_attempt_alone_reached_gets_no_credit() -> None:
    assert per_turn(preset("turn_rtg"), [0.0, 1.0], [0.0]) == [[1.0, 0.0], [-1.0]]


def test_a_lone_turn_keeps_its_return_when_asked_to_as_the_authors_do() -> None:
    config = preset("turn_rtg", "algo.advantage.singleton=raw")
    assert per_turn(config, [0.0, 1.0], [0.0]) == [[1.0, 1.0], [-1.0]]


def test_with_one_turn_turn_credit_is_leave_one_out_on_outcomes() -> None:
    rewards = [[0.3], [0.9], [0.0]]
    assert per_turn(preset("turn_rtg"), *rewards) == per_turn(LOO, *rewards)


def test_reward_to_go_is_the_discounted_rest_of_the_rewards() -> None:
    found = reward_to_go(np.array([1.0, 0.0, 2.0]), gamma=0.5)
    np.testing.assert_allclose(found, [1.5, 1.0, 2.0])


def test_an_attempt_that_broke_is_not_compared_with() -> None:
    broken = episode([1.0], attempt=2, error="sandbox died")
    credit = assign_credit(group([1.0], [0.0], broken), MEAN)
    assert [t.attempt for t in credit.trajectories] == [0, 1]
    assert [array.tolist() for array in credit.advantages] == [[0.5], [-0.5]]


def test_a_group_with_one_attempt_left_is_dropped_as_too_small() -> None:
    broken = episode([0.0], attempt=1, error="sandbox died")
    credit = assign_credit(group([1.0], broken), MEAN)
    assert (credit.dropped, credit.trajectories) == ("too_small", ())


def test_a_group_without_any_difference_is_dropped() -> None:
    credit = assign_credit(group([0.4], [0.1, 0.3], [0.4]), GroupRelative())
    assert (credit.dropped, credit.trajectories) == ("zero_spread", ())


def test_noise_of_floating_point_is_not_a_difference() -> None:
    """GRPO would blow a spread of 1e-9 up to advantages of a thousandth."""
    assert assign_credit(group([0.7], [0.7 + 1e-9]), GroupRelative()).dropped == "zero_spread"


def test_without_a_baseline_one_attempt_is_enough() -> None:
    credit = assign_credit(group([0.5, 0.5]), GroupRelative(baseline="none", scale="none"))
    assert [array.tolist() for array in credit.advantages] == [[1.0, 1.0]]


def test_an_episode_without_turns_counts_in_the_baseline_and_trains_nothing() -> None:
    credit = assign_credit(group([1.0], []), MEAN)
    assert [array.tolist() for array in credit.advantages] == [[0.5], []]


def test_a_reward_that_is_not_finite_is_an_error() -> None:
    with pytest.raises(ValueError, match="finite"):
        relative_to_pool(np.array([1.0, np.inf]), MEAN)


def test_comparing_turns_of_different_index_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs group_by='task_turn'"):
        preset("grpo", "algo.advantage.returns=reward_to_go")
