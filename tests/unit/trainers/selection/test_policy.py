"""All choices together: a function of numbers and observations, which a checkpoint restores."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from helpers.trajectories import episode
from turngym.config import load_config
from turngym.rollouts.scheduler.groups import GroupRequest, ReadyGroup, UniformSelection
from turngym.tasks.base import procedural_task
from turngym.trainers.selection.past import as_ready_group
from turngym.trainers.selection.policy import DataSelection, TaskPool, build_selection
from turngym.trainers.settings.selection import SelectionConfig
from turngym.trainers.settings.train import TrainConfig

POOL = TaskPool(task=lambda place: procedural_task("made", "train", place % 6), size=6)


def selection(size: int | None = 6, **settings: Any) -> DataSelection:
    return DataSelection(
        load_config(SelectionConfig, [settings]),
        TaskPool(
            task=lambda place: procedural_task("made", "train", place % (size or 1 << 30)),
            size=size,
        ),
        groups_per_step=4,
        group_size=4,
        seed=3,
    )


def orders(made: DataSelection, first: int, count: int) -> list[GroupRequest]:
    return [made.allocate(i, made.propose(i)) for i in range(first, first + count)]


def play(made: DataSelection, index: int, share: float) -> ReadyGroup:
    """Play a group of which a share succeeds, and let it be seen."""
    request = made.allocate(index, made.propose(index))
    members = []
    for number in range(request.size):
        reward = float(number < share * request.size)
        one = episode([0.0, 0.0, reward], member=number)
        members.append(
            replace(
                one,
                score=reward,
                task_id=request.task.id,
                env_seed=request.env_seed or 0,
                policy_seed=1000 * index + number,
            )
        )
    group = as_ready_group(index, request, members)
    made.observe(group)
    return group


def test_without_settings_tasks_come_in_turn_and_round_again() -> None:
    made = selection()
    found = orders(made, 0, 8)
    assert [o.task.id.rsplit("/", 1)[1] for o in found] == list("01234501")
    assert {o.size for o in found} == {4}
    assert {o.condition for o in found} == {""}
    assert made.metrics() == {}


def test_a_run_without_settings_has_the_plain_rule_with_the_same_groups() -> None:
    run = {"env": {"id": "text/maze"}, "rollout": {"groups_per_step": 4, "group_size": 4}}
    plain = build_selection(load_config(TrainConfig, [run]), POOL)
    assert type(plain) is UniformSelection
    tasks = [plain.propose(number) for number in range(8)]
    requests = [plain.allocate(n, task) for n, task in enumerate(tasks) if task is not None]
    assert requests == orders(selection(), 0, 8)
    filtered = build_selection(
        load_config(TrainConfig, [run, "selection.filter.spread=true"]), POOL
    )
    assert isinstance(filtered, DataSelection)


def test_groups_are_asked_for_in_any_order() -> None:
    settings = {"sampler": {"type": "thompson"}, "budget": {"type": "variance", "most": 8}}
    forward = orders(selection(**settings), 0, 8)
    made = selection(**settings)
    assert [made.allocate(i, made.propose(i)) for i in (7, 2, 0, 5, 1, 3, 4, 6)] == [
        forward[i] for i in (7, 2, 0, 5, 1, 3, 4, 6)
    ]


def test_attempts_follow_the_belief_within_the_budget_of_a_step() -> None:
    made = selection(budget={"type": "variance", "least": 2, "most": 12}, size=4)
    for index, share in enumerate((0.0, 0.0, 0.5, 1.0)):
        for _ in range(3):
            play(made, index, share)
    made.replay(0, ())
    sizes = [o.size for o in orders(made, 4, 4)]
    assert sum(sizes) == 16
    assert sizes[2] == max(sizes) > 4


def test_dropped_groups_teach_difficulty_and_are_counted_by_reason() -> None:
    made = selection(filter={"spread": True}, sampler={"type": "thompson"})
    group = play(made, 0, 1.0)
    verdict = made.admit(group)
    assert (verdict.group, verdict.reason) == (None, "no_spread")
    assert made.admit(play(made, 1, 0.5)).group is not None
    assert made.metrics() == {"selection/groups_played": 2.0, "selection/dropped_no_spread": 1.0}
    state = made.state()["difficulty"]
    assert len(state) == 2


def test_broken_attempts_are_no_failures() -> None:
    made = selection(filter={"spread": True}, sampler={"type": "thompson"})
    group = play(made, 0, 1.0)
    broken = episode([0.0], member=9, error="broke")
    members = (*group.members, as_ready_group(0, group.request, [broken]).members[0])
    verdict = made.admit(replace(group, members=members))
    assert verdict.reason == "no_spread"


@pytest.mark.parametrize(
    "settings",
    [
        {"sampler": {"type": "thompson"}, "budget": {"type": "confidence"}},
        {"sampler": {"type": "bandit"}, "replay": {"type": "imitation"}},
        {"condition": {"type": "prefix", "below": 1.0}, "replay": {"type": "successes"}},
        {"sampler": {"type": "custom", "function": "helpers.custom_parts:Striding"}},
    ],
    ids=["beliefs", "bandit", "prefix", "custom"],
)
def test_a_checkpoint_restores_every_choice(settings: dict[str, Any]) -> None:
    made, again = selection(**settings), selection(**settings)
    for step in range(3):
        groups = [play(made, 4 * step + i, share) for i, share in enumerate((0.0, 0.5, 0.75, 1.0))]
        made.replay(step, groups)
    again.load_state(json.loads(json.dumps(made.state())))
    assert orders(again, 12, 8) == orders(made, 12, 8)
    late = [play(made, 12, 0.5)]
    play(again, 12, 0.5)
    assert again.replay(3, late) == made.replay(3, late)
    if settings.get("replay") == {"type": "imitation"}:
        assert again.imitation(4) == made.imitation(4)


def test_a_sampler_of_ones_own_chooses_from_what_it_saw() -> None:
    function = "helpers.custom_parts:Striding"
    made = selection(sampler={"type": "custom", "function": function, "settings": {"stride": 4}})
    assert [int(r.task.id.rsplit("/", 1)[1]) for r in orders(made, 0, 4)] == [0, 4, 2, 0]
    play(made, 0, 0.5)
    assert [int(r.task.id.rsplit("/", 1)[1]) for r in orders(made, 4, 4)] == [1, 5, 3, 1]


def test_an_environment_begins_the_same_wherever_its_past_matters() -> None:
    made = selection(replay={"type": "successes"})
    first, second = made.allocate(0, made.propose(0)), made.allocate(6, made.propose(6))
    assert first.task == second.task
    assert first.env_seed == second.env_seed is not None
    assert selection().allocate(0, made.propose(0)).env_seed is None


def test_a_group_with_a_prefix_is_judged_apart_from_the_plain_ones() -> None:
    made = selection(size=1, condition={"type": "prefix", "share": 1.0, "below": 1.0})
    plain = play(made, 0, 0.5)
    before = made.state()["difficulty"]
    found = [made.allocate(i, made.propose(i)) for i in range(1, 9)]
    conditioned = [request for request in found if request.condition]
    assert conditioned
    assert all(len(request.prefix) < 3 for request in conditioned)
    group = replace(plain, request=conditioned[0])
    assert group.group_id != plain.group_id
    made.observe(group)
    assert made.state()["difficulty"] == before
