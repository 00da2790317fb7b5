"""The pure decisions of the scheduler: staleness, groups, retries, budgets, the lower bound."""

from __future__ import annotations

import pytest

from helpers.scheduling import make_turn, member_of, open_group
from turngym.rollouts.scheduler.admission import (
    make_admission,
    partial_end,
    trained_turns,
    turn_version,
)
from turngym.rollouts.scheduler.config import (
    BudgetConfig,
    FailureConfig,
    GroupConfig,
    SchedulerConfig,
)
from turngym.rollouts.scheduler.group_buffer import GroupBuffer
from turngym.rollouts.scheduler.groups import (
    UniformSelection,
    closes,
    least_members,
    patience_left,
)
from turngym.rollouts.scheduler.metrics import (
    FailureBudget,
    ListSchedule,
    SchedulerMetrics,
    TooManyFaults,
)
from turngym.rollouts.scheduler.running import Allowance
from turngym.tasks.base import procedural_task
from turngym.types import StopReason


@pytest.mark.parametrize(
    ("action", "found"),
    [("mask_stale", range(2, 4)), ("drop", range(4, 4)), ("train", range(2, 4))],
)
def test_stale_turns_are_the_head_of_an_episode(action: str, found: range) -> None:
    versions = (3, 4, 5, 6)
    assert trained_turns(versions, start=0, step=7, bound=2, action=action) == found  # type: ignore[arg-type]


def test_without_a_bound_everything_is_trained() -> None:
    assert trained_turns((0, 1), start=0, step=99, bound=None, action="train") == range(0, 2)


def test_what_was_trained_or_given_is_not_trained_again() -> None:
    assert trained_turns((5, 5, 5), start=2, step=5, bound=0, action="drop") == range(2, 3)


def test_turns_are_harvested_at_the_last_version_that_may_train_them() -> None:
    assert partial_end((3, 3, 4, 5), start=0, version=5, bound=2) == 2
    assert partial_end((3, 3, 4, 5), start=0, version=5, bound=3) == 0
    assert partial_end((3, 3, 4, 5), start=2, version=6, bound=2) == 3


def test_a_turn_is_as_old_as_its_oldest_token() -> None:
    assert turn_version(make_turn(versions=(4, 6)), 9) == 4
    assert turn_version(make_turn(versions=()), 9) == 9


def test_a_group_closes_when_it_is_complete_or_nobody_is_left() -> None:
    group = open_group(size=3)
    group.finished = [member_of(0), member_of(1)]
    group.waiting = {2}
    assert not closes(group, GroupConfig(), overdue=False)
    group.waiting = set()
    assert closes(group, GroupConfig(), overdue=False)


def test_an_overdue_group_closes_with_its_quorum_only() -> None:
    config = GroupConfig(quorum=2, patience=1.0)
    group = open_group(size=4)
    group.waiting = {1, 2, 3}
    group.finished = [member_of(0)]
    assert not closes(group, config, overdue=True)
    group.finished.append(member_of(1))
    assert closes(group, config, overdue=True)
    assert not closes(group, config, overdue=False)


def test_patience_counts_from_the_opening_in_median_episodes() -> None:
    config = GroupConfig(quorum=1, patience=2.0)
    group = open_group(size=4, opened_at=10.0)
    assert patience_left(group, config, [3.0, 5.0, 4.0], now=11.0) is None  # no quorum yet
    group.finished = [member_of(0)]
    assert patience_left(group, config, [3.0, 5.0, 4.0], now=11.0) == 7.0
    assert patience_left(group, config, [3.0, 5.0, 4.0], now=99.0) == 0.0


