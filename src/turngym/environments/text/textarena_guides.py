"""Legal moves and experts for some single-player games of TextArena, by the name of the game.

A guide reads the state of the engine; its moves are texts that the engine understands.
"""

from __future__ import annotations

import itertools
import re
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

_STEPS = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}

Code = tuple[int, ...]
Cell = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Guide:
    """What is known of one game."""

    legal: Callable[[Any], list[str]]
    """Engine to the moves that it accepts now."""
    expert: Callable[[Any], str]
    """Engine to the best move."""


def guide_for(game: str) -> Guide | None:
    """Return the guide of a game such as ``"Mastermind-v0-hard"``, or None when there is none."""
    return _GUIDES.get(re.split(r"-v\d", game)[0])


# Guess the number.


def _numbers(engine: Any) -> list[str]:
    guesses = range(engine.min_number, engine.max_number + 1)
    return [f"[{number}]" for number in guesses if number not in engine.guessed_numbers]


def _halve(engine: Any) -> str:
    low, high = engine.min_number, engine.max_number
    for guess, hint in engine.state.game_state["guess_history"]:
        if hint == "higher":
            low = max(low, guess + 1)
        else:
            high = min(high, guess - 1)
    return f"[{(low + high) // 2}]"


# Mastermind.


def _codes(engine: Any) -> Iterable[Code]:
    digits = range(1, engine.num_numbers + 1)
    if engine.duplicate_numbers:
        return itertools.product(digits, repeat=engine.code_length)
    return itertools.permutations(digits, engine.code_length)


def _unused_codes(engine: Any) -> list[str]:
    used = {tuple(entry["guess"]) for entry in engine.state.game_state["history"]}
    return [_code_text(code) for code in _codes(engine) if code not in used]


def _consistent_code(engine: Any) -> str:
    """Return the first code that could have given all answers so far."""
    history = engine.state.game_state["history"]
    seen = [(tuple(entry["guess"]), (entry["black"], entry["white"])) for entry in history]
    for code in _codes(engine):
        if all(_pegs(guess, code) == pegs for guess, pegs in seen):
            return _code_text(code)
    raise ValueError("no code fits the answers")


def _pegs(guess: Code, code: Code) -> tuple[int, int]:
    black = sum(a == b for a, b in zip(guess, code, strict=True))
    common = sum(min(guess.count(digit), code.count(digit)) for digit in set(guess))
    return black, common - black


def _code_text(code: Code) -> str:
    return f"[{' '.join(map(str, code))}]"


# Frozen lake.


def _steps(engine: Any) -> list[str]:
    row, column = engine.state.game_state["player_pos"]
    return [
        f"[{name}]"
        for name, (down, right) in _STEPS.items()
        if 0 <= row + down < engine.size and 0 <= column + right < engine.size
    ]


def _around_the_holes(engine: Any) -> str:
    state = engine.state.game_state
    start: Cell = tuple(state["player_pos"])
    goal: Cell = tuple(state["goal_pos"])
    first: dict[Cell, str] = {start: ""}
    queue = deque([start])
    while queue and goal not in first:
        row, column = queue.popleft()
        for name, (down, right) in _STEPS.items():
            cell = (row + down, column + right)
            inside = 0 <= cell[0] < engine.size and 0 <= cell[1] < engine.size
            if inside and cell not in first and state["grid"][cell[0]][cell[1]] != "H":
                first[cell] = first[row, column] or f"[{name}]"
                queue.append(cell)
    return first[goal]


# Lights out.


def _lights(engine: Any) -> list[str]:
    return [f"[{row} {column}]" for row in range(engine.size) for column in range(engine.size)]


def _press(engine: Any) -> str:
    """Return the first light of a shortest solution."""
    size, grid = engine.size, engine.state.game_state["grid"]
    presses = min(_solutions(size, grid), key=lambda solution: (len(solution), solution))
    return f"[{presses[0][0]} {presses[0][1]}]"


def _solutions(size: int, grid: list[list[bool]]) -> list[list[Cell]]:
    """Return all sets of presses that put the lights out.

    The presses of the top row decide those of every row below, because a light can then only be put
    out from underneath; so it is enough to try each top row.
    """
    found = []
    for top in itertools.product((False, True), repeat=size):
        lights = [list(row) for row in grid]
        presses: list[Cell] = []
        for row in range(size):
            for column in range(size):
                if top[column] if row == 0 else lights[row - 1][column]:
                    presses.append((row, column))
                    _toggle(lights, row, column)
        if not any(lights[size - 1]):
            found.append(presses)
    return found


def _toggle(lights: list[list[bool]], row: int, column: int) -> None:
    for down, right in ((0, 0), *_STEPS.values()):
        if 0 <= row + down < len(lights) and 0 <= column + right < len(lights):
            lights[row + down][column + right] ^= True


# Sudoku.


def _fitting_digits(engine: Any) -> list[str]:
    """Return the digits that clash with nothing on the board; the engine may still know better."""
    board = engine.state.game_state["board"]
    return [
        f"[{row + 1} {column + 1} {digit}]"
        for row, column in _empty_cells(board)
        for digit in _digits(board, row, column)
    ]


def _next_digit(engine: Any) -> str:
    """Return the digit of the first empty cell in the only solution, which the engine keeps."""
    row, column = _empty_cells(engine.state.game_state["board"])[0]
    return f"[{row + 1} {column + 1} {engine.full_grid[row][column]}]"


def _empty_cells(board: list[list[int]]) -> list[Cell]:
    return [(row, column) for row in range(9) for column in range(9) if not board[row][column]]


def _digits(board: list[list[int]], row: int, column: int) -> list[int]:
    top, left = row // 3 * 3, column // 3 * 3
    taken = {*board[row], *(line[column] for line in board)}
    taken |= {board[r][c] for r in range(top, top + 3) for c in range(left, left + 3)}
    return [digit for digit in range(1, 10) if digit not in taken]


_GUIDES = {
    "GuessTheNumber": Guide(_numbers, _halve),
    "Mastermind": Guide(_unused_codes, _consistent_code),
    "FrozenLake": Guide(_steps, _around_the_holes),
    "LightsOut": Guide(_lights, _press),
    "Sudoku": Guide(_fitting_digits, _next_digit),
}
