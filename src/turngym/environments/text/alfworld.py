"""Household tasks on ALFWorld's engine: find, clean, heat, cool, look at and put things.

The engine is ALFWorld's PDDL domain and its sentences, played by TextWorld over Fast Downward. Two
things about Fast Downward's library decide the shape of this module. It keeps one state per loaded
copy, so every environment needs a copy of its own. And a copy that was unloaded makes the process
crash when it ends (seen with 20.6.4), so copies are never unloaded but lent again.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np

from turngym.environments.core.actions import Commands
from turngym.environments.core.env import Outcome
from turngym.environments.text.alfworld_problems import Problem, sample_problem
from turngym.environments.text.base import EngineGame
from turngym.errors import ConfigError
from turngym.plugins import package_folder
from turngym.tasks.base import Task, split_of

_ENGINE = threading.RLock()
"""Its parsers keep what they are at, and its translator its options, in one place for the whole
process; the translator also swaps ``sys.stdout`` while it works."""

_STATES = ("clean", "heat", "cool")
_free_libraries: list[Any] = []


class HouseholdEnv(EngineGame):
    """Do one chore in a furnished room.

    Engine, domain and sentences are ALFWorld's; the problems are our own, because the official
    games cannot be had offline. So scores do not compare with published ALFWorld scores.

    Action: ``go to``, ``open``, ``take ... from``, ``move ... to``, ``heat ... with`` and so on.
    Observation: ALFWorld's sentences.
    Reward: 1 when the task is done, else 0.
    Start: in the middle of a random room; most furniture hides or bears something.
    End: terminated when the task is done; the registered turn limit truncates.
    """

    name = "household"
    extra = "alfworld"
    modules = ("alfworld", "textworld", "fast_downward")
    rules = (
        "You are in a room with furniture and things. Do the task you are given. Go to furniture "
        "to see what is on it, open what is closed, and carry one thing at a time. Heat things "
        "with the microwave, cool them with the fridge, clean them with the sinkbasin."
    )
    commands = Commands({
        "go": "go to {place...}", "open": "open {place...}", "close": "close {place...}",
        "take": "take {thing...} from {place...}", "move": "move {thing...} to {place...}",
        "heat": "heat {thing...} with {place...}", "clean": "clean {thing...} with {place...}",
        "cool": "cool {thing...} with {place...}", "use": "use {thing...}",
        "examine": "examine {thing...}", "look": "look", "inventory": "inventory", "help": "help",
    })  # fmt: skip
    difficulties: ClassVar[dict[str, dict[str, Any]]] = {
        "easy": {"kinds": ("put",), "places": 6, "things": 6},
        "medium": {"kinds": ("put", *_STATES, "look"), "places": 8, "things": 8},
        "hard": {"kinds": ("put", *_STATES, "look", "two"), "places": 13, "things": 13},
    }

    problem: Problem
    _library: Any = None
    _household: Household | None = None
    _is_won: bool = False

    def start(self, task: Task) -> str:
        if self._library is None:
            self._library = borrow_library()
            self._give_back = weakref.finalize(self, _free_libraries.append, self._library)
        self.problem = self._draw(task)
        self._is_won = False
        self._household = Household(self._library, self.problem.pddl, self.problem.goal)
        return self._household.intro()

    def play(self, command: str) -> Outcome:
        household = self._playing()
        text = household.play(command)
        self._is_won = household.is_won()
        if self._is_won:
            text += "\nYou did it."
        return Outcome(text=text, reward=float(self._is_won), terminated=self._is_won)

    def possible_commands(self) -> dict[str, str]:
        return {command: command for command in self._playing().commands}

    def refusal(self, command: str) -> str:
        return "Nothing happens."

    def score(self) -> float:
        return float(self._is_won)

    def state_key(self) -> str:
        return hashlib.sha256("\n".join(self._playing().facts()).encode()).hexdigest()[:16]

    def expert_command(self) -> str:
        """Return the first command of the planner's plan; the planner sees into everything."""
        plan = self._playing().plan()
        return plan[0] if plan else "look"

    def close(self) -> None:
        if self._library is not None:
            self._give_back()
            self._library = self._household = None
        super().close()

    def _playing(self) -> Household:
        if self._household is None:
            raise ConfigError(f"{self.name}: the environment is closed; call reset")
        return self._household

    def _draw(self, task: Task) -> Problem:
        rng = np.random.default_rng(task.seed)
        for _ in range(1000):
            problem = sample_problem(rng, **self.settings)
            if split_of(problem.pddl) == task.split:
                return problem
        raise ConfigError(f"{self.name}: no problem of split {task.split!r} in 1000 samples")


