"""Household problems in PDDL: a furnished room, things in it, and one thing to do.

The domain is ALFWorld's; its official games cannot be had offline, so rooms, things and goals are
sampled here. Every list has a fixed order, so a seed gives the same text on every machine.

Source: the six kinds of task are those of Shridhar et al. 2021, arXiv:2010.03768, section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from turngym.errors import ConfigError

Kind = Literal["put", "clean", "heat", "cool", "look", "two"]

_OPENABLE = {"cabinet", "drawer", "fridge", "microwave", "safe"}
_LAMPS = ("desklamp", "floorlamp")

_PLACES: dict[str, dict[str, int]] = {
    "kitchen": {
        "countertop": 3, "fridge": 1, "microwave": 1, "sinkbasin": 1, "cabinet": 4,
        "diningtable": 1, "drawer": 3, "shelf": 2, "garbagecan": 1, "stoveburner": 2,
    },
    "bathroom": {
        "countertop": 1, "sinkbasin": 1, "cabinet": 4, "toilet": 1, "shelf": 3, "drawer": 3,
        "garbagecan": 1, "bathtub": 1,
    },
    "bedroom": {
        "desk": 1, "bed": 1, "drawer": 4, "shelf": 3, "sidetable": 2, "dresser": 1,
        "garbagecan": 1, "safe": 1,
    },
    "livingroom": {
        "sidetable": 2, "sofa": 1, "coffeetable": 1, "tvstand": 1, "armchair": 2, "drawer": 3,
        "cabinet": 2, "shelf": 2, "garbagecan": 1,
    },
}  # fmt: skip
"""Room to its furniture in the order of need, with the most there are of each."""

_SURFACES = "countertop diningtable desk sidetable coffeetable shelf"
_STORAGE = "cabinet drawer dresser"

_THINGS: dict[str, dict[str, str]] = {
    "kitchen": {
        **dict.fromkeys(
            ("apple", "bread", "egg", "potato", "tomato"),
            f"{_SURFACES} fridge microwave sinkbasin garbagecan",
        ),
        "lettuce": f"{_SURFACES} fridge sinkbasin garbagecan",
        **dict.fromkeys(
            ("bowl", "cup", "mug", "plate"), f"{_SURFACES} cabinet fridge microwave sinkbasin"
        ),
        **dict.fromkeys(("fork", "knife", "spoon", "spatula"), f"{_SURFACES} drawer sinkbasin"),
        **dict.fromkeys(("pan", "pot"), f"{_SURFACES} cabinet stoveburner sinkbasin fridge"),
        "saltshaker": f"{_SURFACES} {_STORAGE}",
    },
    "bathroom": {
        **dict.fromkeys(("cloth", "soapbar"), f"{_SURFACES} {_STORAGE} sinkbasin bathtub toilet"),
        **dict.fromkeys(
            ("candle", "soapbottle", "spraybottle", "toiletpaper"),
            f"{_SURFACES} {_STORAGE} toilet garbagecan",
        ),
    },
    "bedroom": {
        **dict.fromkeys(
            ("book", "cd", "cellphone", "creditcard", "keychain", "pencil", "pen", "watch"),
            f"{_SURFACES} {_STORAGE} bed safe garbagecan",
        ),
        "pillow": "bed",
        "desklamp": f"{_SURFACES} dresser",
    },
    "livingroom": {
        **dict.fromkeys(
            (
                *("book", "box", "creditcard", "keychain", "laptop"),
                *("newspaper", "remotecontrol", "vase"),
            ),
            f"{_SURFACES} {_STORAGE} sofa armchair tvstand garbagecan",
        ),
        "floorlamp": f"{_SURFACES} tvstand",
    },
}
"""Room to its things and the furniture that each of them fits."""

_FOOD = {"apple", "bread", "egg", "lettuce", "potato", "tomato"}
_DISHES = {"bowl", "cup", "mug", "plate"}
_CAN_BE = {
    "heat": (_FOOD - {"lettuce"}) | _DISHES,
    "cool": _FOOD | _DISHES | {"pan", "pot"},
    "clean": (_FOOD - {"bread"})
    | _DISHES
    | {"cloth", "fork", "knife", "pan", "pot", "soapbar"}
    | {"spatula", "spoon"},
}
_ROOMS_OF: dict[Kind, tuple[str, ...]] = {
    "put": ("kitchen", "bathroom", "bedroom", "livingroom"), "clean": ("kitchen", "bathroom"),
    "heat": ("kitchen",), "cool": ("kitchen",), "look": ("bedroom", "livingroom"),
    "two": ("kitchen", "bathroom", "bedroom", "livingroom"),
}  # fmt: skip
_IS = {"heat": ("heatable", "ishot", "hot"), "cool": ("coolable", "iscool", "cool")} | {
    "clean": ("cleanable", "isclean", "clean")
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One household problem."""

    kind: Kind
    goal: str
    """The task in words, for example ``"put a hot potato in diningtable"``."""
    pddl: str
    """The PDDL problem; two problems are the same exactly when this text is the same."""


