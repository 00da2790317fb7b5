"""For which rewards a turn is held responsible."""

from __future__ import annotations

import numpy as np
from numpy.testing import assert_allclose

from turngym.trainers.credit.group.group_relative import outcomes, rewards_to_go

LAST = np.array([False, False, True, False, False, True])


def test_rewards_to_go_are_the_discounted_rest_of_each_episode() -> None:
    """The first two attempts of Dr. Kernel's example."""
    rewards = np.array([0, 0.5, 1, 0.2, 0, 0.3])
    assert_allclose(rewards_to_go(rewards, LAST), [1.5, 1.5, 1, 0.5, 0.3, 0.3])
    assert_allclose(rewards_to_go(rewards, LAST, gamma=0.9), [1.26, 1.4, 1, 0.443, 0.27, 0.3])


def test_without_a_future_a_turn_is_worth_its_own_reward() -> None:
    rewards = np.array([0, 0.5, 1, 0.2, 0, 0.3])
    assert_allclose(rewards_to_go(rewards, LAST, gamma=0.0), rewards)


def test_nothing_passes_back_over_a_turn_that_disagrees_with_the_expert() -> None:
    """UI-S1's own example: the second attempt's middle turn is patched."""
    scores = np.array([1, 1, 1, 1, 0.55, 1])
    passes = np.array([True, True, True, True, False, True])
    found = rewards_to_go(scores, LAST, gamma=0.5, passes_N=passes)
    assert_allclose(found, [1.75, 1.5, 1, 1.0, 0.55, 1])


def test_an_outcome_is_the_sum_for_every_turn_of_the_episode() -> None:
    found = outcomes(np.array([0.5, 1.0, -0.25]), np.array([0, 0, 1]))
    assert found.tolist() == [1.5, 1.5, -0.25]


def test_no_turns_have_no_returns() -> None:
    nothing = np.zeros(0)
    assert rewards_to_go(nothing, np.zeros(0, dtype=np.bool_)).shape == (0,)
    assert outcomes(nothing, np.zeros(0, dtype=np.int64)).shape == (0,)
