"""The text of a Dockerfile: instructions with their here-documents, words and variables."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

_PIECE = re.compile(r"""'([^']*)'|"((?:\\.|[^"\\])*)"|((?:\\.|[^\s'"\\])+)|\s+""", re.DOTALL)
_VARIABLE = re.compile(r"\\(.)|\$(?:(\w+)|\{(\w+)(?::([-+])([^}]*))?\})", re.DOTALL)
_DOCUMENT = re.compile(r"""(?<!<)<<(-?)(["']?)([A-Za-z_]\w*)\2""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One instruction, its continued lines joined."""

    number: int
    """Where it begins: number of the line, from 1."""
    name: str
    text: str
    """What follows the name."""
    documents: dict[str, str] = field(default_factory=dict)
    """Here-documents by name."""
    literal: frozenset[str] = frozenset()
    """Names of those whose variables stay as they are written."""


def instructions(text: str) -> Iterator[Instruction]:
    """Yield the instructions of a Dockerfile; comments are left out."""
    lines = enumerate(text.splitlines(), start=1)
    begun, start = "", 0
    for number, line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        start = start if begun else number
        begun += line if begun else line.lstrip()
        if (so_far := begun.rstrip()).endswith("\\"):
            begun = so_far[:-1]
            continue
        yield _instruction(start, begun, lines)
        begun = ""
    if begun:
        yield _instruction(start, begun, lines)


def _instruction(number: int, text: str, lines: Iterable[tuple[int, str]]) -> Instruction:
    """Return the instruction ``text``; its here-documents are taken from ``lines``."""
    name, *rest = text.split(None, 1)
    marks = [*_DOCUMENT.finditer(text)] if name.upper() in ("RUN", "COPY", "ADD") else []
    documents = {}
    for mark in marks:
        body = ""
        for _, line in lines:
            kept = line.lstrip("\t") if mark[1] else line
            if kept == mark[3]:
                break
            body += f"{kept}\n"
        documents[mark[3]] = body
    return Instruction(
        number=number,
        name=name.upper(),
        text=rest[0].strip() if rest else "",
        documents=documents,
        literal=frozenset(mark[3] for mark in marks if mark[2]),
    )


def exec_form(text: str) -> list[str] | None:
    """Return the words of ``["a", "b"]``; None for what is no such list, as engines have it."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    is_form = isinstance(found, list) and all(isinstance(word, str) for word in found)
    return found if is_form else None


def words(text: str, known: Mapping[str, str]) -> list[str]:
    """Return the words of ``text`` without their quotes, variables replaced by their values.

    Args:
        text: Behind an instruction's name.
        known: Values by name; what is not there is empty.

    Raises:
        ValueError: A quote is open.
    """
    found: list[str] = []
    begun, at = None, 0
    while at < len(text):
        piece = _PIECE.match(text, at)
        if piece is None:
            raise ValueError("No closing quotation")
        at, (single, double, bare) = piece.end(), piece.groups()
        if single is double is bare is None:  # blanks
            found += [] if begun is None else [begun]
            begun = None
            continue
        kept = (
            single
            if single is not None
            else filled(double or bare or "", known, is_quoted=bare is None)
        )
        begun = (begun or "") + kept
    return found if begun is None else [*found, begun]


def filled(text: str, known: Mapping[str, str], *, is_quoted: bool) -> str:
    """Return ``text`` with the values of its variables, and escaped characters as such.

    Args:
        text: Any part of an instruction.
        known: Values by name; what is not there is empty.
        is_quoted: A backslash escapes quotes, ``$`` and itself alone.
    """

    def value(found: re.Match[str]) -> str:
        escaped, plain, name, sign, other = found.groups()
        if escaped is not None:
            return found[0] if is_quoted and escaped not in '"\\$' else str(escaped)
        here = known.get(plain or name, "")
        if sign == "-":
            return here or str(other)
        return str(other) * bool(here) if sign == "+" else here

    return _VARIABLE.sub(value, text)
