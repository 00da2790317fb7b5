"""Experts of tasks that need an eye for places, and of those in which something moves."""

from __future__ import annotations

import math
import re
from itertools import product

from turngym.environments.web.expert_view import Expert, ExpertView, Move, click, drag, fill, first
from turngym.environments.web.miniwob.experts.clicking import ordinal

Place = tuple[int, int]


def _aim(page: ExpertView, target: Place) -> Move:
    """Click until the dot that a click makes is on the target; it may appear beside the mouse."""
    dot = first(one for one in page.all("circle") if one.hint == "#blue-circle")
    if dot is None:
        return "click_at", {"x": target[0], "y": target[1]}
    if dot.center == target:
        return page.submit()
    last = page.past[-1].arguments
    x, y = (
        int(last[axis]) + want - got
        for axis, want, got in zip("xy", target, dot.center, strict=True)
    )
    return "click_at", {"x": x, "y": y}


def _midpoint(page: ExpertView) -> Move:
    (ax, ay), (bx, by) = (one.center for one in page.all("circle")[:2])
    return _aim(page, ((ax + bx) // 2, (ay + by) // 2))


def _bisect(page: ExpertView) -> Move:
    """Click the pixel that cuts the angle best of all."""
    vertex, *ends = (one.center for one in page.all("circle")[:3])
    button = page.named("Submit", "button")
    bottom = 180 if button is None else button.y
    ways = [math.atan2(y - vertex[1], x - vertex[0]) for x, y in ends]
    middle = math.atan2(sum(map(math.sin, ways)), sum(map(math.cos, ways)))

    def error(spot: Place) -> float:
        way = math.atan2(spot[1] - vertex[1], spot[0] - vertex[0])
        return abs(math.remainder(way - middle, math.tau))

    spots = (one for one in product(range(6, 148), range(58, bottom)) if one != vertex)
    return _aim(page, min(spots, key=error))


def _circle(page: ExpertView) -> Move:
    """Draw the piece of a circle that one drag can: a short line that touches it.

    The page asks that all points are about equally far from the mark and that the drawing is 20
    pixels high and wide, not that it leads around the mark.
    """
    mark = first(one for one in page.all("circle") if one.hint == "#circ")
    if page.past or mark is None:
        return page.submit()
    (x, y), away, half = mark.center, 30, 12
    right, down = (1 if x < 80 else -1), (1 if y < 110 else -1)
    x, y = x + right * away, y + down * away
    return drag((x - right * half, y + down * half), (x + right * half, y - down * half))


def _chase(page: ExpertView) -> Move:
    """Put the mouse where the circle will be halfway to the next turn.

    Where it was before follows from the clicks: each was half a step ahead of the circle.
    """
    circle = first(page.all("circle"))
    if circle is None:
        return "wait", {}
    spot: list[int] = []
    for axis, here in zip("xy", circle.center, strict=True):
        clicks = [float(one.arguments[axis]) for one in page.past if one.name == "click_at"]
        before = clicks[0] if clicks else float(here)
        for one in clicks[1:]:
            before = (one + before / 2) / 1.5
        spot.append(round(here + (here - before) / 2))
    return "click_at", {"x": spot[0], "y": spot[1]}


def _cube(page: ExpertView) -> Move:
    """Turn the cube bit by bit until the wanted side, which is red, faces the user."""
    wanted = page.quoted[0]
    active = [one.name for one in page.all("text") if one.about == "red"]
    if wanted in active:
        return page.submit()
    x, y = 80, 110
    if wanted in "16":
        return drag((x, y), (x, y + (20 if wanted == "6" else -20)))
    return drag((x, y), (x + (20 if wanted in "45" else -20), y))


def _sort(page: ExpertView) -> Move:
    """Drag an item beyond the middle of the one whose place it takes."""
    items = [one for one in page.all("text") if one.mark]
    old = next(i for i, one in enumerate(items) if page.goal.startswith(f"Drag {one.name} "))
    columns = 3 if len(items) == 9 else 1
    new = _new_place(page.goal.removeprefix(f"Drag {items[old].name} "), old, columns, len(items))
    start, end = items[old].center, items[new].center
    if columns == 1:
        return drag(start, (end[0], end[1] + (4 if new > old else -4)))
    # The list makes room before or behind what the mouse is on, by the way that it came.
    dx, dy = (4, 15) if new > old else (-15, -4)
    if (end[0] - start[0]) * (new - old) < 0:
        dx, dy = -18, 4
    return drag(start, (end[0] + dx, end[1] + dy))


def _new_place(where: str, old: int, columns: int, number: int) -> int:
    """Return the place, from 0, that words such as ``to the top left`` ask for."""
    if "by one" in where:
        steps = {"up": -columns, "down": columns, "left": -1, "right": 1}
        return old + steps[where.split(" ")[0]]
    if columns == 1:
        ends = {"top": 0, "bottom": number - 1}
        return next((place for word, place in ends.items() if word in where), ordinal(where) - 1)
    row = 0 if "top" in where else 2 if "bottom" in where else 1
    column = 0 if "left" in where else 2 if "right" in where else 1
    return row * columns + column


def _sides(page: ExpertView) -> Move:
    shape = first(page.all("polygon"))
    return click(None) if shape is None else page.submit(shape.about.split(", ")[1].split(" ")[0])


_HOUR, _HALF_HOUR = 41, 20.5
"""Pixels."""
_LEFT = 33
"""Between the names of the hours and the events, where half-hours are never covered."""


def _calendar(page: ExpertView) -> Move:
    """Bring the hours into view, draw the event where nothing else is, name it and create it.

    An event may appear above where the mouse was; then the mouse goes over it again, as much lower.
    """
    field = first(page.all("textbox"))
    if field is not None:
        name = page.quoted[0]
        return fill(field, name) if field.value != name else page.submit("Create")
    hours = [one for one in page.all("text") if re.fullmatch(r"\d+[ap]m", one.name)]
    number, unit, begin = re.findall(
        r"Create a ([\d.]+) (hour|min).* between (\d+[AP]M)", page.goal
    )[0]
    halves = round(float(number) / (30 if unit == "min" else 0.5))
    from_hour = next(i for i, one in enumerate(hours) if one.name == begin.lower())
    slots = [round(hours[from_hour].y + _HALF_HOUR * half) for half in range(9 - halves)]
    height = round(halves * _HALF_HOUR)
    events = [one for one in page.all("text") if one.width > 90 and one.name != "New event"]
    slot, top = next(
        (slot, top)
        for slot, top in enumerate(slots)
        if not any(top < one.y + one.height - 4 and one.y + 4 < top + height for one in events)
    )
    if not 56 < top < 200 - _HOUR - height:
        return click(hours[from_hour + slot // 2 + 1])
    event, y = page.named("New event"), top + 10
    if event is not None:
        if abs(event.y - top) < 8:
            return click(event)
        y = int(page.past[-1].arguments["y"]) + top - event.y
    return drag((_LEFT, y), (_LEFT, y + max(1, height - round(_HALF_HOUR))))


AIMING: dict[str, Expert] = {
    "bisect-angle": _bisect, "chase-circle": _chase, 
    "circle-center": lambda page: _aim(page, page.all("circle")[0].center),
    "count-sides": _sides, "daily-calendar": _calendar, "drag-cube": _cube, "drag-items": _sort,
    "drag-items-grid": _sort, "draw-circle": _circle, "find-midpoint": _midpoint,
}  # fmt: skip