def borrow_library() -> Any:
    """Return a loaded copy of Fast Downward that nothing else uses."""
    return _free_libraries.pop() if _free_libraries else _fast_downward().load_lib()


class Household:
    """One problem being played.

    Args:
        library: From ``borrow_library``; its state is replaced.
        problem: Text of the PDDL problem.
        goal: The task in words.
    """

    def __init__(self, library: Any, problem: str, goal: str) -> None:
        from textworld.envs.pddl.logic import PddlState
        from textworld.generator.game import EntityInfo

        self._goal = goal
        with _translating():
            self._grammar = _logic().grammar
            self._state = PddlState(library, problem, _logic())
        self._infos = {}
        for name, kind in self._state.name2type.items():
            info = EntityInfo(name, kind)
            info.name, info.definite, info.indefinite = name.replace("_", " "), "the", "a"
            self._infos[name] = info
        self._look()

    def intro(self) -> str:
        """Return the sentences that start a game."""
        return self._say("#intro#", {}).replace("UNKNOWN GOAL", self._goal)

    @property
    def commands(self) -> Mapping[str, Any]:
        """The commands that can be carried out now, sorted, to the engine's actions."""
        return self._commands

    def play(self, command: str) -> str:
        """Carry out one of ``commands`` and return what is said about it."""
        action = self._commands[command]
        self._state.apply(action)
        said = self._say(action.feedback_rule, action.mapping)
        self._look()
        return said

    def is_won(self) -> bool:
        """Return True when the task is done."""
        return bool(self._state.check_goal())

    def plan(self) -> list[str]:
        """Return the planner's commands to the goal."""
        with _ENGINE:
            return [str(command) for command in self._state.replan(self._infos)]

    def facts(self) -> list[str]:
        """Return what is true now, sorted; not what was merely looked at before."""
        return sorted(str(fact) for fact in self._state.facts if fact.name != "checked")

    def _look(self) -> None:
        with _ENGINE:
            actions = self._state.all_applicable_actions()
            commands = {_command(action, self._infos): action for action in actions}
        self._commands = dict(sorted(commands.items()))

    def _say(self, rule: str, mapping: Mapping[Any, Any]) -> str:
        context = {
            "state": self._state,
            "facts": list(self._state.facts),
            "variables": {slot.name: self._infos[thing.name] for slot, thing in mapping.items()},
            "mapping": dict(mapping),
            "entity_infos": self._infos,
        }
        with _ENGINE:
            return str(self._grammar.derive(rule, context))


def _command(action: Any, infos: Mapping[str, Any]) -> str:
    names = {slot.name: infos[thing.name].name for slot, thing in action.mapping.items()}
    if action.name == "gotolocation":  # its template is a query for the name of {r}
        return f"go to {names['r']}"
    return str(action.command_template).format(**names)


@functools.cache
def _logic() -> Any:
    from textworld.envs.pddl import textgen
    from textworld.envs.pddl.logic import GameLogic

    def derive(symbol: Any, context: Any = None) -> list[Any]:
        """Evaluate an expression of the grammar; the engine's own way ended with Python 3.13."""
        variables = (context or symbol.context)["variables"]
        return [textgen.TerminalSymbol(eval(symbol.expression, vars(textgen), dict(variables)))]

    textgen.EvalSymbol.derive = derive
    folder = package_folder("alfworld")  # importing it would create a cache folder in the home
    assert folder is not None  # one of ``modules``
    data = folder / "data"
    return GameLogic(
        domain=(data / "alfred.pddl").read_text(encoding="utf-8"),
        grammar=(data / "alfred.twl2").read_text(encoding="utf-8"),
    )


@contextmanager
def _translating() -> Iterator[None]:
    """Lend the translator a memory for the problems it has seen, and give back ``sys.argv``."""
    fast_downward = _fast_downward()
    with _ENGINE:
        argv, translate = sys.argv, fast_downward.pddl2sas
        fast_downward.pddl2sas = _remembering()
        try:
            yield
        finally:
            sys.argv, fast_downward.pddl2sas = argv, translate


@functools.cache
def _remembering() -> Callable[..., Any]:
    return functools.lru_cache(maxsize=128)(_fast_downward().pddl2sas)


def _fast_downward() -> Any:
    return importlib.import_module("fast_downward")
