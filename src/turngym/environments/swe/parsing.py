"""Python files as syntax trees, ids of tests, and test files without some of their tests."""

from __future__ import annotations

import ast
import io
import threading
import warnings
from collections.abc import Iterable, Iterator

_ONE_AT_A_TIME = threading.Lock()
"""Before 3.11.8 two threads that parse at once fail at random (python/cpython issue 106905), and
warning filters are one for the whole process."""


def parse(text: str) -> ast.Module | None:
    """Return the tree of a file; None for what is no Python.

    A strange escape is no error, whatever the process does about warnings.
    """
    with _ONE_AT_A_TIME, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(text)
        except (SyntaxError, ValueError, RecursionError):
            return None


def test_name(test_id: str) -> str:
    """Return the function of a test id: ``test_b`` of ``tests/a.py::Class::test_b[1]``."""
    return test_id.partition("[")[0].rpartition("::")[2]


def test_file(test_id: str) -> str:
    """Return the file of a test id."""
    return test_id.partition("::")[0]


def hide_tests(text: str, names: Iterable[str]) -> str:
    """Return ``text`` without the test functions and methods called ``names``.

    A class or a branch that would be left empty keeps a ``pass``.
    """
    unwanted = {name for name in names if name in text}
    tree = parse(text) if unwanted else None
    if tree is None:
        return text
    lines = [*io.StringIO(text, newline="")]  # as trees count them: no form feed ends one
    spans: list[tuple[int, int, str]] = []
    for block in _blocks(tree):
        gone = [
            node
            for node in block
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in unwanted
        ]
        for number, node in enumerate(gone):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            is_last = number == len(gone) - 1
            is_emptied = node.col_offset > 0 and len(gone) == len(block)
            left = f"{' ' * node.col_offset}pass\n" if is_last and is_emptied else ""
            spans.append((first, node.end_lineno or node.lineno, left))
    for first, last, left in sorted(spans, reverse=True):
        lines[first - 1 : last] = [left] if left else []
    return "".join(lines)


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yield the statements of a file, a class or a branch, but of no function."""
    for name in ("body", "orelse", "handlers", "finalbody"):
        block = getattr(node, name, [])
        yield block
        for one in block:
            if not isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from _blocks(one)