def sample_problem(
    rng: np.random.Generator, *, kinds: Sequence[Kind], places: int, things: int
) -> Problem:
    """Return a random problem that can be solved and is not solved yet.

    Args:
        rng: Where the chances come from.
        kinds: Kinds of task to sample from.
        places: Number of pieces of furniture, at least 5.
        things: Number of things, at least 3.

    Raises:
        ConfigError: None was found.
    """
    for _ in range(1000):
        kind: Kind = kinds[int(rng.integers(len(kinds)))]
        room = _pick(rng, _ROOMS_OF[kind])
        needed = {"heat": "microwave", "cool": "fridge", "clean": "sinkbasin"}.get(kind)
        stock = [f"{name}_{n + 1}" for name, most in _PLACES[room].items() for n in range(most)]
        first = [place for place in stock if place == f"{needed}_1"]
        rest = [place for place in stock if place not in first]
        chosen = first + [rest[i] for i in rng.permutation(len(rest))[: places - len(first)]]
        furniture = _numbered([_type(name) for name in sorted(chosen)])
        wanted = _wanted(rng, room, kind, furniture)
        if wanted is not None:
            return _stock(rng, room, kind, furniture, wanted, things)
    raise ConfigError(f"household: no problem of kinds {list(kinds)} with {places} places")


def _wanted(
    rng: np.random.Generator, room: str, kind: Kind, furniture: Sequence[str]
) -> tuple[str, str] | None:
    """Return what the task is about: the thing's type, and the furniture's type or the lamp's."""
    movable = [
        thing
        for thing in sorted(_THINGS[room])
        if thing not in _LAMPS and _fitting(room, thing, furniture)
    ]
    if kind == "look":
        lamp = next(thing for thing in _LAMPS if thing in _THINGS[room])
        return (_pick(rng, movable), lamp) if movable and _fitting(room, lamp, furniture) else None
    pairs = [
        (thing, target)
        for thing in movable
        if thing in _CAN_BE.get(kind, movable)
        for target in sorted({_type(place) for place in _fitting(room, thing, furniture)})
        if any(_type(place) != target for place in _fitting(room, thing, furniture))
    ]
    return pairs[int(rng.integers(len(pairs)))] if pairs else None


def _stock(
    rng: np.random.Generator,
    room: str,
    kind: Kind,
    furniture: list[str],
    wanted: tuple[str, str],
    things: int,
) -> Problem:
    """Put the wanted things and others into the room; none is where the task wants it."""
    thing, target = wanted
    names = [thing, thing] if kind == "two" else [thing]
    if kind == "look":
        names.append(target)
    others = [name for name in sorted(_THINGS[room]) if name not in _LAMPS]
    names += [_pick(rng, others) for _ in range(things - len(names))]
    where: dict[str, str] = {}
    for name in _numbered(names):
        fitting = _fitting(room, _type(name), furniture)
        if _type(name) == thing and kind != "look":
            fitting = [place for place in fitting if _type(place) != target]
        if fitting:
            where[name] = _pick(rng, fitting)
    return Problem(
        kind=kind,
        goal=_goal_text(kind, thing, target),
        pddl=_pddl(room, furniture, where, _goal_pddl(kind, thing, target)),
    )


