"""Games of two players on a board that both see: noughts and crosses, and four in a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from turngym.environments.core.actions import Action, Commands
from turngym.environments.text.base import MatchGame

_FREE = "."
_DIRECTIONS = ((0, 1), (1, 0), (1, 1), (1, -1))
_WON = 1000
"""Value of a game that is won, and a little more the sooner it is."""


@dataclass(frozen=True, slots=True)
class Board:
    """Rows of a board from the top, one character a place; ``X`` moves where stones are equal."""

    cells: str
    columns: int

    @property
    def mover(self) -> str:
        """Who moves next."""
        return "X" if self.cells.count("X") == self.cells.count("O") else "O"

    def rows(self) -> list[str]:
        """Return the rows from the top."""
        return [
            self.cells[at : at + self.columns] for at in range(0, len(self.cells), self.columns)
        ]

    def with_stone(self, place: int) -> Board:
        """Return the board after the mover's stone at ``place``."""
        cells = self.cells[:place] + self.mover + self.cells[place + 1 :]
        return Board(cells, self.columns)


class RowGame(MatchGame):
    """Who is first to have enough stones in a row, in a column or diagonally, wins.

    Action: ``place <number>``.
    Observation: the board from the top, and whose stones are the mover's.
    Reward: 1 for a win, -1 for a loss, 0 for a draw.
    Start: some random stones, none of them in a row that wins.
    End: terminated by a row, by a full board, or by an answer that is no possible move.
    """

    players: tuple[str, ...] = ("X", "O")
    commands = Commands({"place": "place {number}"})
    falls: ClassVar[bool] = False
    """Stones fall down in a column, and a move names the column."""

    state: Board

    def new_game(self, rng: np.random.Generator) -> Board:
        rows, columns = self.settings["board"]
        while True:
            board = Board(_FREE * (rows * columns), columns)
            for _ in range(self.settings["stones"]):
                moves = [*self._moves(board).values()]
                board = board.with_stone(moves[int(rng.integers(len(moves)))])
            if _winner(board, self._length) is None:
                return board

    def instance_key(self) -> str:
        """Return the board, the same for its mirror image."""
        return min(self.state.cells, "".join(row[::-1] for row in self.state.rows()))

    def player(self) -> str:
        return self.state.mover

    def view(self, player: str) -> str:
        return f"{' '.join(self.state.rows())} you are {player}."

    def play(self, action: Action) -> str | None:
        number = str(action.arguments["number"]).strip()
        moves = self._moves(self.state)
        if number not in moves:
            return f"{number[:10]} is not a free {'column' if self.falls else 'place'}."
        self.state = self.state.with_stone(moves[number])
        return None

    def result(self) -> Mapping[str, float] | None:
        winner = _winner(self.state, self._length)
        if winner is None and _FREE in self.state.cells:
            return None
        return {name: 0.0 if winner is None else 1.0 if name == winner else -1.0 for name in "XO"}

    def legal_actions(self) -> list[str]:
        if self.result() is not None:
            return []
        return [self.say("place", number=number) for number in self._moves(self.state)]

    def state_key(self) -> str:
        return f"{self.state.cells} {self.player()}"

    def expert_action(self) -> str:
        """Return a move with the best outcome against the best answers, the first of several."""
        moves, depth = self._moves(self.state), self.settings["depth"]
        best = max(moves, key=lambda number: -self._value(moves[number], depth))
        return self.say("place", number=best)

    def _value(self, place: int, depth: int) -> int:
        return _value(
            self.state.with_stone(place), self._length, self.falls, depth, -2 * _WON, 2 * _WON
        )

    @property
    def _length(self) -> int:
        return int(self.settings["length"])

    def _moves(self, board: Board) -> dict[str, int]:
        return {str(number): place for number, place in _moves(board, self.falls)}


class TicTacToeEnv(RowGame):
    """Noughts and crosses: three in a row on nine places, numbered 1 to 9 from the top left."""

    name = "tictactoe"
    rules = (
        "Two players, X and O, take turns. Three of your letter in a row, a column or a diagonal "
        "win. Places are numbered 1 to 9, from the top left: place 5 is the middle."
    )
    difficulties: ClassVar[dict[str, dict[str, Any]]] = {
        difficulty: {"board": (3, 3), "length": 3, "stones": stones, "depth": 9}
        for difficulty, stones in (("easy", 4), ("medium", 3), ("hard", 2))
    }


class FourInARowEnv(RowGame):
    """Four in a row, where stones fall; easy is three in a row on a small board."""

    name = "fourinarow"
    falls: ClassVar[bool] = True
    rules = ""
    difficulties: ClassVar[dict[str, dict[str, Any]]] = {
        "easy": {"board": (4, 4), "length": 3, "stones": 2, "depth": 8},
        "medium": {"board": (5, 6), "length": 4, "stones": 4, "depth": 5},
        "hard": {"board": (6, 7), "length": 4, "stones": 4, "depth": 4},
    }

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        rows, columns = self.settings["board"]
        self.rules = (
            f"Two players, X and O, take turns. {self._length} of your letter in a row, a column "
            f"or a diagonal win. The board has {rows} rows, and columns 1 to {columns} from the "
            "left; a letter falls down in its column."
        )


@lru_cache(maxsize=100_000)
def _winner(board: Board, length: int) -> str | None:
    """Return who has ``length`` stones in a row, or None."""
    rows = board.rows()
    for row, text in enumerate(rows):
        for column, stone in enumerate(text):
            if stone == _FREE:
                continue
            for down, right in _DIRECTIONS:
                last_row, last = row + down * (length - 1), column + right * (length - 1)
                if not (0 <= last_row < len(rows) and 0 <= last < board.columns):
                    continue
                if all(rows[row + down * n][column + right * n] == stone for n in range(length)):
                    return stone
    return None


def _moves(board: Board, falls: bool) -> list[tuple[int, int]]:
    """Return the number of each move, and the place of its stone."""
    if not falls:
        return [(n + 1, n) for n, stone in enumerate(board.cells) if stone == _FREE]
    found = []
    for column in range(board.columns):
        own = range(column, len(board.cells), board.columns)
        if free := [place for place in own if board.cells[place] == _FREE]:
            found.append((column + 1, free[-1]))
    return found


@lru_cache(maxsize=200_000)
def _value(board: Board, length: int, falls: bool, depth: int, low: int, high: int) -> int:
    """Return what a board is worth to its mover; 0 where ``depth`` more moves do not decide.

    Alpha-beta search: exact between ``low`` and ``high``, else a bound.
    """
    if _winner(board, length) is not None:
        return -_WON - depth  # the other one moved last
    if depth == 0 or _FREE not in board.cells:
        return 0
    best = -2 * _WON
    for _, place in _moves(board, falls):
        after = board.with_stone(place)
        best = max(best, -_value(after, length, falls, depth - 1, -high, -max(low, best)))
        if best >= high:
            break
    return best
