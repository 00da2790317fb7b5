"""Find the secret thing among candidates by yes/no questions about known facts.

One game over any table of facts; two tables come with it, ``cities.csv`` and ``animals.csv``.
"""

from __future__ import annotations

import csv
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any, ClassVar

import numpy as np

from turngym.environments.core.actions import Action, Commands
from turngym.environments.core.env import Outcome
from turngym.environments.text.base import TextGame

Facts = Mapping[str, frozenset[str]]
"""What is true of each thing; a question asks for one trait."""


@dataclass(frozen=True)
class QuestionState:
    """The candidates, the secret among them, and what was asked."""

    candidates: tuple[str, ...]
    secret: str
    asked: tuple[str, ...] = ()
    guess: str | None = None


class QuestionGame(TextGame):
    """Ask about traits, then guess; a wrong guess ends the game.

    Subclasses give the table by ``facts`` and, in ``difficulties``: ``candidates`` (how many
    things), and optionally ``things`` and ``questions`` (the part of the table that is used),
    ``rarest`` (traits of fewer things are no questions) and ``open_book`` (show the candidates'
    traits and, after each answer, who is left and by which traits they still differ).

    Action: ``ask <trait>`` or ``guess <thing>``.
    Observation: at the start the candidates, then one answer a turn.
    Reward: 1 for guessing the secret, else 0.
    Start: random candidates that the questions can separate, and a secret among them, which
    ``info["ground_truth"]`` holds.
    End: terminated by any guess at a thing of the table.
    """

    commands = Commands({"ask": "ask {question...}", "guess": "guess {thing...}"})
    shows_ground_truth: ClassVar[bool] = True
    """The secret stands among the candidates; ``check_turn_env`` looks for leaks otherwise."""
    thing = "thing"
    """What the table is about, one word."""
    meanings = ""
    """What the traits mean where one word is not enough."""

    state: QuestionState

    def __init__(self, **options: Any) -> None:  # those of every graded game
        super().__init__(**options)
        facts = self.facts()
        things = tuple(self.settings.get("things", facts))
        counts = Counter(trait for name in things for trait in facts[name])
        kept = [trait for trait, count in counts.items() if count >= self.settings.get("rarest", 1)]
        frequent = tuple(sorted(kept, key=lambda trait: (-counts[trait], trait)))
        questions = tuple(self.settings.get("questions", frequent))
        self._facts = {one: facts[one] & frozenset(questions) for one in things}
        self._asks = {one: self.say("ask", question=one) for one in questions}
        self._guesses = {one: self.say("guess", thing=one) for one in things}
        self.rules = (
            f"Find the secret {self.thing} among the candidates by questions that are answered "
            f"with yes or no, then guess it. A wrong guess ends the game and turns are few. "
            f"You may ask: {', '.join(questions)}."
        )
        if not self.settings.get("open_book"):
            self.rules += f" {self.meanings}"

    @classmethod
    @abstractmethod
    def facts(cls) -> Facts:
        """Return the whole table."""

    def new_game(self, rng: np.random.Generator) -> QuestionState:
        """Sample candidates with different answers, and the secret."""
        pool = list(self._facts)
        by_traits: dict[frozenset[str], str] = {}
        for place in rng.permutation(len(pool)):
            by_traits.setdefault(self._facts[pool[place]], pool[place])
        names = list(by_traits.values())[: self.settings["candidates"]]
        return QuestionState(tuple(names), names[int(rng.integers(len(names)))])

    def instance_key(self) -> str:
        """Return the candidates in a fixed order and the secret."""
        return repr((sorted(self.state.candidates), self.state.secret))

    def opening_info(self) -> dict[str, Any]:
        return {"ground_truth": self.state.secret}

    def answer(self, ground_truth: str) -> str:
        return self._guesses[ground_truth]

    def describe(self) -> str:
        names = self.state.candidates
        if not self.settings.get("open_book"):
            return f"candidates: {', '.join(names)}."
        order = list(self._asks)
        book = (" ".join([name, *sorted(self._facts[name], key=order.index)]) for name in names)
        return f"which {self.thing}? {'. '.join(book)}."

    def turn(self, action: Action) -> Outcome:
        if action.name == "guess":
            return self._judge(str(action.arguments["thing"]).strip().lower())
        return self._answer(str(action.arguments["question"]).strip().lower())

    def score(self) -> float:
        return float(self.state.guess == self.state.secret)

    def legal_actions(self) -> list[str]:
        """Return the questions not asked yet, and all guesses, foolish ones included."""
        s = self.state
        asks = [text for question, text in self._asks.items() if question not in s.asked]
        return asks + list(self._guesses.values())

    def state_key(self) -> str:
        """Return the problem and what was asked, in any order."""
        s = self.state
        return f"{s.secret} of {' '.join(s.candidates)} asked {' '.join(sorted(s.asked))}"

    def expert_action(self) -> str:
        """Return the question that splits the candidates best; the guess when one is left."""
        left = self._left()
        best = min(self._asks, key=lambda question: self._imbalance(question, left))
        if len(left) == 1 or self._imbalance(best, left) == len(left):
            return self._guesses[left[0]]
        return self._asks[best]

    def _answer(self, question: str) -> Outcome:
        s = self.state
        if question not in self._asks:
            problem = f"there is no question {question[:30]!r}."
            return Outcome(text=f"{problem} ask: {', '.join(self._asks)}.", invalid_action=problem)
        repeated = "You asked that before." if question in s.asked else None
        if repeated is None:
            self.state = replace(s, asked=(*s.asked, question))
        answer = "yes" if question in self._facts[s.secret] else "no"
        if self.settings.get("open_book"):
            return Outcome(text=f"{answer}. {self._summary()}", invalid_action=repeated)
        return Outcome(text=f"{question} {answer}.", invalid_action=repeated)

    def _judge(self, guess: str) -> Outcome:
        s = self.state
        if guess not in self._guesses:
            problem = f"there is no {self.thing} {guess[:30]!r}."
            return Outcome(text=problem, invalid_action=problem)
        self.state = replace(s, guess=guess)
        right = guess == s.secret
        return Outcome(text="right." if right else "wrong.", reward=float(right), terminated=True)

    def _left(self) -> list[str]:
        """Return the candidates that fit every answer."""
        s, facts = self.state, self._facts
        return [
            name
            for name in s.candidates
            if all((trait in facts[name]) == (trait in facts[s.secret]) for trait in s.asked)
        ]

    def _summary(self) -> str:
        """Return who is left, and the traits by which they differ, the evenest split first."""
        left = self._left()
        if len(left) == 1:
            return f"only {left[0]}."
        split = {trait: self._imbalance(trait, left) for trait in self._asks}
        differ = sorted(
            (trait for trait in split if split[trait] < len(left)), key=split.__getitem__
        )
        return f"left {' '.join(left)}. differ {' '.join(differ)}."

    def _imbalance(self, question: str, left: list[str]) -> int:
        """Return by how much one answer is more frequent than the other."""
        return abs(2 * sum(question in self._facts[name] for name in left) - len(left))


