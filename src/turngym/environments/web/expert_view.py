"""What an expert of a MiniWoB task sees: what the agent sees, as data."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from turngym.environments.core.actions import Action
from turngym.environments.web.observation import Element, PageView

Move = tuple[str, dict[str, Any]]
"""Name and arguments of an action."""


@dataclass(frozen=True, slots=True)
class ExpertView:
    """A moment of an episode. An expert is a pure function of it."""

    goal: str
    view: PageView
    past: tuple[Action, ...] = ()
    """What was carried out before."""

    @property
    def elements(self) -> tuple[Element, ...]:
        """The lines of the page."""
        return self.view.elements

    @property
    def quoted(self) -> list[str]:
        """Texts that the goal puts into double quotes."""
        return re.findall(r'"([^"]*)"', self.goal)

    @property
    def clicked(self) -> set[int]:
        """Marks that were clicked."""
        return {int(one.arguments["mark"]) for one in self.past if one.name == "click"}

    def all(self, *roles: str) -> list[Element]:
        """Return the elements with one of ``roles``, in order."""
        return [one for one in self.elements if one.role in roles]

    def named(self, name: str, *roles: str) -> Element | None:
        """Return the first element called ``name``; letter case counts only where it decides."""
        wanted = name.strip()
        like = [
            one
            for one in self.elements
            if one.mark
            and (not roles or one.role in roles)
            and one.name.strip().lower() == wanted.lower()
        ]
        return first([one for one in like if one.name.strip() == wanted] + like)

    def hinted(self, hint: str) -> Element | None:
        """Return the first nameless element whose id or classes hold ``hint``."""
        return next((one for one in self.elements if one.mark and hint in one.hint), None)

    def count(self, name: str) -> int:
        """Return how often the action ``name`` was carried out."""
        return sum(one.name == name for one in self.past)


Expert = Callable[[ExpertView], Move]


def click(element: Element | None) -> Move:
    """Click it; wait where there is none."""
    return ("wait", {}) if element is None else ("click", {"mark": element.mark})


def fill(element: Element | None, text: str) -> Move:
    """Type into it."""
    return ("wait", {}) if element is None else ("type", {"mark": element.mark, "text": text})


def first(elements: Iterable[Element]) -> Element | None:
    """Return the first one."""
    return next(iter(elements), None)
