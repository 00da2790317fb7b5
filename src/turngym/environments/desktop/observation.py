"""What an agent sees of a device: windows and their parts as compact text, within a budget."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from turngym.environments.core.pictures import ScreenElement


@dataclass(frozen=True, slots=True, kw_only=True)
class Element(ScreenElement):
    """One part of a window."""

    app: str = ""
    """Program that it belongs to."""
    window: str = ""
    """Title of the window that it is in."""

    @property
    def box(self) -> tuple[int, int, int, int]:
        """Left, top, right and bottom on the screen, in pixels."""
        return self.x, self.y, self.x + self.width, self.y + self.height

    @property
    def line_without_mark(self) -> str:
        """The program, role and name: what it is, wherever it stands."""
        return f"{self.app} {self.role} {self.name}"

    def line(self) -> str:
        """Return the element as one line without indentation."""
        parts = [f"[{self.mark}]"] if self.mark else []
        parts.append(self.role)
        if self.name:
            parts.append(f'"{_one_line(self.name)}"')
        if self.value:
            parts.append(f"= {self.value!r}")
        if self.states:
            parts.append(", ".join(self.states))
        return " ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What was read from a device at one moment."""

    active: str = ""
    """Title of the active window, or of the page."""
    windows: tuple[str, ...] = ()
    """Titles of the others."""
    elements: tuple[Element, ...] = ()
    notes: tuple[str, ...] = ()
    """What happened besides: programs that ended or do not answer."""
    contents: tuple[str, ...] = ()
    """Lines on what open documents hold and their elements do not show."""

    def named(self, mark: object) -> Element | str:
        """Return the element that an agent calls ``mark``, or why there is none."""
        text = str(mark).strip().strip("[]#")
        if not (text.isascii() and text.isdigit() and len(text) < 8):
            return f"{str(mark)[:40]!r} is not the number of an element."
        found = (one for one in self.elements if one.mark and one.mark == int(text))
        return next(found, f"There is no element [{text}] on the screen.")


def view_text(view: View, max_chars: int) -> str:
    """Return ``view`` as text: window, notes, contents, then one element a line.

    Whole lines only, at most ``max_chars`` characters of elements; how many are left out is said.
    """
    lines = [f"Window: {_one_line(view.active) or '(none)'}"]
    lines += [f"Also open: {_one_line(title)}" for title in view.windows]
    lines += [f"Note: {_one_line(note)}" for note in view.notes]
    lines += view.contents
    used = 0
    for number, one in enumerate(view.elements):
        line = "  " * min(one.depth, 8) + one.line()
        used += len(line) + 1
        if used > max_chars:
            lines.append(f"... {len(view.elements) - number} more elements; the text is cut here")
            break
        lines.append(line)
    return "\n".join(lines)


def _one_line(text: str) -> str:
    """Return the name of something so that no file name can make a line of its own."""
    return " ".join(text.splitlines())


def marked(elements: Iterable[Element], width: int, height: int) -> tuple[Element, ...]:
    """Return those that are on the screen, numbered in reading order where they can be acted on."""
    found: list[Element] = []
    mark = 0
    for one in elements:
        x, y = one.center
        if not (0 <= x < width and 0 <= y < height):
            continue
        mark += bool(one.mark)
        found.append(replace(one, mark=mark if one.mark else 0))
    return tuple(found)
