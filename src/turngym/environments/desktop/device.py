"""What every device with a screen can do.

``X11Device`` is a desktop, ``WebPhone`` a phone-shaped browser, ``AndroidDevice`` a phone over adb.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from turngym.environments.core.spaces import Image
from turngym.environments.desktop.observation import Element, View

MAX_TYPED = 10_000
"""Most characters of one ``type_text``."""


class Device(Protocol):
    """Something with a screen. Its methods block; one thread at a time.

    An action that cannot be done returns why, in one sentence for the agent; None means done.
    Every method ends within seconds, also when an application hangs. A device that is gone raises
    ``EnvironmentFault``.
    """

    width: int
    height: int
    """Of the screen, in pixels."""

    def look(self) -> View:
        """Wait until the screen is quiet, and return what is on it, with marks."""
        ...

    def pixels(self) -> Image:
        """Return the screen, uint8 [height, width, 3]."""
        ...

    def reveal(self, element: Element) -> None:
        """Bring ``element`` to the front, so that its place on the screen is its own."""
        ...

    def click(self, x: int, y: int, *, button: str = "left", times: int = 1) -> str | None:
        """Click or tap; ``button`` is ``left`` or ``right`` (a long press on a phone)."""
        ...

    def move(self, x: int, y: int) -> str | None:
        """Put the pointer at a place."""
        ...

    def drag(self, start: tuple[int, int], end: tuple[int, int]) -> str | None:
        """Press at ``start``, move to ``end`` and release; a swipe on a phone."""
        ...

    def scroll(self, x: int, y: int, *, up: bool) -> str | None:
        """Scroll what is at a place by some lines."""
        ...

    def type_text(self, text: str) -> str | None:
        """Type at the focus, at most ``MAX_TYPED`` characters."""
        ...

    def press(self, keys: str) -> str | None:
        """Press a key or a chord such as ``ctrl+shift+s``."""
        ...

    def launch(self, *command: str) -> None:
        """Start an application and wait for its window."""
        ...

    def run(self, *command: str) -> int | None:
        """Run a program to its end; return its exit status, None when it takes too long."""
        ...

    def write_files(self, files: Mapping[str, bytes | None]) -> None:
        """Write files by path below home; None makes a folder."""
        ...

    def read_file(self, path: str) -> bytes | None:
        """Return a file below home, or None; links are not followed."""
        ...

    def tree(self) -> dict[str, bytes | None]:
        """Return every file below home that is not hidden; folders have None."""
        ...

    def clipboard(self) -> str | None:
        """Return the text on the clipboard."""
        ...

    def state(self, query: str) -> str | None:
        """Return what the system says about itself, or None where it says nothing.

        Every device knows ``"window"``, what is in front; more is its own.
        """
        ...

    def close(self) -> None:
        """End it and all that runs on it. Safe to call twice."""
        ...
