"""Guess a number from the answers higher and lower."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from turngym.environments.core.actions import Action, Commands
from turngym.environments.core.env import Outcome
from turngym.environments.text.base import TextGame


@dataclass(frozen=True)
class NumberState:
    """The secret, and the range that the answers leave."""

    secret: int
    low: int
    high: int
    tries: int = 0
    found: bool = False


class GuessNumberEnv(TextGame):
    """Find a number in a range that differs from task to task.

    Action: ``guess <number>``, any number from 1 to the largest one of the difficulty.
    Observation: ``higher`` or ``lower``, and the range that is left.
    Reward: 1 for the number, else 0.
    Start: a random range and a number in it, which ``info["ground_truth"]`` holds.
    End: terminated by the number; the registered turn limit leaves one try more than halving needs.
    """

    name = "guessnumber"
    rules = (
        "Find the secret number. You are told the range it lies in and, after each guess, whether "
        "it is higher or lower. Tries are few."
    )
    commands = Commands({"guess": "guess {number:int}"})
    difficulties: ClassVar[dict[str, dict[str, Any]]] = {
        "easy": {"largest": 50, "narrowest": 8, "widest": 16},
        "medium": {"largest": 200, "narrowest": 50, "widest": 100},
        "hard": {"largest": 1000, "narrowest": 500, "widest": 1000},
    }

    state: NumberState

    def new_game(self, rng: np.random.Generator) -> NumberState:
        width = int(rng.integers(self.settings["narrowest"], self.settings["widest"] + 1))
        low = int(rng.integers(1, self.settings["largest"] - width + 2))
        high = low + width - 1
        return NumberState(int(rng.integers(low, high + 1)), low, high)

    def instance_key(self) -> str:
        s = self.state
        return f"{s.low} {s.high} {s.secret}"

    def opening_info(self) -> dict[str, Any]:
        return {"ground_truth": self.state.secret}

    def answer(self, ground_truth: str) -> str:
        return self.say("guess", number=int(ground_truth))

    def describe(self) -> str:
        return f"from {self.state.low} to {self.state.high}."

    def turn(self, action: Action) -> Outcome:
        s, guess = self.state, int(action.arguments["number"])
        if not 1 <= guess <= self.settings["largest"]:
            problem = f"guess a number from 1 to {self.settings['largest']}."
            return Outcome(text=f"{problem} {self.describe()}", invalid_action=problem)
        tries = s.tries + 1
        if guess == s.secret:
            self.state = replace(s, tries=tries, found=True)
            return Outcome(text="right.", reward=1.0, terminated=True)
        if guess < s.secret:
            self.state = replace(s, tries=tries, low=max(s.low, guess + 1))
            return Outcome(text=f"higher. {self.describe()}")
        self.state = replace(s, tries=tries, high=min(s.high, guess - 1))
        return Outcome(text=f"lower. {self.describe()}")

    def score(self) -> float:
        return float(self.state.found)

    def legal_actions(self) -> list[str]:
        """Return every number of the difficulty, those outside the range included."""
        before, after = self.say("guess", number="*").replace('"*"', "*").split("*")
        return [f"{before}{number}{after}" for number in range(1, self.settings["largest"] + 1)]

    def state_key(self) -> str:
        s = self.state
        return f"{s.secret} from {s.low} to {s.high} after {s.tries}"

    def expert_action(self) -> str:
        return self.say("guess", number=(self.state.low + self.state.high) // 2)
