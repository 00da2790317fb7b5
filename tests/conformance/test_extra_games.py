"""The games on foreign engines: the expert solves held-out tasks, chance does not.

Their other promises (seeds, other processes, siblings, snapshots, forks, nothing left behind) are
checked for every registered environment in ``test_every_environment.py``. The normal suite plays
thirty tasks, five where an engine is slow, and two of one difficulty where it is a program;
``PART=conformance`` plays a hundred of every game.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

import turngym
from turngym import registry
from turngym.agents.scripted import ExpertPolicy, NoopPolicy, RandomPolicy
from turngym.environments.core.spaces import info_problems
from turngym.registry import EnvEntry
from turngym.rollouts.episode import group_specs
from turngym.rollouts.evaluation.evaluate import collect
from turngym.types import StopReason, Trajectory

IS_FULL = os.environ.get("TURNGYM_CONFORMANCE") == "full"
HEAVY = (
    "text/babyai-gotoobjmazes5",
    "text/babyai-unlocklocal",
    "text/household",
    "text/scienceworld",
    "text/textarena-sudoku",
    "text/twcoin-hard",
    "text/twcooking-hard",
    "text/twcooking-medium",
    "text/twtreasure",
)
"""Beginnings of the names whose thirty tasks take more than three seconds."""
LUCKY = ("text/twcoin-easy",)
"""Where chance wins nearly a fifth, so that thirty tasks do not show that it is less."""


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
    if IS_FULL or entry.short_name in LUCKY:
        return 100
    if entry.programs:
        return 2
    return 5 if entry.short_name.startswith(HEAVY) else 30


def one_of_each_class(games: list[Any]) -> list[Any]:
    """Return the first difficulty of each class whose engine is a program, and all others."""
    first = {g.values[0].entry_point: g.id for g in reversed(games) if g.values[0].programs}
    return [g for g in games if IS_FULL or g.id == first.get(g.values[0].entry_point, g.id)]


@dataclass(frozen=True)
class Game:
    """A game that the tests of an entry share, because its engine takes long to start."""

    entry: EnvEntry
    env: gymnasium.Env[Any, Any]

    async def play(self, policy: object, *, tasks: int) -> list[Trajectory]:
        """Play the first held-out tasks, one after the other."""
        task = self.env.get_wrapper_attr("task")
        specs = [
            spec
            for index in range(tasks)
            for spec in group_specs(self.entry.id, task("test", index), seed=7, group_size=1)
        ]
        return await collect(lambda: KeptOpen(self.env), policy, specs, concurrency=1)


class KeptOpen(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Leaves an environment open for the next that play in it."""

    def close(self) -> None:
        pass


@contextmanager
def opened(entry: EnvEntry, **kwargs: object) -> Iterator[Game]:
    """Give a game, and close it."""
    env = turngym.make(entry.id, **kwargs)
    try:
        yield Game(entry, env)
    finally:
        env.close()


@pytest.fixture(scope="module", params=one_of_each_class(extra_games()))
def game(request: pytest.FixtureRequest) -> Iterator[Game]:
    """One game after the other, each with all its tests."""
    with opened(request.param) as made:
        yield made


async def expert_must_solve(game: Game, tasks: int) -> None:
    played = await game.play(ExpertPolicy(), tasks=tasks)
    assert [t.error for t in played if t.error] == []
    assert [t.task_id for t in played if not t.is_success] == []
    assert [turn.invalid_action for t in played for turn in t.turns if turn.invalid_action] == []


async def chance_must_fail(game: Game, tasks: int) -> None:
    played = await game.play(RandomPolicy(), tasks=tasks)
    assert [t.error for t in played if t.error] == []
    assert sum(t.is_success for t in played) < tasks / 5
    assert [turn.invalid_action for t in played for turn in t.turns if turn.invalid_action] == []


def test_all_extra_games_are_found() -> None:
    assert len(extra_games()) == 27


@pytest.mark.parametrize(
    "entry", one_of_each_class([p for p in extra_games() if p.values[0].programs])
)
def test_gymnasium_finds_nothing_wrong(entry: EnvEntry) -> None:
    """Where ``test_every_environment.py`` does not ask."""
    env = turngym.make(entry.id)
    check_env(env.unwrapped, skip_render_check=True)
    env.close()


async def test_expert_solves_held_out_tasks_and_chance_does_not(game: Game) -> None:
    """One test for both, because the generated games are still in memory then."""
    await expert_must_solve(game, held_out(game.entry))
    await chance_must_fail(game, held_out(game.entry))


async def test_saying_nothing_ends_at_the_turn_limit(game: Game) -> None:
    (episode,) = await game.play(NoopPolicy(), tasks=1)
    assert episode.stop_reason is StopReason.TRUNCATED_TURNS
    assert len(episode.turns) == game.entry.max_turns
    assert all(turn.invalid_action for turn in episode.turns)
    assert not episode.is_success


def test_nonsense_is_answered_and_changes_nothing(game: Game) -> None:
    _, info = game.env.reset(seed=3, options={"split": "test"})
    assert info_problems(info) == []
    observation, reward, terminated, truncated, after = game.env.step("sing [a song]")
    assert after["invalid_action"]
    assert observation["text"]
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert after["state_key"] == info["state_key"]


@pytest.mark.parametrize(
    "entry",
    one_of_each_class(
        [p for p in extra_games() if p.values[0].entry_point.split(":")[0] != "textarena"]
    ),
)
async def test_expert_and_legal_actions_speak_in_tool_calls(entry: EnvEntry) -> None:
    with opened(entry, action_style="tools") as game:
        (episode,) = await game.play(ExpertPolicy(), tasks=1)
        assert episode.is_success
        assert all(turn.action.content.startswith("{") for turn in episode.turns)
        (episode,) = await game.play(RandomPolicy(), tasks=1)
        assert episode.error is None
