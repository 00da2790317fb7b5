"""Test files without some of their tests: what an agent gets to see of them."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from turngym.environments.swe.parsing import parse


def without_tests(text: str, names: Iterable[str]) -> str:
    """Return ``text`` without the test functions and methods called ``names``.

    A class that would be left empty keeps a ``pass``.
    """
    unwanted = {name for name in names if name in text}
    tree = parse(text) if unwanted else None
    if tree is None:
        return text
    lines = text.splitlines(keepends=True)
    spans: list[tuple[int, int, str]] = []
    for owner in ast.walk(tree):
        if not isinstance(owner, ast.Module | ast.ClassDef):
            continue
        gone = [node for node in owner.body if _is_test(node) and _name(node) in unwanted]
        for number, node in enumerate(gone):
            decorators = getattr(node, "decorator_list", [])
            first = min([node.lineno, *(one.lineno for one in decorators)])
            is_last = number == len(gone) - 1
            is_emptied = isinstance(owner, ast.ClassDef) and len(gone) == len(owner.body)
            left = f"{' ' * node.col_offset}pass\n" if is_last and is_emptied else ""
            spans.append((first, node.end_lineno or node.lineno, left))
    for first, last, left in sorted(spans, reverse=True):
        lines[first - 1 : last] = [left] if left else []
    return "".join(lines)


def _is_test(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def _name(node: ast.stmt) -> str:
    return node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else ""
