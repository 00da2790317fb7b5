"""What turns earn by source, and how rewards of several sources become one advantage."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import stdev
from typing import Any

import numpy as np
import pytest

from helpers.credit import (
    Rows,
    algo,
    as_rows,
    assert_rows,
    compared,
    components_by_hand,
    components_of,
    rows_of,
    token_advantages,
)
from helpers.trajectories import episode, group, turn
from turngym.errors import TrainingError
from turngym.trainers.credit.base import TurnBatch
from turngym.trainers.credit.group.group_relative import turn_advantages
from turngym.trainers.credit.group.normalize import combine_terms
from turngym.trainers.credit.sources.reward_sources import RewardSources, gated
from turngym.trainers.samples import FloatArray
from turngym.trainers.settings.group import GatedSum, GroupRelative, Term
from turngym.trainers.settings.rewards import (
    EnvReward,
    InvalidPenalty,
    OutcomeGate,
    OutcomeReward,
    PotentialShaping,
    RewardConfig,
    RewardParts,
)
from turngym.types import StopReason, TrajectoryGroup

PAID = group(
    episode(
        [
            turn(parts={"right": 0.0, "neat": 0.5}, potential=-2.0, invalid=True),
            turn(parts={"right": 1.0}, potential=-0.5),
        ]
    ),
    episode(
        [turn(0.25, potential=-2.0)],
        member=1,
        stop=StopReason.TRUNCATED_TURNS,
        final_potential=-1.0,
    ),
)


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        (EnvReward(), {"env": [[0.5, 1.0], [0.25]]}),
        (EnvReward(part="neat"), {"env": [[0.5, 0.0], [0.0]]}),
        (OutcomeReward(type="outcome"), {"outcome": [[None, 1.5], [0.25]]}),
        (
            RewardParts(type="parts"),
            {
                "parts/neat": [[None, 0.5], [0.0]],
                "parts/right": [[None, 1.0], [0.0]],
                "parts/all": [[None, 0.0], [0.25]],
            },
        ),
        (InvalidPenalty(type="invalid", penalty=0.2), {"invalid": [[-0.2, 0.0], [0.0]]}),
        (PotentialShaping(type="potential"), {"potential": [[1.5, 0.5], [1.0]]}),
        (PotentialShaping(type="potential", gamma=0.5), {"potential": [[1.75, 0.5], [1.5]]}),
    ],
)
def test_a_channel_reads_one_source(config: RewardConfig, wanted: dict[str, Any]) -> None:
    found = components_of(config, TurnBatch.of([PAID]))
    expected = components_by_hand(wanted)
    assert list(found) == list(expected)
    for name, component in found.items():
        np.testing.assert_allclose(component.values_N, expected[name].values_N)
        assert component.has_value_N.tolist() == expected[name].has_value_N.tolist()


def test_a_last_state_whose_potential_is_unknown_is_none_of_potential_0() -> None:
    made = episode([turn(potential=-3.0), turn(potential=-2.0)], stop=StopReason.TRUNCATED_ENV)
    found = components_of(PotentialShaping(type="potential"), TurnBatch.of([group(made)]))
    assert found["potential"].values_N.tolist() == [1.0, 0.0]


def test_an_environment_that_names_no_parts_has_one() -> None:
    found = components_of(RewardParts(type="parts"), TurnBatch.of([group([0.5, 1.0])]))
    assert list(found) == ["parts/all"]
    assert found["parts/all"].values_N.tolist() == [0.0, 1.5]


def test_a_reward_that_is_not_finite_names_task_attempt_and_turn() -> None:
    turns = TurnBatch.of([group([0.0], [0.0, 1.0])])
    with pytest.raises(TrainingError, match=r"made/train/0, attempt 1, turn 1: reward is inf"):
        turns.check_finite(np.array([0.0, 0.0, np.inf]), "reward")
    with pytest.raises(TrainingError, match=r"made/train/0, attempt 1, turn 0: reward is 1e\+39"):
        TurnBatch.of([group([0.0], [1e39, 0.0])])  # which float32 does not hold


def test_channels_are_read_together() -> None:
    rewards = (EnvReward(), InvalidPenalty(type="invalid"))
    found = RewardSources(rewards, OutcomeGate(above=1.0), None).read(TurnBatch.of([PAID]))
    assert list(found) == ["env", "invalid"]
    assert found["invalid"].values_N.tolist() == [-0.1, 0.0, 0.0]


def igpo(normalization: str, gamma: float) -> Term:
    return Term(
        rewards=("info_gain", "outcome"),
        order="normalize_first",
        normalization=normalization,
        returns="reward_to_go",
        gamma=gamma,
        unit="turn",
        scale="population_std",
    )


TWO_OF_THREE = group([0.0, 0.0, 1.0], [0.0, 0.0, 0.0])
PROB = [[0.144749, 0.238651, None], [-0.021234, 0.099298, None]]
LOG = [[0.5, 0.5, None], [-0.1, 0.4, None]]
OUTCOME = [[None, None, 1.0], [None, None, 0.0]]


@pytest.mark.parametrize(
    ("gains", "pool", "plain", "discounted"),
    [
        (
            PROB,
            "joint",
            [[1.8683, 2.1512, 2.1653], [-1.8683, -1.1102, -0.6972]],
            [[0.2514, 1.0685, 2.1653], [-1.1388, -0.7616, -0.6972]],
        ),
        (
            PROB,
            "separate",
            [[2.6325, 2.3183, 1.0], [-2.6325, -1.1718, -1.0]],
            [[1.2234, 1.8183, 1.0], [-1.7966, -0.6718, -1.0]],
        ),
        (
            LOG,
            "joint",
            [[2.3450, 2.0231, 1.7013], [-2.3450, -1.0116, -1.0575]],
            [[0.9081, 1.1725, 1.7013], [-1.5748, -0.4828, -1.0575]],
        ),
        (
            LOG,
            "separate",
            [[2.4070, 1.7035, 1.0], [-2.4070, -0.6985, -1.0]],
            [[1.3053, 1.2035, 1.0], [-1.8078, -0.1985, -1.0]],
        ),
    ],
)
def test_rewards_may_be_compared_before_they_are_added_up(
    gains: Any, pool: str, plain: Rows, discounted: Rows
) -> None:
    """IGPO's four forms, with and without a discount."""
    for gamma, wanted in ((1.0, plain), (0.5, discounted)):
        term = igpo(pool, gamma)
        found = compared(term, [TWO_OF_THREE], info_gain=gains, outcome=OUTCOME)
        assert_rows(found, wanted, atol=1.5e-4)


