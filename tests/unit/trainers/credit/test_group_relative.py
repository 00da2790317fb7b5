"""Advantages of the shipped methods against vectors from the papers and the authors' code."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from helpers.credit import Rows, algo, assert_rows, components_by_hand, rows_of, token_advantages
from helpers.trajectories import episode, group, turn
from turngym.config import load_config
from turngym.errors import ConfigError
from turngym.trainers.credit.base import TurnBatch
from turngym.trainers.settings.algo import AlgoConfig
from turngym.trainers.settings.group import GroupRelative
from turngym.types import StopReason, TrajectoryGroup


def single(*returns: float) -> TrajectoryGroup:
    """Return attempts of one turn each."""
    return group(*[[float(r)] for r in returns])


def walk(state_keys: str, outcome: float, *, member: int, invalid: int = -1) -> Any:
    """Return an attempt through states named by letters, paid at its end."""
    turns = [
        turn(outcome * (i == len(state_keys) - 1), state_key=name, invalid=i == invalid)
        for i, name in enumerate(state_keys)
    ]
    return episode(turns, member=member)


THREE_WALKS = group(
    walk("abc", 1.0, member=0), walk("abc", 0.0, member=1), walk("acb", 1.0, member=2)
)
"""The example of GiGPO and HGPO."""


# Outcomes


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("grpo", [1.305580, -0.783348, 0.261116, -0.783348]),
        ("dr_grpo", [0.625, -0.375, 0.125, -0.375]),
        ("rloo", [0.833333, -0.5, 0.166667, -0.5]),
        ("maxrl", [1.0, -1.0, 1.0, -1.0]),
        ("filtered_bc", [1.0, 0.0, 0.0, 0.0]),
    ],
)
def test_presets_give_the_published_values_for_graded_rewards(
    name: str, wanted: list[float]
) -> None:
    found = rows_of(algo(name), single(1.0, 0.0, 0.5, 0.0))
    np.testing.assert_allclose(np.ravel(found), wanted, atol=1e-5)


def test_an_outcome_is_credited_to_every_turn_and_token_alike() -> None:
    turns = TurnBatch.of([group([0.0, 0.0, 1.0], [0.0])])
    components = components_by_hand({"env": [[0.0, 0.0, 1.0], [0.0]]})
    config = algo("dr_grpo").advantage
    assert isinstance(config, GroupRelative)
    found = token_advantages(turns, components, config)
    assert [row.tolist() for row in found] == [[0.5] * 6, [-0.5] * 2]


def test_flow_grpo_counts_an_attempt_once_for_each_turn() -> None:
    """AgentFlow: a success of three turns, a failure of one."""
    attempts = group([0.0, 0.0, 1.0], [0.0])
    assert_rows(rows_of(algo("flow_grpo"), attempts), [[0.5] * 3, [-1.5]])
    by_episode = algo("flow_grpo", "terms.0.unit=episode")
    assert_rows(rows_of(by_episode, attempts), [[0.7071] * 3, [-0.7071]])


def test_mc_grpo_compares_with_the_median_and_scales_up_for_the_pivot() -> None:
    found = rows_of(algo("mc_grpo"), single(0.9, 0.1, 0.4, 0.2, 0.7))
    wanted = [2.076412, -1.245847, 0.0, -0.830565, 1.245847]
    np.testing.assert_allclose(np.ravel(found), wanted, atol=1e-5)


def test_mc_grpo_stays_finite_where_most_attempts_agree() -> None:
    """The authors' own form gives 1000 times 5 here."""
    found = np.ravel(rows_of(algo("mc_grpo"), single(1, 0, 0, 0, 0)))
    np.testing.assert_allclose(found, [5 / 0.251, 0, 0, 0, 0], atol=1e-9)
    bare = algo("mc_grpo", "terms.0.least_scale=0.0")
    assert np.ravel(rows_of(bare, single(1, 0, 0, 0, 0)))[0] == pytest.approx(5000)


def parts(*rewards: tuple[float, float]) -> TrajectoryGroup:
    """Return attempts of one turn whose reward has two parts."""
    made = [turn(parts={"right": a, "neat": b}) for a, b in rewards]
    return group(*[episode([t], member=i) for i, t in enumerate(made)])


FIRST = parts((1, 1), (0, 1), (0, 0), (1, 0))
SECOND = parts((1, 1), (0, 1), (0, 1), (0, 0))


