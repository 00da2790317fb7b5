"""Every registered environment keeps the promises that the shipped checks are about.

The normal suite plays short episodes, of games on foreign engines one difficulty, and leaves out
ScienceWorld, whose every fresh process takes seconds to start; ``PART=conformance`` plays
everything, as many and as long episodes as the checks do by default. An id that is another name for
the same class, arguments and turn limit (``Maze-v0`` for ``Maze-easy-v0``) is checked once.
"""

import os
import re
from typing import Any

import pytest

import turngym  # noqa: F401 - registers the environments
from turngym.environments.checks.check import check_fork, check_turn_env
from turngym.registry import EnvEntry, entries

IS_FULL = os.environ.get("TURNGYM_CONFORMANCE") == "full"
OWN_FILES = ("desktop", "phone", "web", "swe", "terminal")  # in files of their own, one of a kind
# A fresh ScienceWorld plays a quarter of an hour where other work takes the cores.
QUICK_TURN: dict[str, Any] = (
    {"timeout_s": 1800.0}
    if IS_FULL
    else {"episodes": 1, "tasks": 4, "max_turns": 8, "processes": 1}
)
QUICK_FORK: dict[str, Any] = {} if IS_FULL else {"episodes": 1, "max_turns": 6, "depths": [0, 3]}


def every_environment() -> list[Any]:
    ours = [entry for entry in entries() if entry.id.startswith("turngym/")]
    ours = [entry for entry in ours if entry.family not in OWN_FILES]
    ours = [entry for entry in ours if IS_FULL or not entry.programs]
    different = {(e.entry_point, str(sorted(e.kwargs.items())), e.max_turns): e for e in ours}
    return [
        pytest.param(
            entry,
            id=entry.short_name,
            marks=[pytest.mark.extra(*entry.modules, *entry.programs)] if entry.extra else [],
        )
        for entry in different.values()
    ]


def one_of_each_game() -> list[Any]:
    """Return one difficulty of each; the others differ in what is generated, not in snapshots."""
    first = {
        re.sub(r"-(easy|medium|hard|long)$", "", e.id): e for e in reversed(every_environment())
    }
    return every_environment() if IS_FULL else list(reversed(first.values()))


def all_but_foreign_difficulties() -> list[Any]:
    """Return every game of ours, and one difficulty of each that plays on a foreign engine."""
    one = {game.id for game in one_of_each_game()}
    return [game for game in every_environment() if not game.values[0].extra or game.id in one]


@pytest.mark.parametrize("entry", all_but_foreign_difficulties())
def test_turn_environment_keeps_its_promises(entry: EnvEntry) -> None:
    check_turn_env(entry.id, **QUICK_TURN).raise_on_failure()


@pytest.mark.parametrize("entry", one_of_each_game())
def test_forks_are_equal_and_independent(entry: EnvEntry) -> None:
    check_fork(entry.id, **QUICK_FORK).raise_on_failure()
