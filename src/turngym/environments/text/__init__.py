"""Text games. The core ones are pure Python; the others come as extras, on engines of others.

Registering imports no engine: a game is imported when an environment of it is first made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turngym.registry import register

_HERE = "turngym.environments.text"
Turns = dict[str, int]
"""Difficulty to turn limit; the first difficulty is also the default."""

_TRUTH, _POTENTIAL = ("ground_truth",), ("potential",)
_QUESTIONS = {"easy": 6, "medium": 12, "hard": 20}
_EXACT: tuple[tuple[str, str, Turns, tuple[str, ...]], ...] = (
    ("Maze", "maze:MazeEnv", {"easy": 14, "medium": 40, "hard": 120, "long": 36}, _POTENTIAL),
    ("Wordle", "wordle:WordleEnv", {"easy": 10, "medium": 10, "hard": 10}, _TRUTH),
    ("GuessCity", "twenty_questions:GuessCityEnv", _QUESTIONS, _TRUTH),
    ("TwentyQuestions", "twenty_questions:TwentyQuestionsEnv", _QUESTIONS, _TRUTH),
    ("GuessNumber", "guess_number:GuessNumberEnv", {"easy": 6, "medium": 8, "hard": 11}, _TRUTH),
    ("MailRoom", "mail_room:MailRoomEnv", {"easy": 10, "medium": 14, "hard": 18}, ()),
    ("OrderForm", "order_form:OrderFormEnv", {"easy": 7, "medium": 10, "hard": 13}, _TRUTH),
    ("Sokoban", "sokoban:SokobanEnv", {"easy": 12, "medium": 45, "hard": 90}, ()),
    ("ChessEndgame", "chess_endgame:ChessEndgameEnv", {"easy": 6, "medium": 16, "hard": 32}, ()),
    ("TicTacToe", "board_games:TicTacToeEnv", {"easy": 8, "medium": 10, "hard": 12}, ()),
    ("FourInARow", "board_games:FourInARowEnv", {"easy": 20, "medium": 40, "hard": 50}, ()),
)
"""Title, class, turns, and what it gives credit methods beyond state keys."""
_TOY_TEXT = (
    ("Taxi", "toy_text:TaxiEnv", {"easy": 14, "medium": 30, "hard": 30}),
    ("FrozenLake", "toy_text:FrozenLakeEnv", {"easy": 12, "medium": 24, "hard": 36}),
)
_TEXTWORLD = (
    ("TWCoin", "textworld:CoinEnv", {"easy": 14, "medium": 30, "hard": 80}),
    ("TWTreasure", "textworld:TreasureEnv", {"easy": 12, "medium": 25, "hard": 40}),
    ("TWCooking", "textworld:CookingEnv", {"easy": 12, "medium": 25, "hard": 40}),
)
_BABYAI = {
    "GoToRedBall": 14, "GoToLocal": 14, "PickupLoc": 16, "PutNextLocal": 28, "UnlockLocal": 30,
    "GoToObjMazeS5": 80,
}  # fmt: skip
"""Level to turn limit."""
_TEXTARENA: dict[str, tuple[int, dict[str, Any]]] = {
    "GuessTheNumber": (14, {
        "game": "GuessTheNumber-v0", "name": "textarena-GuessTheNumber-1000",
        "options": {"min_number": 1, "max_number": 1000, "max_turns": 12},
    }),
    "Mastermind": (24, {"game": "Mastermind-v0"}),
    "Mastermind-hard": (34, {"game": "Mastermind-v0-hard"}),
    "FrozenLake": (40, {"game": "FrozenLake-v0-hardcore"}),
    "LightsOut": (24, {"game": "LightsOut-v0"}), "Sudoku": (60, {"game": "Sudoku-v0-medium"}),
}  # fmt: skip
"""Name to turn limit and arguments. TextArena's TowerOfHanoi, PegJump and Countdown have one
problem each, so nothing can be held out of them; ``from_textarena`` plays them."""


def register_text_games() -> None:
    """Register every text game, installed or not; called once by ``import turngym``."""
    for title, entry_point, turns, provides in _EXACT:
        _graded(title, entry_point, turns, snapshot_kind="exact", provides=provides)
    for title, entry_point, turns in _TOY_TEXT:
        _graded(title, entry_point, turns, provides=_POTENTIAL)
    extra: dict[str, Any] = {"extra": "textworld", "modules": ("textworld",)}
    for title, entry_point, turns in _TEXTWORLD:
        _graded(title, entry_point, turns, snapshot_kind="exact", **extra)
    extra = {"extra": "alfworld", "modules": ("alfworld", "textworld", "fast_downward")}
    turns = {"easy": 20, "medium": 30, "hard": 50}
    _graded("Household", "alfworld:HouseholdEnv", turns, **extra)
    extra = {"extra": "scienceworld", "modules": ("scienceworld",), "programs": ("java",)}
    turns = {"easy": 30, "medium": 70, "hard": 240}
    _graded("ScienceWorld", "scienceworld:ScienceWorldEnv", turns, **extra)
    extra = {"extra": "babyai", "modules": ("minigrid",), "snapshot_kind": "exact"}
    for level, limit in _BABYAI.items():
        _register(f"BabyAI-{level}", "babyai:BabyAIEnv", limit, {"difficulty": level}, **extra)
    extra = {"extra": "textarena", "modules": ("textarena",), "snapshot_kind": "exact"}
    for game, (limit, kwargs) in _TEXTARENA.items():
        _register(f"TextArena-{game}", "textarena:TextArenaEnv", limit, kwargs, **extra)


def _graded(title: str, entry_point: str, turns: Turns, **more: Any) -> None:
    """Register a game once per difficulty, and by its title alone in the first one."""
    for number, (difficulty, limit) in enumerate(turns.items()):
        for name in (f"{title}-{difficulty}", *((title,) if number == 0 else ())):
            _register(name, entry_point, limit, {"difficulty": difficulty}, **more)


def _register(
    name: str,
    entry_point: str,
    max_turns: int,
    kwargs: Mapping[str, Any],
    *,
    provides: tuple[str, ...] = (),
    **more: Any,
) -> None:
    register(
        f"turngym/{name}-v0",
        f"{_HERE}.{entry_point}",
        family="text",
        max_turns=max_turns,
        kwargs=kwargs,
        provides=("state_key", *provides),
        **more,
    )
