"""What an agent sees of a page: its accessibility tree as compact text, within a stated budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from turngym.environments.core.pictures import ScreenElement

SHAPE_ROLES = frozenset(
    {"circle", "rect", "ellipse", "polygon", "path", "line", "polyline", "label"}
)
"""Parts of a drawing."""
_LINE_CHARS = 160
"""Texts share a line up to here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Element(ScreenElement):
    """One line of a page; its mark is fixed for the life of the document."""

    options: tuple[str, ...] = ()
    hint: str = ""
    """``#id`` or ``.class`` of an element without a name."""
    about: str = ""
    """Colour and corners of a shape, colour of a box, picture of an icon, whose frame it is."""

    @property
    def is_shape(self) -> bool:
        """A part of a drawing, which is known by its place."""
        return self.role in SHAPE_ROLES

    def line(self) -> str:
        """Return the element as one line without indentation."""
        parts = [f"[{self.mark}]"] if self.mark else []
        parts.append(self.role)
        if self.name:
            parts.append(f'"{self.name}"')
        elif self.hint:
            parts.append(self.hint)
        if self.is_shape or self.role in ("box", "canvas"):
            parts.append(f"at {self.x},{self.y} size {self.width}x{self.height}")
        if self.about:
            parts.append(f"({self.about})")
        if self.value:
            parts.append(f"= {self.value!r}")
        if self.options:
            parts.append(f"of {' | '.join(self.options)}")
        if self.states:
            parts.append(", ".join(self.states))
        return " ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tab:
    """One open tab, as the list of tabs shows it."""

    title: str
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PageView:
    """What was read from a page at one moment."""

    url: str = ""
    title: str = ""
    elements: tuple[Element, ...] = ()
    is_cut: bool = False
    """The page holds more lines than are ever read from one."""
    is_busy: bool = False
    """It was still changing when the time for waiting was over."""
    scroll: tuple[int, int, int] = (0, 0, 0)
    """Pixels above the view, height of the view, height of the page."""
    focused: int = 0
    tabs: tuple[Tab, ...] = ()
    active_tab: int = 0
    notes: tuple[str, ...] = ()
    """What happened besides: dialogs, downloads, pop-ups, refused hosts."""


def read_view(raw: dict[str, Any], **more: Any) -> PageView:
    """Return the view that ``page.js`` describes."""
    return PageView(
        url=raw["url"],
        title=raw["title"],
        elements=tuple(_read_line(line) for line in raw["lines"]),
        is_cut=raw["isCut"],
        is_busy=raw["state"] == "busy",
        scroll=tuple(raw["scroll"]),
        focused=raw["focused"],
        **more,
    )


def _read_line(line: Sequence[Any]) -> Element:
    fields: dict[str, Any] = dict(zip(_FIELDS, line, strict=True))
    fields |= {"states": tuple(fields["states"]), "options": tuple(fields["options"])}
    return Element(**fields)


_FIELDS = (
    "mark", "depth", "role", "name", "value", "states", "options", "hint", "x", "y", "width",
    "height", "about",
)  # fmt: skip
"""What ``page.js`` says of a line, in its order."""


def page_text(view: PageView, max_chars: int) -> str:
    """Return the lines of a page, at most ``max_chars`` characters of them.

    A page that fits is shown whole, whether it is in view or not. Of a longer one the lines from
    the top of the view on are shown, whole lines only, as many as fit (of a first one that does
    not, its beginning); how many are left out above and below is said. So scrolling reads on.
    """
    lines = _lines(view.elements)
    if sum(len(line) for _, line in lines) + len(lines) <= max_chars and not view.is_cut:
        return "\n".join(line for _, line in lines)
    top = _first_in_view(view)
    first = max((n for n, (index, _) in enumerate(lines) if index <= top), default=0)
    last, used = first, 0
    while last < len(lines) and (last == first or used + len(lines[last][1]) + 1 <= max_chars):
        used += len(lines[last][1]) + 1
        last += 1
    shown = [line[:max_chars] for _, line in lines[first:last]]
    if first:
        shown.insert(0, f"... {first} lines above; scroll up to read them")
    if last < len(lines) or view.is_cut:
        more = "more" if view.is_cut else len(lines) - last
        shown.append(f"... {more} lines below; scroll down to read them")
    return "\n".join(shown)


def _lines(elements: Sequence[Element]) -> list[tuple[int, str]]:
    """Return the lines of a page, each with the number of its first element.

    An item that says nothing itself is a dash before what it begins with, and texts that follow
    each other share a line.
    """
    lines: list[tuple[int, str]] = []
    items: list[int] = []
    for index, one in enumerate(elements):
        before = elements[index - 1] if index else None
        begins = index + 1 < len(elements) and elements[index + 1].depth > one.depth
        if _without_place(one) == Element(mark=0, role="item", depth=one.depth) and begins:
            items.append(index)
            continue
        joins = before and _is_text(one) and _is_text(before) and before.depth == one.depth
        if joins and not items and len(lines[-1][1]) + len(one.name) < _LINE_CHARS:
            start, line = lines[-1]
            lines[-1] = start, f'{line} "{one.name}"'
        else:
            start, dashes = items[0] if items else index, "- " * len(items)
            lines.append((start, "  " * min(elements[start].depth, 8) + dashes + one.line()))
        items = []
    return lines


def _is_text(one: Element) -> bool:
    plain = Element(mark=0, role="text", name=one.name, depth=one.depth)
    return bool(one.name) and _without_place(one) == plain


def _without_place(one: Element) -> Element:
    return replace(one, x=0, y=0, width=0, height=0)


def _first_in_view(view: PageView) -> int:
    """Return the index of the first line that ends below the top of the view."""
    if view.scroll[0] <= 0:
        return 0
    below = (i for i, one in enumerate(view.elements) if one.y + one.height > 0)
    return next(below, max(0, len(view.elements) - 1))


def address_text(view: PageView) -> str:
    """Return title and URL, the tabs when there is more than one, and the focused element."""
    lines = [f"Page: {view.title or '(no title)'} {view.url}"]
    if len(view.tabs) > 1:
        for number, tab in enumerate(view.tabs):
            here = " (here)" if number == view.active_tab else ""
            lines.append(f"Tab {number}: {tab.title or tab.url}{here}")
    if view.focused:
        lines.append(f"Focus: [{view.focused}]")
    return "\n".join(lines)
