"""Sokoban rooms, their shortest solutions, and levels made by playing backwards.

Cells are numbers ``row * width + column``; the edge is wall, so a step never leaves the room.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import count, permutations

import numpy as np

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


def empty_room(width: int, height: int, inner_walls: Iterable[int] = ()) -> Room:
    """Return a room of ``width`` times ``height`` cells, edge included, without goals."""
    edge = {
        row * width + column
        for row in range(height)
        for column in range(width)
        if row in (0, height - 1) or column in (0, width - 1)
    }
    return Room(width, height, frozenset(edge | set(inner_walls)), frozenset())


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
    """Return the number of moves from ``start`` to every cell that is reached without pushing."""
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
    """Return a lower bound of the pushes that are left; ``FAR`` or more when it is hopeless."""
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