def test_gdpo_compares_each_reward_on_its_own_scale() -> None:
    apart = algo("gdpo", "batch=null")
    assert_rows(rows_of(apart, FIRST), [[1.731751], [0.0], [0.0 - 1.731751], [0.0]], atol=1e-5)
    assert_rows(rows_of(apart, SECOND), [[1.9996], [0.0], [0.0], [-1.9996]])
    together = algo("gdpo", "batch=null", "terms.0.normalization=joint")
    assert_rows(rows_of(together, SECOND), [[1.224595], [0.0], [0.0], [-1.224595]], atol=1e-5)


def test_gdpo_brings_the_batch_to_one_scale() -> None:
    found = rows_of(algo("gdpo"), FIRST, SECOND)
    wanted = [1.224677, 0.0, -1.224677, 0.0, 1.414097, 0.0, 0.0, -1.414097]
    np.testing.assert_allclose(np.ravel(found), wanted, atol=1e-5)


def test_gdpo_tells_two_rewards_from_one() -> None:
    one, two = parts((0, 0), (1, 0)), parts((0, 0), (1, 1))
    apart = algo("gdpo", "batch=null")
    assert_rows(rows_of(apart, one), [[-0.7070], [0.7070]])
    assert_rows(rows_of(apart, two), [[-1.4140], [1.4140]])
    assert_rows(rows_of(algo("grpo"), two), rows_of(algo("grpo"), one))


def test_what_an_environment_without_parts_pays_counts_beside_one_with_parts() -> None:
    attempts = [replace(t, env_id="other") for t in group([1.0], [0.0]).trajectories]
    other = TrajectoryGroup(group_id="other", trajectories=tuple(attempts))
    found = rows_of(algo("gdpo", "batch=null"), parts((0, 0), (1, 0)), other)
    assert_rows(found, [[-0.7070], [0.7070], [0.7070], [-0.7070]])


def test_gdpo_weighs_a_part_after_it_was_compared() -> None:
    weighted = algo("gdpo", "batch=null", 'terms.0.reward_weights={"parts/neat": 0.5}')
    assert_rows(rows_of(weighted, parts((0, 0), (1, 1))), [[-1.0605], [1.0605]])


def test_another_reward_stands_beside_the_parts() -> None:
    attempts, raw = parts((1, 0.5), (0, 0.25)), {"centre": "none", "scale": "none"}
    together = [raw | {"rewards": ["env", "parts"]}]
    apart = [raw, raw | {"rewards": ["parts"]}]
    for terms in (together, apart):
        advantage = {"type": "group_relative", "terms": terms}
        rewards = [{"type": "env"}, {"type": "parts"}]
        settings = {"name": "both", "rewards": rewards, "advantage": advantage}
        method = load_config(AlgoConfig, [settings])
        assert_rows(rows_of(method, attempts), [[3.0], [0.5]])


def test_seeupo_starts_from_outcomes_on_the_scale_of_the_batch() -> None:
    assert_rows(rows_of(algo("seeupo"), single(1, 0)), [[0.7071], [-0.7071]])
    lone = rows_of(algo("seeupo"), group(*[[float(i == 0)] for i in range(30)]))
    assert lone[0] == [3.0]


# Returns, turn by turn


@pytest.mark.parametrize(
    ("overrides", "wanted"),
    [
        ([], [[0.75, 0.85, 0.7], [-0.75, -0.95, -0.7], [0.0, 0.1]]),
        (["gamma=0.9"], [[0.5885, 0.765, 0.7], [-0.637, -0.93, -0.7], [0.0485, 0.165]]),
        (["centre=mean"], [[0.5, 0.566667, 0.35], [-0.5, -0.633333, -0.35], [0.0, 0.066667]]),
    ],
)
def test_trloo_compares_each_turn_with_the_same_turn_of_the_others(
    overrides: list[str], wanted: Rows
) -> None:
    """The third attempt ends after two turns."""
    method = algo("trloo", *[f"terms.0.{text}" for text in overrides])
    attempts = group([0.0, 0.5, 1.0], [0.2, 0.0, 0.3], [0.0, 1.0])
    assert_rows(rows_of(method, attempts), wanted, atol=1e-6)


def test_a_turn_that_one_attempt_alone_reached_gets_no_credit() -> None:
    assert rows_of(algo("trloo"), group([0.0, 1.0], [0.0])) == [[1.0, 0.0], [-1.0]]


def test_a_lone_turn_keeps_its_return_when_asked_to_as_the_authors_do() -> None:
    raw = algo("trloo", "terms.0.group_of_one=raw")
    assert rows_of(raw, group([0.0, 1.0], [0.0])) == [[1.0, 1.0], [-1.0]]


