"""Wordle: find the secret word of five letters from the colours of each guess."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from turngym.environments.core.actions import Action, Commands
from turngym.environments.core.env import Outcome
from turngym.environments.text.base import TextGame

LENGTH = 5
COLOURS = ("gray", "yellow", "green")

_SOLVED = 3**LENGTH - 1
_CHUNK = 256
"""Guesses that the solver weighs at once; bounds its memory."""


@dataclass(frozen=True)
class WordleState:
    """One secret and the guesses so far."""

    secret: str
    guesses: tuple[str, ...] = ()


class WordleEnv(TextGame):
    """Guess a secret English word of five letters.

    The secrets are the 600 (easy), 1,364 (medium) or 3,436 (hard) most common words; any of some
    5,000 words is taken as a guess. ``wordle_words.txt`` says where the words come from.

    Action: ``guess <word>``. A word that is not in the list costs a turn, not a guess.
    Observation: each letter of the guess with its colour, and how many guesses are left.
    Reward: 1 for the secret, else 0.
    Start: a random secret; ``info["ground_truth"]`` holds it.
    End: terminated by the secret or by the last guess.
    """

    name = "wordle"
    rules = (
        "Find the secret English word of five letters. After a guess each letter is green (right "
        "place), yellow (in the word, other place) or gray (not in the word, or no more of it)."
    )
    commands = Commands({"guess": "guess {word}"})
    difficulties: ClassVar[dict[str, dict[str, Any]]] = {
        "easy": {"rarity": 10, "guesses": 6},
        "medium": {"rarity": 20, "guesses": 6},
        "hard": {"rarity": 35, "guesses": 6},
    }

    state: WordleState

    def new_game(self, rng: np.random.Generator) -> WordleState:
        words = words_up_to(self.settings["rarity"])
        return WordleState(words[int(rng.integers(len(words)))])

    def instance_key(self) -> str:
        return self.state.secret

    def opening_info(self) -> dict[str, Any]:
        return {"ground_truth": self.state.secret}

    def answer(self, ground_truth: str) -> str:
        return self.say("guess", word=ground_truth)

    def describe(self) -> str:
        return f"guess a word of {LENGTH} letters. {self._left()}"

    def turn(self, action: Action) -> Outcome:
        guess = str(action.arguments["word"]).strip().lower()
        if guess not in _accepted_words():
            problem = f"{guess[:20]} is not in the word list."
            return Outcome(text=f"{problem} {self._left()}", invalid_action=problem)
        self.state = replace(self.state, guesses=(*self.state.guesses, guess))
        code = feedback(guess, self.state.secret)
        text = " ".join(
            f"{letter} {COLOURS[code // 3**place % 3]}" for place, letter in enumerate(guess)
        )
        if code == _SOLVED:
            return Outcome(text=f"{text}. solved.", reward=1.0, terminated=True)
        over = len(self.state.guesses) >= self.settings["guesses"]
        return Outcome(text=f"{text}. {self._left()}", terminated=over)

    def score(self) -> float:
        return float(self.state.secret in self.state.guesses)

    def legal_actions(self) -> list[str]:
        """Return a guess for every word that may be the secret; rarer words are taken as well."""
        return list(_guess_actions(self.settings["rarity"], self.say("guess", word="*")))

    def state_key(self) -> str:
        """Return the secret and what was guessed, in any order."""
        s = self.state
        return f"{s.secret} {len(s.guesses)} {' '.join(sorted(set(s.guesses)))}"

    def expert_action(self) -> str:
        """Return the guess that leaves the fewest words on average."""
        s = self.state
        seen = frozenset((guess, feedback(guess, s.secret)) for guess in s.guesses)
        return self.say("guess", word=_best_guess(self.settings["rarity"], seen))

    def _left(self) -> str:
        return f"{self.settings['guesses'] - len(self.state.guesses)} left."


def feedback(guess: str, secret: str) -> int:
    """Return the colours of ``guess`` as a number in base 3, first letter in the lowest digit.

    A digit is 0 for gray, 1 for yellow and 2 for green. Every letter of the secret colours at most
    one letter of the guess; green goes first, then yellow from left to right.
    """
    return int(_feedback_table((guess,), (secret,))[0, 0])


@cache
def words_up_to(rarity: int) -> tuple[str, ...]:
    """Return the words up to a step of rarity (10, 20, 35 or 60), sorted."""
    text = files("turngym.environments.text").joinpath("wordle_words.txt").read_text("utf-8")
    words: list[str] = []
    for line in text.splitlines():
        if line.startswith("["):
            if int(line.strip("[]")) > rarity:
                break
        elif not line.startswith("#"):
            words += line.split()
    return tuple(sorted(words))


@cache
def _accepted_words() -> frozenset[str]:
    return frozenset(words_up_to(60))


@lru_cache(maxsize=16)
def _guess_actions(rarity: int, pattern: str) -> tuple[str, ...]:
    """Return ``pattern`` with each word in place of its star."""
    before, after = pattern.split("*")
    return tuple(before + word + after for word in words_up_to(rarity))


def _letters(words: tuple[str, ...]) -> NDArray[np.uint8]:
    return np.frombuffer("".join(words).encode(), np.uint8).reshape(-1, LENGTH)


def _feedback_table(guesses: tuple[str, ...], secrets: tuple[str, ...]) -> NDArray[np.uint8]:
    """Return ``feedback`` of each guess for each secret, shape [guesses, secrets]."""
    said, hidden = _letters(guesses), _letters(secrets)
    table = np.zeros((len(guesses), len(secrets)), np.uint8)
    same = [[said[:, i, None] == hidden[None, :, j] for j in range(LENGTH)] for i in range(LENGTH)]
    unused = [~same[j][j] for j in range(LENGTH)]
    for i in range(LENGTH):
        table += np.uint8(2 * 3**i) * same[i][i]
        waiting = ~same[i][i]
        for j in range(LENGTH):
            hit = waiting & unused[j] & same[i][j]
            table += np.uint8(3**i) * hit
            unused[j] &= ~hit
            waiting &= ~hit
    return table


@cache
def _full_table(rarity: int) -> NDArray[np.uint8]:
    words = words_up_to(rarity)
    return _feedback_table(words, words)


@lru_cache(maxsize=100_000)
def _best_guess(rarity: int, seen: frozenset[tuple[str, int]]) -> str:
    """Return the guess after which the expected number of possible words is smallest."""
    words = words_up_to(rarity)
    possible = np.ones(len(words), bool)
    for guess, code in seen:
        possible &= _feedback_table((guess,), words)[0] == code
    columns = np.flatnonzero(possible)
    if len(columns) <= 2:
        return words[int(columns[0])]
    table = _full_table(rarity)
    cost = np.empty(len(words))
    for start in range(0, len(words), _CHUNK):
        rows = table[start : start + _CHUNK, columns].astype(np.intp)
        rows += (_SOLVED + 1) * np.arange(len(rows))[:, None]
        sizes = np.bincount(rows.ravel(), minlength=len(rows) * (_SOLVED + 1))
        cost[start : start + _CHUNK] = (sizes.reshape(len(rows), -1) ** 2).sum(axis=1)
    cost[columns] -= 0.5  # between equals, a word that may be the secret
    best = int(np.argmin(cost))
    return words[best]
