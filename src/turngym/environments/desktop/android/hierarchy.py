"""What ``uiautomator dump`` says about an Android screen, as elements with marks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree import ElementTree

from turngym.environments.desktop.observation import Element

_ROLES = {
    "AutoCompleteTextView": "text", "Button": "button", "CheckBox": "check box",
    "CheckedTextView": "check box", "EditText": "text", "ImageButton": "button",
    "ImageView": "image", "ProgressBar": "progress", "RadioButton": "radio button",
    "SeekBar": "slider", "Spinner": "combo box", "Switch": "switch", "TextView": "label",
    "ToggleButton": "toggle button",
}  # fmt: skip
"""Last part of a class to what it is called here; anything else that can be touched is an item."""
_TOUCHED = ("clickable", "long-clickable", "checkable")
_BOUNDS = re.compile(r"\[(-?\d+),(-?\d+)\]\[(-?\d+),(-?\d+)\]")
_MAX_NAME = 120


def read_hierarchy(xml: str) -> list[Element]:
    """Return the elements of a dump in its order; those that can be acted on have the mark 1.

    What can be touched and has no words of its own, such as a row of a list, is called by the
    words in it, which are then no lines of their own.

    Raises:
        ValueError: It is no dump.
    """
    try:
        root = ElementTree.fromstring(xml)
    except ElementTree.ParseError as error:
        raise ValueError(f"no hierarchy of a screen: {error}") from error
    return [element for node in root for element in _elements(node, 0)]


def _elements(node: ElementTree.Element, depth: int) -> Iterator[Element]:
    own = _words(node)
    is_touched = any(_is(node, name) for name in _TOUCHED) or _role(node) == "text"
    inner = [] if own or not is_touched else list(_plain_words(node))
    if is_touched or own:
        yield _element(node, own or ", ".join(inner), is_touched, depth)
        depth += 1
    for child in node:
        if not (inner and _is_plain(child)):
            yield from _elements(child, depth)


def _element(node: ElementTree.Element, name: str, is_touched: bool, depth: int) -> Element:
    left, top, right, bottom = _box(node)
    role = _role(node) or ("item" if is_touched else "label")
    value = node.get("text", "") if role == "text" else ""
    if role == "text" and name == value:
        name = node.get("content-desc", "") or node.get("hint", "")
    states = [word for word in ("checked", "focused", "selected") if _is(node, word)]
    if not _is(node, "enabled"):
        states.append("disabled")
    return Element(
        role=role, name=name[:_MAX_NAME], value=value, states=tuple(states), depth=depth,
        mark=int(is_touched), x=left, y=top, width=right - left, height=bottom - top,
        app=node.get("package", ""),
    )  # fmt: skip


def _words(node: ElementTree.Element) -> str:
    return " ".join((node.get("content-desc") or node.get("text") or "").split())


def _plain_words(node: ElementTree.Element) -> Iterator[str]:
    """Yield the words of what is in ``node`` and cannot be touched itself."""
    for child in node:
        if _is_plain(child):
            if words := _words(child):
                yield words
            yield from _plain_words(child)


def _is_plain(node: ElementTree.Element) -> bool:
    return not any(_is(one, name) for one in node.iter() for name in _TOUCHED)


def _role(node: ElementTree.Element) -> str:
    return _ROLES.get(node.get("class", "").rsplit(".", 1)[-1], "")


def _is(node: ElementTree.Element, name: str) -> bool:
    return node.get(name) == "true"


def _box(node: ElementTree.Element) -> tuple[int, int, int, int]:
    found = _BOUNDS.fullmatch(node.get("bounds", ""))
    if found is None:
        return 0, 0, 0, 0
    left, top, right, bottom = map(int, found.groups())
    return left, top, right, bottom
