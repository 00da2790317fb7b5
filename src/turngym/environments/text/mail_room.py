"""A shift in a mail room: many decisions that do not touch each other, and one grade at the end."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from turngym.environments.core.actions import Action, Commands
from turngym.environments.core.env import Outcome
from turngym.environments.text.base import TextGame

BAGS = ("north", "east", "south", "west")
"""Clockwise."""
DISTRICTS = (("hill", "moor", "mine"), ("lake", "dunes", "ferry"), ("mill", "farm", "vale"),
             ("port", "reef", "bay"))  # fmt: skip
"""Of each bag."""


@dataclass(frozen=True)
class Letter:
    """What stands on a letter."""

    district: str
    is_heavy: bool
    is_express: bool

    def __str__(self) -> str:
        weight, way = ("light", "heavy")[self.is_heavy], ("plain", "express")[self.is_express]
        return f"{self.district} {weight} {way}"

    @property
    def bag(self) -> str:
        """Where it belongs."""
        own = next(n for n, districts in enumerate(DISTRICTS) if self.district in districts)
        return BAGS[(own + (self.is_heavy and not self.is_express)) % len(BAGS)]


@dataclass(frozen=True)
class ShiftState:
    """The letters of a shift, and how many were sorted, and sorted right, so far."""

    letters: tuple[Letter, ...]
    sorted: int = 0
    right: int = 0


class MailRoomEnv(TextGame):
    """Sort the letters of a shift into four bags by written rules; the grade comes at the end.

    Action: ``put north|east|south|west``.
    Observation: the next letter, and never whether the last one was right.
    Reward: with the last letter the share of the right ones that are asked for, at most 1, else 0.
    Start: random letters.
    End: terminated after the last letter; the registered turn limit leaves two turns for answers
        that are not understood, then grades what was sorted.
    """

    name = "mailroom"
    commands = Commands({"put": "put {bag:north|east|south|west}"})
    difficulties: ClassVar[dict[str, dict[str, Any]]] = {
        "easy": {"letters": 8, "right": 6, "districts": 1},
        "medium": {"letters": 12, "right": 10, "districts": 2},
        "hard": {"letters": 16, "right": 14, "districts": 3},
    }

    state: ShiftState

    def __init__(self, **options: Any) -> None:  # those of every graded game
        super().__init__(**options)
        self._districts = [names[: self.settings["districts"]] for names in DISTRICTS]
        where = ", ".join(
            f"{' and '.join(names)} {bag}" for names, bag in zip(self._districts, BAGS, strict=True)
        )
        self.rules = (
            "Sort the letters of a shift into four bags. Districts belong to bags: "
            f"{where}. A heavy letter goes into the next bag clockwise (north, east, south, west, "
            f"north), unless it is express. After {self.settings['letters']} letters you are "
            f"graded; {self.settings['right']} right ones are asked for."
        )

    def new_game(self, rng: np.random.Generator) -> ShiftState:
        names = [name for districts in self._districts for name in districts]
        return ShiftState(
            tuple(
                Letter(names[rng.integers(len(names))], rng.random() < 0.5, rng.random() < 1 / 3)
                for _ in range(self.settings["letters"])
            )
        )

    def instance_key(self) -> str:
        """Return the letters in their order."""
        return ", ".join(map(str, self.state.letters))

    def describe(self) -> str:
        s = self.state
        return f"letter {s.sorted + 1}: {s.letters[s.sorted]}."

    def turn(self, action: Action) -> Outcome:
        s = self.state
        is_right = action.arguments["bag"] == s.letters[s.sorted].bag
        self.state = replace(s, sorted=s.sorted + 1, right=s.right + is_right)
        if self.state.sorted < len(s.letters):
            return Outcome(text=self.describe())
        text = f"{self.state.right} of {len(s.letters)} right."
        return Outcome(text=text, reward=self.score(), terminated=True)

    def score(self) -> float:
        return min(1.0, self.state.right / int(self.settings["right"]))

    def end_at_limit(self) -> Outcome:
        return Outcome(text="", reward=self.score())

    def legal_actions(self) -> list[str]:
        return [self.say("put", bag=bag) for bag in BAGS]

    def state_key(self) -> str:
        """Return the letters to come and how many lie right: which ones no longer matters."""
        s = self.state
        return f"{s.right} right before {', '.join(map(str, s.letters[s.sorted :]))}"

    def reminder(self) -> str:
        return self.describe()

    def expert_action(self) -> str:
        return self.say("put", bag=self.state.letters[self.state.sorted].bag)
