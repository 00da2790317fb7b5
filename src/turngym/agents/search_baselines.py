"""Agents that answer without a second search: what a search task must not let succeed.

``turngym eval search/world-2hop --agent turngym.agents.search_baselines:single_search`` plays one.
They read and write commands in words, not JSON tools.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from turngym.agents.policy import EpisodeContext, PolicySession, PolicyTurn
from turngym.types import Message

_SENTENCE_END = re.compile(r"(?<=[.!?:])\s+|\n+")
_WORD = re.compile(r"[^\W_]+")
_NAME = re.compile(r"[A-ZÀ-Þ][\w'-]*(?: (?:of |the )?[A-ZÀ-Þ][\w'-]*)*")
_NUMBER = re.compile(r"\b\d[\d,]*\b")
_STEM_CHARS = 4


class _Session:
    """One episode: remembers the question, then does what the subclass says."""

    def __init__(self) -> None:
        self._question: str | None = None
        self._turn = 0

    def choose(self, turn: int, question: str, text: str) -> str:
        """Return the action of ``turn`` (0-based) after seeing ``text``."""
        raise NotImplementedError

    async def act(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> PolicyTurn:
        text = str(observation["text"])
        if self._question is None:
            self._question = text.removeprefix("Question: ")
        action = self.choose(self._turn, self._question, text)
        self._turn += 1
        seen = (Message(role="user", content=text),)
        return PolicyTurn(observation=seen, action=Message(role="assistant", content=action))

    def close(self) -> None:
        return None


class _SingleSearchSession(_Session):
    def choose(self, turn: int, question: str, text: str) -> str:
        if turn == 0:
            return f"search {question}"
        if turn == 1:
            return "open 1"
        return f"answer {best_guess(question, text)}"


class _ClosedBookSession(_Session):
    def choose(self, turn: int, question: str, text: str) -> str:
        return "answer 2" if question.startswith("How many") else "answer unknown"


class SingleSearchPolicy:
    """Searches once for the whole question, reads the best result, and guesses from it."""

    def start(self, context: EpisodeContext) -> PolicySession:
        """Return a fresh session."""
        return _SingleSearchSession()


class ClosedBookPolicy:
    """Answers at once: a small number where one is asked for, else that it does not know."""

    def start(self, context: EpisodeContext) -> PolicySession:
        """Return a fresh session."""
        return _ClosedBookSession()


single_search = SingleSearchPolicy()
closed_book = ClosedBookPolicy()


def best_guess(question: str, page: str) -> str:
    """Return the name or number of ``page`` that best fits ``question``.

    Of what the question does not hold itself, the first one in the sentence that shares most words
    with it; a number where a number or a year is asked for, else a name.
    """
    asked = _stems(question)
    wants_number = re.search(r"\b(how many|year|when)\b", question, re.IGNORECASE)
    best, best_score = "unknown", -1
    for sentence in _SENTENCE_END.split(page.partition("\n")[2] or page):
        pattern = _NUMBER if wants_number else _NAME
        found = [one for one in pattern.findall(sentence) if not _stems(one) <= asked]
        if not found and not wants_number and not _NAME.search(page):
            found = [one for one in _WORD.findall(sentence)[-1:] if not _stems(one) <= asked]
        score = len(asked & _stems(sentence))
        if found and score > best_score:
            best, best_score = found[0], score
    return best


def _stems(text: str) -> set[str]:
    return {word[:_STEM_CHARS] for word in _WORD.findall(text.casefold())}
