"""What an expert sees, which is what the agent sees, and the words of its scripts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
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

    # Moves.

    def submit(self, button: str = "Submit") -> Move:
        """Press the button that hands in what was done."""
        return click(self.named(button, "button"))

    def click_all(self, elements: Sequence[Element | None], then: str = "Submit") -> Move:
        """Click one element a turn, and ``then`` a button."""
        done = self.count("click")
        return click(elements[done]) if done < len(elements) else self.submit(then)

    def tick(self, box: Element | None) -> Move:
        """Click a box that is not checked, then submit."""
        return self.submit() if box is None or "checked" in box.states else click(box)


Expert = Callable[[ExpertView], Move]


def click(element: Element | None) -> Move:
    """Click it; wait where there is none."""
    return ("wait", {}) if element is None else ("click", {"mark": element.mark})


def fill(element: Element | None, text: str) -> Move:
    """Type into it."""
    return ("wait", {}) if element is None else ("type", {"mark": element.mark, "text": text})


def fill_in(*pairs: tuple[Element | None, str]) -> Move | None:
    """Type into the first field that does not hold its text yet; None when all do."""
    for field, text in pairs:
        if field is not None and field.value not in (text, "*" * len(text)):
            return fill(field, text)
    return None


def drag(start: tuple[int, int], end: tuple[int, int]) -> Move:
    """Drag from ``start`` to ``end``, both (x, y) in the view."""
    return "drag_at", {"x": start[0], "y": start[1], "to_x": end[0], "to_y": end[1]}


def first(elements: Iterable[Element]) -> Element | None:
    """Return the first one."""
    return next(iter(elements), None)


# Scripts: one stage a turn.

Stage = Callable[[ExpertView], Move]
"""One turn of a script, found on the page as it is then."""


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


def choose(name: str, option: str) -> Stage:
    """Choose ``option`` from the list with this name, id or class."""

    def stage(page: ExpertView) -> Move:
        found = _find(page, name, ("select",), "") or page.hinted(name)
        return click(None) if found is None else ("select", {"mark": found.mark, "option": option})

    return stage


def reply(text: str) -> Stage:
    """Answer."""
    return lambda page: ("answer", {"text": text})


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
    return first([*same, *loose, *hinted])


_COMMANDS: Mapping[str, Callable[..., Stage]] = {
    "click": press, "type": enter, "select": choose, "answer": reply,
}  # fmt: skip


def as_stage(step: Stage | Sequence[str]) -> Stage:
    """Return a step of a script as a stage; in words it names an element by what it is called."""
    if callable(step):
        return step
    command, *rest = step
    if command not in _COMMANDS:
        return lambda _page: (command, {})
    stage = _COMMANDS[command](*rest)

    def found(page: ExpertView) -> Move:
        if (move := stage(page))[0] == "wait":
            raise LookupError(
                f"nothing called {rest[0]!r} is there; put ('wait',) before it if late"
            )
        return move

    return found
