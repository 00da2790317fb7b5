"""Is an answer right? Exact match and token F1 as the reading literature has them, and others.

A scorer compares an answer with references, any of which will do. What a reference is depends on
the scorer: an answer, a number, a pattern, a JSON Schema.
"""

from __future__ import annotations

import json
import re
import string
import unicodedata
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from turngym.config import StrictModel
from turngym.errors import ConfigError
from turngym.tasks.problem import FileWorld, JudgeResult, World

UNKNOWN = "unknown"
"""The right answer to a question that the corpus does not answer."""

_UNKNOWN_FORMS = frozenset(
    {"unknown", "unanswerable", "not known", "no answer", "cannot be answered", "not answerable"}
)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_MARKS = (
    "‘’‚‛“”„‟«»‹›ʼ´′″\u2010\u2011‒–—―\u2212…¡¿。、，！？：；「」『』（）《》・\u00ad\u200b\ufeff"
)
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation + _MARKS)
_THOUSANDS = re.compile(r"(?<=\d)[,_'’\u00a0\u2009\u202f](?=(?:\d\d,)*\d{3}\b)")
_POINT = re.compile(r"\.(?=\d)(?<![^\W\d]\.)")
_MINUS = re.compile(r"[-\u2010\u2011\u2212](?=[$€£¥]?\.?\d)(?<!\w.)")
_BETWEEN_DIGITS = re.compile(rf"(?<=\d)[{re.escape(string.punctuation + _MARKS[:-3])}]+(?=\d)")
_KEPT = str.maketrans("\ue000\ue001", ".-")
"""What stands for points and signs of numbers while other marks are taken out."""


def normalize_answer(text: str) -> str:
    """Return ``text`` in lower case, without punctuation, articles and superfluous blanks.

    "The Pale-Harbour." becomes "paleharbour", "12,400" becomes "12400"; "-3.5" is not "35", nor
    is "1/2" "12".

    Source:
        Rajpurkar et al. 2016, arXiv:1606.05250, evaluation script; thousands, points, signs and
        other marks of numbers, and “typographic” marks are ours.
    """
    text = _POINT.sub("\ue000", _MINUS.sub("\ue001", _THOUSANDS.sub("", text)))
    text = _without_marks(_BETWEEN_DIGITS.sub(" ", text)).translate(_KEPT)
    return " ".join(_ARTICLES.sub(" ", text).split())


def exact_match(answer: str, references: Sequence[str]) -> float:
    """Return 1.0 when the normalised ``answer`` equals that of a reference, else 0.0."""
    given = _canonical(answer)
    return float(bool(given) and any(given == _canonical(one) for one in references))


def token_f1(answer: str, references: Sequence[str]) -> float:
    """Return the F1 of the words of ``answer`` (precision and recall), for the best reference.

    ``2 p r / (p + r)`` over bags of normalised words. "unknown" and its like, "yes" and "no" have
    no parts: they match whole or not at all.

    Returns:
        In [0, 1]; 0 when either side has no words.

    Source:
        Yang et al. 2018, arXiv:1809.09600, evaluation script.
    """
    return max((_f1(_canonical(answer), _canonical(one)) for one in references), default=0.0)


def contains_answer(text: str, answer: str) -> bool:
    """Return True when the words of ``answer`` stand in ``text``, one after the other."""
    needle = normalize_answer(answer)
    plain = _without_marks(text)
    if not needle or any(_without_marks(word) not in plain for word in needle.split()):
        return False  # most texts, at a fifth of the cost
    return f" {needle} " in f" {normalize_answer(text)} "


def _without_marks(text: str) -> str:
    return unicodedata.normalize("NFC", text.casefold()).translate(_NO_PUNCTUATION)


def _canonical(text: str) -> str:
    normal = normalize_answer(text) or _without_marks(text).strip()  # "A"
    return UNKNOWN if normal in _UNKNOWN_FORMS else normal


def _f1(given: str, wanted: str) -> float:
    if not {UNKNOWN, "yes", "no"}.isdisjoint((given, wanted)):
        return float(given == wanted)
    left, right = Counter(given.split()), Counter(wanted.split())
    common = sum((left & right).values())
    if common == 0:
        return 0.0
    precision, recall = common / left.total(), common / right.total()
    return 2 * precision * recall / (precision + recall)


# Scorers as settings: ``type = "numeric"`` in a file, ``Numeric(relative=0.01)`` in Python.

_NUMBER = re.compile(
    r"[-+]?(?:(?:\d{1,3}(?:,\d{2,3})*,\d{3}|\d+)(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?(?: ?%)?"
)  # commas between thousands (or lakhs) alone: "1,2" is not 12
_UNIT = r"(?!(?i:hundred|thousand|(?:m|b|tr)illion))[A-Za-z°µμΩ²³/$€£¥]{0,12}"
_WITH_UNIT = re.compile(rf"(?:= ?|[$€£¥] ?)?({_NUMBER.pattern}) ?{_UNIT}\.?")
"""A number and its unit, no sentence: "not 12" holds one number too, and "5 million" is not 5."""
_EXACT = Context(prec=60, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[])
"""2**64 is not 2**64 - 1, and what is too large or small for it is no number."""
_MAX_CHARS = 10_000
"""Of an answer that a pattern or a schema looks at; what is longer fits neither."""