def matched(*scores: float, member: int) -> Any:
    return episode([turn(parts={"expert_match": s}) for s in scores], member=member)


EXPERT_GROUP = group(matched(1, 1, 1, member=0), matched(1, 0.55, 1, member=1))
"""UI-S1's example."""


def test_ui_s1_compares_returns_that_stop_at_a_mismatch() -> None:
    method = algo("ui_s1", "terms.1.weight=0.0")
    wanted = [[0.7071, 0.7071, 0.0], [-0.7071, -0.7071, 0.0]]
    assert_rows(rows_of(method, EXPERT_GROUP), wanted)


def test_ui_s1_adds_the_episode_or_the_own_step_as_the_authors_code_does() -> None:
    own_step = [f"terms.1.{t}" for t in ("returns=reward_to_go", "gamma=0.0", "unit=turn")]
    code = algo("ui_s1", *own_step)
    apart = algo("ui_s1", *own_step, "terms.0.weight=0.0")
    assert_rows(rows_of(apart, EXPERT_GROUP), [[0.4082] * 3, [0.4082, -2.0412, 0.4082]])
    wanted = [[1.1154, 1.1154, 0.4082], [-0.2989, -2.7483, 0.4082]]
    assert_rows(rows_of(code, EXPERT_GROUP), wanted, atol=1.1e-4)
    paper = [[1.4142, 1.4142, 0.7071], [-1.4142, -1.4142, -0.7071]]
    assert_rows(rows_of(algo("ui_s1"), EXPERT_GROUP), paper)


def test_potential_pays_the_growth_of_the_potential() -> None:
    """Half way there and a step back, or nothing; the second is cut off by a limit."""
    ahead = episode([turn(potential=-1.0), turn(1.0, potential=-0.5)])
    behind = episode(
        [turn(potential=-1.0), turn(potential=-1.5)],
        member=1,
        stop=StopReason.TRUNCATED_TURNS,
        final_potential=-2.0,
    )
    method = algo("potential", "terms.0.scale=none")
    # Ahead it grows by 0.5 and, at an end that is worth nothing more, by 0.5 beside the reward.
    assert_rows(rows_of(method, group(ahead, behind)), [[0.5, 1.5], [-0.5, -0.5]])


# States


GIGPO_MEAN = [[0.6342, 0.6333, 0.6833], [-1.2683, -1.3167, -1.3167], [0.6342, 0.6333, 0.6833]]
GIGPO_STD = [[1.2440, 1.1991, 1.2878], [-2.4880, -2.4869, -2.4869], [1.2440, 1.1991, 1.2878]]
STEP_MEAN = [[0.3008, 0.3, 0.35], [-0.6017, -0.65, -0.65], [0.3008, 0.3, 0.35]]
STEP_STD = [[0.5773, 0.5324, 0.6211], [-1.1547, -1.1536, -1.1536], [0.5773, 0.5324, 0.6211]]
BOTH_STD = ["terms.0.scale=std", "terms.1.scale=std"]


@pytest.mark.parametrize(
    ("overrides", "wanted"),
    [
        ([], GIGPO_MEAN),
        (BOTH_STD, GIGPO_STD),
        (["terms.0.weight=0.0"], STEP_MEAN),
        (["terms.0.weight=0.0", *BOTH_STD], STEP_STD),
        (
            ["terms.1.weight=0.0", *BOTH_STD],
            [[0.6667] * 3, [-1.3333] * 3, [0.6667] * 3],
        ),
        (
            ["terms.1.weight=0.0", *BOTH_STD, "terms.0.unit=turn"],
            [[0.6667] * 3, [-1.3333] * 3, [0.6667] * 3],
        ),
    ],
)
def test_gigpo_compares_outcomes_and_turns_in_one_state(overrides: list[str], wanted: Rows) -> None:
    assert_rows(rows_of(algo("gigpo", *overrides), THREE_WALKS), wanted)


def test_gigpo_can_count_episodes_instead_of_turns() -> None:
    fair = [
        "terms.0.unit=episode",
        "terms.0.scale=std",
        "terms.0.immediate=[]",
        "terms.1.weight=0.0",
    ]
    found = rows_of(algo("gigpo", *fair), THREE_WALKS)
    assert_rows(found, [[0.5773] * 3, [-1.1547] * 3, [0.5773] * 3])