def _pddl(room: str, furniture: list[str], where: dict[str, str], goal: str) -> str:
    things = sorted(where)
    place_types = sorted({*map(_type, furniture), "fridge", "microwave", "sinkbasin"})
    thing_types = sorted({*map(_type, things), "knife", "butterknife"})
    objects = ["agent_1 - agent", "loc_0 - location"]
    objects += [f"loc_{n + 1} - location" for n in range(len(furniture))]
    objects += [f"{place} - receptacle" for place in furniture]
    objects += [f"{thing} - object" for thing in things]
    objects += [f"{name}type - rtype" for name in place_types]
    objects += [f"{name}type - otype" for name in thing_types]
    init = ["(atlocation agent_1 loc_0)"]
    for number, place in enumerate(furniture, start=1):
        init += _place_facts(place, f"loc_{number}")
    for thing in things:
        init += _thing_facts(thing, where[thing], f"loc_{furniture.index(where[thing]) + 1}")
    for name in sorted({_type(thing) for thing in things}):
        fits = _THINGS[room][name].split()
        init += [f"(cancontain {p}type {name}type)" for p in place_types if p in fits]
    lines = ["(define (problem household)", "(:domain alfred)", "(:objects", *objects, ")"]
    return "\n".join([*lines, "(:init", *init, ")", f"(:goal {goal})", ")"])


def _place_facts(place: str, location: str) -> list[str]:
    facts = [
        f"(receptacleatlocation {place} {location})",
        f"(receptacletype {place} {_type(place)}type)",
    ]
    return [*facts, f"(openable {place})"] if _type(place) in _OPENABLE else facts


def _thing_facts(thing: str, place: str, location: str) -> list[str]:
    name = _type(thing)
    facts = [
        f"(objecttype {thing} {name}type)",
        f"(inreceptacle {thing} {place})",
        f"(objectatlocation {thing} {location})",
        f"(toggleable {thing})" if name in _LAMPS else f"(pickupable {thing})",
    ]
    facts += [f"({_IS[kind][0]} {thing})" for kind in sorted(_IS) if name in _CAN_BE[kind]]
    return facts


def _goal_pddl(kind: Kind, thing: str, target: str) -> str:
    if kind == "look":
        return (
            "(and (exists (?a - agent ?l - location ?r - receptacle ?t - object) (and"
            f" (objecttype ?t {target}type) (istoggled ?t) (inreceptacle ?t ?r)"
            " (receptacleatlocation ?r ?l) (atlocation ?a ?l)))"
            f" (exists (?a - agent ?o - object) (and (objecttype ?o {thing}type) (holds ?a ?o))))"
        )
    there = "(inreceptacle {o} ?r) (objecttype {o} " + f"{thing}type)"
    place = f"(receptacletype ?r {target}type)"
    if kind == "two":
        return (
            "(exists (?r - receptacle ?o - object ?p - object) (and (not (= ?o ?p))"
            f" {place} {there.format(o='?o')} {there.format(o='?p')}))"
        )
    state = f" ({_IS[kind][1]} ?o)" if kind in _IS else ""
    return f"(exists (?r - receptacle ?o - object) (and {place} {there.format(o='?o')}{state}))"


def _goal_text(kind: Kind, thing: str, target: str) -> str:
    if kind == "look":
        return f"look at {thing} under the {target}"
    if kind == "two":
        return f"put two {thing} in {target}"
    state = f"{_IS[kind][2]} " if kind in _IS else ""
    return f"put a {state}{thing} in {target}"


def _fitting(room: str, thing: str, furniture: Sequence[str]) -> list[str]:
    fits = _THINGS[room][thing].split()
    return [place for place in furniture if _type(place) in fits]


def _numbered(names: Sequence[str]) -> list[str]:
    return [f"{name}_{names[: i + 1].count(name)}" for i, name in enumerate(names)]


def _type(name: str) -> str:
    return name.rpartition("_")[0] or name


def _pick(rng: np.random.Generator, options: Sequence[str]) -> str:
    return options[int(rng.integers(len(options)))]
