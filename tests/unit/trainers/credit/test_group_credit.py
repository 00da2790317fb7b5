"""From groups to samples: what is dropped and why, what is logged, what a checkpoint holds."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from helpers.credit import algo, credit_of
from helpers.trajectories import episode, group, turn
from turngym.config import load_config
from turngym.errors import TrainingError
from turngym.trainers.credit.controls import build_credit
from turngym.trainers.credit.group.group_relative import GroupRelativeCredit
from turngym.trainers.settings.algo import AlgoConfig
from turngym.trainers.settings.rewards import InfoGain
from turngym.types import Trajectory, TrajectoryGroup

GRPO = algo("grpo")


def rows(credit: Any) -> list[list[float]]:
    return [array.round(6).tolist() for array in credit.advantages]


def test_episodes_of_all_groups_are_numbered_through_and_know_their_group() -> None:
    credit = credit_of(
        algo("dr_grpo", "signal_free=drop"),
        *(group([1.0], [0.0]), group([0.0], [0.0]), group([0.0, 1.0], [0.5])),
    )
    assert [s.trajectory for s in credit.samples] == [0, 1, 2, 3]
    assert [s.group for s in credit.samples] == [0, 0, 2, 2]
    assert [float(s.advantages.max()) > 0 for s in credit.samples] == [True, False, True, False]
    assert rows(credit) == [[0.5], [-0.5], [0.25, 0.25], [-0.25]]


def test_each_drawn_token_carries_the_advantage_of_its_turn() -> None:
    long = episode([turn(1.0, prompt=(1,), drawn=(2, 3)), turn(prompt=(4, 5), drawn=(6,))])
    credit = credit_of(algo("trloo"), group(long, [0.0, 0.0]))
    assert credit.samples[0].advantages.tolist() == [0, 1, 1, 0, 0, 0]
    assert rows(credit) == [[1.0, 0.0], [-1.0, 0.0]]


def test_an_attempt_that_broke_is_not_compared_with() -> None:
    broken = episode([1.0], member=2, error="sandbox died")
    credit = credit_of(algo("dr_grpo"), group([1.0], [0.0], broken))
    assert [t.member for t in credit.trajectories] == [0, 1]
    assert rows(credit) == [[0.5], [-0.5]]


def test_a_group_with_one_attempt_left_is_dropped_as_too_small() -> None:
    broken = episode([0.0], member=1, error="sandbox died")
    credit = credit_of(GRPO, group([1.0], broken), group([1.0], []), group([1.0], [0.0]))
    assert credit.dropped == {"too_small": 2}
    assert len(credit.samples) == 2
    assert credit_of(GRPO, group([1.0], broken)).dropped == {"too_small": 1}


def test_where_nothing_is_compared_one_attempt_is_enough() -> None:
    credit = credit_of(algo("filtered_bc"), group([0.5, 0.5]), group([0.0]))
    assert rows(credit) == [[1.0, 1.0]]
    assert credit.dropped == {"zero_spread": 1}


def test_a_group_without_any_difference_is_dropped() -> None:
    credit = credit_of(GRPO, group([0.4], [0.1, 0.3], [0.4]), group([0.7], [0.7 + 1e-9]))
    assert (credit.dropped, credit.samples, credit.trajectories) == ({"zero_spread": 2}, (), ())


def test_a_group_without_any_difference_is_dropped_after_the_batch_got_its_scale() -> None:
    method = algo("seeupo", "signal_free=drop")
    credit = credit_of(method, group([0.1], [0.1]), group([1.0], [0.3]))
    assert credit.dropped == {"zero_spread": 1}
    assert [t.episode_return for t in credit.trajectories] == [1.0, 0.3]


def test_only_the_groups_that_differ_most_are_kept() -> None:
    """RAGEN's example: standard deviations 0.58, 0, 0.05 and 0."""
    outcomes = ([1, 0, 0, 1], [1, 1, 1, 1], [1, 0.9, 1, 1], [0, 0, 0, 0])
    groups = [group(*[[float(r)] for r in row]) for row in outcomes]
    credit = credit_of(algo("starpo_s"), *groups)
    assert credit.dropped == {"filtered": 3}
    assert [t.episode_return for t in credit.trajectories] == [1, 0, 0, 1]
    half = credit_of(algo("starpo_s", "filter.keep_top=0.5"), *groups)
    assert (half.dropped, len(half.samples)) == ({"filtered": 2}, 8)


def test_a_filter_keeps_at_least_one_group() -> None:
    assert credit_of(algo("starpo_s"), group([1.0], [0.0])).dropped == {}


def expert_group(second: float) -> TrajectoryGroup:
    def attempt(number: int, scores: list[float]) -> Trajectory:
        return episode([turn(parts={"expert_match": s}) for s in scores], member=number)

    return group(attempt(0, [1, 1, 1]), attempt(1, [1, second, 1]))


def test_ui_s1_keeps_groups_whose_first_returns_differ_enough() -> None:
    """The first returns are 1.75 and 1: they spread by 0.5303."""
    method = algo("ui_s1")
    assert credit_of(method, expert_group(0.55)).dropped == {}
    strict = algo("ui_s1", "filter.min_std=0.5304")
    assert credit_of(strict, expert_group(0.55)).dropped == {"filtered": 1}
    assert credit_of(method, expert_group(1.0)).dropped == {"filtered": 1}


