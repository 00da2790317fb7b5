"""TextWorld: collect a coin, hunt a treasure, cook a meal, in worlds that its generators make.

TextWorld's own logic engine carries out the actions; what is seen is put into words from its facts,
shorter than the prose of its compiled games. Nothing is compiled and nothing is kept on disk.

Source: Côté et al. 2018, arXiv:1806.11532; the cooking game is that of "First TextWorld Problems".
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, ClassVar

from turngym.environments.core.actions import Commands
from turngym.environments.core.env import Outcome, SnapshotKind
from turngym.environments.text.base import EngineGame
from turngym.environments.text.textworld_worlds import DIRECTIONS, Family, make_game
from turngym.errors import ConfigError
from turngym.tasks.base import Task

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
        doors = {(here, there): door for here, door, there in self.facts["link"]}
        self._exits: dict[str, list[Exit]] = {}
        for direction in DIRECTIONS:
            for there, here in sorted(self.facts[f"{direction}_of"]):
                place = Exit(direction, there, doors.get((here, there)))
                self._exits.setdefault(here, []).append(place)

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
        inside = [self._thing(held) for way in ("in", "on") for held in self._held(way, thing)]
        return f"{text} with {', '.join(inside)}" if inside else text

    def _way(self, way: Exit) -> str:
        if way.door is None:
            return way.direction
        return f"{way.direction} ({self.openness(way.door)} {self.name(way.door)})"


# The environment.


_WALK = {
    "go": "go {direction:north|east|south|west}", "look": "look", "inventory": "inventory",
    "examine": "examine {thing...}",
}  # fmt: skip
_HANDLE = {
    "take_from": "take {thing...} from {place...}", "take": "take {thing...}",
    "drop": "drop {thing...}", "put": "put {thing...} on {place...}",
    "insert": "insert {thing...} into {place...}", "open": "open {thing...}",
    "close": "close {thing...}", "eat": "eat {thing...}",
}  # fmt: skip
_LOCKS = {"unlock": "unlock {thing...} with {key...}", "lock": "lock {thing...} with {key...}"}
_KITCHEN = {
    "cook": "cook {food...} with {thing...}", "chop": "chop {food...} with {thing...}",
    "slice": "slice {food...} with {thing...}", "dice": "dice {food...} with {thing...}",
    "drink": "drink {thing...}", "prepare": "prepare meal",
}  # fmt: skip


@dataclass
class GameState:
    """Where an episode stands."""

    progression: Any
    """``textworld.generator.game.GameProgression``: facts, and which quests are done."""
    has_read: bool = False
    """True when the cookbook was read."""

    def copy(self) -> GameState:
        """Return a copy that shares only the game, which never changes."""
        return GameState(self.progression.copy(), self.has_read)


class TextWorldEnv(EngineGame):
    """A house in words.

    Action: the commands of the game, for example ``go north`` or ``take coin``.
    Observation: the room, its things, its exits, and what is carried.
    Reward: the game's own points as a share of all its points; 1 in all when it is won.
    Start: a world that TextWorld generates from the task's seed.
    End: terminated when the game is won or lost; the registered turn limit truncates.
    """

    snapshot_kind: ClassVar[SnapshotKind] = "exact"
    extra = "textworld"
    modules = ("textworld",)
    family: ClassVar[Family]

    game: Any
    state: GameState
    view: WorldView
    _possible: dict[str, int]

    def start(self, task: Task) -> str:
        from textworld.generator.game import GameProgression

        settings = tuple(sorted(self.settings.items()))
        self.game = make_game(self.family, settings, task.seed, task.split)
        self.state = GameState(GameProgression(self.game))
        self._look_around()
        return f"{self.objective()}\n{self.view.describe()}"

    @abstractmethod
    def objective(self) -> str:
        """Return the task in one or two sentences."""

    def play(self, command: str) -> Outcome:
        progression, before = self.state.progression, self.score()
        progression.update(progression.valid_actions[self._possible[command]])
        self._look_around()
        said = self.feedback(command)
        if progression.completed:
            said += "\nYou won."
        elif progression.failed:
            said += "\nYou lost."
        return Outcome(
            text=f"{said}\n{self.view.describe()}",
            reward=self.score() - before,
            terminated=bool(progression.done),
        )

    def feedback(self, command: str) -> str:
        """Return what is said about the command itself."""
        verb, _, thing = command.partition(" ")
        if verb == "examine":
            return f"You see nothing special about {thing}."
        return "" if verb in ("look", "inventory") else f"You {command}."

    def score(self) -> float:
        progression = self.state.progression
        if progression.completed:
            return 1.0
        points = sum(quest.reward for quest in self.game.quests)
        return float(min(progression.score / points, 1.0)) if points else 0.0

    def possible_commands(self) -> dict[str, str]:
        return {command: command for command in self._possible}

    def state_key(self) -> str:
        facts = sorted(map(str, self.state.progression.state.facts))
        return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]

    def get_state(self) -> GameState:
        return self.state.copy()

    def set_state(self, state: GameState) -> None:
        self.state = state.copy()
        self.game = self.state.progression.game
        self._look_around()

    def _look_around(self) -> None:
        """Read facts and possible actions after a change."""
        progression = self.state.progression
        self.view = WorldView(self.game, progression.state.facts)
        named = [
            (self._command_of(action), action.name, number)
            for number, action in enumerate(progression.valid_actions)
        ]
        self._possible = {}
        for command, _, number in sorted(named):
            if self.is_allowed(command):
                self._possible.setdefault(command, number)

    def is_allowed(self, command: str) -> bool:
        """Return False for what TextWorld's logic admits and its compiled games refuse."""
        return True

    def _command_of(self, action: Any) -> str:
        names = {
            variable.name: self.game.infos[variable.name].name for variable in action.variables
        }
        return str(action.format_command(names)).lower()


