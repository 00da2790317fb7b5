"""Twins of test files: the same tests with a failure put in.

A submission that makes its tests look passed whatever they say passes its twin too, which gives
it away. The failure is an assertion of two unequal numbers, at the start or at the end of the test.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from random import Random
from typing import Literal

from turngym.environments.swe.parsing import parse

Place = Literal["start", "end"]
PLACES: tuple[Place, ...] = ("start", "end")


def test_name(test_id: str) -> str:
    """Return the function of a test id: ``test_b`` of ``tests/a.py::Class::test_b[1]``."""
    return test_id.partition("[")[0].rpartition("::")[2]


def test_file(test_id: str) -> str:
    """Return the file of a test id."""
    return test_id.partition("::")[0]


def twin(
    files: Mapping[str, str], names: Iterable[str], rng: Random, place: Place | None = None
) -> dict[str, str]:
    """Return the files that change when every test called one of ``names`` is made to fail.

    Args:
        files: Path to text of the test files.
        names: Names of test functions and methods, wherever they are defined.
        rng: Chooses the numbers, and the place of each failure.
        place: Put all of them there.
    """
    wanted, changed = set(names), {}
    for path, text in files.items():
        lines = text.splitlines(keepends=True)
        added: list[tuple[int, str]] = []
        for function in _functions(text):
            if function.name not in wanted:
                continue
            here: Place = rng.choice(PLACES) if place is None else place
            line = _line(function, here)
            if line is None:
                continue
            one, other = rng.sample(range(10, 10_000), 2)
            indent = " " * function.body[0].col_offset
            added.append((line, f"{indent}assert {one} == {other}\n"))
        for line, statement in sorted(added, reverse=True):
            if line and not lines[line - 1].endswith("\n"):
                lines[line - 1] += "\n"
            lines.insert(line, statement)
        if added:
            changed[path] = "".join(lines)
    return changed


def can_fail(text: str) -> set[str]:
    """Return the names of the functions of a test file that can be made to fail."""
    return {one.name for one in _functions(text) if _line(one, "end") is not None}


def _functions(text: str) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    tree = parse(text)
    nodes = () if tree is None else ast.walk(tree)
    return [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def _line(function: ast.FunctionDef | ast.AsyncFunctionDef, place: Place) -> int | None:
    """Return after which line the failure goes; None for a body on the line of its ``def``."""
    first, last = function.body[0], function.body[-1]
    if first.lineno == function.lineno or first.end_lineno is None or last.end_lineno is None:
        return None
    if place == "end":
        return last.end_lineno
    is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    if is_text:
        return first.end_lineno
    decorators: list[ast.expr] = getattr(first, "decorator_list", [])
    return min([first.lineno, *(one.lineno for one in decorators)]) - 1
