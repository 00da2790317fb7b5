"""Words that the scripts of experts are written in."""

from __future__ import annotations

from collections.abc import Callable

from turngym.environments.core.actions import Action
from turngym.environments.desktop.observation import Element, View

Step = Action | Callable[[View], Action]
"""One action of an expert, which may look at the screen first."""


def key(*keys: str) -> tuple[Action, ...]:
    """Press each of ``keys``, one after the other."""
    return tuple(Action(name="key", arguments={"keys": one}) for one in keys)


def typed(text: str) -> tuple[Action, ...]:
    """Type ``text``."""
    return (Action(name="type", arguments={"text": text.replace("\n", "\\n")}),)


def click(name: str, role: str = "", *, action: str = "click", window: str = "") -> tuple[Step]:
    """Click the element called ``name``."""

    def step(view: View) -> Action:
        found = find(view, name, role, window)
        return Action(name=action, arguments={"mark": found.mark})

    return (step,)


def find(view: View, name: str, role: str = "", window: str = "") -> Element:
    """Return the first element called ``name``.

    Raises:
        LookupError: There is none on the screen.
    """
    for one in view.elements:
        if one.mark and one.name == name and role in ("", one.role) and window in one.window:
            return one
    raise LookupError(f"no {role or 'element'} {name!r} on the screen")
