"""Is an answer right? Normalised exact match and token F1, as the reading literature has them."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

UNKNOWN = "unknown"
"""The right answer to a question that the corpus does not answer."""

_UNKNOWN_FORMS = frozenset(
    {"unknown", "unanswerable", "not known", "no answer", "cannot be answered", "not answerable"}
)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}\b)")


def normalize_answer(text: str) -> str:
    """Return ``text`` in lower case, without punctuation, articles and superfluous blanks.

    "The Pale-Harbour." becomes "paleharbour", "12,400" becomes "12400".

    Source:
        Rajpurkar et al. 2016, arXiv:1606.05250, evaluation script; the thousands are ours.
    """
    text = _THOUSANDS.sub("", text.casefold()).translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def exact_match(answer: str, references: Sequence[str]) -> float:
    """Return 1.0 when the normalised ``answer`` equals that of a reference, else 0.0."""
    given = _canonical(answer)
    return float(bool(given) and any(given == _canonical(one) for one in references))


def token_f1(answer: str, references: Sequence[str]) -> float:
    """Return the F1 of the words of ``answer`` (precision and recall), for the best reference.

    ``2 p r / (p + r)`` over bags of normalised words. "unknown" and its like have no parts: they
    match whole or not at all.

    Returns:
        In [0, 1]; 0 when either side has no words.
    """
    return max((_f1(_canonical(answer), _canonical(one)) for one in references), default=0.0)


def contains_answer(text: str, answer: str) -> bool:
    """Return True when the words of ``answer`` stand in ``text``, one after the other."""
    needle = normalize_answer(answer)
    return bool(needle) and f" {needle} " in f" {normalize_answer(text)} "


def _canonical(text: str) -> str:
    normal = normalize_answer(text)
    return UNKNOWN if normal in _UNKNOWN_FORMS else normal


def _f1(given: str, wanted: str) -> float:
    if UNKNOWN in (given, wanted):
        return float(given == wanted)
    left, right = Counter(given.split()), Counter(wanted.split())
    common = sum((left & right).values())
    if common == 0:
        return 0.0
    precision, recall = common / left.total(), common / right.total()
    return 2 * precision * recall / (precision + recall)
