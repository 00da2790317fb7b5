"""What every device with a screen can do.

``X11Device`` is a desktop, ``WebPhone`` a phone-shaped browser, ``AndroidDevice`` a phone over adb.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from turngym.environments.core.spaces import Image
from turngym.environments.desktop.observation import Element, View

MAX_TYPED = 10_000
"""Most characters of one ``type_text``."""


class Device(Protocol):
    """Something with a screen, as the dialogue has it; set-ups and judges know more of each.

    Its methods block; one thread at a time.

    An action that cannot be done returns why, in one sentence for the agent; None means done.
    Every method ends within seconds, also when an application hangs. A device that is gone raises
    ``EnvironmentFault``.
    """

    width: int
    height: int
    """Of the screen, in pixels."""

    def look(self) -> View:
        """Wait until the screen is quiet, and return what is on it, with marks."""

    def pixels(self) -> Image:
        """Return the screen, uint8 [height, width, 3]."""

    def reveal(self, element: Element) -> None:
        """Bring ``element`` to the front, so that its place on the screen is its own."""

    def click(self, x: int, y: int, *, button: str = "left", times: int = 1) -> str | None:
        """Click or tap so many ``times``; the ``right`` ``button`` is a long press on a phone."""

    def move(self, x: int, y: int) -> str | None:
        """Put the pointer at a place."""

    def drag(self, start: tuple[int, int], end: tuple[int, int]) -> str | None:
        """Press at ``start``, move to ``end`` and release; a swipe on a phone."""

    def scroll(self, x: int, y: int, *, up: bool) -> str | None:
        """Scroll what is at a place some lines ``up`` or down."""

    def type_text(self, text: str) -> str | None:
        """Type at the focus, at most ``MAX_TYPED`` characters."""

    def press(self, keys: str) -> str | None:
        """Press a key or a chord such as ``ctrl+shift+s``."""

    def close(self) -> None:
        """End it and all that runs on it. Safe to call twice."""


class Screened:
    """What devices share that answer for the places of their screen."""

    width: int
    height: int

    def _outside(self, x: int, y: int) -> str | None:
        """Say why a place cannot be pointed at; None where it is on the screen."""
        if 0 <= x < self.width and 0 <= y < self.height:
            return None
        return f"{x}, {y} is off the screen, which is {self.width} x {self.height}."


class Phone(Screened):
    """What phones share: no pointer, nothing that lies over the window."""

    def reveal(self, element: Element) -> None:
        """Do nothing: on a phone nothing lies over what is listed."""

    def move(self, x: int, y: int) -> str | None:
        return self._outside(x, y) or "A phone has no pointer to move."


def untypable(text: str, is_typable: Callable[[str], bool], reason: str = "") -> str | None:
    """Return why ``text`` cannot be typed: too long, or a character that is not typable.

    Args:
        text: What an agent wants to type.
        is_typable: Of one character.
        reason: What is said besides of a character that is not.
    """
    if len(text) > MAX_TYPED:
        return f"The text has {len(text)} characters; one action types {MAX_TYPED} at most."
    odd = next((char for char in text if not is_typable(char)), None)
    return None if odd is None else f"{odd!r} cannot be typed{reason}."
