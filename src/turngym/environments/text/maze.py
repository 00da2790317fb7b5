"""A maze in words: fetch the key, then reach the door."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from turngym.environments.core.actions import Action, Commands
from turngym.environments.core.env import Outcome
from turngym.environments.text.base import LOOK, GridGame, bearing

Cell = tuple[int, int]

MOVES: dict[str, Cell] = {"north": (-1, 0), "east": (0, 1), "south": (1, 0), "west": (0, -1)}


@dataclass
class MazeState:
    """Walls are the blocked pairs of neighbouring cells; cells are (row, column)."""

    size: int
    walls: frozenset[tuple[Cell, Cell]]
    at: Cell
    key: Cell
    door: Cell
    has_key: bool = False
    done: bool = False


class MazeEnv(GridGame):
    """Walk through a grid of rooms to a key and then to a door.

    Action: ``go north|east|south|west``.
    Observation: which way the goal lies and which exits the room has.
    Reward: 1 for reaching the door with the key, else 0.
    Start: a random maze in which key and door can be reached.
    End: terminated at the door; the registered turn limit truncates.
    """

    name = "maze"
    rules = (
        "You are in a maze of rooms. Find the key, then leave through the door. "
        "You are told which way the key or the door lies and which exits are open."
    )
    painted = (
        "You are in a maze of rooms. Find the key, then leave through the door. In the picture "
        "walls are dark, you are blue, the key is yellow until you have it, the door is green. "
        "North is up."
    )
    commands = Commands({"go": "go {direction:north|east|south|west}"})
    difficulties: ClassVar[dict[str, dict[str, Any]]] = {
        "easy": {"size": 4, "walls": 0.03},
        "medium": {"size": 6, "walls": 0.15},
        "hard": {"size": 9, "walls": 0.3},
        "long": {"size": 14, "walls": 0.02, "moves": (20, 28), "distances": True},
    }

    state: MazeState

    def new_game(self, rng: np.random.Generator) -> MazeState:
        size = int(self.settings["size"])
        shortest, longest = self.settings.get("moves", (0, 1 << 30))
        cells = [(row, column) for row in range(size) for column in range(size)]
        while True:
            walls = frozenset(
                pair for pair in _pairs(size) if rng.random() < self.settings["walls"]
            )
            at, key, door = (cells[i] for i in rng.choice(len(cells), size=3, replace=False))
            state = MazeState(size, walls, at, key, door)
            to_key, to_door = _path(state, at, key), _path(state, key, door)
            if to_key is None or to_door is None:
                continue
            if shortest <= len(to_key) + len(to_door) <= longest:
                return state

    def instance_key(self) -> str:
        """Return walls in a fixed order and the three places."""
        s = self.state
        return repr((s.size, sorted(s.walls), s.at, s.key, s.door))

    def cells_shape(self) -> tuple[int, int]:
        """Return the rooms with what is between and around them."""
        return (2 * self.settings["size"] + 1,) * 2

    def cells(self) -> NDArray[np.uint8]:
        """Return rooms and ways in white, walls dark, and you, the key and the door in colours."""
        s = self.state
        found = np.full((*self.cells_shape(), 3), 40, dtype=np.uint8)
        found[1::2, 1::2] = 240
        for one, other in _pairs(s.size):
            if (one, other) not in s.walls:
                found[one[0] + other[0] + 1, one[1] + other[1] + 1] = 240
        things = [(s.door, (90, 170, 60)), (s.key, (240, 200, 40)), (s.at, (30, 90, 220))]
        for (row, column), colour in things[:: 2 if s.has_key else 1]:
            found[2 * row + 1, 2 * column + 1] = colour
        return found

    def describe(self) -> str:
        if self.shows_picture:
            return LOOK
        s = self.state
        goal, name = (s.door, "door") if s.has_key else (s.key, "key")
        exits = " ".join(move for move in MOVES if _next(s, s.at, move) is not None)
        way = bearing(s.at, goal, distances=self.settings.get("distances", False))
        return f"{name} {way}. exits {exits}."

    reminder = describe

    def turn(self, action: Action) -> Outcome:
        s = self.state
        there = _next(s, s.at, str(action.arguments["direction"]))
        if there is None:
            return Outcome(text="wall. " + self.describe(), invalid_action="There is a wall.")
        s.at = there
        if s.has_key and there == s.door:
            s.done = True
            return Outcome(text="you are out.", reward=1.0, terminated=True)
        found = not s.has_key and there == s.key
        s.has_key = s.has_key or found
        return Outcome(text=("got key. " if found else "") + self.describe())

    def score(self) -> float:
        return float(self.state.done)

    def legal_actions(self) -> list[str]:
        s = self.state
        return [
            self.say("go", direction=move) for move in MOVES if _next(s, s.at, move) is not None
        ]

    def state_key(self) -> str:
        s = self.state
        return f"{s.at} {s.has_key} {s.key} {s.door}"

    def potential(self) -> float:
        """Return what is still to be earned: 1, less a twentieth for every move it takes."""
        s = self.state
        if s.done:
            return 0.0
        ways = [(s.at, s.door)] if s.has_key else [(s.at, s.key), (s.key, s.door)]
        return 1.0 - 0.05 * sum(len(_path(s, *way) or ()) for way in ways)

    def expert_action(self) -> str:
        s = self.state
        path = _path(s, s.at, s.door if s.has_key else s.key)
        return self.say("go", direction=path[0] if path else "north")


def _pairs(size: int) -> list[tuple[Cell, Cell]]:
    across = [((r, c), (r, c + 1)) for r in range(size) for c in range(size - 1)]
    down = [((r, c), (r + 1, c)) for r in range(size - 1) for c in range(size)]
    return across + down


def _next(state: MazeState, cell: Cell, move: str) -> Cell | None:
    row, column = cell[0] + MOVES[move][0], cell[1] + MOVES[move][1]
    there = (row, column)
    if not (0 <= row < state.size and 0 <= column < state.size):
        return None
    return None if (min(cell, there), max(cell, there)) in state.walls else there


def _path(state: MazeState, start: Cell, goal: Cell) -> list[str] | None:
    """Return the moves of a shortest path, or None when there is none."""
    paths: dict[Cell, list[str]] = {start: []}
    queue = deque([start])
    while queue:
        cell = queue.popleft()
        if cell == goal:
            return paths[cell]
        for move in MOVES:
            there = _next(state, cell, move)
            if there is not None and there not in paths:
                paths[there] = [*paths[cell], move]
                queue.append(there)
    return None
