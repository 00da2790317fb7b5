"""What holds for every group, whatever the parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from helpers.trajectories import episode, group
from turngym.config import load_config
from turngym.trainers.advantages import GroupCredit, GroupRelative, assign_credit
from turngym.trainers.config import TrainConfig
from turngym.types import TrajectoryGroup

PRESETS = {
    name: load_config(TrainConfig, ["env.id=text/maze", f"algo={name}"]).algo.advantage
    for name in ("grpo", "dr_grpo", "rloo", "turn_rtg")
}
configs = st.sampled_from(list(PRESETS.values()))
# Quarters keep sums exact, so that ties stay ties under shifts and permutations.
rewards = st.integers(-8, 8).map(lambda quarters: quarters / 4)
attempts = st.lists(st.lists(rewards, min_size=1, max_size=4), min_size=2, max_size=6)


def credit_of(groups: TrajectoryGroup, config: GroupRelative) -> list[Any]:
    """Return the advantages of all attempts, zeros when the group is dropped."""
    found = assign_credit(groups, config)
    if found.dropped is not None:
        return [np.zeros(len(t.turns)) for t in groups.usable]
    return list(found.advantages)


def assert_close(found: list[Any], wanted: list[Any]) -> None:
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-9)


@given(attempts, configs)
def test_every_turn_has_one_finite_advantage(rows: list[list[float]], config: Any) -> None:
    found = credit_of(group(*rows), config)
    assert [array.shape for array in found] == [(len(row),) for row in rows]
    assert all(np.isfinite(array).all() for array in found)


@given(attempts, st.data())
def test_the_order_of_the_attempts_does_not_matter(rows: list[list[float]], data: Any) -> None:
    config = data.draw(configs)
    order = data.draw(st.permutations(range(len(rows))))
    found = credit_of(group(*[rows[i] for i in order]), config)
    wanted = credit_of(group(*rows), config)
    assert_close(found, [wanted[i] for i in order])


@given(attempts, st.integers(-20, 20), st.sampled_from(["grpo", "dr_grpo", "rloo"]))
def test_a_constant_added_to_every_return_changes_nothing(
    rows: list[list[float]], shift: int, name: str
) -> None:
    shifted = [[row[0] + shift, *row[1:]] for row in rows]
    assert_close(credit_of(group(*shifted), PRESETS[name]), credit_of(group(*rows), PRESETS[name]))


@given(attempts, st.integers(-20, 20))
def test_a_constant_added_to_every_last_reward_of_equal_lengths_changes_no_turn_credit(
    rows: list[list[float]], shift: int
) -> None:
    length = min(len(row) for row in rows)
    rows = [row[:length] for row in rows]
    shifted = [[*row[:-1], row[-1] + shift] for row in rows]
    config = PRESETS["turn_rtg"]
    assert_close(credit_of(group(*shifted), config), credit_of(group(*rows), config))


@given(attempts, st.sampled_from(["grpo", "dr_grpo", "rloo"]))
def test_outcome_advantages_sum_to_zero_over_the_attempts(
    rows: list[list[float]], name: str
) -> None:
    firsts = [array[0] for array in credit_of(group(*rows), PRESETS[name])]
    assert sum(firsts) == pytest.approx(0.0, abs=1e-9)


@given(attempts, st.floats(0, 1))
def test_turn_advantages_sum_to_zero_over_each_turn(rows: list[list[float]], gamma: float) -> None:
    config = PRESETS["turn_rtg"].model_copy(update={"gamma": gamma})
    found = credit_of(group(*rows), config)
    for turn in range(4):
        pool = [array[turn] for array in found if array.size > turn]
        assert sum(pool) == pytest.approx(0.0, abs=1e-9)


@given(attempts)
def test_leave_one_out_is_the_mean_times_n_over_n_minus_one(rows: list[list[float]]) -> None:
    factor = len(rows) / (len(rows) - 1)
    mean = credit_of(group(*rows), PRESETS["dr_grpo"])
    assert_close(credit_of(group(*rows), PRESETS["rloo"]), [factor * array for array in mean])


@given(attempts, st.sampled_from([0.5, 2.0, 4.0]))
def test_grpo_does_not_see_the_unit_of_the_reward(rows: list[list[float]], unit: float) -> None:
    scaled = group(*[[unit * r for r in row] for row in rows])
    found, wanted = credit_of(scaled, PRESETS["grpo"]), credit_of(group(*rows), PRESETS["grpo"])
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-4)


@given(attempts, configs)
def test_broken_attempts_leave_the_others_as_they_are(rows: list[list[float]], config: Any) -> None:
    broken = [
        episode([9.0, 9.0], attempt=100 + i, error="broke", task_id="made/train/0")
        for i in range(2)
    ]
    whole = [episode(row, attempt=i) for i, row in enumerate(rows)]
    assert_close(credit_of(group(*broken, *whole), config), credit_of(group(*rows), config))


@given(st.lists(rewards, min_size=2, max_size=6))
def test_with_one_turn_turn_credit_is_leave_one_out(outcomes: list[float]) -> None:
    rows = [[r] for r in outcomes]
    assert_close(
        credit_of(group(*rows), PRESETS["turn_rtg"]), credit_of(group(*rows), PRESETS["rloo"])
    )


@given(st.lists(rewards, min_size=1, max_size=4), st.integers(2, 5), configs)
def test_equal_attempts_teach_nothing(row: list[float], size: int, config: Any) -> None:
    found = assign_credit(group(*[row] * size), config)
    assert found == GroupCredit(trajectories=(), advantages=(), dropped="zero_spread")


@given(attempts)
def test_a_better_attempt_never_gets_less_credit(rows: list[list[float]]) -> None:
    returns = np.array([sum(row) for row in rows])
    assume(np.ptp(returns) > 0)
    for name in ("grpo", "dr_grpo", "rloo"):
        firsts = [array[0] for array in credit_of(group(*rows), PRESETS[name])]
        order = np.argsort(returns)
        assert (np.diff(np.array(firsts)[order]) >= -1e-9).all()
