"""What is asked on a desktop: what is there, what is wanted, how it is judged, how it is done."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from turngym.environments.core.actions import Action
from turngym.environments.desktop.observation import Element, View

if TYPE_CHECKING:  # phones need no X library
    from turngym.environments.desktop.x11_device import X11Device

Step = Action | Callable[[View], Action]
"""One action of an expert, which may look at the screen first."""
Files = Mapping[str, str | bytes | None]
"""Text or bytes by path below home; None is a folder."""


class DesktopState:
    """What a judge looks at: the state behind the screen, never the screen."""

    def __init__(self, device: X11Device, answer: str | None = None) -> None:
        self._device = device
        self.answer = answer
        """What the agent answered; None when it just stopped."""

    def tree(self) -> dict[str, bytes | None]:
        """Return every file below home that is not hidden; folders have None."""
        return self._device.tree()

    def holds(self, files: Files) -> bool:
        """Say whether the home holds ``files`` and nothing else; line ends at the end are free."""
        found, wanted = self.tree(), full_tree(files)
        return found.keys() == wanted.keys() and all(
            _same(found[path], wanted[path]) for path in wanted
        )

    def config(self, path: str) -> str:
        """Return a settings file below home; "" when there is none."""
        return (self._device.read_file(path) or b"").decode(errors="replace")

    def clipboard(self) -> str:
        """Return the text on the clipboard, without blanks around it."""
        return (self._device.clipboard() or "").strip()

    def sheet(self, path: str) -> list[list[str]]:
        """Return the computed cells of the first sheet of a workbook, by row; [] for none."""
        if self._device.read_file(path) is None:
            return []
        status = self._device.run(
            "ssconvert", "-T", "Gnumeric_stf:stf_csv", path, "/tmp/judged.csv"
        )
        data = self._device.run_output("/tmp/judged.csv") if status == 0 else b""
        return list(csv.reader(io.StringIO(data.decode(errors="replace"))))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedProblem:
    """A problem that an expert's script solves."""

    goal: str
    script: Sequence[Step] = ()
    """What the expert does, from the start on, before it stops."""
    truth: str | None = None
    """The answer, where one is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(ScriptedProblem):
    """One problem on a desktop."""

    files: Files = field(default_factory=dict)
    """What the home holds at the start."""
    launch: tuple[tuple[str, ...], ...]
    """Programs that are open at the start."""
    is_done: Callable[[DesktopState], bool]
    """The judge; called when the agent stops or answers."""


ProblemGenerator = Callable[[Random], Problem]
"""Samples a problem of one task type."""


def full_tree(files: Files) -> dict[str, bytes | None]:
    """Return ``files`` as bytes, with the folders that they are in."""
    found: dict[str, bytes | None] = {}
    for path, data in files.items():
        parts = path.split("/")
        for depth in range(1, len(parts)):
            found.setdefault("/".join(parts[:depth]), None)
        found[path] = data.encode() if isinstance(data, str) else data
    return found


def _same(found: bytes | None, wanted: bytes | None) -> bool:
    if found is None or wanted is None:
        return found is wanted
    return found == wanted or found.rstrip(b"\n") == wanted.rstrip(b"\n")


def key(*keys: str) -> tuple[Action, ...]:
    """Press each of ``keys``, one after the other."""
    return tuple(Action(name="key", arguments={"keys": one}) for one in keys)


def typed(text: str) -> tuple[Action, ...]:
    """Type ``text``."""
    return (Action(name="type", arguments={"text": text.replace("\n", "\\n")}),)


def click(name: str, role: str = "", *, action: str = "click", window: str = "") -> tuple[Step]:
    """Click the element of ``role`` called ``name`` in ``window``."""

    def step(view: View) -> Action:
        found = find(view, name, role, window)
        return Action(name=action, arguments={"mark": found.mark})

    return (step,)


def find(view: View, name: str, role: str = "", window: str = "") -> Element:
    """Return the first element of ``role`` called ``name`` in ``window``.

    Raises:
        LookupError: There is none on the screen.
    """
    for one in view.elements:
        if one.mark and one.name == name and role in ("", one.role) and window in one.window:
            return one
    raise LookupError(f"no {role or 'element'} {name!r} on the screen")
