"""King and rook against king: the agent is white, black defends as well as can be.

Squares are numbers 0 to 63, a1 = 0, b1 = 1, h8 = 63. ``mate_table`` knows every position.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from turngym.environments.core.actions import Action, Commands
from turngym.environments.core.env import Outcome
from turngym.environments.text.base import TextGame

UNKNOWN = 99
"""Depth of positions that white cannot win or that cannot occur."""

Depths = NDArray[np.int16]

_KING_STEPS = [(x, y) for x in (-1, 0, 1) for y in (-1, 0, 1) if (x, y) != (0, 0)]
_ROOK_STEPS = [(1, 0), (-1, 0), (0, 1), (0, -1)]


@dataclass(frozen=True)
class EndgameState:
    """White king, white rook and black king; white is to move unless ``result`` is set."""

    king: int
    rook: int
    enemy: int
    result: str = ""
    """``""``, ``"mate"``, ``"stalemate"`` or ``"rook lost"``."""


class ChessEndgameEnv(TextGame):
    """Mate with king and rook against the king.

    Black takes the rook if it can; otherwise it moves to where white needs the most moves to mate,
    and among equals to the lowest square (a1, b1, ... h8).

    Action: ``move <from><to>`` as in UCI, for example ``move e1e2``.
    Observation: black's answer and where the three pieces stand.
    Reward: 1 for mate, else 0.
    Start: a random position with white to move and a mate in as many moves as the difficulty says.
    End: terminated by mate, by stalemate and by the loss of the rook.
    """

    name = "chessendgame"
    rules = (
        "You are white with king and rook against the black king. Give mate; stalemate or a lost "
        "rook is a draw. Moves name two squares, for example: move e1e2."
    )
    commands = Commands({"move": "move {squares}"})
    difficulties: ClassVar[dict[str, dict[str, Any]]] = {
        "easy": {"shortest": 2, "longest": 3},
        "medium": {"shortest": 4, "longest": 8},
        "hard": {"shortest": 9, "longest": 16},
    }

    state: EndgameState

    def new_game(self, rng: np.random.Generator) -> EndgameState:
        depths = mate_table()[0]
        while True:
            king, rook, enemy = (int(square) for square in rng.integers(64, size=3))
            if self.settings["shortest"] <= depths[king, rook, enemy] <= self.settings["longest"]:
                return EndgameState(king, rook, enemy)

    def instance_key(self) -> str:
        """Return the position, the same for its eight mirror images."""
        s = self.state
        return str(min(_mirrored((s.king, s.rook, s.enemy))))

    def describe(self) -> str:
        s = self.state
        return f"king {_name(s.king)} rook {_name(s.rook)} black {_name(s.enemy)}."

    reminder = describe

    def turn(self, action: Action) -> Outcome:
        s = self.state
        moves = dict(_white_moves(s.king, s.rook, s.enemy))
        move = str(action.arguments["squares"]).strip().lower()
        if move not in moves:
            problem = f"{move[:10]} is not a legal move."
            return Outcome(text=f"{problem} {self.describe()}", invalid_action=problem)
        king, rook = moves[move]
        answers = _black_moves(king, rook, s.enemy)
        if not answers:
            mate = _attacks(rook, s.enemy, king)
            self.state = EndgameState(king, rook, s.enemy, "mate" if mate else "stalemate")
            return Outcome(text=f"{self.state.result}.", reward=float(mate), terminated=True)
        if rook in answers:
            self.state = EndgameState(king, rook, rook, "rook lost")
            return Outcome(text="black takes the rook. draw.", terminated=True)
        depths = mate_table()[0]
        answer = max(answers, key=lambda square: (depths[king, rook, square], -square))
        self.state = EndgameState(king, rook, answer)
        return Outcome(text=self.describe())

    def score(self) -> float:
        return float(self.state.result == "mate")

    def legal_actions(self) -> list[str]:
        s = self.state
        return [self.say("move", squares=move) for move, _ in _white_moves(s.king, s.rook, s.enemy)]

    def state_key(self) -> str:
        return f"{self.describe()} {self.state.result}".strip()

    def expert_action(self) -> str:
        s, depths = self.state, mate_table()[1]
        best = min(
            _white_moves(s.king, s.rook, s.enemy),
            key=lambda choice: depths[choice[1][0], choice[1][1], s.enemy],
        )
        return self.say("move", squares=best[0])


def _name(square: int) -> str:
    return "abcdefgh"[square % 8] + str(square // 8 + 1)


def _step(square: int, step: tuple[int, int]) -> int | None:
    """Return the neighbour of ``square``, or None off the board."""
    column, row = square % 8 + step[0], square // 8 + step[1]
    return row * 8 + column if 0 <= column < 8 and 0 <= row < 8 else None


@cache
def _neighbours(square: int) -> tuple[int, ...]:
    near = (_step(square, step) for step in _KING_STEPS)
    return tuple(sorted(there for there in near if there is not None))


@cache
def _line(square: int, step: tuple[int, int]) -> tuple[int, ...]:
    """Return the squares from ``square`` to the edge in one direction, the nearest first."""
    there = _step(square, step)
    return () if there is None else (there, *_line(there, step))


def _attacks(rook: int, target: int, blocker: int) -> bool:
    """Return True when the rook reaches ``target`` with one other piece on the board."""
    for step in _ROOK_STEPS:
        line = _line(rook, step)
        if target in line:
            return blocker not in line[: line.index(target)]
    return False


def _white_moves(king: int, rook: int, enemy: int) -> list[tuple[str, tuple[int, int]]]:
    """Return white's legal moves in UCI with the squares of king and rook after them."""
    forbidden = {rook, enemy, *_neighbours(enemy)}
    moves = [
        (_name(king) + _name(there), (there, rook))
        for there in _neighbours(king)
        if there not in forbidden
    ]
    for step in _ROOK_STEPS:
        for there in _line(rook, step):
            if there in (king, enemy):
                break
            moves.append((_name(rook) + _name(there), (king, there)))
    return moves