def test_a_group_of_an_earlier_process_is_given_its_patience_again() -> None:
    config = SchedulerConfig(group=GroupConfig(quorum=1, patience=2.0))
    buffer = GroupBuffer(
        config,
        make_admission(config),
        UniformSelection(lambda i: procedural_task("simulated", "train", i), group_size=2),
        SchedulerMetrics(slots=1, began=50.0),
        None,
        version=lambda: 0,
    )
    group = open_group(size=2)
    group.finished, group.waiting = [member_of(0)], {1}
    buffer.begin_again(group, 50.0)
    assert patience_left(group, config.group, [4.0], now=51.0) == 7.0


def test_a_group_that_lost_members_is_used_as_it_is_or_not_at_all() -> None:
    request = open_group(size=4).request
    assert least_members(request, GroupConfig()) == 2
    assert least_members(request, GroupConfig(quorum=3)) == 3
    assert least_members(open_group(size=1).request, GroupConfig()) == 1


def test_a_budget_of_faults_stops_the_run_with_a_table_of_causes() -> None:
    budget = FailureBudget(FailureConfig(window=10, fraction=0.2))
    for _ in range(8):
        budget.good()
    budget.fault(StopReason.ERROR_ENV, "reset: the server is gone\ntrace", "t/1")
    budget.fault(StopReason.ERROR_ENV, "reset: the server is gone\nother trace", "t/2")
    with pytest.raises(TooManyFaults) as caught:
        budget.fault(StopReason.ERROR_POLICY, "act: out of memory", "t/3")
    lines = str(caught.value).splitlines()
    assert "3 of the last 10 tries" in lines[0]
    assert lines[1].split() == ["2", "error_env:", "reset:", "the", "server", "is", "gone"]
    assert "out of memory" in lines[2]


def test_a_few_faults_do_not_stop_a_run_that_has_just_begun() -> None:
    budget = FailureBudget(FailureConfig(window=200))
    budget.good()
    for _ in range(20):
        budget.fault(StopReason.ERROR_ENV, "broke", "t")
    assert not budget.is_spent


def test_nothing_but_faults_stops_a_run_early() -> None:
    budget = FailureBudget(FailureConfig(window=200))
    for _ in range(19):
        budget.fault(StopReason.ERROR_ENV, "broke", "t")
    with pytest.raises(TooManyFaults):
        budget.fault(StopReason.ERROR_ENV, "broke", "t")


def test_an_episode_that_gets_ahead_is_granted_more_turns() -> None:
    allowance = Allowance(BudgetConfig(max_turns=2, extra_turns=2, max_extensions=1))
    assert allowance.spend(make_turn(potential=-5.0), turns=1, tokens=1) is None
    assert allowance.spend(make_turn(potential=-3.0), turns=2, tokens=2) is None
    assert allowance.grants == 1
    assert allowance.spend(make_turn(potential=-2.0), turns=3, tokens=3) is None
    assert allowance.spend(make_turn(potential=-1.0), turns=4, tokens=4) is (
        StopReason.TRUNCATED_TURNS
    )


def test_an_episode_that_stands_still_is_cut_off_at_its_limit() -> None:
    allowance = Allowance(BudgetConfig(max_turns=2, extra_turns=2, max_extensions=3))
    assert allowance.spend(make_turn(potential=-5.0), turns=1, tokens=1) is None
    stopped = allowance.spend(make_turn(potential=-5.0), turns=2, tokens=2)
    assert stopped is StopReason.TRUNCATED_TURNS


def test_tokens_are_limited_too() -> None:
    allowance = Allowance(BudgetConfig(max_tokens=10))
    assert allowance.spend(make_turn(), turns=1, tokens=9) is None
    assert allowance.spend(make_turn(), turns=2, tokens=10) is StopReason.TRUNCATED_TOKENS


def test_the_bound_is_list_scheduling() -> None:
    assert ListSchedule(2, [3.0, 1.0, 1.0, 1.0]).wall == 3.0
    assert ListSchedule(2, [1.0, 1.0, 3.0]).wall == 4.0  # more than max(5 / 2, 3)
    assert ListSchedule(2, []).wall == 0.0
