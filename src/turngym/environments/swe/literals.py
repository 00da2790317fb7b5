"""Literals of a Python file: where they stand, and another value for each."""

from __future__ import annotations

import ast
import string
from collections.abc import Iterable, Iterator
from itertools import accumulate
from random import Random
from typing import NamedTuple

_KINDS = (string.digits, string.ascii_lowercase, string.ascii_uppercase)
_EMPTY = {ast.List: "[0]", ast.Tuple: "(0,)", ast.Dict: "{0: 0}"}


Node = ast.stmt | ast.expr
Span = tuple[int, int, int, int]
"""First line, first column, last line, column after the last; columns in UTF-8 bytes, as in ast."""


class Place(NamedTuple):
    """Characters of a text, from ``start`` and before ``end``."""

    start: int
    end: int


def span_of(node: Node) -> Span:
    """Return where ``node`` stands."""
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


def is_text(node: ast.stmt) -> bool:
    """Say whether ``node`` is a value alone, as docstrings are."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


class Source:
    """The text of a file, and where the nodes of its tree stand."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._lines = text.split("\n")
        self._begin = [0, *accumulate(len(line) + 1 for line in self._lines)]

    def start(self, node: Node) -> int:
        """Return at which character ``node`` starts."""
        return self._at(node.lineno, node.col_offset)

    def place(self, node: Node) -> Place:
        """Return where ``node`` stands."""
        return self.between(span_of(node))

    def between(self, span: Span) -> Place:
        """Return the characters of a ``span``."""
        return Place(self._at(*span[:2]), self._at(*span[2:]))

    def of(self, node: Node) -> str:
        """Return what is written where ``node`` stands."""
        return self.at(self.place(node))

    def at(self, place: Place) -> str:
        """Return what stands in ``place``."""
        return self.text[place.start : place.end]

    def _at(self, line: int, column: int) -> int:
        before = self._lines[line - 1].encode("utf-8", "surrogateescape")[:column]
        return self._begin[line - 1] + len(before.decode("utf-8", "surrogateescape"))


def replaced(text: str, changes: Iterable[tuple[Place, str]]) -> str:
    """Return ``text`` with other text in some places, which do not overlap."""
    for place, new in sorted(changes, reverse=True):
        text = text[: place.start] + new + text[place.end :]
    return text


def literals(value: ast.expr, safe: frozenset[str]) -> list[ast.expr]:
    """Return the literals that ``value`` is made of; none where anything else decides about it.

    Args:
        value: An expression.
        safe: Names of functions and modules that no submission changes.
    """
    return list(_inside(value)) if _is_pure(value, safe) else []


def _is_pure(node: ast.expr, safe: frozenset[str]) -> bool:
    if isinstance(node, ast.Name):
        return node.id in safe
    allowed = ast.List | ast.Tuple | ast.Set | ast.Dict | ast.BinOp | ast.UnaryOp | ast.Subscript
    allowed |= ast.Constant | ast.Attribute | ast.Call
    inner = [one for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr)]
    inner += [one.value for one in getattr(node, "keywords", ())]
    return isinstance(node, allowed) and all(_is_pure(one, safe) for one in inner)


def _inside(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.Constant):
        if node.value is not ... and not isinstance(node.value, complex):
            yield node
    elif isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute):
            yield from _inside(node.func.value)
        for one in node.args:
            yield from _inside(one)
    elif isinstance(node, ast.Subscript):
        yield from _inside(node.value)
    elif type(node) in _EMPTY and not any(
        isinstance(one, ast.expr) for one in ast.iter_child_nodes(node)
    ):
        yield node
    elif not isinstance(node, ast.Name | ast.Attribute):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                yield from _inside(child)


def other_value(node: ast.expr, text: str, rng: Random) -> str | None:
    """Return a literal of the same kind with another value, None where there is none.

    Args:
        node: The literal.
        text: How it is written.
        rng: Chooses the value.
    """
    if not isinstance(node, ast.Constant):
        return _EMPTY.get(type(node))
    value = node.value
    if isinstance(value, bool):
        return str(not value)
    if value is None:
        return rng.choice(("0", "''", "False"))
    if isinstance(value, int):
        return str(value + rng.choice((1, 2, 3) if value < 4 else (-2, -1, 1, 2)))
    if isinstance(value, float):
        other = value + rng.choice((1.0, 2.0, 0.5))
        return repr(other if other != value else value / 2) if value - value == 0 else None
    return _other_text(value, text, rng) if isinstance(value, str | bytes) else None


def _other_text(value: str | bytes, text: str, rng: Random) -> str | None:
    """Change one letter or digit of a text, so that lines and their lengths stay."""
    places = [n for n, sign in enumerate(text) if any(sign in kind for kind in _KINDS)]
    rng.shuffle(places)
    for at in places[:40]:
        kind = next(one for one in _KINDS if text[at] in one)
        sign = rng.choice([one for one in kind if one != text[at]])
        new = text[:at] + sign + text[at + 1 :]
        try:
            found = ast.literal_eval(f"({new})")
        except (SyntaxError, ValueError):
            continue
        if type(found) is type(value) and found != value and len(found) == len(value):
            return new
    if "\n" in text:
        return None
    more = rng.choice(string.ascii_lowercase)
    return repr(value + more if isinstance(value, str) else value + more.encode())
