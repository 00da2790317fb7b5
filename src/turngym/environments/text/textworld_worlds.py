"""TextWorld games made in this process by TextWorld's own generators.

The same family, settings, seed and split give the same game on every machine. No game needs the
Inform 7 compiler: the logic engine plays them as they are generated.
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from turngym.errors import ConfigError
from turngym.seeding import derive_seed
from turngym.tasks.base import Split, split_of

Family = Literal["coin", "treasure", "cooking"]
Settings = tuple[tuple[str, Any], ...]
"""Sorted (name, value) pairs; hashable."""

DIRECTIONS = ("north", "east", "south", "west")

_MAX_SAMPLES = 1000
_GENERATOR = threading.Lock()


@functools.lru_cache(maxsize=256)
def make_game(family: Family, settings: Settings, seed: int, split: Split) -> Any:
    """Return the ``textworld.Game`` number ``seed`` of a family that belongs to ``split``.

    Two splits never share a problem: coin games differ by their map from the start,
    treasure games by their floor plan, cooking games by the preparations that a recipe asks for
    (TextWorld's own splits).

    Args:
        family: Which generator.
        settings: What that generator wants to know.
        seed: Any non-negative integer.
        split: ``"train"`` or ``"test"``.

    Raises:
        ConfigError: No game of that split was found in 1000 samples.
    """
    sample = _GENERATORS[family]
    with _shortcuts():
        for number in range(_MAX_SAMPLES):
            game = sample(dict(settings), derive_seed(seed, "game", number) % (1 << 32), split)
            if game is not None:
                # Conditions alone decide who has won. With actions TextWorld follows a winning
                # policy through every step, which is slow, and calls a game lost where it fails.
                for quest in game.quests:
                    for event in quest.win_events:
                        event.actions = ()
                return game
    raise ConfigError(f"textworld {family}: no game of split {split!r} in {_MAX_SAMPLES} samples")


def _coin(settings: Mapping[str, Any], seed: int, split: Split) -> Any:
    from textworld.challenges.tw_coin_collector import coin_collector

    options = _options(seed, coin_collector.KB_PATH)
    options.nb_rooms, options.quest_length = settings["rooms"], settings["quest_length"]
    options.grammar.allowed_variables_numbering = True
    game = coin_collector.make_game(settings["mode"], options)
    return game if split_of(_map_from_start(game)) == split else None


def _treasure(settings: Mapping[str, Any], seed: int, split: Split) -> Any:
    from textworld.challenges.tw_treasure_hunter import treasure_hunter
    from textworld.generator import QuestGenerationError

    options = _options(seed, treasure_hunter.KB_PATH)
    options.nb_rooms, options.quest_length = settings["rooms"], settings["quest_length"]
    if split_of(_floor_plan(options, settings["mode"])) != split:
        return None
    try:
        return treasure_hunter.make_game(settings["mode"], options)
    except QuestGenerationError:  # this map has no quest of that length
        return None


def _cooking(settings: Mapping[str, Any], seed: int, split: Split) -> Any:
    from textworld.challenges.tw_cooking import cooking

    return cooking.make({**settings, "split": split, "recipe_seed": 0}, _options(seed))


_GENERATORS: dict[Family, Callable[[Mapping[str, Any], int, Split], Any]] = {
    "coin": _coin,
    "treasure": _treasure,
    "cooking": _cooking,
}


def _options(seed: int, knowledge: str | None = None) -> Any:
    from textworld import GameOptions
    from textworld.generator.data import KnowledgeBase

    options = GameOptions()
    options.seeds = seed
    if knowledge is not None:
        options.kb = KnowledgeBase.load(knowledge)
    return options


@contextmanager
def _shortcuts() -> Iterator[None]:
    """Leave out two things that TextWorld does for every game and that cost most of the time.

    It parses its rules and grammars anew (0.2 to 0.7 s), and it compiles the game with Inform 7 to
    record a walkthrough (0.4 s) that is not read here. One game is made at a time.
    """
    from textworld import GameMaker
    from textworld.generator.data import KnowledgeBase

    with _GENERATOR, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns when it runs out of names and takes others
        load, record = KnowledgeBase.__dict__["load"], GameMaker.set_walkthrough
        KnowledgeBase.load = staticmethod(_loader())
        GameMaker.set_walkthrough = lambda self, commands: None
        try:
            yield
        finally:
            KnowledgeBase.load, GameMaker.set_walkthrough = load, record


@functools.cache
def _loader() -> Callable[..., Any]:
    from textworld.generator.data import KnowledgeBase

    return functools.cache(KnowledgeBase.load)


def _map_from_start(game: Any) -> str:
    """Return the rooms as numbered by a walk from the start, their exits, and the coin's room."""
    exits: dict[str, dict[str, str]] = {}
    places = {}
    for fact in game.world.facts:
        names = [argument.name for argument in fact.arguments]
        if fact.name.endswith("_of"):
            exits.setdefault(names[1], {})[fact.name.removesuffix("_of")] = names[0]
        elif fact.name == "at":
            places[names[0]] = names[1]
    start = places.pop("P")
    numbers, queue = {start: 0}, deque([start])
    plan = []
    while queue:
        room = queue.popleft()
        for direction in DIRECTIONS:
            there = exits.get(room, {}).get(direction)
            if there is not None and there not in numbers:
                numbers[there] = len(numbers)
                queue.append(there)
            plan.append(-1 if there is None else numbers[there])
    return repr((plan, [numbers[room] for room in places.values()]))


def _floor_plan(options: Any, mode: str) -> str:
    """Return the edges of the map that ``make_game`` will make first, shifted to the origin."""
    from textworld.generator import make_map

    doors = None if mode == "easy" else ["open"]
    plan = make_map(options.nb_rooms, rng=options.rngs["map"], possible_door_states=doors)
    left = min(x for x, _ in plan.nodes)
    top = min(y for _, y in plan.nodes)
    moved = [
        sorted([(x1 - left, y1 - top), (x2 - left, y2 - top)]) for (x1, y1), (x2, y2) in plan.edges
    ]
    return repr(sorted(moved))
