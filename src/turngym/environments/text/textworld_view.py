"""What the facts of a TextWorld game say: where things are, what is seen, which way leads where."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from turngym.environments.text.textworld_worlds import DIRECTIONS

CARRIED = "I"
"""TextWorld's id of the player's hands."""

COOKED = {"fried": "stove", "roasted": "oven", "grilled": "toaster"}
"""Way of cooking to the type of thing that does it."""
CUT = {"chopped": "chop", "sliced": "slice", "diced": "dice"}
"""Way of cutting to its verb."""

_OPENNESS = ("open", "closed", "locked")
_STATES = (*CUT, *COOKED, "burned")
_HOLDERS = ("in", "on", "at")


@dataclass(frozen=True, slots=True)
class Exit:
    """A way out of a room."""

    direction: str
    room: str
    door: str | None


class WorldView:
    """The facts of one moment, by predicate. Everything is addressed by TextWorld's ids.

    Args:
        game: The ``textworld.Game``, for names.
        facts: Its propositions now.
    """

    def __init__(self, game: Any, facts: Iterable[Any]) -> None:
        self._infos = game.infos
        self.facts: dict[str, set[tuple[str, ...]]] = defaultdict(set)
        for fact in facts:
            self.facts[fact.name].add(tuple(argument.name for argument in fact.arguments))
        self.room = self.holder("P")
        self._exits: dict[str, list[Exit]] = {}
        self._find_exits()

    def _find_exits(self) -> None:
        doors = {(here, there): door for here, door, there in self.facts["link"]}
        found = defaultdict(list)
        for direction in DIRECTIONS:
            for there, here in sorted(self.facts[f"{direction}_of"]):
                found[here].append(Exit(direction, there, doors.get((here, there))))
        self._exits = dict(found)

    def name(self, thing: str) -> str:
        """Return the name that the game shows."""
        return str(self._infos[thing].name)

    def kind(self, thing: str) -> str:
        """Return TextWorld's type, for example ``"f"`` for food."""
        return str(self._infos[thing].type)

    def has(self, predicate: str, *things: str) -> bool:
        """Return True when the fact holds."""
        return things in self.facts[predicate]

    def holder(self, thing: str) -> str:
        """Return what holds ``thing``: a room, a container, a supporter or the player's hands."""
        for relation in _HOLDERS:
            for inner, outer in self.facts[relation]:
                if inner == thing:
                    return outer
        return ""

    def room_of(self, thing: str) -> str:
        """Return the room in which ``thing`` is."""
        holder = thing
        while holder and self.kind(holder) != "r":
            holder = self.room if holder == CARRIED else self.holder(holder)
        return holder

    def exits(self, room: str) -> list[Exit]:
        """Return the ways out of ``room``, from north clockwise."""
        return self._exits.get(room, [])

    def openness(self, thing: str) -> str:
        """Return open, closed or locked, or "" for what has no lid."""
        return next((state for state in _OPENNESS if self.has(state, thing)), "")

    def describe(self) -> str:
        """Return what the player sees: the room, its things, its exits, and what is carried."""
        lines = [f"You are in the {self.name(self.room)}."]
        if seen := [self._place(thing) for thing in self._held("at", self.room)]:
            lines.append(f"You see: {'; '.join(seen)}.")
        ways = [self._way(way) for way in self.exits(self.room)]
        lines.append(f"Exits: {', '.join(ways) or 'none'}.")
        carried = [self._thing(thing) for thing in self._held("in", CARRIED)]
        lines.append(f"You carry: {', '.join(carried) or 'nothing'}.")
        return "\n".join(lines)

    def _held(self, relation: str, holder: str) -> list[str]:
        held = [thing for thing, outer in self.facts[relation] if outer == holder and thing != "P"]
        return sorted(held, key=lambda thing: (self.name(thing), thing))

    def _thing(self, thing: str) -> str:
        states = [state for state in _STATES if self.has(state, thing)]
        return self.name(thing) + (f" ({' '.join(states)})" if states else "")

    def _place(self, thing: str) -> str:
        openness = self.openness(thing)
        text = self._thing(thing) + (f" ({openness})" if openness else "")
        if openness in ("closed", "locked"):
            return text
        inside = [self._thing(held) for held in self._held("in", thing)]
        inside += [self._thing(held) for held in self._held("on", thing)]
        if inside:
            return f"{text} with {', '.join(inside)}"
        return text

    def _way(self, way: Exit) -> str:
        if way.door is None:
            return way.direction
        return f"{way.direction} ({self.openness(way.door)} {self.name(way.door)})"
