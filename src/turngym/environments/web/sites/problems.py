"""What is asked of an agent in a web application, and how an expert goes about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from turngym.environments.web.expert_view import Expert, ExpertView, Move, click, fill
from turngym.environments.web.observation import Element
from turngym.tasks.base import Split, split_of

Stage = Callable[[ExpertView], Move]
"""One turn of a script, found on the page as it is then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing to do in a web application."""

    goal: str
    wanted: Any
    """The whole application once it is done, as its environment's ``read`` gives it."""
    expert: Expert
    answer: str = ""
    """What must be answered, letter case aside; empty where nothing is asked."""
    signed_in: bool = True
    """The episode begins with the agent's user signed in."""

    @property
    def split(self) -> Split:
        """Which split this problem belongs to, a function of the goal: one in four is held out."""
        return split_of(self.goal, one_in=4)


ProblemGenerator = Callable[[Any, Random], Problem]
"""Samples a problem for the application as it is."""


def script(*stages: Stage) -> Expert:
    """Return the expert who does one stage a turn, and stops at the end."""

    def expert(page: ExpertView) -> Move:
        turn = len(page.past)
        return stages[turn](page) if turn < len(stages) else ("stop", {})

    return expert


def visit(url: str) -> Stage:
    """Open an address."""
    return lambda page: ("goto", {"url": url})


def press(name: str, *roles: str, after: str = "") -> Stage:
    """Return the stage that clicks an element.

    Args:
        name: What it is called; with a leading ``#`` or ``.`` also its id or class.
        roles: Which roles it may have; any without.
        after: Only elements behind the first line that holds this text count.
    """
    return lambda page: click(_find(page, name, roles, after))


def press_above(name: str, below: str) -> Stage:
    """Click the last thing called ``name`` above the text ``below``."""

    def stage(page: ExpertView) -> Move:
        lines = page.elements
        end = next((i for i, one in enumerate(lines) if below in one.name), 0)
        found = [one for one in lines[:end] if one.mark and one.name == name]
        return click(found[-1] if found else None)

    return stage


def enter(name: str, text: str, *, after: str = "") -> Stage:
    """Type into the field with this name, id or class that comes ``after`` a text."""
    roles = ("textbox", "searchbox", "spinbutton", "number", "combobox")
    return lambda page: fill(_find(page, name, roles, after) or page.hinted(name), text)


def choose(name: str, option: str, *, after: str = "") -> Stage:
    """Choose ``option`` from the list with this name, id or class that comes ``after`` a text."""

    def stage(page: ExpertView) -> Move:
        found = _find(page, name, ("select",), after) or page.hinted(name)
        return click(None) if found is None else ("select", {"mark": found.mark, "option": option})

    return stage


def reply(text: str) -> Stage:
    """Answer."""
    return lambda page: ("answer", {"text": text})


def question(data: Any, goal: str, answer: str, look: Sequence[Stage]) -> Problem:
    """Return the problem of finding something out and changing nothing.

    Args:
        data: The application as it is.
        goal: What is asked.
        answer: What is right.
        look: How an expert finds it out.
    """
    return Problem(
        goal=f"{goal} Change nothing.",
        wanted=data.copy(),
        answer=answer,
        expert=script(*look, reply(answer)),
    )


def _find(page: ExpertView, name: str, roles: tuple[str, ...], after: str) -> Element | None:
    """Return the element, after the first line whose name holds ``after`` where that is given."""
    lines = page.elements
    if after:
        start = next((i for i, one in enumerate(lines) if after in one.name), len(lines))
        lines = lines[start:]
    like = [one for one in lines if one.mark and (not roles or one.role in roles)]
    same = [one for one in like if one.name.strip() == name]
    loose = [one for one in like if one.name.strip().lower() == name.lower()]
    hinted = [one for one in like if name[0] in "#." and not one.name and name in one.hint]
    return next(iter([*same, *loose, *hinted]), None)
