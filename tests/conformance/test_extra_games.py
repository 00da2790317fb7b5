"""The games on foreign engines: the expert solves held-out tasks, chance does not.

Their other promises (seeds, other processes, siblings, snapshots, forks, nothing left behind) are
checked for every registered environment in ``test_every_environment.py``. Where an engine is slow
the normal suite plays five tasks; ``make conformance`` plays a hundred of every game.
"""

from __future__ import annotations

import os

import pytest
from gymnasium.utils.env_checker import check_env

import turngym
from turngym import registry
from turngym.agents.scripted import ExpertPolicy, NoopPolicy, RandomPolicy
from turngym.environments.core.info import info_problems
from turngym.registry import EnvEntry
from turngym.rollouts.collect import collect, group_specs
from turngym.types import StopReason, Trajectory

IS_FULL = os.environ.get("TURNGYM_CONFORMANCE") == "full"
HEAVY = (
    "text/babyai-gotoobjmazes5",
    "text/babyai-unlocklocal",
    "text/household",
    "text/scienceworld",
    "text/textarena-sudoku",
    "text/twcoin-hard",
    "text/twtreasure-hard",
    "text/twtreasure-medium",
)
"""Beginnings of the names whose hundred tasks take more than ten seconds."""


def extra_games() -> list[object]:
    """Return the games as parameters; of a game and its plain alias only the former."""
    found = [entry for entry in registry.entries() if entry.extra and entry.family == "text"]
    different = {(e.entry_point, str(e.kwargs), e.max_turns): e for e in found}
    return [
        pytest.param(
            entry,
            id=entry.short_name,
            marks=pytest.mark.extra(*entry.modules, *entry.programs),
        )
        for entry in different.values()
    ]


def held_out(entry: EnvEntry) -> int:
    """Return how many test tasks are played."""
    return 5 if entry.short_name.startswith(HEAVY) and not IS_FULL else 100


each_game = pytest.mark.parametrize("entry", extra_games())


async def play(
    entry: EnvEntry, policy: object, *, tasks: int, **kwargs: object
) -> list[Trajectory]:
    """Play the first held-out tasks, one after the other in one environment."""
    env = turngym.make(entry.id, **kwargs)
    task = env.get_wrapper_attr("task")
    specs = [
        spec
        for index in range(tasks)
        for spec in group_specs(entry.id, task("test", index), seed=7, group_size=1)
    ]
    return await collect(lambda: env, policy, specs, concurrency=1)


async def expert_must_solve(entry: EnvEntry, tasks: int) -> None:
    played = await play(entry, ExpertPolicy(), tasks=tasks)
    assert [t.error for t in played if t.error] == []
    assert [t.task_id for t in played if not t.is_success] == []
    assert [turn.invalid_action for t in played for turn in t.turns if turn.invalid_action] == []


async def chance_must_fail(entry: EnvEntry, tasks: int) -> None:
    played = await play(entry, RandomPolicy(), tasks=tasks)
    assert [t.error for t in played if t.error] == []
    assert sum(t.is_success for t in played) < tasks / 5
    assert [turn.invalid_action for t in played for turn in t.turns if turn.invalid_action] == []


def test_all_extra_games_are_found() -> None:
    assert len(extra_games()) == 27


@each_game
def test_gymnasium_finds_nothing_wrong(entry: EnvEntry) -> None:
    env = turngym.make(entry.id)
    check_env(env.unwrapped, skip_render_check=True)
    env.close()


@each_game
async def test_expert_solves_held_out_tasks_and_chance_does_not(entry: EnvEntry) -> None:
    """One test for both, because the generated games are still in memory then."""
    await expert_must_solve(entry, held_out(entry))
    await chance_must_fail(entry, held_out(entry))


@each_game
async def test_saying_nothing_ends_at_the_turn_limit(entry: EnvEntry) -> None:
    (episode,) = await play(entry, NoopPolicy(), tasks=1)
    assert episode.stop_reason is StopReason.TRUNCATED_TURNS
    assert len(episode.turns) == entry.max_turns
    assert all(turn.invalid_action for turn in episode.turns)
    assert not episode.is_success


@each_game
def test_nonsense_is_answered_and_changes_nothing(entry: EnvEntry) -> None:
    env = turngym.make(entry.id)
    _, info = env.reset(seed=3, options={"split": "test"})
    assert info_problems(info) == []
    observation, reward, terminated, truncated, after = env.step("sing [a song]")
    assert after["invalid_action"]
    assert observation["text"]
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert after["anchor"] == info["anchor"]
    env.close()


@pytest.mark.parametrize(
    "entry", [p for p in extra_games() if p.values[0].entry_point.split(":")[0] != "textarena"]
)
async def test_expert_and_legal_actions_speak_in_tool_calls(entry: EnvEntry) -> None:
    (episode,) = await play(entry, ExpertPolicy(), tasks=1, action_style="tools")
    assert episode.is_success
    assert all(turn.action.content.startswith("{") for turn in episode.turns)
    (episode,) = await play(entry, RandomPolicy(), tasks=1, action_style="tools")
    assert episode.error is None