def test_gigpo_weighs_long_attempts_more() -> None:
    method = algo("gigpo", "terms.1.weight=0.0")
    assert rows_of(method, group([0.0, 0.0, 1.0], [0.0])) == [[0.25] * 3, [-0.75]]


def test_gigpo_pays_for_an_invalid_action_on_its_own_turn_in_both_terms() -> None:
    plain = group(walk("ab", 1.0, member=0), walk("ab", 1.0, member=1))
    fined = group(walk("ab", 1.0, member=0), walk("ab", 1.0, member=1, invalid=1))
    assert rows_of(algo("gigpo"), plain) == [[0.0, 0.0], [0.0, 0.0]]
    # Outcome: three rows of 1 and one of 0.9. State b: 1 and 0.9.
    assert_rows(rows_of(algo("gigpo"), fined), [[0.025, 0.075], [0.025, -0.125]])


@pytest.mark.parametrize(
    ("overrides", "first", "second", "third"),
    [
        (["history_offset=1"], [0.3008, 0.4050, 0.4667], [-0.6017, -0.5450, -0.5333], STEP_MEAN[2]),
        ([], [0.3008, 0.4167, 0.4750], [-0.6017, -0.5333, -0.5250], STEP_MEAN[2]),
        (
            ["history_offset=1", "scale=population_std"],
            [0.7071, 0.8608, 0.9468],
            [-1.4142, -1.1651, -1.0917],
            [0.7071, 0.6521, 0.7607],
        ),
        (
            ["scale=population_std"],
            [0.7071, 0.8840, 0.9601],
            [-1.4142, -1.1376, -1.0688],
            [0.7071, 0.6521, 0.7607],
        ),
    ],
)
def test_hgpo_averages_over_longer_and_longer_agreement(
    overrides: list[str], first: list[float], second: list[float], third: list[float]
) -> None:
    method = algo("hgpo", *[f"terms.0.{text}" for text in overrides])
    assert_rows(rows_of(method, THREE_WALKS), [first, second, third])


def test_hgpo_looks_no_further_back_than_its_history() -> None:
    """The first attempt's last turn is worth 0.35 by its state, 0.5 by the last two or three."""
    found = rows_of(algo("hgpo", "terms.0.history=1"), THREE_WALKS)[0][2]
    assert found == pytest.approx((0.35 + 2 * 0.5) / 3)


@pytest.mark.parametrize(("power", "wanted"), [(0.0, 0.45), (1.0, 0.4667), (2.0, 0.4793)])
def test_hgpo_weighs_deeper_agreement_by_a_power(power: float, wanted: float) -> None:
    code = algo("hgpo", "terms.0.history_offset=1", f"terms.0.history_power={power}")
    assert rows_of(code, THREE_WALKS)[0][2] == pytest.approx(wanted, abs=1e-4)


def test_states_without_a_key_are_not_compared() -> None:
    unknown = group([0.0, 1.0], [0.0, 0.0])
    assert rows_of(algo("hgpo"), unknown) == [[0.0, 0.0], [0.0, 0.0]]
    one_known = group(
        episode([turn(1.0, state_key="a"), turn()]),
        episode([turn(state_key="a"), turn()], member=1),
    )
    step = algo("gigpo", "terms.0.weight=0.0")
    assert rows_of(step, one_known) == [[0.5, 0.0], [-0.5, 0.0]]


# Settings that do not fit


@pytest.mark.parametrize(
    ("advantage", "message"),
    [
        ({"terms": [{"returns": "reward_to_go"}]}, "differ from turn to turn: wanted group_by"),
        (
            {"terms": [{"rewards": ["env"], "immediate": ["env"]}]},
            "immediate rewards differ from turn to turn",
        ),
        ({"terms": [{"unit": "token"}]}, "unit='token' needs order='normalize_first'"),
        ({"terms": [{"order": "normalize_first"}]}, "wanted unit='turn' or 'token'"),
        (
            {"terms": [{"order": "normalize_first", "unit": "turn", "immediate": ["env"]}]},
            "immediate belongs to order='accumulate_first'",
        ),
        (
            {"terms": [{"group_by": "task_turn"}], "batch": {"unit": "episode"}},
            "batch.unit='episode' needs terms with one value per episode",
        ),
        ({"terms": [{}], "drop_pivot": True}, "drop_pivot needs a single term"),
        ({"terms": [{"rewards": ["potential"]}]}, "'potential', which is not in rewards"),
    ],
)  # fmt: skip
def test_parts_that_do_not_fit_are_refused(advantage: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(AlgoConfig, [{"advantage": {"type": "group_relative", **advantage}}])