class AnswerScorer(StrictModel, ABC):
    """Compares an answer with references."""

    is_answer: ClassVar[bool] = True
    """A reference is an answer that is right."""

    def score(self, answer: str | None, references: Sequence[str]) -> JudgeResult:
        """Return what ``answer`` is worth by the best reference; 0 for none at all."""
        if answer is None or not answer.strip():
            return JudgeResult(score=0.0, evidence="no answer was given")
        best = max(self.compare(answer, one) for one in references)
        evidence = "" if best == 1 else f"{answer[:60]!r} is not right"
        return JudgeResult(score=best, evidence=evidence)

    @abstractmethod
    def compare(self, answer: str, reference: str) -> float:
        """Return what ``answer`` is worth, in [0, 1]."""

    def check(self, reference: str) -> None:
        """Raise where nothing can be compared with ``reference``.

        Raises:
            ConfigError: With the reason.
        """


class Exact(AnswerScorer):
    """1 where both are the same, letter case, punctuation and articles aside."""

    type: Literal["exact"] = "exact"
    normalized: bool = True
    """False: character by character, blanks at both ends aside."""

    def compare(self, answer: str, reference: str) -> float:
        if self.normalized:
            return exact_match(answer, [reference])
        return float(answer.strip() == reference.strip())


class F1(AnswerScorer):
    """Token F1; see ``token_f1``."""

    type: Literal["f1"] = "f1"

    def compare(self, answer: str, reference: str) -> float:
        return token_f1(answer, [reference])


class Numeric(AnswerScorer):
    """1 where the answer is a number alone, with or without a unit, near the reference.

    ``|answer - reference| <= max(absolute, relative * |reference|)``
    """

    type: Literal["numeric"] = "numeric"
    absolute: float = Field(default=1e-9, ge=0)
    relative: float = Field(default=0.0, ge=0)

    def compare(self, answer: str, reference: str) -> float:
        given = answer.strip().strip("*` ")  # bold, or code
        given = re.sub("[\u2010\u2011\u2212]", "-", given)  # a minus sign is no hyphen
        given = re.sub(r"^-([$€£¥])", r"\1-", given)
        if (found := _WITH_UNIT.fullmatch(given)) is None:
            return 0.0
        with localcontext(_EXACT):
            wanted = _number(reference)
            near = max(_number(repr(self.absolute)), _number(repr(self.relative)) * abs(wanted))
            return float(abs(_number(found[1]) - wanted) <= near)

    def check(self, reference: str) -> None:
        """Raise where the reference is no finite number.

        Raises:
            ConfigError: It is none.
        """
        with localcontext(_EXACT):
            if _NUMBER.fullmatch(reference.strip()) is None or not _number(reference).is_finite():
                raise ConfigError(f"wanted a number, got {reference[:40]!r}")


class Pattern(AnswerScorer):
    """1 where the whole answer matches the reference, a regular expression."""

    is_answer = False
    type: Literal["regex"] = "regex"
    ignore_case: bool = True

    def compare(self, answer: str, reference: str) -> float:
        flags = re.DOTALL | (re.IGNORECASE if self.ignore_case else 0)
        if len(answer := answer.strip()) > _MAX_CHARS:
            return 0.0
        return float(re.fullmatch(reference, answer, flags) is not None)

    def check(self, reference: str) -> None:
        """Raise where the reference is no pattern.

        Raises:
            ConfigError: It is none.
        """
        try:
            re.compile(reference)
        except re.error as error:
            raise ConfigError(f"{reference[:40]!r} is no regular expression: {error}") from None


class Schema(AnswerScorer):
    """1 where the answer is JSON that the reference, a JSON Schema, allows."""

    is_answer = False
    type: Literal["json_schema"] = "json_schema"

    def compare(self, answer: str, reference: str) -> float:
        """Return 1 or 0.

        Raises:
            ConfigError: The schema refers to what it does not hold.
        """
        from jsonschema import Draft202012Validator
        from referencing import Registry
        from referencing.exceptions import Unresolvable

        # Its own registry would fetch what a reference names from the network.
        validator = Draft202012Validator(json.loads(reference), registry=Registry())
        if len(answer := answer.strip()) > _MAX_CHARS:
            return 0.0
        text = re.sub(r"^```\w*\n|\n?```$", "", answer)
        try:
            return float(validator.is_valid(json.loads(text)))
        except (ValueError, RecursionError):  # no JSON, or nested as nothing that was asked for
            return 0.0
        except Unresolvable as error:
            raise ConfigError(f"the schema has no {error.ref!r}; put it into its '$defs'") from None

    def check(self, reference: str) -> None:
        """Raise where the reference is no JSON Schema.

        Raises:
            ConfigError: It is none.
        """
        from jsonschema import Draft202012Validator
        from jsonschema.exceptions import SchemaError

        try:
            Draft202012Validator.check_schema(json.loads(reference))
        except (ValueError, SchemaError) as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(f"{reference[:40]!r} is no JSON Schema: {reason}") from None


AnyScorer = Annotated[Exact | F1 | Numeric | Pattern | Schema, Field(discriminator="type")]


def answered(scorer: AnswerScorer, *references: str) -> Callable[[World], Awaitable[JudgeResult]]:
    """Return the part of a judge that scores what the agent answered."""

    async def score(world: World) -> JudgeResult:
        return scorer.score(world.answer, references)

    return score


def text_of(
    path: str, scorer: AnswerScorer, *references: str
) -> Callable[[FileWorld], Awaitable[JudgeResult]]:
    """Return the part of a judge that scores what a file holds."""

    async def score(world: FileWorld) -> JudgeResult:
        data = await world.read(path)
        found = scorer.score(None if data is None else data.decode("utf-8", "replace"), references)
        return found if found.score == 1 else replace(found, evidence=f"{path}: {found.evidence}")

    return score


def _number(text: str) -> Decimal:
    text = text.strip().replace(",", "")
    return Decimal(text[:-1]) / 100 if text.endswith("%") else Decimal(text)
