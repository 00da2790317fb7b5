"""The text games that come as extras: real engines, imported when an environment is first made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turngym.environments.core.env import SnapshotKind
from turngym.environments.gym.registration import register

_HERE = "turngym.environments.text"

_TEXTARENA: dict[str, tuple[int, dict[str, Any]]] = {
    "GuessTheNumber": (
        14,
        {
            "game": "GuessTheNumber-v0",
            "name": "textarena-GuessTheNumber-1000",
            "options": {"min_number": 1, "max_number": 1000, "max_turns": 12},
        },
    ),
    "Mastermind": (24, {"game": "Mastermind-v0"}),
    "Mastermind-hard": (34, {"game": "Mastermind-v0-hard"}),
    "FrozenLake": (40, {"game": "FrozenLake-v0-hardcore"}),
    "LightsOut": (24, {"game": "LightsOut-v0"}),
    "Sudoku": (60, {"game": "Sudoku-v0-medium"}),
}
"""Name to turn limit and arguments. TextArena's TowerOfHanoi, PegJump and Countdown have one
problem each, so nothing can be held out of them; ``from_textarena`` plays them."""

_BABYAI = {
    "GoToRedBall": 14, "GoToLocal": 14, "PickupLoc": 16, "PutNextLocal": 28, "UnlockLocal": 30,
    "GoToObjMazeS5": 80,
}  # fmt: skip
"""Level to turn limit."""


def register_extra_games() -> None:
    """Register every game that comes as an extra, installed or not; imports no engine."""
    _textworld("TWCoin", "CoinEnv", {"easy": 14, "medium": 30, "hard": 80})
    _textworld("TWTreasure", "TreasureEnv", {"easy": 12, "medium": 25, "hard": 40})
    _textworld("TWCooking", "CookingEnv", {"easy": 12, "medium": 25, "hard": 40})
    _by_difficulty(
        "Household",
        "alfworld:HouseholdEnv",
        {"easy": 20, "medium": 30, "hard": 50},
        extra="alfworld",
        modules=("alfworld", "textworld", "fast_downward"),
    )
    _by_difficulty(
        "ScienceWorld",
        "scienceworld:ScienceWorldEnv",
        {"easy": 30, "medium": 70, "hard": 240},
        extra="scienceworld",
        modules=("scienceworld",),
        programs=("java",),
    )
    for level, turns in _BABYAI.items():
        _register(
            f"BabyAI-{level}",
            "babyai:BabyAIEnv",
            turns,
            {"difficulty": level},
            extra="babyai",
            modules=("minigrid",),
            snapshot_kind="exact",
        )
    for game, (turns, kwargs) in _TEXTARENA.items():
        _register(
            f"TextArena-{game}",
            "textarena:TextArenaEnv",
            turns,
            kwargs,
            extra="textarena",
            modules=("textarena",),
            snapshot_kind="exact",
        )


def _textworld(title: str, class_name: str, max_turns: dict[str, int]) -> None:
    _by_difficulty(
        title,
        f"textworld:{class_name}",
        max_turns,
        extra="textworld",
        modules=("textworld",),
        snapshot_kind="exact",
    )


def _by_difficulty(title: str, entry_point: str, max_turns: dict[str, int], **needs: Any) -> None:
    """Register a game once per difficulty; the first is also the default."""
    for number, (difficulty, turns) in enumerate(max_turns.items()):
        names = [f"{title}-{difficulty}"] + ([title] if number == 0 else [])
        for name in names:
            _register(name, entry_point, turns, {"difficulty": difficulty}, **needs)


def _register(
    name: str,
    entry_point: str,
    max_turns: int,
    kwargs: Mapping[str, Any],
    *,
    extra: str,
    modules: tuple[str, ...],
    programs: tuple[str, ...] = (),
    snapshot_kind: SnapshotKind = "replay",
) -> None:
    register(
        f"turngym/{name}-v0",
        f"{_HERE}.{entry_point}",
        family="text",
        max_turns=max_turns,
        kwargs=kwargs,
        snapshot_kind=snapshot_kind,
        extra=extra,
        modules=modules,
        programs=programs,
        provides=("anchor",),
    )
