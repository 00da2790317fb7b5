"""What holds for every batch, whatever the method that compares."""

from __future__ import annotations

import math
from importlib.resources import files
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.credit import algo, components_of, credit_of, token_advantages
from helpers.trajectories import episode, group, turn
from turngym.trainers.credit.base import RewardComponent, TurnBatch
from turngym.trainers.credit.group.group_relative import turn_advantages
from turngym.trainers.credit.sources.reward_sources import gated
from turngym.trainers.settings.algo import AlgoConfig
from turngym.trainers.settings.group import GatedSum, GroupRelative, Term
from turngym.types import TrajectoryGroup

NAMES = sorted(
    file.name.removesuffix(".toml")
    for file in (files("turngym.trainers") / "presets").iterdir()
    if file.name.endswith(".toml")
)
ALL = {name: method for name in NAMES if (method := algo(name)).advantage.type == "group_relative"}
OWN_GROUP = {
    name: method
    for name, method in ALL.items()
    if isinstance(config := method.advantage, GroupRelative)
    and config.batch is None
    and all(term.scale != "batch_std" for term in config.terms)
    and not isinstance(config.combine, GatedSum)
    and not any(term.scale == "batch_std" for term in config.terms)
}
LEVEL = sorted(
    name
    for name, method in ALL.items()
    if isinstance(config := method.advantage, GroupRelative)
    and all(
        t.centre != "none"
        and not t.offset
        and (t.group_by == "task_turn" or (t.group_by == "task" and t.unit == "episode"))
        for t in config.terms
    )
)
"""Methods that compare a turn with the other attempts and never with its own one."""
OUTCOME_ALONE = ("grpo", "dr_grpo", "rloo", "mc_grpo", "maxrl", "flow_grpo", "starpo_s")

# Quarters keep sums exact, so that ties stay ties under shifts and permutations.
rewards = st.integers(-8, 8).map(lambda quarters: quarters / 4)
turns = st.builds(
    lambda reward, state_key, invalid, potential, size: turn(
        parts={"expert_match": reward},
        state_key=state_key,
        invalid=invalid,
        potential=potential,
        drawn=range(3, 3 + size),
    ),
    rewards,
    st.sampled_from("abc"),
    st.booleans(),
    rewards,
    st.integers(1, 3),
)
attempts = st.lists(st.lists(turns, min_size=1, max_size=4), min_size=2, max_size=5)
plain = st.lists(st.lists(rewards, min_size=1, max_size=4), min_size=2, max_size=6)
methods = st.sampled_from(list(ALL.values()))


def together(rows: Any) -> TrajectoryGroup:
    return group(*[episode(row, member=i) for i, row in enumerate(rows)])


def channels_of(method: AlgoConfig, batch: TurnBatch) -> dict[str, RewardComponent]:
    """Return the components of a batch, with numbers made up from a turn for those of a model."""
    found: dict[str, RewardComponent] = {}
    for config in method.rewards:
        if not config.asks_model:
            found |= components_of(config, batch)
        else:
            rest = ~batch.is_last_N
            made = np.sin(3 * batch.reward_N + batch.turn_N)
            found[config.type] = RewardComponent(
                values_N=np.where(rest, made, 0.0), has_value_N=rest
            )
    return found if method.gate is None else gated(found, batch, method.gate)


def rows_of(method: AlgoConfig, *groups: TrajectoryGroup) -> list[Any]:
    batch = TurnBatch.of(groups)
    assert isinstance(method.advantage, GroupRelative)
    return batch.split(turn_advantages(batch, channels_of(method, batch), method.advantage))


def firsts(name: str, rows: Any) -> list[float]:
    return [float(row[0]) for row in rows_of(ALL[name], together(rows))]


def assert_close(found: list[Any], wanted: list[Any]) -> None:
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-7, atol=1e-7)


@given(attempts, attempts, methods)
def test_every_drawn_token_has_one_finite_advantage(one: Any, other: Any, method: Any) -> None:
    batch = TurnBatch.of([together(one), together(other)])
    components = channels_of(method, batch)
    found = token_advantages(batch, components, method.advantage)
    assert [row.shape for row in found] == [(t.num_sampled_tokens,) for t in batch.episodes]
    assert all(np.isfinite(row).all() for row in found)