def test_a_reward_of_zero_is_a_turn_like_any_other() -> None:
    """IGPO's release finds turns by rewards that are not 0 and loses one here."""
    term = igpo("joint", 0.5).model_copy(
        update={"rewards": ("info_gain",), "centre": "none", "scale": "none"}
    )
    found = compared(term, [group([0.0, 0.0, 1.0])], info_gain=[[0.5, 0.0, 1.0]])
    assert found == [[0.75, 0.5, 1.0]]


def infopo(temperature: float, decay: float = 0.0) -> GroupRelative:
    return GroupRelative(
        terms=(
            Term(group_of_one="raw"),
            Term(
                rewards=("feedback_gain",),
                order="normalize_first",
                returns="reward_to_go",
                gamma=0.0,
                unit="token",
            ),
        ),
        combine=GatedSum(type="gated", beta=0.5, temperature=temperature, decay=decay),
    )


def asking(outcome: float) -> TrajectoryGroup:
    """Return two attempts whose turns drew 2, 1, 2 and 1, 2, 1 tokens; the first is paid."""
    lengths = [[2, 1, 2], [1, 2, 1]]
    return group(
        *[
            episode(
                [
                    turn(outcome * (i == 0 and n == 2), drawn=range(3, 3 + size))
                    for n, size in enumerate(sizes)
                ],
                member=i,
            )
            for i, sizes in enumerate(lengths)
        ]
    )


GAINS = [[1.0, 0.3, 0.0], [-0.1, 0.4, 0.0]]


@pytest.mark.parametrize(
    ("outcome", "temperature", "wanted"),
    [
        (1.0, 0.5, [[0.8085, 0.8085, 0.7216, 0.7071, 0.7071],
                    [-0.8664, -0.7361, -0.7361, -0.7071]]),
        (1.0, 0.05, [[0.7071] * 5, [-0.7071] * 4]),
        (0.0, 0.5, [[0.2592, 0.2592, 0.0370, 0.0, 0.0], [-0.4072, -0.0740, -0.0740, 0.0]]),
    ],
)  # fmt: skip
def test_a_gate_fades_the_second_term_where_outcomes_differ(
    outcome: float, temperature: float, wanted: Rows
) -> None:
    """InfoPO: values spread over tokens, and learning where all attempts failed alike."""
    turns = TurnBatch.of([asking(outcome)])
    env = [[0.0, 0.0, outcome], [0.0, 0.0, 0.0]]
    components = components_by_hand({"env": env, "feedback_gain": GAINS})
    found = token_advantages(turns, components, infopo(temperature))
    assert_rows([row.tolist() for row in found], wanted)


