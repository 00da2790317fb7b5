"""Agents that answer without a second search: what a search task must not let succeed.

``turngym eval search/world-2hop --agent turngym.agents.search_baselines:single_search`` plays one.
They read and write commands in words, not JSON tools.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from typing import Any

from turngym.agents.policy import EpisodeContext, PolicySession
from turngym.agents.scripted import InlinePolicy

_SENTENCE_END = re.compile(r"(?<=[.!?:])\s+|\n+")
_WORD = re.compile(r"[^\W_]+")
_NAME = re.compile(r"[A-ZÀ-Þ][\w'-]*(?: (?:of |the )?[A-ZÀ-Þ][\w'-]*)*")
_NUMBER = re.compile(r"\b\d[\d,]*\b")
_STEM_CHARS = 4


class _Baseline:
    """Acts by a function of the 0-based turn, the question and what is seen now."""

    def __init__(self, choose: Callable[[int, str, str], str]) -> None:
        self._choose = choose

    def start(self, context: EpisodeContext) -> PolicySession:
        """Return a session that remembers its question."""
        question, turns = "", itertools.count()

        def act(observation: Mapping[str, Any], info: Mapping[str, Any]) -> str:
            nonlocal question
            text = str(observation["text"])
            question = question or text.removeprefix("Question: ")
            return self._choose(next(turns), question, text)

        return InlinePolicy(act).start(context)


def _search_once(turn: int, question: str, text: str) -> str:
    if turn == 0:
        return f"search {question}"
    return "open 1" if turn == 1 else f"answer {best_guess(question, text)}"


def _guess(turn: int, question: str, text: str) -> str:
    return "answer 2" if question.startswith("How many") else "answer unknown"


single_search = _Baseline(_search_once)
"""Searches once for the whole question, reads the best result, and guesses from it."""
closed_book = _Baseline(_guess)
"""Answers at once: a small number where one is asked for, else that it does not know."""


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