class CoinEnv(TextWorldEnv):
    """Find the one coin in a chain of rooms with dead ends."""

    name = "twcoin"
    family = "coin"
    rules = "You are in a house of many rooms. Find the coin and take it."
    commands = Commands({**_WALK, "take": "take {thing...}", "drop": "drop {thing...}"})
    difficulties: ClassVar[dict[str, dict[str, Any]]] = {
        "easy": {"rooms": 6, "quest_length": 4, "mode": "simple"},
        "medium": {"rooms": 12, "quest_length": 6, "mode": "simple"},
        "hard": {"rooms": 30, "quest_length": 10, "mode": "random"},
    }

    def objective(self) -> str:
        return "Find the coin and take it."

    def expert_command(self) -> str:
        return fetch(self.view, "o_0") or "look"


class TreasureEnv(TextWorldEnv):
    """Find one named thing; taking the wrong one loses."""

    name = "twtreasure"
    family = "treasure"
    rules = (
        "You are in a house. Find the thing you are asked for and take it. "
        "Things may be in closed or locked places. Another thing is a trap: taking it loses."
    )
    commands = Commands({**_WALK, **_HANDLE, **_LOCKS})
    difficulties: ClassVar[dict[str, dict[str, Any]]] = {
        "easy": {"rooms": 6, "quest_length": 4, "mode": "easy"},
        "medium": {"rooms": 8, "quest_length": 5, "mode": "medium"},
        "hard": {"rooms": 10, "quest_length": 7, "mode": "hard"},
    }

    def objective(self) -> str:
        return f"Find and take: {self.view.name(self._treasure())}."

    def expert_command(self) -> str:
        return fetch(self.view, self._treasure()) or "look"

    def _treasure(self) -> str:
        (event,) = self.game.quests[0].win_events
        wanted = [fact for fact in event.condition.preconditions if fact.name == "in"]
        return str(wanted[0].arguments[0].name)


class CookingEnv(TextWorldEnv):
    """Read a recipe, fetch and prepare its ingredients, cook the meal and eat it."""

    name = "twcooking"
    family = "cooking"
    rules = (
        "You are hungry. Read the cookbook in the kitchen, gather the ingredients, cut them with "
        "a knife and cook them as the recipe says (fry: stove, roast: oven, grill: BBQ), then "
        "prepare the meal in the kitchen and eat it. Wrong cuts, burnt or eaten ingredients lose."
    )
    commands = Commands({**_WALK, **_HANDLE, **_KITCHEN})
    # Always with "cook": without it the two recipe splits share five raw ingredients.
    difficulties: ClassVar[dict[str, dict[str, Any]]] = {
        "easy": {"recipe": 1, "take": 1, "cook": True},
        "medium": {"recipe": 2, "take": 2, "cook": True, "cut": True, "open": True},
        "hard": {"recipe": 3, "take": 3, "cook": True, "cut": True, "open": True, "go": 6},
    }

    def objective(self) -> str:
        return "Cook the meal of the cookbook's recipe and eat it."

    def feedback(self, command: str) -> str:
        """Return the recipe for one who examines the cookbook."""
        if command == "examine cookbook":
            self.state.has_read = True
            lines = [line.strip() for line in self.game.metadata["recipe"].splitlines()]
            return "\n".join(line for line in lines if line)
        return super().feedback(command)

    def is_allowed(self, command: str) -> bool:
        """Refuse to prepare the meal too early, as the compiled game does."""
        return command != "prepare meal" or missing_preparation(self.view) is None

    def refusal(self, command: str) -> str:
        lacking = missing_preparation(self.view) if command == "prepare meal" else None
        return lacking or super().refusal(command)

    def expert_command(self) -> str:
        cookbook = next(k for k, info in self.game.infos.items() if info.name == "cookbook")
        return cook(self.view, cookbook=cookbook, has_read=self.state.has_read)


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
    """Return the next command of a cook who reads the cookbook, prepares the meal and eats it."""
    meal = next((meal for meal, _ in view.facts["out"]), None)
    if meal is not None and view.holder(meal) == CARRIED:
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
        for ways, verb in ((COOKED, "cooked"), (CUT, "cut")):
            if any(view.has(way, ingredient) != view.has(way, food) for way in ways):
                return f"Something still needs to be {verb}."
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
