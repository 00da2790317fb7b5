"""Experts of tasks with shapes, which are known by their places, and with pictures and colours."""

from __future__ import annotations

import re

from turngym.environments.web.expert_view import Expert, ExpertView, Move, click, drag, fill, first
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


# Pictures, colours and styles.


_DIGITS = (
    ".##. #..# #..# #..# #..# #..# .##.",
    "..#. .##. ..#. ..#. ..#. ..#. ..#.",
    ".##. #..# #..# ..#. .#.. #... ####",
    ".##. #..# ...# .##. ...# #..# .##.",
    "#... #.#. #.#. #### ..#. ..#. ..#.",
    "#### #... #... ###. ...# #..# .##.",
    ".##. #..# #... ###. #..# #..# .##.",
    "#### #..# ...# ..#. ..#. .#.. .#..",
    ".##. #..# #..# .##. #..# #..# .##.",
    ".##. #..# #..# .### ...# #..# .##.",
)
"""The pictures of the ten digits that the page shows as examples, row by row."""
_CSS_COLOURS = {
    "black": "000000", "white": "ffffff", "aqua": "00ffff", "blue": "0000ff", "gray": "808080",
    "green": "008000", "lime": "00ff00", "maroon": "800000", "navy": "000080", "olive": "808000",
    "purple": "800080", "red": "ff0000", "silver": "c0c0c0", "teal": "008080", "yellow": "ffff00",
    "pink": "ffc0cb", "magenta": "ff00ff", "gold": "ffd700", "orange": "ffa500",
}  # fmt: skip
"""Names of colours in CSS."""
_TEXT_COLOURS = {
    "red": "rgb(230, 0, 0)", "orange": "rgb(255, 153, 0)", "yellow": "yellow",
    "green": "rgb(0, 138, 0)", "blue": "rgb(0, 102, 204)", "purple": "rgb(153, 51, 255)",
}  # fmt: skip
"""What a text editor's palette has of each colour."""
_BUTTONS = {"bold": ".ql-bold", "italics": ".ql-italic", "underlined": ".ql-underline"}


def _digit(page: ExpertView) -> Move:
    """Tick the boxes that are dark in the picture of the digit."""
    digit = int(re.findall(r'"(\d)"', page.goal)[0])
    wanted = [sign == "#" for sign in _DIGITS[digit].replace(" ", "")]
    for box, is_wanted in zip(page.all("checkbox"), wanted, strict=True):
        if is_wanted != ("checked" in box.states):
            return click(box)
    return page.submit()


def _right_angle(page: ExpertView) -> Move:
    """Add a point, and once more where it did not come to lie below the mouse."""
    leg = first(page.all("line"))
    if page.count("click_at") == 2:
        return page.submit()
    if leg is None:
        return "wait", {}
    ax, ay, vx, vy = map(int, re.findall(r"(\d+),(\d+) to (\d+),(\d+)", leg.about)[0])

    def slant(place: tuple[int, int]) -> float:
        """Return the cosine of the angle at the blue point, as the page measures it."""
        bx, by = place[0] - vx + 0.5, place[1] - vy + 0.5  # by corners, half a pixel apart
        legs = ((bx * bx + by * by) * ((ax - vx) ** 2 + (ay - vy) ** 2)) ** 0.5
        return float(abs(bx * (ax - vx) + by * (ay - vy)) / legs)

    places = [
        (x, y) for x in range(5, 148) for y in range(57, 176) if abs(x - vx) + abs(y - vy) > 9
    ]
    x, y = min(places, key=slant)
    point = page.hinted("#blue-circle")
    if point is not None:  # the picture begins a little to the right and below
        x, y = 2 * x - point.center[0], 2 * y - point.center[1]
    return "click_at", {"x": x, "y": y}


def _colour(page: ExpertView) -> Move:
    field = page.hinted("#col")
    named, rgb = re.findall(r"Select (\w+) with", page.goal), re.findall(r"\d+", page.goal)
    wanted = _CSS_COLOURS[named[0]] if named else "".join(f"{int(part):02x}" for part in rgb)
    if field is not None and field.value.lower() != wanted:
        return fill(field, wanted)
    return page.submit()


def _editor(page: ExpertView) -> Move:
    """Select what should be changed with the keys, then press its button and, maybe, a colour."""
    editor = page.hinted(".ql-editor")
    text = editor.value if editor is not None else ""
    word, style = _wish(page.goal)
    if word:
        begin = re.split(rf"(?<!\S){re.escape(word)}(?!\S)", text)[0]
        keys = ["Control+Home", *["ArrowRight"] * len(begin), *["Shift+ArrowRight"] * len(word)]
    else:
        keys = ["Control+A"]
    palette = first(one for one in page.elements if _TEXT_COLOURS.get(style) == one.about)
    steps: list[Move] = [click(editor), *(("press", {"keys": one}) for one in keys)]
    if style in _BUTTONS:
        steps.append(click(page.hinted(_BUTTONS[style])))
    else:
        steps += [click(page.hinted(".ql-picker-label")), click(palette)]
    steps.append(page.submit())
    return steps[min(len(page.past), len(steps) - 1)]


def _wish(goal: str) -> tuple[str, str]:
    """Return the word, empty for all of them, and its style or colour."""
    word = re.findall(r"give the text (\S+) the", goal)
    style = re.findall(r"the (?:style|color) (\w+)", goal)[0]
    return word[0] if word else "", style


DRAWING: dict[str, Expert] = {
    "ascending-numbers": _ascending, "click-shades": _shades,
    "click-shape": lambda page: click(first(_described(page))),
    "count-shape": lambda page: page.submit(str(len(_described(page)))),
    "drag-box": _drag_box, "drag-circle": _drag_way, "drag-shapes": _drag_shapes,
    "drag-shapes-2": _drag_shapes, "drag-single-shape": _drag_way, "drag-sort-numbers": _sort,
    "draw-line": _line, "grid-coordinate": _coordinate, "highlight-text": _highlight,
    "highlight-text-2": _highlight, "identify-shape": _identify, "resize-textarea": _resize,
    "number-checkboxes": _digit, "right-angle": _right_angle, "text-editor": _editor,
    "use-colorwheel": _colour, "use-colorwheel-2": _colour,
}  # fmt: skip