def test_the_pivot_is_not_trained_on_and_is_one_of_several() -> None:
    credit = credit_of(algo("mc_grpo"), group([0.9], [0.1], [0.4], [0.2], [0.7]))
    assert [t.member for t in credit.trajectories] == [0, 1, 3, 4]
    assert [s.trajectory for s in credit.samples] == [0, 1, 2, 3]
    tied = credit_of(algo("mc_grpo"), group([0.0], [0.0], [0.0], [1.0], [0.0]))
    assert [t.member for t in tied.trajectories] == [1, 2, 3, 4]


def test_a_batch_in_which_everything_broke_teaches_nothing() -> None:
    credit = credit_of(GRPO, group(episode([0.0], error="broke")))
    assert (credit.samples, credit.dropped) == ((), {"too_small": 1})
    assert credit_of(GRPO).samples == ()


def test_metrics_say_how_much_there_is_to_learn() -> None:
    def attempt(number: int, outcome: float) -> Trajectory:
        return episode(
            [turn(state_key="a", invalid=outcome == 0), turn(outcome, state_key=f"b{number}")],
            member=number,
        )

    found = credit_of(
        algo("gigpo"), group(attempt(0, 1.0), attempt(1, 0.0)), group([0.0], [0.0])
    ).metrics
    assert found["credit/groups_with_signal"] == 0.5
    assert found["credit/state_group_size"] == pytest.approx(4 / 3)
    assert found["credit/state_groups_of_one"] == 0.5
    assert found["credit/advantage_mean"] == pytest.approx(0.0)
    assert found["credit/advantage_std"] > 0
    # Invalid on one turn of two in the failed attempt, never elsewhere.
    wanted = np.corrcoef([0, 0, -0.1, 0, 0, 0], [1, 1, 0, 0, 0, 0])[0, 1]
    assert found["credit/invalid_outcome_correlation"] == pytest.approx(wanted)
    assert "credit/env_outcome_correlation" not in found


class Learning:
    """A reward component that is ready after its first batch."""

    def __init__(self) -> None:
        self.batches = 0

    @property
    def is_ready(self) -> bool:
        return self.batches > 0

    def read(self, turns: Any) -> Any:
        self.batches += 1
        return {}

    def metrics(self) -> dict[str, float]:
        return {"credit/learned": float(self.batches)}

    def state(self) -> dict[str, Any]:
        import torch

        return {"batches": torch.tensor(self.batches)}

    def load_state(self, tensors: Any) -> None:
        self.batches = int(tensors["batches"])


def test_nothing_is_trained_while_a_channel_still_has_to_learn() -> None:
    method = build_credit(GRPO, None)
    method._sources._sources["learning"] = Learning()
    groups = [group([1.0], [0.0])]
    first, second = (asyncio.run(method.assign(groups)) for _ in range(2))
    assert (first.samples, first.dropped) == ((), {"warmup": 1})
    assert first.metrics == {"credit/learned": 1.0}
    assert (len(second.samples), second.dropped) == (2, {})
    state = method.state()
    assert set(state) == {"learning/batches"}
    fresh = build_credit(GRPO, None)
    fresh._sources._sources["learning"] = Learning()
    fresh.load_state(state)
    assert len(asyncio.run(fresh.assign(groups)).samples) == 2


def test_a_gate_that_fades_goes_on_where_a_checkpoint_left_it() -> None:
    terms = [
        {"centre": "none", "scale": "none"},
        {"rewards": ["invalid"], "order": "normalize_first", "unit": "turn"},
    ]
    combine = {"type": "gated", "decay": 0.5}
    advantage = {"type": "group_relative", "terms": terms, "combine": combine}
    rewards = [{"type": "env"}, {"type": "invalid"}]
    method = load_config(AlgoConfig, [{"rewards": rewards, "advantage": advantage}])
    groups = [group(episode([turn(invalid=True), turn()]), [1.0])]
    whole = build_credit(method, None)
    credits = [asyncio.run(whole.assign(groups)) for _ in range(3)]
    assert len({tuple(c.advantages[0]) for c in credits}) == 3
    half = build_credit(method, None)
    for _ in range(2):
        asyncio.run(half.assign(groups))
    resumed = build_credit(method, None)
    resumed.load_state(half.state())
    again = asyncio.run(resumed.assign(groups))
    assert rows(again) == rows(credits[2])


def test_most_methods_have_nothing_to_keep() -> None:
    assert build_credit(GRPO, None).state() == {}


def test_a_reward_source_that_asks_a_model_needs_one() -> None:
    asking = GRPO.model_copy(update={"rewards": (InfoGain(type="info_gain"),)})
    with pytest.raises(ValueError, match="'info_gain' needs a CreditContext"):
        build_credit(asking, None)


def test_settings_choose_this_method() -> None:
    context: Any = None
    assert isinstance(build_credit(GRPO, context), GroupRelativeCredit)
    assert algo("gigpo").advantage.components == {"env", "invalid"}


def test_rewards_that_cannot_be_divided_by_are_named() -> None:
    graded = algo("maxrl", "terms.0.above=null")
    with pytest.raises(TrainingError, match="scale='mean'"):
        credit_of(graded, group([-1.0], [0.0]))
