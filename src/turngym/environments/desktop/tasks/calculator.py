"""Tasks on the calculator, judged on the clipboard or on the answer."""

from __future__ import annotations

from random import Random

from turngym.environments.desktop.problems import DesktopProblem, Script, click, key
from turngym.tasks.scorers.answers import Numeric


def _compute(what: str, sum_: str, value: int | str, *, answer: bool = False) -> DesktopProblem:
    """Return the problem to compute ``sum_``, with the keys that it is made of."""
    wanted, steps = str(value), buttons(f"{sum_}=")
    end = "answer with the number" if answer else "copy the result to the clipboard"
    return DesktopProblem(
        prompt=f"Use the calculator to find {what}, and {end}.",
        launch=(("galculator",),),
        is_done=lambda desktop: (
            Numeric().compare((desktop.answer or "") if answer else desktop.clipboard(), wanted)
            == 1
        ),
        script=steps if answer else (*steps, *key("ctrl+c")),
        truth=wanted if answer else None,
    )


def buttons(keys: str) -> Script:
    """Press buttons of the calculator."""
    return tuple(step for char in keys for step in click(char, "toggle button"))


def _product(rng: Random) -> DesktopProblem:
    a, b = rng.randint(12, 999), rng.randint(12, 999)
    return _compute(f"{a} times {b}", f"{a}*{b}", a * b)


def _sum(rng: Random) -> DesktopProblem:
    numbers = [rng.randint(11, 9_999) for _ in range(4)]
    shown = ", ".join(map(str, numbers[:-1])) + f" and {numbers[-1]}"
    return _compute(f"the sum of {shown}", "+".join(map(str, numbers)), sum(numbers))


def _difference(rng: Random) -> DesktopProblem:
    a, b = rng.randint(10_000, 99_999), rng.randint(1_000, 9_999)
    return _compute(f"{a} minus {b}", f"{a}-{b}", a - b, answer=True)


def _quotient(rng: Random) -> DesktopProblem:
    a, b = rng.randint(12, 99), rng.randint(12, 999)
    return _compute(f"{a * b} divided by {b}", f"{a * b}/{b}", a)


def _mixed(rng: Random) -> DesktopProblem:
    a, b, c = rng.randint(11, 99), rng.randint(11, 99), rng.randint(3, 9)
    return _compute(f"({a} + {b}) times {c}", f"({a}+{b})*{c}", (a + b) * c)


def _tenths(rng: Random) -> DesktopProblem:
    a, b = rng.randint(101, 999), rng.randint(3, 99)
    exact = a * b
    value = f"{exact / 10:g}"
    shown = f"{a // 10}.{a % 10}"
    return _compute(f"{shown} times {b}", f"{shown}*{b}", value, answer=True)
