"""Sokoban: push every box onto a goal."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from turngym.environments.core.actions import Action, Commands
from turngym.environments.core.env import Outcome
from turngym.environments.text.base import TextGame
from turngym.environments.text.sokoban_solver import (
    Boxes,
    Room,
    empty_room,
    is_dead,
    play_backwards,
    solve,
    walks,
)


@dataclass(frozen=True)
class SokobanState:
    """A room with boxes and the player."""

    room: Room
    boxes: Boxes
    player: int
    stuck: bool = False
    """A box stands where it can never reach a goal."""


class SokobanEnv(TextGame):
    """Push all boxes onto goals; boxes cannot be pulled.

    Action: ``go north|east|south|west``; walking against a box pushes it.
    Observation: easy: which way the nearest spot lies from which to push the box towards the goal,
    or on the spot the push, and which ways are free. Medium and hard: a drawing of the room.
    Reward: 1 when every box stands on a goal, else 0.
    Start: a random level that can be solved well within the registered turn limit.
    End: terminated when solved, and with reward 0 when a box stands on a cell from which no
    pushes lead to a goal. Other deadlocks run on to the turn limit.
    """

    name = "sokoban"
    commands = Commands({"go": "go {direction:north|east|south|west}"})
    difficulties: ClassVar[dict[str, dict[str, Any]]] = {
        "easy": {"side": 4, "boxes": 1, "walls": 0, "view": "words", "moves": (2, 7)},
        "medium": {"side": 5, "boxes": 2, "walls": 3, "view": "grid", "moves": (9, 30)},
        "hard": {"side": 6, "boxes": 3, "walls": 6, "view": "grid", "moves": (18, 60)},
    }

    state: SokobanState

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        aim = "Push every box onto a goal. You cannot pull. A box that is stuck loses the game."
        legend = "# wall, @ you, $ box, . goal, * box on goal, + you on goal."
        compass = (
            "You are told which way the nearest spot lies from which the box must be pushed, or, "
            "on the spot, which way to push; and which ways are free of walls and boxes."
        )
        self.rules = f"{aim} {legend if self.settings['view'] == 'grid' else compass}"
        self._route: dict[SokobanState, str] = {}

    def new_game(self, rng: np.random.Generator) -> SokobanState:
        self._route = {}
        sample = _by_chance if self.settings["boxes"] == 1 else _by_pulling
        while True:
            state = sample(self.settings, rng)
            if state is not None:
                return state

    def is_suitable(self) -> bool:
        """Return True when the shortest solution is as long as the difficulty says."""
        shortest, longest = self.settings["moves"]
        path = solve(self.state.room, self.state.boxes, self.state.player)
        return path is not None and shortest <= len(path) <= longest

    def instance_key(self) -> str:
        """Return everything that makes the level, in a fixed order."""
        s = self.state
        return repr((s.room.width, sorted(s.room.walls), sorted(s.room.goals), self.anchor()))

    def describe(self) -> str:
        return _drawing(self.state) if self.settings["view"] == "grid" else _words(self.state)

    def turn(self, action: Action) -> Outcome:
        s = self.state
        after = _walked(s, str(action.arguments["direction"]))
        if after is None:
            return Outcome(
                text=f"blocked. {self.describe()}", invalid_action="That way is blocked."
            )
        self.state = after
        if after.boxes == after.room.goals:
            return Outcome(text="solved.", reward=1.0, terminated=True)
        if after.stuck:
            return Outcome(text="a box is stuck. lost.", terminated=True)
        return Outcome(text=self.describe())

    def score(self) -> float:
        return float(self.state.boxes == self.state.room.goals)

    def legal_actions(self) -> list[str]:
        """Return the ways that are open, pushes included."""
        return [self.say("go", direction=move) for move in _open_ways(self.state)]

    def anchor(self) -> str:
        return f"{self.state.player} {sorted(self.state.boxes)}"

    def reminder(self) -> str:
        return self.describe()

    def expert_action(self) -> str:
        """Return the first move of a shortest solution, or any move when there is none."""
        if self.state not in self._route:
            here: SokobanState | None = self.state
            for move in solve(self.state.room, self.state.boxes, self.state.player) or ():
                assert here is not None
                self._route[here] = move
                here = _walked(here, move)
        move = self._route.get(self.state, _open_ways(self.state)[0])
        return self.say("go", direction=move)


def _walked(state: SokobanState, move: str) -> SokobanState | None:
    """Return the state after one move, or None when the way is blocked."""
    step = state.room.moves[move]
    there, beyond = state.player + step, state.player + 2 * step
    if there in state.room.walls:
        return None
    if there not in state.boxes:
        return replace(state, player=there)
    if beyond in state.room.walls or beyond in state.boxes:
        return None
    boxes = state.boxes - {there} | {beyond}
    return replace(state, boxes=boxes, player=there, stuck=is_dead(state.room, beyond))


def _open_ways(state: SokobanState) -> list[str]:
    return [move for move in state.room.moves if _walked(state, move) is not None]


def _by_chance(settings: dict[str, Any], rng: np.random.Generator) -> SokobanState | None:
    """Return a level with one box at random places; None when it is plainly hopeless."""
    room = empty_room(settings["side"] + 2, settings["side"] + 2)
    goal, box, player = (int(cell) for cell in rng.choice(room.floor, size=3, replace=False))
    room = replace(room, goals=frozenset({goal}))
    return None if is_dead(room, box) else SokobanState(room, frozenset({box}), player)


def _by_pulling(settings: dict[str, Any], rng: np.random.Generator) -> SokobanState | None:
    """Return a level made by playing backwards; None when a box ended where it began."""
    side, boxes, walls = (int(settings[key]) for key in ("side", "boxes", "walls"))
    room = empty_room(side + 2, side + 2)
    places = [int(cell) for cell in rng.choice(room.floor, size=walls + boxes, replace=False)]
    room = replace(room, walls=room.walls | set(places[:walls]), goals=frozenset(places[walls:]))
    start = play_backwards(room, rng, pulls=int(rng.integers(3 * boxes, 9 * boxes)))
    if start is None or start[0] & room.goals:
        return None
    return SokobanState(room, *start)


def _words(state: SokobanState) -> str:
    """Return the next push or the way to where it starts, and the free ways; for one box.

    Of the pushes towards the goal the one with the nearest start counts.
    """
    (box,), (goal,), room = state.boxes, state.room.goals, state.room
    paths = walks(room, state.boxes, state.player)
    starts = {box - room.moves[way]: way for way in _ways(box, goal, room.width)}
    spot = min(starts, key=lambda cell: paths.get(cell, len(room.floor)))
    way = " ".join(_ways(state.player, spot, room.width))
    free = [way for way in _open_ways(state) if state.player + room.moves[way] != box]
    return f"{f'spot {way}' if way else f'push {starts[spot]}'}. free {' '.join(free)}."


def _ways(start: int, end: int, width: int) -> list[str]:
    """Return which ways ``end`` lies from ``start``: north or south, east or west."""
    south, east = end // width - start // width, end % width - start % width
    ways = {"north": south < 0, "south": south > 0, "east": east > 0, "west": east < 0}
    return [way for way, holds in ways.items() if holds]


def _drawing(state: SokobanState) -> str:
    room = state.room

    def sign(cell: int) -> str:
        if cell in room.walls:
            return "#"
        on_goal = cell in room.goals
        if cell == state.player:
            return "+" if on_goal else "@"
        if cell in state.boxes:
            return "*" if on_goal else "$"
        return "." if on_goal else " "

    rows = range(0, room.width * room.height, room.width)
    return "\n".join("".join(sign(row + column) for column in range(room.width)) for row in rows)