@given(attempts, attempts, attempts, st.sampled_from(list(OWN_GROUP.values())))
def test_a_group_does_not_see_the_others(one: Any, two: Any, three: Any, method: Any) -> None:
    here = rows_of(method, together(one), together(two))[: len(one)]
    there = rows_of(method, together(one), together(three))[: len(one)]
    assert_close(here, there)


@given(attempts, attempts, methods, st.data())
def test_the_order_of_attempts_and_groups_does_not_matter(
    one: Any, other: Any, method: Any, data: Any
) -> None:
    order = data.draw(st.permutations(range(len(one))))
    wanted = rows_of(method, together(one), together(other))
    shuffled = together([one[i] for i in order])
    found = rows_of(method, together(other), shuffled)
    assert_close(found, wanted[len(one) :] + [wanted[i] for i in order])


@given(attempts, methods)
def test_broken_attempts_leave_the_others_as_they_are(rows: Any, method: Any) -> None:
    broken = [episode([9.0, 9.0], member=100 + i, error="broke") for i in range(2)]
    whole = [episode(row, member=i) for i, row in enumerate(rows)]
    assert_close(rows_of(method, group(*broken, *whole)), rows_of(method, together(rows)))


@given(st.lists(turns, min_size=1, max_size=4), st.integers(2, 5), methods)
def test_equal_attempts_get_equal_credit(row: Any, size: int, method: Any) -> None:
    found = rows_of(method, together([row] * size))
    assert_close(found, [found[0]] * size)


@given(st.lists(turns, min_size=1, max_size=4), st.integers(2, 5), st.sampled_from(LEVEL))
def test_equal_attempts_teach_nothing(row: Any, size: int, name: str) -> None:
    assert not np.concatenate(rows_of(ALL[name], together([row] * size))).any()


@given(st.lists(st.integers(1, 4), min_size=2, max_size=5), rewards, st.sampled_from(OUTCOME_ALONE))
def test_equal_outcomes_teach_nothing_whatever_the_way(
    lengths: list[int], outcome: float, name: str
) -> None:
    rows = [[0.0] * (n - 1) + [outcome] for n in lengths]
    assert not np.concatenate(rows_of(ALL[name], together(rows))).any()
    config = ALL[name].advantage
    samples = credit_of(ALL[name], together(rows)).samples
    kept = len(rows) - config.drop_pivot if config.signal_free == "count" else 0
    assert len(samples) == kept
    assert not any(sample.advantages.any() for sample in samples)


@given(plain, st.sampled_from(["grpo", "dr_grpo", "rloo", "maxrl", "starpo_s", "seeupo"]))
def test_outcome_advantages_sum_to_zero_over_the_attempts(rows: Any, name: str) -> None:
    assert sum(firsts(name, rows)) == pytest.approx(0.0, abs=1e-7)


@given(plain)
def test_advantages_per_row_sum_to_zero_over_the_rows(rows: Any) -> None:
    found = np.concatenate(rows_of(ALL["flow_grpo"], together(rows)))
    assert found.sum() == pytest.approx(0.0, abs=1e-6)


@given(plain, st.floats(0, 1))
def test_turn_advantages_sum_to_zero_over_each_turn(rows: Any, gamma: float) -> None:
    found = rows_of(algo("trloo", f"terms.0.gamma={gamma!r}"), together(rows))
    for number in range(4):
        pool = [row[number] for row in found if row.size > number]
        assert sum(pool) == pytest.approx(0.0, abs=1e-9)


@given(attempts)
def test_step_advantages_sum_to_zero_over_each_state(rows: Any) -> None:
    found = np.concatenate(rows_of(algo("gigpo", "terms.0.weight=0.0"), together(rows)))
    state_keys = np.array([t.state_key for row in rows for t in row])
    for state_key in set(state_keys):
        assert found[state_keys == state_key].sum() == pytest.approx(0.0, abs=1e-9)


@given(plain, st.integers(-20, 20), st.sampled_from(["grpo", "dr_grpo", "rloo", "mc_grpo"]))
def test_a_constant_added_to_every_return_changes_nothing(rows: Any, shift: int, name: str) -> None:
    shifted = [[row[0] + shift, *row[1:]] for row in rows]
    assert_close(rows_of(ALL[name], together(shifted)), rows_of(ALL[name], together(rows)))


