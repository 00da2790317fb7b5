"""Experts of tasks with shapes, which are known by their places."""

from __future__ import annotations

import re

from turngym.environments.web.expert_view import Expert, ExpertView, Move, click, drag, first
from turngym.environments.web.miniwob.experts.clicking import ordinal
from turngym.environments.web.observation import Element

_COLOURS = ("red", "green", "blue", "aqua", "black", "magenta", "yellow")
_AS_SHOWN = {"aqua": "cyan"}
"""What a page's text calls a colour of a goal."""
_RECT, _CIRCLE, _TRIANGLE = "rect", "circle", "polygon"


def _ascending(page: ExpertView) -> Move:
    """Click the numbers; after the first click they are covered, in the same order."""
    numbers = [one for one in page.all("label") if one.name.isdigit()]
    return click(first(numbers) or first(page.all("rect")))


def _coordinate(page: ExpertView) -> Move:
    wanted = re.findall(r"\(-?\d+,-?\d+\)", page.goal)[0]
    return click(first(one for one in page.elements if one.hint == f"#{wanted}"))


def _described(page: ExpertView) -> list[Element]:
    """Return the shapes that the goal describes by size, colour and kind."""
    words = re.findall(r"[a-zA-Z0-9]+", re.sub(r"^.*?(Click on an?|How many) ", "", page.goal))
    return [one for one in page.elements if one.is_shape and _fits(one, words)]


def _fits(shape: Element, words: list[str]) -> bool:
    colour = shape.about.split(",")[0]
    text = " ".join(words)
    sized = shape.height > 15 if shape.role == "label" else shape.width > 15
    if ("large" in words and not sized) or ("small" in words and sized):
        return False
    wanted = [one for one in words if one in _COLOURS]
    if wanted and colour != _AS_SHOWN.get(wanted[0], wanted[0]):
        return False
    is_digit, is_label = shape.name.isdigit(), shape.role == "label"
    meant = {
        "letter": is_label and not is_digit, "digit": is_label and is_digit,
        "circle": shape.role == _CIRCLE, "rectangle": shape.role == _RECT,
        "triangle": shape.role == _TRIANGLE, "shape": not is_label,
    }  # fmt: skip
    for word, fits in meant.items():
        if word in text:
            return fits
    idle = (*_COLOURS, "large", "small", "are", "there", "item", "items")
    rest = [one for one in words if one not in idle]
    symbol = [one.removesuffix("s") if len(one) == 2 else one for one in rest]
    return not symbol or (len(symbol[0]) == 1 and shape.name == symbol[0])


def _identify(page: ExpertView) -> Move:
    shape = first(one for one in page.elements if one.is_shape)
    if shape is None:
        return "wait", {}
    if shape.role == "label":
        return click(page.named("Number" if shape.name.isdigit() else "Letter"))
    kinds = {_CIRCLE: "Circle", _RECT: "Rectangle", _TRIANGLE: "Triangle"}
    return click(page.named(kinds[shape.role]))


def _shades(page: ExpertView) -> Move:
    """Click every box whose strongest colour is the wanted one."""
    wanted = re.findall(r"shades of (\w+)", page.goal)[0]
    place = ("red", "green", "blue").index(wanted)
    boxes = []
    for one in page.all("icon"):
        rgb = [int(part) for part in re.findall(r"\d+", one.about)]
        if len(rgb) == 3 and max(range(3), key=rgb.__getitem__) == place:
            boxes.append(one)
    return page.click_all(boxes)


def _then_submit(page: ExpertView, move: Move) -> Move:
    return page.submit() if page.past else move


def _drag_way(page: ExpertView) -> Move:
    shape = first(one for one in page.elements if one.is_shape)
    if shape is None:
        return "wait", {}
    x, y = shape.center
    way = re.findall(r"(up|down|left|right)", page.goal)[0]
    dx, dy = {"up": (0, -25), "down": (0, 25), "left": (-25, 0), "right": (25, 0)}[way]
    return _then_submit(page, drag((x, y), (x + dx, y + dy)))


def _drag_box(page: ExpertView) -> Move:
    small, large = page.named("s"), page.named("L")
    if small is None or large is None:
        return "wait", {}
    return _then_submit(page, drag(small.center, large.center))


def _drag_shapes(page: ExpertView) -> Move:
    """Drag each shape into its box: the one of the goal's kind, and maybe another for the rest."""
    boxes = [one for one in page.elements if "#shape-container" in one.hint]
    kinds = {"circles": _CIRCLE, "triangles": _TRIANGLE, "rectangles": _RECT, "squares": _RECT}
    words = re.findall(r"\w+", page.goal)
    role = next((kinds[one] for one in words if one in kinds), None)
    colour = next((one for one in words if one in (*_COLOURS, "cyan", "purple", "pink")), "")
    for one in page.elements:
        if not one.is_shape or one in boxes or any(_is_in(one, box) for box in boxes):
            continue
        is_colour = one.about.split(",")[0] == _AS_SHOWN.get(colour, colour)
        fits = one.role == role if role else is_colour
        if fits or len(boxes) == 2:
            box = boxes[0] if fits else boxes[1]
            done = page.count("drag_at")
            spot = box.x + 12 + (done * 17) % max(1, box.width - 24), box.center[1]
            return drag(one.center, spot)
    return page.submit()


def _is_in(one: Element, box: Element) -> bool:
    x, y = one.center
    return box.x <= x <= box.x + box.width and box.y <= y <= box.y + box.height


def _line(page: ExpertView) -> Move:
    dot = first(page.all("circle"))
    if dot is None:
        return "wait", {}
    x, y = dot.center
    move = drag((10, y), (145, y)) if "horizontal" in page.goal else drag((x, 60), (x, 165))
    return _then_submit(page, move)


def _highlight(page: ExpertView) -> Move:
    """Drag over the paragraph from its first to its last character."""
    texts = [one for one in page.all("text") if one.width > 20]
    text = texts[ordinal(page.goal) - 1]
    end = min(text.x + text.width + 8, 300), text.y + text.height - 3
    return _then_submit(page, drag((text.x + 1, text.y + 4), end))


def _resize(page: ExpertView) -> Move:
    handle = page.hinted("ui-resizable-se")
    if handle is None:
        return "wait", {}
    by = 20 if "larger" in page.goal else -20
    dx, dy = (by, 0) if "width" in page.goal else (0, by)
    x, y = handle.center
    return _then_submit(page, drag((x, y), (x + dx, y + dy)))


def _sort(page: ExpertView) -> Move:
    """Bring the smallest number that is out of place up to where it belongs."""
    rows = [one for one in page.all("text") if re.fullmatch(r"-?\d+", one.name)]
    wanted = sorted(rows, key=lambda one: int(one.name))
    for row, right in zip(rows, wanted, strict=True):
        if row is not right:
            return drag(right.center, (row.center[0], row.y - 2))
    return page.submit()


DRAWING: dict[str, Expert] = {
    "ascending-numbers": _ascending, "click-shades": _shades,
    "click-shape": lambda page: click(first(_described(page))),
    "count-shape": lambda page: page.submit(str(len(_described(page)))),
    "drag-box": _drag_box, "drag-circle": _drag_way, "drag-shapes": _drag_shapes,
    "drag-shapes-2": _drag_shapes, "drag-single-shape": _drag_way, "drag-sort-numbers": _sort,
    "draw-line": _line, "grid-coordinate": _coordinate, "highlight-text": _highlight,
    "highlight-text-2": _highlight, "identify-shape": _identify, "resize-textarea": _resize,
}  # fmt: skip