class GuessCityEnv(QuestionGame):
    """Guess the city. Easy: 4 of 12 cities, facts shown. Medium: 12 of 150. Hard: all 150."""

    name = "guesscity"
    thing = "city"
    meanings = (
        "southern, western: hemisphere. tropical: between the tropics. big: at least 5 million "
        "people in the urban area. coastal: by the sea. landlocked: the country has no sea. "
        "island: the country lies on islands. left: traffic keeps left. eu: in the European "
        "Union. olympics: has hosted the summer games. cyrillic: alphabet. A language: the main "
        "or an official one. A country: lies in it."
    )
    difficulties: ClassVar[dict[str, dict[str, Any]]] = {
        "easy": {
            "candidates": 4,
            "open_book": True,
            "things": (
                *("bogota", "cairo", "chicago", "havana", "kyoto", "lagos", "lima", "lyon"),
                *("oslo", "paris", "perth", "tokyo"),
            ),
            "questions": ("europe", "asia", "africa", "capital", "coastal", "big"),
        },
        "medium": {"candidates": 12, "rarest": 4},
        "hard": {"candidates": 150},
    }

    @classmethod
    @cache
    def facts(cls) -> Facts:
        facts = {}
        for row in _rows("cities.csv"):
            traits = {row["continent"], row["country"], *row["traits"].split()}
            latitude = float(row["latitude"])
            derived = {
                "southern": latitude < 0,
                "western": float(row["longitude"]) < 0,
                "tropical": abs(latitude) < 23.4,
                "big": float(row["population"]) >= 5,
            }
            traits |= {trait for trait, holds in derived.items() if holds}
            facts[row["name"]] = frozenset(traits)
        return facts


class TwentyQuestionsEnv(QuestionGame):
    """Guess the animal. Easy: 4 of 20 animals, facts shown. Medium: 16 of 115. Hard: all 115."""

    name = "twentyquestions"
    thing = "animal"
    meanings = (
        "big: over 100 kg. small: under 1 kg. aquatic, trees: lives mostly there. domestic: kept "
        "on farms or in homes. meat, plants: eats mainly that (insects are meat). eggs: lays "
        "them. horns: or antlers. africa, australia, polar: at home there above all."
    )
    difficulties: ClassVar[dict[str, dict[str, Any]]] = {
        "easy": {
            "candidates": 4,
            "open_book": True,
            "things": (
                *("ant", "bat", "camel", "crab", "crocodile", "dog", "dolphin", "duck", "eagle"),
                *("frog", "hamster", "lion", "ostrich", "penguin", "rabbit", "salmon", "snail"),
                *("sparrow", "tortoise", "wolf"),
            ),
            "questions": ("mammal", "bird", "big", "small", "flies", "aquatic", "meat", "domestic"),
        },
        "medium": {"candidates": 16, "rarest": 4},
        "hard": {"candidates": 115},
    }

    @classmethod
    @cache
    def facts(cls) -> Facts:
        return {row["name"]: frozenset(row["traits"].split()) for row in _rows("animals.csv")}


def _rows(name: str) -> list[dict[str, str]]:
    text = files("turngym.environments.text").joinpath(name).read_text("utf-8")
    return list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))
