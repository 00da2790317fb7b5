"""Experts for the TextWorld games: they read the facts and say the next command."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from turngym.environments.text.textworld_view import CARRIED, COOKED, CUT, Exit, WorldView
from turngym.errors import ConfigError

Keys = frozenset[str]

_END = ""
"""The room of the search in which every plan ends."""


def fetch(view: WorldView, thing: str) -> str | None:
    """Return the next command on a shortest way to holding ``thing``; None when it is held."""
    if view.holder(thing) == CARRIED:
        return None
    room = view.room_of(thing)
    return _search(view, lambda at, keys: _take(view, thing, keys) if at == room else None)


def go_to(view: WorldView, room: str) -> str | None:
    """Return the next command on a shortest way to ``room``, doors included; None when there."""
    if room == view.room:
        return None
    return _search(view, lambda at, keys: [] if at == room else None)


def cook(view: WorldView, *, cookbook: str, has_read: bool) -> str:
    """Return the next command of a cook who reads the recipe, prepares the meal and eats it."""
    if (meal := _the_meal(view)) is not None and view.holder(meal) == CARRIED:
        return f"eat {view.name(meal)}"
    if not has_read:
        return go_to(view, view.room_of(cookbook)) or f"examine {view.name(cookbook)}"
    for food, ingredient in sorted(view.facts["base"]):
        step = fetch(view, food) or _prepare(view, food, ingredient)
        if step is not None:
            return step
    ((kitchen, _),) = view.facts["cooking_location"]
    return go_to(view, kitchen) or "prepare meal"


def missing_preparation(view: WorldView) -> str | None:
    """Return what the ingredients still lack, or None when the meal can be prepared."""
    for food, ingredient in view.facts["base"]:
        if any(view.has(way, ingredient) != view.has(way, food) for way in COOKED):
            return "Something still needs to be cooked."
        if any(view.has(way, ingredient) != view.has(way, food) for way in CUT):
            return "Something still needs to be cut."
    return None


def _prepare(view: WorldView, food: str, ingredient: str) -> str | None:
    for way, verb in CUT.items():
        if view.has(way, ingredient) and not view.has(way, food):
            knife = min(thing for (thing,) in view.facts["sharp"])
            return fetch(view, knife) or f"{verb} {view.name(food)} with {view.name(knife)}"
    for way, kind in COOKED.items():
        if view.has(way, ingredient) and not view.has(way, food):
            heat = min(thing for thing, _ in view.facts["at"] if view.kind(thing) == kind)
            walk = go_to(view, view.room_of(heat))
            return walk or f"cook {view.name(food)} with {view.name(heat)}"
    return None


def _the_meal(view: WorldView) -> str | None:
    return next((meal for meal, _ in view.facts["out"]), None)


def _search(view: WorldView, finish: Callable[[str, Keys], list[str] | None]) -> str:
    """Return the first command of a cheapest plan; one command costs 1.

    Searches over rooms and keys in hand. Every command of a plan brings its end one command closer,
    so an expert who plans anew each turn never goes in circles.

    Args:
        view: The facts.
        finish: From (room, keys) to the last commands of the plan, or None where it cannot end.
    """
    keys = sorted({key for key, _ in view.facts["match"]})
    held = frozenset(key for key in keys if view.holder(key) == CARRIED)
    heap: list[tuple[int, int, str, Keys, str]] = [(0, 0, view.room, held, "")]
    settled: set[tuple[str, Keys]] = set()
    pushed = 0
    while heap:
        cost, _, room, held, first = heappop(heap)
        if room == _END:
            return first
        if (room, held) in settled:
            continue
        settled.add((room, held))
        options = [(way.room, held, _pass(view, way, held)) for way in view.exits(room)]
        options += [
            (room, held | {key}, _take(view, key, held))
            for key in keys
            if key not in held and view.room_of(key) == room
        ]
        options.append((_END, held, finish(room, held)))
        for there, holding, commands in options:
            if commands is not None:
                pushed += 1
                start = first or "".join(commands[:1])
                heappush(heap, (cost + len(commands), pushed, there, holding, start))
    raise ConfigError("textworld: the expert sees no way")


def _take(view: WorldView, thing: str, keys: Keys) -> list[str] | None:
    """Return the commands that take ``thing`` in its room, or None when a key is missing."""
    holder = view.holder(thing)
    if view.kind(holder) == "r":
        return [f"take {view.name(thing)}"]
    opened = _open(view, holder, keys)
    return (
        None if opened is None else [*opened, f"take {view.name(thing)} from {view.name(holder)}"]
    )


def _pass(view: WorldView, way: Exit, keys: Keys) -> list[str] | None:
    """Return the commands that lead through an exit, or None when a key is missing."""
    opened = [] if way.door is None else _open(view, way.door, keys)
    return None if opened is None else [*opened, f"go {way.direction}"]


def _open(view: WorldView, lid: str, keys: Keys) -> list[str] | None:
    """Return the commands that open a door or container, or None when its key is missing."""
    openness = view.openness(lid)
    if openness == "locked":
        fitting = sorted(key for key in keys if view.has("match", key, lid))
        if not fitting:
            return None
        return [f"unlock {view.name(lid)} with {view.name(fitting[0])}", f"open {view.name(lid)}"]
    return [f"open {view.name(lid)}"] if openness == "closed" else []
