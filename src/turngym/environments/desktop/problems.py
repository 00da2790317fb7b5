"""What is asked on a screen: what is there, what is wanted, how it is judged, how it is done."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Generic, TypeVar

from turngym.environments.core.actions import Action
from turngym.environments.desktop.observation import Element, View
from turngym.tasks.problem import Problem

Step = Action | Callable[[View], Action]
"""One action of an expert, which may look at the screen first."""
Script = tuple[Step, ...]
Generator = Callable[[Random], "DesktopProblem"]
"""Samples a problem of one kind."""
Files = Mapping[str, str | bytes | None]
"""Text or bytes by path below home; None is a folder."""
Kept = Mapping[str, str | bytes | list[list[str]] | None]
"""The same at the end; a list are the computed cells of a workbook, by row."""


@dataclass(frozen=True, kw_only=True)
class DeviceWorld:
    """A device, as set-ups and judges have it."""

    device: Any  # of the family: an X11Device, an AndroidDevice
    answer: str | None = None


class DesktopWorld(DeviceWorld):
    """What a judge looks at: the state behind the screen, never the screen."""

    def holds(self, files: Kept) -> bool:
        """Say whether the home holds ``files`` and nothing else; line ends at the end are free."""
        cells = {path: rows for path, rows in files.items() if isinstance(rows, list)}
        found = self.device.tree()
        wanted = full_tree({p: b"" if isinstance(d, list) else d for p, d in files.items()})
        return (
            found.keys() == wanted.keys()
            and all(path in cells or _same(found[path], wanted[path]) for path in wanted)
            and all(_filled(self.sheet(path)) == _filled(rows) for path, rows in cells.items())
        )

    def config(self, path: str) -> str:
        """Return a settings file below home; "" when there is none."""
        return (self.device.read_file(path) or b"").decode(errors="replace")

    def clipboard(self) -> str:
        """Return the text on the clipboard, without blanks around it."""
        return (self.device.clipboard() or "").strip()

    def sheet(self, path: str) -> list[list[str]]:
        """Return the computed cells of the first sheet of a workbook, by row; [] for none."""
        if self.device.read_file(path) is None:
            return []
        command = ("ssconvert", "-T", "Gnumeric_stf:stf_csv", path, "/tmp/judged.csv")
        data = self.device.run_output("/tmp/judged.csv") if self.device.run(*command) == 0 else b""
        return list(csv.reader(io.StringIO(data.decode(errors="replace"))))


W = TypeVar("W", bound=DeviceWorld)


@dataclass(frozen=True, kw_only=True)
class DeviceProblem(Problem[W], Generic[W]):
    """A problem that an expert's script solves."""

    prompt: str
    script: Sequence[Step] = ()
    """What the expert does, from the start on, before it stops."""
    truth: str | None = None
    """The answer, where one is asked for."""
    is_done: Callable[[W], bool] = lambda _world: True
    """The judge; called when the agent stops or answers."""

    async def judge(self, world: W) -> float:
        """Ask ``is_done``."""
        return float(self.is_done(world))

    def expert(self) -> Sequence[Step]:
        """Return the script, and the answer where one is asked for."""
        if self.truth is None:
            return self.script
        return (*self.script, Action(name="answer", arguments={"text": self.truth}))


@dataclass(frozen=True, kw_only=True)
class DesktopProblem(DeviceProblem[DesktopWorld]):
    """One problem on a desktop."""

    files: Files = field(default_factory=dict)
    """What the home holds at the start."""
    launch: tuple[tuple[str, ...], ...]
    """Programs that are open at the start, two of them side by side."""
    wanted: Kept | None = None
    """What the home must hold in the end, and nothing else; None where ``is_done`` says so."""

    @property
    def content(self) -> str:
        """Prompt and files."""
        return f"{self.prompt}\n{sorted(self.files.items(), key=str)}"

    async def set_up(self, world: DesktopWorld) -> None:
        """Write the files and open the programs."""
        device = world.device
        device.write_files(full_tree(self.files))
        for command in self.launch:
            device.launch(*command)
        if len(self.launch) > 1:
            half, bottom = device.width // 2, device.height - 40  # by stacking: the older one left
            device.arrange({0: (4, 24, half - 8, bottom), 1: (half + 4, 24, half - 8, bottom)})

    async def judge(self, world: DesktopWorld) -> float:
        is_kept = self.wanted is None or world.holds(self.wanted)
        return float(is_kept and self.is_done(world))


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


def _filled(rows: list[list[str]]) -> dict[tuple[int, int], str]:
    """Return row and column of every cell that is not empty, and what it holds."""
    cells = {(r, c): cell.strip() for r, row in enumerate(rows) for c, cell in enumerate(row)}
    return {place: text for place, text in cells.items() if text}


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
