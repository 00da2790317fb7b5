"""Sokoban: push every box onto a goal.

Cells are numbers ``row * width + column``; the edge is wall, so a step never leaves the room.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count, permutations
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from turngym.environments.core.actions import Action, Commands
from turngym.environments.core.env import Outcome
from turngym.environments.text.base import LOOK, Colour, GridGame

Boxes = frozenset[int]
Node = tuple[Boxes, int]
"""Where the boxes and the player are."""

FAR = 1_000_000
"""Pushes to a goal that cannot be reached."""


@dataclass(frozen=True)
class Room:
    """What does not move: walls and goals in a grid of ``width`` columns."""

    width: int
    height: int
    walls: frozenset[int]
    goals: frozenset[int]

    @property
    def moves(self) -> dict[str, int]:
        """Return what each direction adds to a cell."""
        return {"north": -self.width, "east": 1, "south": self.width, "west": -1}

    @property
    def floor(self) -> list[int]:
        """Return the cells that are not wall."""
        return [cell for cell in range(self.width * self.height) if cell not in self.walls]


def empty_room(width: int, height: int) -> Room:
    """Return a room of ``width`` × ``height`` cells with an edge and no goals."""
    edge = {
        row * width + column
        for row in range(height)
        for column in range(width)
        if row in (0, height - 1) or column in (0, width - 1)
    }
    return Room(width, height, frozenset(edge), frozenset())


@lru_cache(maxsize=512)
def push_distances(room: Room) -> dict[int, dict[int, int]]:
    """Return for each goal the least pushes from each cell to it, other boxes left aside.

    Cells that are missing for every goal are dead: a box there never reaches a goal.
    """
    return {goal: _pushes_to(room, goal) for goal in sorted(room.goals)}


def is_dead(room: Room, cell: int) -> bool:
    """Return True when a box on ``cell`` can never reach a goal."""
    return all(cell not in table for table in push_distances(room).values())


def walks(room: Room, boxes: Boxes, start: int) -> dict[int, int]:
    """Return the moves from ``start`` to every cell that is reached without pushing ``boxes``."""
    found, blocked, steps = {start: 0}, room.walls | boxes, tuple(room.moves.values())
    queue = deque([start])
    while queue:
        cell = queue.popleft()
        for step in steps:
            there = cell + step
            if there not in found and there not in blocked:
                found[there] = found[cell] + 1
                queue.append(there)
    return found


@lru_cache(maxsize=4096)
def solve(
    room: Room, boxes: Boxes, player: int, *, max_nodes: int = 20_000
) -> tuple[str, ...] | None:
    """Return a shortest solution in moves, or None when none was found.

    A* over pushes: a node is where the boxes and, after a push, the player are; the bound is the
    least number of pushes of an assignment of boxes to goals.

    Args:
        room: Walls and goals.
        boxes: Where the boxes stand.
        player: Where the player stands.
        max_nodes: Nodes after which the search gives up.
    """
    start, order = (boxes, player), count()
    queue: list[tuple[int, int, int, Node]] = [(0, next(order), 0, start)]
    costs, parents = {start: 0}, {start: start}
    for _ in range(max_nodes):
        if not queue:
            return None
        _, _, cost, node = heapq.heappop(queue)
        if node[0] == room.goals:
            return _moves(room, parents, node)
        if cost > costs[node]:
            continue
        for after, moves in _pushes(room, *node):
            spent = cost + moves
            if spent < costs.get(after, FAR) and (bound := least_pushes(room, after[0])) < FAR:
                costs[after], parents[after] = spent, node
                heapq.heappush(queue, (spent + bound, next(order), spent, after))
    return None


@lru_cache(maxsize=65_536)
def least_pushes(room: Room, boxes: Boxes) -> int:
    """Return a lower bound of pushes left for ``boxes``; ``FAR`` or more when it is hopeless."""
    tables = push_distances(room).values()
    pushes = [[table.get(box, FAR) for table in tables] for box in boxes]
    return min(
        sum([row[goal] for row, goal in zip(pushes, chosen, strict=True)])
        for chosen in permutations(range(len(pushes)))
    )


def play_backwards(room: Room, rng: np.random.Generator, *, pulls: int) -> tuple[Boxes, int] | None:
    """Return boxes and player after pulling boxes off the goals at random, so it can be solved.

    Args:
        room: With as many goals as boxes.
        rng: Chooses the pulls.
        pulls: How many; None is returned when nothing could be pulled any more.
    """
    boxes = room.goals
    free = [cell for cell in room.floor if cell not in boxes]
    player = free[int(rng.integers(len(free)))]
    for _ in range(pulls):
        reached = walks(room, boxes, player)
        options = [
            (box, step)
            for box in sorted(boxes)
            for step in room.moves.values()
            if box + step in reached and box + 2 * step not in boxes | room.walls
        ]
        if not options:
            return None
        box, step = options[int(rng.integers(len(options)))]
        boxes, player = boxes - {box} | {box + step}, box + 2 * step
    return boxes, player


def _pushes_to(room: Room, goal: int) -> dict[int, int]:
    """Return the least pushes to ``goal``, found by pulling a lone box away from it."""
    found = {goal: 0}
    queue = deque([goal])
    while queue:
        cell = queue.popleft()
        for step in room.moves.values():
            there = cell + step
            if there in found or there in room.walls or there + step in room.walls:
                continue
            found[there] = found[cell] + 1
            queue.append(there)
    return found


def _pushes(room: Room, boxes: Boxes, player: int) -> Iterable[tuple[Node, int]]:
    """Yield boxes and player after each possible push, and the moves up to it."""
    reached = walks(room, boxes, player)
    blocked = room.walls | boxes
    for box in boxes:
        for step in room.moves.values():
            if box - step in reached and box + step not in blocked:
                yield (boxes - {box} | {box + step}, box), reached[box - step] + 1


def _moves(room: Room, parents: dict[Node, Node], node: Node) -> tuple[str, ...]:
    """Return the moves of a chain of pushes that ends in ``node``."""
    moves: list[str] = []
    while parents[node] != node:
        boxes, player = parents[node]
        (pushed,) = node[0] - boxes
        step = pushed - node[1]
        moves = [*_walk(room, boxes, player, node[1] - step), _name(room, step), *moves]
        node = parents[node]
    return tuple(moves)


def _walk(room: Room, boxes: Boxes, start: int, end: int) -> list[str]:
    """Return the moves of a shortest walk, found from its end."""
    reached = walks(room, boxes, start)
    moves: list[str] = []
    while end != start:
        step = next(s for s in room.moves.values() if reached.get(end - s) == reached[end] - 1)
        moves.append(_name(room, step))
        end -= step
    return moves[::-1]


def _name(room: Room, step: int) -> str:
    return next(name for name, added in room.moves.items() if added == step)


# The game.


@dataclass(frozen=True)
class SokobanState:
    """A room with boxes and the player."""

    room: Room
    boxes: Boxes
    player: int
    stuck: bool = False
    """A box stands where it can never reach a goal."""


_AIM = "Push every box onto a goal. You cannot pull. A box that is stuck loses the game."


class SokobanEnv(GridGame):
    """Push all boxes onto goals; boxes cannot be pulled.

    Action: ``go north|east|south|west``; walking against a box pushes it.
    Observation: easy: which way the nearest spot lies from which to push the box towards the goal,
    or on the spot the push, and which ways are free. Medium and hard: a drawing of the room.
    Reward: 1 when every box stands on a goal, else 0.
    Start: a random level that can be solved well within the registered turn limit.
    End: terminated when solved, and with reward 0 when a box stands on a cell from which no
    pushes lead to a goal. Other deadlocks run on to the turn limit.
    """

    painted = (
        f"{_AIM} In the picture walls are dark, you are blue, boxes brown, goals yellow, a box on "
        "a goal is green, you on one violet. North is up."
    )
    colours: ClassVar[dict[str, Colour]] = {
        "#": (40, 40, 40), " ": (240, 240, 240), "@": (30, 90, 220), "$": (160, 100, 40),
        ".": (240, 200, 40), "*": (90, 170, 60), "+": (120, 60, 200),
    }  # fmt: skip
    """Of the signs of a drawing, in pictures."""

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
        legend = "# wall, @ you, $ box, . goal, * box on goal, + you on goal."
        compass = (
            "You are told which way the nearest spot lies from which the box must be pushed, or, "
            "on the spot, which way to push; and which ways are free of walls and boxes."
        )
        if not self.shows_picture:
            self.rules = f"{_AIM} {legend if self.settings['view'] == 'grid' else compass}"
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
        return repr((s.room.width, sorted(s.room.walls), sorted(s.room.goals), self.state_key()))

    def describe(self) -> str:
        if self.shows_picture:
            return LOOK
        return _drawing(self.state) if self.settings["view"] == "grid" else _words(self.state)

    reminder = describe

    def cells_shape(self) -> tuple[int, int]:
        """Return the size of the room, its edge included."""
        return (self.settings["side"] + 2,) * 2

    def cells(self) -> NDArray[np.uint8]:
        """Return the drawing in colours."""
        rows = _drawing(self.state).split("\n")
        return np.array([[self.colours[sign] for sign in row] for row in rows], dtype=np.uint8)

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
        return [self.say("go", direction=move) for move in _open_ways(self.state)]

    def state_key(self) -> str:
        return f"{self.state.player} {sorted(self.state.boxes)}"

    def expert_action(self) -> str:
        """Return the first move of a shortest solution, or any move when there is none."""
        if self.state not in self._route:
            here = self.state
            for move in solve(here.room, here.boxes, here.player) or ():
                self._route[here] = move
                here = _walked(here, move) or here
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