def test_a_gated_term_may_fade_with_the_updates() -> None:
    turns = TurnBatch.of([asking(0.0)])
    components = components_by_hand({"env": [[0.0] * 3] * 2, "feedback_gain": GAINS})
    config = infopo(0.5, decay=0.1)
    first, later = (turn_advantages(turns, components, config, update=n) for n in (0, 7))
    np.testing.assert_allclose(later, first * np.exp(-0.7))
    assert first.any()


def test_a_loud_second_term_is_brought_down_to_the_first() -> None:
    turns = TurnBatch.of([asking(1.0)])
    env, quiet = [[0.0, 0.0, 1.0], [0.0] * 3], infopo(0.5)
    loud_term = quiet.terms[1].model_copy(update={"weight": 100.0})
    loud = quiet.model_copy(update={"terms": (quiet.terms[0], loud_term)})
    components = components_by_hand({"env": env, "feedback_gain": GAINS})
    alone = turn_advantages(turns, components, GroupRelative(terms=quiet.terms[:1]))
    share = turn_advantages(turns, components, quiet) - alone
    held = turn_advantages(turns, components, loud) - alone
    # The intrinsic term spreads by 0.7906 over tokens, and may by 1.
    np.testing.assert_allclose(held, share / 0.79057, rtol=1e-4)


def test_a_gate_of_three_attempts_and_three_terms_is_the_formula() -> None:
    """Spreads are over sampled tokens, each turn counting as often as it has some."""
    outcomes, sizes = [[1.0, 0.5, 0.0], [0.0, 1.0]], [[2, 1], [3, 1], [1, 2]]
    turns = TurnBatch.of(
        [
            group(
                *(
                    episode([turn(drawn=[3] * sizes[i][0]), turn(paid, drawn=[3] * sizes[i][1])],
                            member=i)
                    for i, paid in enumerate(row)
                )
            )
            for row in outcomes
        ]
    )  # fmt: skip
    terms = [np.random.default_rng(number).normal(1.0, 3.0, size=10) for number in range(3)]
    config = GatedSum(type="gated", beta=0.7, temperature=0.4)
    others = terms[1] + terms[2]

    def spread(values: FloatArray) -> float:
        return stdev(np.repeat(values, turns.tokens_N.astype(int)).tolist())

    weight = 0.7 * min(1.0, max(spread(terms[0]), 1.0) / spread(others))
    gates = [1 / (1 + math.exp(stdev(row) / 0.4)) for row in outcomes]
    wanted = terms[0] + weight * np.repeat(gates, [6, 4]) * others
    np.testing.assert_allclose(combine_terms(terms, turns, config, update=0), wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("outcome", "stop", "paid", "always"),
    [
        (0.0, StopReason.TERMINATED, 0.0, 0.3),
        (1.0, StopReason.TERMINATED, 1.3, 1.3),
        (1.0, StopReason.TRUNCATED_TURNS, 1.0, 1.3),
    ],
)
def test_a_gate_pays_step_rewards_where_the_outcome_passed(
    outcome: float, stop: StopReason, paid: float, always: float
) -> None:
    """G-RA's example, beside what direct accumulation would pay."""
    turns = TurnBatch.of([group(episode([0.0, 0.0, outcome], stop=stop))])
    steps = components_by_hand({"env": [[0.0, 0.0, outcome]], "steps": [[0.1, 0.1, 0.1]]})
    term = Term(rewards=("env", "steps"), centre="none", scale="none")
    for gate, wanted in ((OutcomeGate(above=0.0), paid), (None, always)):
        components = steps if gate is None else gated(steps, turns, gate)
        found = turn_advantages(turns, components, GroupRelative(terms=(term,)))
        assert_rows(as_rows(turns, found), [[wanted] * 3])


def test_what_was_judged_at_a_limit_passes_a_gate() -> None:
    ended = replace(episode([1.0], stop=StopReason.TRUNCATED_TURNS), judged_at_limit=True)
    steps = components_by_hand({"env": [[1.0]], "steps": [[0.1]]})
    passed = gated(steps, TurnBatch.of([group(ended)]), OutcomeGate(above=0.0))
    assert passed["steps"].values_N.tolist() == [0.1]


def test_g_ra_fines_invalid_actions_only_in_episodes_that_passed() -> None:
    def attempt(number: int, outcome: float, invalid: bool) -> Any:
        return episode([turn(invalid=invalid), turn(outcome)], member=number)

    attempts = group(attempt(0, 1.0, True), attempt(1, 1.0, False), attempt(2, 0.0, True))
    method = algo("g_ra", "terms.0.centre=none", "terms.0.scale=none")
    assert_rows(rows_of(method, attempts), [[0.9] * 2, [1.0] * 2, [0.0] * 2])
