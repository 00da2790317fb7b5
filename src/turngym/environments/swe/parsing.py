"""Python files as syntax trees, and ids of tests."""

from __future__ import annotations

import ast
import threading
import warnings

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