def _black_moves(king: int, rook: int, enemy: int) -> list[int]:
    """Return the squares that the black king may go to; the rook's own square takes it."""
    return [
        there
        for there in _neighbours(enemy)
        if there != king
        and there not in _neighbours(king)
        and (there == rook or not _attacks(rook, there, king))
    ]


def _mirrored(squares: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the eight mirror images of some squares."""
    points = [(square % 8, square // 8) for square in squares]
    images = []
    for swap in (False, True):
        for flip_x in (0, 7):
            for flip_y in (0, 7):
                turned = [(y, x) if swap else (x, y) for x, y in points]
                images.append(tuple((y ^ flip_y) * 8 + (x ^ flip_x) for x, y in turned))
    return images


@cache
def mate_table() -> tuple[Depths, Depths]:
    """Return white's moves to mate with white to move, and with black to move.

    Both have shape [king, rook, black king]; ``UNKNOWN`` where there is no forced mate or no such
    position. Worked backwards from the mates, once per process.
    """
    # What a king covers, its own square included [king, square]; a rook [blocker, rook, square].
    near = np.eye(64, dtype=bool)
    attacked = np.zeros((64, 64, 64), bool)
    for square in range(64):
        near[square, list(_neighbours(square))] = True
        for step in _ROOK_STEPS:
            line = _line(square, step)
            for place, there in enumerate(line):
                attacked[:, square, there] = True
                attacked[list(line[:place]), square, there] = False
    other = ~np.eye(64, dtype=bool)
    apart = ~near[:, None, :] & other[:, :, None] & other[None, :, :]
    allowed = ~near[:, None, :] & ~attacked  # where black may go, the rook's square included
    escapes = _count_escapes(allowed)
    white, black = (np.full((64, 64, 64), UNKNOWN, np.int16) for _ in range(2))
    black[apart & attacked & (escapes == 0)] = 0
    escapes[escapes == 0] = UNKNOWN  # mates and stalemates are settled
    last = black == 0
    for depth in range(1, UNKNOWN):
        won = _one_white_move_before(last) & apart & ~attacked & (white == UNKNOWN)
        if not won.any():
            break
        white[won] = depth
        escapes -= _count_escapes(won)
        last = apart & (escapes == 0) & (black == UNKNOWN)
        black[last] = depth
    return white, black


def _count_escapes(goals: NDArray[np.bool_]) -> NDArray[np.int16]:
    """Return how many steps of the black king lead into ``goals`` [king, rook, black king]."""
    counts = np.zeros((64, 64, 64), np.int16)
    for enemy in range(64):
        counts[:, :, enemy] = goals[:, :, list(_neighbours(enemy))].sum(axis=2)
    return counts


def _one_white_move_before(goals: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return from where one white move may lead into ``goals`` [king, rook, black king]."""
    before = np.zeros_like(goals)
    for square in range(64):
        before[square] |= goals[list(_neighbours(square))].any(axis=0)
        for step in _ROOK_STEPS:
            free = np.ones((64, 64), bool)  # [king, black king]: nothing stands in the way
            for there in _line(square, step):
                free[there, :] = False
                free[:, there] = False
                before[:, square, :] |= free & goals[:, there, :]
    return before
