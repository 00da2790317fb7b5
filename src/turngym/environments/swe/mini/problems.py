"""Draws tiny projects with one wrong line, and the calls that tell.

A project has one function of its own and a library of six, each in a file. The function's docstring
says how it calls two of the library; what a library function does is said by its name. One line is
wrong: of the function, or of a library function that it calls. The files are run one after the
other in one namespace, the library first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

_LIBRARY: Mapping[str, tuple[str, Callable[[int, int], int]]] = {
    "add": ("a + b", lambda a, b: a + b), "sub": ("a - b", lambda a, b: a - b),
    "mul": ("a * b", lambda a, b: a * b), "low": ("min(a, b)", min), "high": ("max(a, b)", max),
    "far": ("abs(a - b)", lambda a, b: abs(a - b)),
}  # fmt: skip
"""Library function to what it returns, as text and as a function."""
LIBRARY = tuple(_LIBRARY)
NAMES = (
    "pay", "tax", "fee", "cost", "rate", "size", "area", "loan", "wage", "rent", "gain", "debt",
)  # fmt: skip
_CASES = 6
_LIBRARY_CASES = 3
_OWN_LINE, _LIBRARY_LINE = 3, 2
_PAIRS = tuple((a, b) for a in range(1, 10) for b in range(1, 10) if a != b)
_ARGUMENTS = (("a", "b", "a"), ("a", "b", "b"), ("b", "a", "a"), ("b", "a", "b"))
T = TypeVar("T")


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
    """The library functions that are called, the inner one first."""
    arguments: tuple[str, str, str]
    """``a`` or ``b``: the two of the inner call, and the second of the outer call."""
    bodies: tuple[str, ...] = LIBRARY
    """For each library function whose body it has; its own, in a program without a bug."""

    def run(self, call: Call) -> int:
        """Return what ``call`` gives."""
        a, b = call.arguments
        if call.function != self.name:
            return self._library(call.function, a, b)
        one, other, last = (a if name == "a" else b for name in self.arguments)
        return self._library(self.used[1], self._library(self.used[0], one, other), last)

    def _library(self, function: str, a: int, b: int) -> int:
        return _LIBRARY[self.bodies[LIBRARY.index(function)]][1](a, b)

    def expression(self) -> str:
        """Return what the function returns, as text."""
        one, other, last = self.arguments
        return f"{self.used[1]}({self.used[0]}({one}, {other}), {last})"

    def files(self, says: Program) -> dict[str, str]:
        """Return path to text; the docstring is that of the program ``says``."""
        library = {
            path_of(function): f"def {function}(a, b):\n    return {_LIBRARY[body][0]}\n"
            for function, body in zip(LIBRARY, self.bodies, strict=True)
        }
        own = (
            f'def {self.name}(a, b):\n    """{says.expression()}"""\n'
            f"    return {self.expression()}\n"
        )
        return {**library, path_of(self.name): own}


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
    """The call that the agent gets to see."""
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
        """Files besides the first that a careful reader opens, in order."""
        order = [path_of(name) for name in (self.right.name, *self.right.used)]
        return order[1 : order.index(self.path) + 1]


def path_of(function: str) -> str:
    """Return the file of a function, which is called like it; every token counts here."""
    return function


def with_line(files: Mapping[str, str], path: str, line: int, text: str) -> dict[str, str]:
    """Return the files with one line replaced; its indentation stays."""
    lines = files[path].splitlines()
    old = lines[line - 1]
    lines[line - 1] = old[: len(old) - len(old.lstrip())] + text.strip()
    return {**files, path: "\n".join(lines) + "\n"}


def draw(rng: np.random.Generator) -> Problem:
    """Return a random problem; its wrong line shows in at least half of the calls."""
    while True:
        inner, outer = (LIBRARY[n] for n in rng.choice(len(LIBRARY), 2, replace=False))
        arguments = _pick(rng, _ARGUMENTS)
        right = Program(name=_pick(rng, NAMES), used=(inner, outer), arguments=arguments)
        place = _pick(rng, (right.name, inner, outer))
        wrong = _with_bug(rng, right, place)
        calls = _calls(rng, right.name, _CASES)
        telling = [call for call in calls if right.run(call) != wrong.run(call)]
        if len(telling) < _CASES // 2:
            continue
        calls.remove(telling[0])
        for function in LIBRARY:
            calls += _calls(rng, function, _LIBRARY_CASES)
        return Problem(
            right=right, wrong=wrong, path=path_of(place),
            line=_OWN_LINE if place == right.name else _LIBRARY_LINE, shown=telling[0],
            hidden=tuple(calls),
        )  # fmt: skip


def _with_bug(rng: np.random.Generator, right: Program, place: str) -> Program:
    """Return a program with another body of a library function, or that calls otherwise."""
    if place != right.name:
        index = LIBRARY.index(place)
        body = _pick(rng, [one for one in LIBRARY if one != place])
        return replace(right, bodies=(*LIBRARY[:index], body, *LIBRARY[index + 1 :]))
    inner, outer = right.used
    which = int(rng.integers(3))
    if which == 0:
        arguments = _pick(rng, [one for one in _ARGUMENTS if one != right.arguments])
        return replace(right, arguments=arguments)
    other = _pick(rng, [one for one in LIBRARY if one not in right.used])
    return replace(right, used=(other, outer) if which == 1 else (inner, other))


def _calls(rng: np.random.Generator, function: str, count: int) -> list[Call]:
    """Return different calls of one function."""
    return [
        Call(function=function, arguments=_PAIRS[place])
        for place in rng.choice(len(_PAIRS), count, replace=False)
    ]


def _pick(rng: np.random.Generator, among: Sequence[T]) -> T:
    return among[int(rng.integers(len(among)))]
