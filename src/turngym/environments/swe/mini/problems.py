"""Draws tiny projects with one wrong line, and the calls that tell.

A project has one function of its own and a library of six, each in a file. The function's
docstring says which two of the library it calls, with what; what a library function does is said by
its name. One line is wrong: of the function, or of a library function that it calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

_LIBRARY: Mapping[str, tuple[str, Callable[[int, int], int]]] = {
    "add": ("a + b", lambda a, b: a + b),
    "sub": ("a - b", lambda a, b: a - b),
    "mul": ("a * b", lambda a, b: a * b),
    "low": ("min(a, b)", min),
    "high": ("max(a, b)", max),
    "far": ("abs(a - b)", lambda a, b: abs(a - b)),
}
"""Library function to what it returns, as text and as a function."""
LIBRARY = tuple(_LIBRARY)
NAMES = (
    "pay", "tax", "fee", "cost", "rate", "size", "area", "loan", "wage", "rent", "gain", "debt",
)  # fmt: skip
_CASES = 6
_LIBRARY_CASES = 3
_OWN_LINES = (4, 5)
"""Where the own function calls the first and the second library function."""

T = TypeVar("T")
Arguments = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call of one function with two numbers."""

    function: str
    arguments: tuple[int, int]

    def __str__(self) -> str:
        return f"{self.function}({self.arguments[0]}, {self.arguments[1]})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What the files of a project do."""

    name: str
    used: tuple[str, str]
    arguments: tuple[Arguments, Arguments]
    bodies: tuple[str, ...] = LIBRARY
    """For each library function whose body it has; its own, in a program without a bug."""

    def run(self, call: Call) -> int:
        """Return what ``call`` gives."""
        a, b = call.arguments
        if call.function != self.name:
            return self._library(call.function, a, b)
        values = {"a": a, "b": b}
        for function, (one, other) in zip(self.used, self.arguments, strict=True):
            values["c"] = self._library(function, values[one], values[other])
        return values["c"]

    def _library(self, function: str, a: int, b: int) -> int:
        return _LIBRARY[self.bodies[LIBRARY.index(function)]][1](a, b)

    def calls(self) -> list[str]:
        """Return the two calls of the library, as text."""
        return [
            f"{function}({one}, {other})"
            for function, (one, other) in zip(self.used, self.arguments, strict=True)
        ]

    def files(self, says: Program) -> dict[str, str]:
        """Return path to text; the docstring is that of the program ``says``."""
        (first, second), told = self.calls(), says.calls()
        own = (
            f'from lib import *\ndef {self.name}(a, b):\n    """{told[0]} as c, {told[1]}"""\n'
            f"    c = {first}\n    return {second}\n"
        )
        library = {
            path_of(function): f"def {function}(a, b):\n    return {_LIBRARY[body][0]}\n"
            for function, body in zip(LIBRARY, self.bodies, strict=True)
        }
        return {**library, path_of(self.name): own}  # what is imported comes first


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A project with one wrong line."""

    right: Program
    wrong: Program
    path: str
    """Of the file with the wrong line."""
    line: int
    """The wrong line, from 1."""
    shown: Call
    """What the agent is told of."""
    hidden: tuple[Call, ...]
    """What is judged besides."""

    def wanted(self, call: Call) -> int:
        """Return what ``call`` should give."""
        return self.right.run(call)

    def broken_files(self) -> dict[str, str]:
        """Return the files that the agent gets."""
        return self.wrong.files(self.right)

    def repair(self) -> str:
        """Return what the wrong line should say, without indentation."""
        return self.right.files(self.right)[self.path].splitlines()[self.line - 1].strip()

    @property
    def reading(self) -> list[str]:
        """The files that tell, in the order in which a careful reader opens them."""
        order = [path_of(name) for name in (self.right.name, *self.right.used)]
        return order[: order.index(self.path) + 1]


def path_of(function: str) -> str:
    """Return the file of a function."""
    return f"{function}.py"


def with_line(files: Mapping[str, str], path: str, line: int, text: str) -> dict[str, str]:
    """Return the files with one line replaced; its indentation stays."""
    lines = files[path].splitlines()
    old = lines[line - 1]
    lines[line - 1] = old[: len(old) - len(old.lstrip())] + text.strip()
    return {**files, path: "\n".join(lines) + "\n"}


def draw(rng: np.random.Generator) -> Problem:
    """Return a random problem; its wrong line shows in at least half of the calls."""
    while True:
        first, second = (LIBRARY[n] for n in rng.choice(len(LIBRARY), 2, replace=False))
        begin = _pick(rng, (("a", "b"), ("b", "a")))
        end = ("c", _pick(rng, "ab"))
        right = Program(name=_pick(rng, NAMES), used=(first, second), arguments=(begin, end))
        place = int(rng.integers(4))
        wrong = _with_bug(rng, right, place)
        calls = [Call(function=right.name, arguments=_numbers(rng)) for _ in range(_CASES)]
        telling = [call for call in calls if right.run(call) != wrong.run(call)]
        if len(telling) < _CASES // 2:
            continue
        calls.remove(telling[0])
        calls += [
            Call(function=function, arguments=_numbers(rng))
            for function in LIBRARY
            for _ in range(_LIBRARY_CASES)
        ]
        is_own = place >= 2
        return Problem(
            right=right,
            wrong=wrong,
            path=path_of(right.name if is_own else right.used[place]),
            line=_OWN_LINES[place - 2] if is_own else 2,
            shown=telling[0],
            hidden=tuple(calls),
        )


def _with_bug(rng: np.random.Generator, right: Program, place: int) -> Program:
    """Return a program with another body (places 0 and 1) or another call (places 2 and 3)."""
    if place < 2:
        index = LIBRARY.index(right.used[place])
        body = _pick(rng, [one for one in LIBRARY if one != LIBRARY[index]])
        return replace(right, bodies=(*LIBRARY[:index], body, *LIBRARY[index + 1 :]))
    which = place - 2
    used, arguments = list(right.used), list(right.arguments)
    if rng.random() < 0.5:
        used[which] = _pick(rng, [one for one in LIBRARY if one != used[which]])
    else:
        names = "ab" if which == 0 else "abc"
        found = [(one, other) for one in names for other in names]
        arguments[which] = _pick(rng, [pair for pair in found if pair != arguments[which]])
    return replace(right, used=(used[0], used[1]), arguments=(arguments[0], arguments[1]))


def _numbers(rng: np.random.Generator) -> tuple[int, int]:
    one, other = rng.choice(np.arange(1, 10), 2, replace=False)
    return int(one), int(other)


def _pick(rng: np.random.Generator, among: Sequence[T]) -> T:
    return among[int(rng.integers(len(among)))]
