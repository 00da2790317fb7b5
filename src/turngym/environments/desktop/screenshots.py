"""Screens to point at: what an application shows right after its start, taken once per process.

Pointing changes nothing, so an episode needs no application of its own: the desktop is closed as
soon as its screen was taken, and every episode finds the screen as it was.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from turngym.environments.core.spaces import Image
from turngym.environments.desktop.observation import Element, View
from turngym.environments.desktop.tasks.words import NOUNS
from turngym.environments.desktop.x11_device import X11Device
from turngym.tasks.base import Split
from turngym.tasks.splits import split_of

APPS: Mapping[str, tuple[str, ...]] = {
    "calculator": ("galculator",), "editor": ("mousepad",), "files": ("pcmanfm",),
    "sheet": ("gnumeric",), "windows": ("obconf",),
}  # fmt: skip
"""Name in environment ids, and what is started."""
FOLDERS: Mapping[Split, int] = {"train": 8, "test": 4}
"""Different folders that the file manager shows; no name is in folders of both splits."""
_ENTRIES = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenCapture:
    """What a screen showed at one moment. Shared by episodes: nobody writes to ``pixels``."""

    view: View
    pixels: Image
    """uint8 [height, width, 3]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenSpec:
    """Which screen."""

    app: str
    """Whose, see ``APPS``."""
    split: Split = "train"
    folder: int = 0
    """What the file manager shows; the other applications have one spec."""

    @classmethod
    def of(cls, app: str, split: Split, seed: int) -> ScreenSpec:
        """Return the spec of a task."""
        if app != "files":
            return cls(app=app)
        return cls(app=app, split=split, folder=seed % FOLDERS[split])


_taken: dict[tuple[ScreenSpec, int, int], ScreenCapture] = {}
_lock = threading.Lock()


def known_capture(spec: ScreenSpec, size: tuple[int, int]) -> ScreenCapture | None:
    """Return the screen when it was taken already."""
    return _taken.get((spec, *size))


def take_capture(spec: ScreenSpec, size: tuple[int, int]) -> ScreenCapture:
    """Return a screen; the first call of a process starts the application.

    Args:
        spec: Which.
        size: Width and height of the screen, in pixels.

    Raises:
        EnvironmentFault: The desktop or the application could not be started.
    """
    key = (spec, *size)
    with _lock:
        if key not in _taken:
            _taken[key] = _take(spec, size)
        return _taken[key]


def _take(spec: ScreenSpec, size: tuple[int, int]) -> ScreenCapture:
    device = X11Device(*size)
    try:
        if spec.app == "files":
            device.write_files(dict.fromkeys(folder_names(spec.split, spec.folder)))
        device.launch(*APPS[spec.app])
        device.rest()
        view, pixels = device.look(), device.pixels()
        pixels.setflags(write=False)
        return ScreenCapture(view=view, pixels=pixels)
    finally:
        device.close()


def folder_names(split: Split, folder: int) -> list[str]:
    """Return what the file manager shows in a folder of ``split``."""
    rng = Random(f"{split} {folder}")
    names: set[str] = set()
    while len(names) < _ENTRIES:
        name = "-".join(rng.sample(NOUNS, 2))
        if split_of(Element(role="cell", name=name).line_without_mark) == split:
            names.add(name)
    return sorted(names)
