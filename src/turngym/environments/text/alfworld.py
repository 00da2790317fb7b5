"""Household tasks on ALFWorld's engine: find, clean, heat, cool, look at and put things."""

from __future__ import annotations

import hashlib
import weakref
from typing import Any, ClassVar

import numpy as np

from turngym.environments.core.actions import Commands
from turngym.environments.core.env import Outcome
from turngym.environments.text.alfworld_engine import Household, borrow_library, return_library
from turngym.environments.text.alfworld_problems import Problem, draw_problem
from turngym.environments.text.extras_base import EngineGame
from turngym.errors import ConfigError
from turngym.tasks.base import Task
from turngym.tasks.splits import split_of


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
    commands = Commands(
        {
            "go": "go to {place...}",
            "open": "open {place...}",
            "close": "close {place...}",
            "take": "take {thing...} from {place...}",
            "move": "move {thing...} to {place...}",
            "heat": "heat {thing...} with {place...}",
            "clean": "clean {thing...} with {place...}",
            "cool": "cool {thing...} with {place...}",
            "use": "use {thing...}",
            "examine": "examine {thing...}",
            "look": "look",
            "inventory": "inventory",
            "help": "help",
        }
    )
    difficulties: ClassVar[dict[str, dict[str, Any]]] = {
        "easy": {"kinds": ("put",), "places": 6, "things": 6},
        "medium": {"kinds": ("put", "clean", "heat", "cool", "look"), "places": 8, "things": 8},
        "hard": {
            "kinds": ("put", "clean", "heat", "cool", "look", "two"),
            "places": 13,
            "things": 13,
        },
    }

    problem: Problem
    _library: Any = None
    _household: Household | None = None
    _is_won: bool = False

    def start(self, task: Task) -> str:
        """Draw problems from the task's seed until one belongs to the task's split."""
        if self._library is None:
            self._library = borrow_library()
            self._give_back = weakref.finalize(self, return_library, self._library)
        self.problem = self._draw(task)
        self._is_won = False
        self._household = Household(self._library, self.problem.pddl, self.problem.goal)
        return self._household.intro()

    def play(self, command: str) -> Outcome:
        """Carry out a command."""
        household = self._playing()
        text = household.play(command)
        self._is_won = household.is_won()
        if self._is_won:
            text += "\nYou did it."
        return Outcome(text=text, reward=float(self._is_won), terminated=self._is_won)

    def possible_commands(self) -> dict[str, str]:
        """Return what the planner's operators allow now."""
        return {command: command for command in self._playing().commands}

    def refusal(self, command: str) -> str:
        """Say what ALFWorld says."""
        return "Nothing happens."

    def score(self) -> float:
        """Return 1 when the task is done."""
        return float(self._is_won)

    def anchor(self) -> str:
        """Return a digest of what is true now."""
        return hashlib.sha256("\n".join(self._playing().facts()).encode()).hexdigest()[:16]

    def expert_command(self) -> str:
        """Return the first command of the planner's plan; the planner sees into everything."""
        plan = self._playing().plan()
        return plan[0] if plan else "look"

    def close(self) -> None:
        """Give the library back. Safe to call twice."""
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
            problem = draw_problem(rng, **self.settings)
            if split_of(problem.pddl) == task.split:
                return problem
        raise ConfigError(f"{self.name}: no problem of split {task.split!r} in 1000 draws")
