"""A day in a mail room: many decisions that do not touch each other, and one grade at the end."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from turngym.environments.core.actions import Action, Commands
from turngym.environments.core.env import Outcome
from turngym.environments.text.base import TextGame

POINTS = {"rider": 3, "pigeon": 2, "coach": 1, "barge": 0}
"""Of each carrier, if the letter arrives."""


@dataclass(frozen=True)
class Letter:
    """What the agent sees of a letter."""

    is_heavy: bool
    is_fragile: bool
    is_packed: bool

    def __str__(self) -> str:
        weight = ("light", "heavy")[self.is_heavy]
        body = ("sturdy", "fragile")[self.is_fragile]
        return f"{weight} {body} {('loose', 'packed')[self.is_packed]}"

    def points(self, carrier: str) -> int:
        """Return what sending it by a carrier is worth: nothing where it does not arrive."""
        is_lost = self.is_heavy if carrier == "pigeon" else self.is_fragile and not self.is_packed
        return 0 if carrier in ("pigeon", "rider") and is_lost else POINTS[carrier]

    @property
    def best(self) -> str:
        """The carrier that is worth most."""
        return max(POINTS, key=self.points)


@dataclass(frozen=True)
class DayState:
    """The letters of a day, how many were sent, and what that was worth."""

    letters: tuple[Letter, ...]
    sent: int = 0
    points: int = 0

    @property
    def most(self) -> int:
        """Points that could be had."""
        return sum(letter.points(letter.best) for letter in self.letters)


class MailRoomEnv(TextGame):
    """Choose a carrier for each letter of a day by written rules; the grade comes at the end.

    Action: ``send rider|pigeon|coach|barge``.
    Observation: the next letter, and never what the last one was worth.
    Reward: with the last letter the share of the points that are asked for, at most 1, else 0.
    Start: random letters.
    End: terminated after the last letter; the registered turn limit leaves two turns for answers
        that are not understood, then grades what was sent.
    """

    name = "mailroom"
    asked = 0.8
    """Share of the points that could be had."""
    rules = (
        "Send each letter of the day by one of four carriers. A letter that arrives is worth "
        f"{', '.join(f'{points} by {carrier}' for carrier, points in POINTS.items())}. Heavy "
        "letters do not arrive by pigeon, and fragile ones not by rider, unless they are packed. "
        f"After the last one you are graded; {asked:.0%} of the points to be had are asked for."
    )
    commands = Commands({"send": f"send {{carrier:{'|'.join(POINTS)}}}"})
    difficulties: ClassVar[dict[str, dict[str, Any]]] = {
        difficulty: {"letters": letters}
        for difficulty, letters in (("easy", 8), ("medium", 12), ("hard", 16))
    }

    state: DayState

    def new_game(self, rng: np.random.Generator) -> DayState:
        odds = (1 / 2, 2 / 3, 1 / 3)
        chances = rng.random((self.settings["letters"], 3)) < odds
        return DayState(tuple(Letter(*map(bool, row)) for row in chances))

    def instance_key(self) -> str:
        return ", ".join(map(str, self.state.letters))

    def describe(self) -> str:
        s = self.state
        return f"letter {s.sent + 1}: {s.letters[s.sent]}."

    reminder = describe

    def turn(self, action: Action) -> Outcome:
        s = self.state
        points = s.letters[s.sent].points(str(action.arguments["carrier"]))
        self.state = replace(s, sent=s.sent + 1, points=s.points + points)
        if self.state.sent < len(s.letters):
            return Outcome(text=self.describe())
        text = f"{self.state.points} of {s.most} points."
        return Outcome(text=text, reward=self.score(), terminated=True)

    def score(self) -> float:
        return min(1.0, self.state.points / (self.asked * self.state.most))

    def end_at_limit(self) -> Outcome:
        return Outcome(text="", reward=self.score())

    def legal_actions(self) -> list[str]:
        return [self.say("send", carrier=carrier) for carrier in POINTS]

    def state_key(self) -> str:
        """Return the letters to come, the points so far and of how many: not what was sent how."""
        s = self.state
        return f"{s.points} of {s.most} before {', '.join(map(str, s.letters[s.sent :]))}"

    def expert_action(self) -> str:
        return self.say("send", carrier=self.state.letters[self.state.sent].best)
