"""One trivial game three ways: as a plain class, as a ``TurnEnv``, and as a plain Gymnasium env.

Guess a hidden number; hear "higher" or "lower". The texts, the memory of earlier guesses and the
turn limit follow GEM's ``game:GuessTheNumber``, so that a turn is the same work everywhere. The
plain Gymnasium version has integers in place of text, which is what Gymnasium is made for.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from turngym.environments.core.actions import Action, Commands
from turngym.environments.core.env import Outcome, SnapshotKind, TurnEnv
from turngym.tasks.base import Task

LARGEST = 50
"""Default of the largest number; GEM's "hard" setting."""

_NUMBER = re.compile(r"guess (\d+)")


class Game:
    """The game itself, as small as it can be written.

    Args:
        largest: Numbers go from 1 to this.
    """

    def __init__(self, largest: int = LARGEST) -> None:
        self.largest = largest

    def reset(self, rng: np.random.Generator) -> None:
        """Hide a number."""
        self.number = int(rng.integers(1, self.largest + 1))
        self.guesses: set[int] = set()
        self.turns = 0

    def guess(self, guess: int) -> tuple[str, float, bool]:
        """Return the answer, the reward and whether the number was found."""
        self.turns += 1
        if not 1 <= guess <= self.largest:
            return f"At turn {self.turns}, you guessed {guess}, which is out of range.", 0.0, False
        if guess in self.guesses:
            return f"At turn {self.turns}, you guessed {guess}, as you did before.", 0.0, False
        self.guesses.add(guess)
        if guess == self.number:
            return f"Correct: the number is {guess}, found in {self.turns} turns.", 1.0, True
        hint = "lower" if guess > self.number else "higher"
        text = f"At turn {self.turns}, you guessed {guess}, and the number is {hint} than {guess}."
        return text, 0.0, False


class PlainGuess:
    """The game with text in and text out, and nothing else: the floor of what a turn can cost."""

    def __init__(self, largest: int = LARGEST) -> None:
        self.game = Game(largest)

    def reset(self, *, seed: int) -> str:
        """Start an episode."""
        self.game.reset(np.random.default_rng(seed))
        return "Guess a number."

    def step(self, action: str) -> tuple[str, float, bool]:
        """Take a guess such as ``guess 7``."""
        match = _NUMBER.fullmatch(action)
        if match is None:
            return "Not a guess.", 0.0, False
        return self.game.guess(int(match[1]))


class GuessEnv(TurnEnv):
    """The game as an author of a turngym environment writes it.

    Action: ``guess <number>``.
    Observation: whether the number is higher or lower.
    Reward: 1 for the number, else 0.
    Start: a random number.
    End: terminated when the number is found; the registered turn limit truncates.
    """

    name = "bench-guess"
    rules = "Guess a number. You are told whether it is higher or lower than your guess."
    snapshot_kind: ClassVar[SnapshotKind] = "exact"
    action_format = Commands({"guess": "guess {number:int}"})

    def __init__(self, *, largest: int = LARGEST, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        self.game = Game(largest)

    def begin(self, task: Task) -> Outcome:
        """Hide the number of ``task``."""
        self.game.reset(np.random.default_rng(task.seed))
        return Outcome(text="Guess a number.")

    def turn(self, action: Action) -> Outcome:
        """Take a guess."""
        text, reward, found = self.game.guess(action.arguments["number"])
        return Outcome(text=text, reward=reward, terminated=found)


class IntegerGuessEnv(gymnasium.Env[np.int64, np.int64]):
    """The game as a plain Gymnasium environment over integers.

    Action: the guess minus 1.
    Observation: 0 at the start, 1 for higher, 2 for lower, 3 for found.
    Reward: 1 for the number, else 0.
    Start: a random number.
    End: terminated when the number is found.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}  # type: ignore[misc]

    def __init__(self, *, largest: int = LARGEST, render_mode: str | None = None) -> None:
        self.action_space = spaces.Discrete(largest)
        self.observation_space = spaces.Discrete(4)
        self.render_mode = render_mode
        self.game = Game(largest)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.int64, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        self.game.reset(self.np_random)
        return np.int64(0), {}

    def step(self, action: np.int64) -> tuple[np.int64, float, bool, bool, dict[str, Any]]:
        """Take a guess."""
        guess = int(action) + 1
        _, reward, found = self.game.guess(guess)
        heard = 3 if found else 1 + (guess > self.game.number)
        return np.int64(heard), reward, found, False, {}
