"""Experts of tasks about pictures, colours and styles."""

from __future__ import annotations

import re

from turngym.environments.web.expert_view import Expert, ExpertView, Move, click, fill, first

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
_COLOURS = {
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
    wanted = _COLOURS[named[0]] if named else "".join(f"{int(part):02x}" for part in rgb)
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


PICTURES: dict[str, Expert] = {
    "number-checkboxes": _digit, "right-angle": _right_angle, "text-editor": _editor,
    "use-colorwheel": _colour, "use-colorwheel-2": _colour,
}  # fmt: skip