@given(plain)
def test_leave_one_out_is_the_mean_times_n_over_n_minus_one(rows: Any) -> None:
    factor = len(rows) / (len(rows) - 1)
    assert_close(
        rows_of(ALL["rloo"], together(rows)),
        [factor * row for row in rows_of(ALL["dr_grpo"], together(rows))],
    )


@given(plain, st.sampled_from([0.5, 2.0, 4.0]))
def test_grpo_does_not_see_the_unit_of_the_reward(rows: Any, unit: float) -> None:
    scaled = together([[unit * r for r in row] for row in rows])
    found, wanted = rows_of(ALL["grpo"], scaled), rows_of(ALL["grpo"], together(rows))
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-4)


@given(plain, st.sampled_from(["grpo", "dr_grpo", "rloo", "maxrl", "starpo_s"]))
def test_a_better_attempt_never_gets_less_credit(rows: Any, name: str) -> None:
    order = np.argsort([sum(row) for row in rows], kind="stable")
    assert (np.diff(np.array(firsts(name, rows))[order]) >= -1e-9).all()


# Methods meet where there is but one turn


@given(st.lists(rewards, min_size=2, max_size=6))
def test_with_one_turn_trloo_is_rloo(outcomes: list[float]) -> None:
    assert firsts("trloo", [[r] for r in outcomes]) == pytest.approx(
        firsts("rloo", [[r] for r in outcomes])
    )


@given(st.lists(rewards, min_size=2, max_size=6), st.floats(0, 2))
def test_with_one_turn_from_one_state_gigpo_is_the_centred_reward_twice(
    outcomes: list[float], weight: float
) -> None:
    method = algo("gigpo", f"terms.1.weight={weight!r}")
    found = rows_of(method, together([[turn(r, state_key="start")] for r in outcomes]))
    wanted = (1 + weight) * (np.array(outcomes) - np.mean(outcomes))
    np.testing.assert_allclose(np.ravel(found), wanted, atol=1e-9)


@given(st.lists(rewards, min_size=2, max_size=6), st.floats(0, 1))
def test_with_one_turn_igpo_is_grpo_with_the_population_spread(
    outcomes: list[float], gamma: float
) -> None:
    """The only turn is the last one, which has no information gain."""
    batch = TurnBatch.of([together([[r] for r in outcomes])])
    nowhere = RewardComponent(
        values_N=np.zeros(len(outcomes)), has_value_N=np.zeros(len(outcomes), bool)
    )
    everywhere = RewardComponent(values_N=batch.reward_N, has_value_N=np.ones(len(outcomes), bool))
    igpo = Term(
        rewards=("info_gain", "outcome"),
        order="normalize_first",
        normalization="separate",
        returns="reward_to_go",
        gamma=gamma,
        unit="turn",
        scale="population_std",
    )
    components = {"env": everywhere, "info_gain": nowhere, "outcome": everywhere}
    found = turn_advantages(batch, components, GroupRelative(terms=(igpo,)))
    grpo = Term(scale="population_std")
    wanted = turn_advantages(batch, components, GroupRelative(terms=(grpo,)))
    np.testing.assert_allclose(found, wanted, atol=1e-12)


@given(plain, st.sampled_from(["grpo", "trloo"]))
def test_a_gate_that_all_pass_changes_nothing(rows: Any, name: str) -> None:
    passed = [[*row, 100.0] for row in rows]
    open_gate = algo(name).model_copy(update={"gate": algo("g_ra").gate})
    assert_close(rows_of(open_gate, together(passed)), rows_of(ALL[name], together(passed)))


@given(st.lists(turns, min_size=1, max_size=5))
def test_potential_rewards_telescope(row: Any) -> None:
    """Summed they are minus the first potential: no way of walking about earns anything."""
    batch = TurnBatch.of([group(episode(row))])
    [config] = [c for c in ALL["potential"].rewards if c.type == "potential"]
    paid = components_of(config, batch)["potential"].values_N
    assert math.isclose(paid.sum(), -(row[0].potential or 0.0), abs_tol=1e-9)
