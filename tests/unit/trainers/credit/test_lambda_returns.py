"""Generalised advantage estimation against numbers worked out from the papers."""

from __future__ import annotations

import numpy as np
import pytest

from turngym.trainers.credit.critics.gae import bilevel_gae, gae, on_last_token

SHORT_A = ([0.0, 0.0, 1.0], [0.3, 0.5, 0.8])
SHORT_B = ([0.0, 0.0, 0.0], [0.3, 0.4, 0.2])


@pytest.mark.parametrize(
    ("lam", "advantages", "targets", "whitened"),
    [
        pytest.param(
            0.95,
            [0.6465, 0.4801, 0.2, -0.2709, -0.3901, -0.2],
            [0.9465, 0.9801, 1.0, 0.0291, 0.0099, 0.0],
            [1.3278, 0.9394, 0.2857, -0.8134, -1.0916, -0.6479],
            id="VL-DAC",
        ),
        pytest.param(
            0.9,
            [0.6139, 0.4702, 0.2, -0.2428, -0.3802, -0.2],
            [0.9139, 0.9702, 1.0, 0.0572, 0.0198, 0.0],
            [1.3057, 0.9562, 0.2993, -0.7770, -1.1111, -0.6731],
            id="Turn-PPO",
        ),
    ],
)
def test_turn_advantages_are_those_of_the_papers(
    lam: float, advantages: list[float], targets: list[float], whitened: list[float]
) -> None:
    found = np.concatenate(
        [
            gae(np.array(rewards), np.array(values), 0.0, gamma=0.99, lam=lam)
            for rewards, values in (SHORT_A, SHORT_B)
        ]
    )
    assert found == pytest.approx(advantages, abs=1e-4)
    assert found + np.array(SHORT_A[1] + SHORT_B[1]) == pytest.approx(targets, abs=1e-4)
    scaled = (found - found.mean()) / (found.std(ddof=1) + 1e-8)
    assert scaled == pytest.approx(whitened, abs=1e-4)


def test_a_cut_off_episode_goes_on_from_its_last_value() -> None:
    rewards, values = np.array([1.0, 1.0]), np.array([0.5, 0.5])
    ended = gae(rewards, values, 0.0, gamma=0.9, lam=1.0)
    cut = gae(rewards, values, 2.0, gamma=0.9, lam=1.0)
    assert cut - ended == pytest.approx([2.0 * 0.81, 2.0 * 0.9])


def test_the_extremes_of_lambda_are_one_step_and_the_whole_return() -> None:
    rewards, values = np.array([1.0, 0.0, 3.0]), np.array([0.5, 0.25, 2.0])
    one = gae(rewards, values, 0.0, gamma=0.9, lam=0.0)
    assert one == pytest.approx([1.0 + 0.9 * 0.25 - 0.5, 0.9 * 2.0 - 0.25, 3.0 - 2.0])
    whole = gae(rewards, values, 0.0, gamma=0.9, lam=1.0)
    assert whole + values == pytest.approx([1.0 + 0.81 * 3.0, 0.9 * 3.0, 3.0])


def test_observation_tokens_are_no_steps() -> None:
    mask = np.array([True, True, False, False, True])
    values = np.array([0.5, 0.6, 9.0, 9.0, 0.8])
    rewards = np.array([0.0, 0.0, 0.0, 0.0, 1.0])
    found = gae(rewards[mask], values[mask], 0.0, gamma=1.0, lam=0.95)
    assert found == pytest.approx([0.4705, 0.39, 0.2])


def test_bilevel_advantages_are_those_of_ragen() -> None:
    found = bilevel_gae(
        np.array([1.0, 1.0]),
        np.arange(1, 11) / 10,
        np.array([5, 5]),
        0.0,
        gamma=1.0,
        lam=1.0,
        turn_gamma=0.95,
    )
    assert found == pytest.approx([1.85, 1.75, 1.65, 1.55, 1.45, 0.4, 0.3, 0.2, 0.1, 0.0])
    scaled = (found - found.mean()) / found.std(ddof=1)
    assert scaled[:5] == pytest.approx([1.1880, 1.0596, 0.9311, 0.8027, 0.6743], abs=1e-4)


def test_a_turn_without_reward_is_a_turn_of_its_own() -> None:
    found = bilevel_gae(
        np.array([0.0, 1.0]),
        np.array([0.2, 0.4, 0.6]),
        np.array([2, 1]),
        0.0,
        gamma=1.0,
        lam=0.0,
        turn_gamma=0.5,
    )
    # Over turns: 0.5 * 0.6 - 0.4 = -0.1 and 1 - 0.6 = 0.4. Inside the first: 0.4 - 0.2, then -0.1.
    assert found == pytest.approx([0.2, -0.1, 0.4])


def test_the_reward_of_a_turn_sits_on_its_last_token() -> None:
    found = on_last_token(np.array([1.0, 2.0, 3.0]), np.array([2, 1, 3]))
    assert found.tolist() == [0.0, 1.0, 2.0, 0.0, 0.0, 3.0]


def test_arrays_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match=r"rewards \(2,\), values \(3,\)"):
        gae(np.zeros(2), np.zeros(3), 0.0, gamma=1.0, lam=1.0)
