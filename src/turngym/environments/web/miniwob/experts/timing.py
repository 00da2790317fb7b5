"""Experts of tasks about time, in which every action takes a tenth of a second."""

from __future__ import annotations

import re
from itertools import groupby

from turngym.environments.web.expert_view import Expert, ExpertView, Move, click, first

_PAUSE: Move = "scroll", {"direction": "up"}
"""Lets a tenth of a second pass."""
_SILENCE = 8
"""Pauses that are longer than any between two lights."""


def _stock(page: ExpertView) -> Move:
    """Buy once the price is low enough; the page counts an equal one, too."""
    limit = float(re.findall(r"\$(\d+\.\d+)", page.goal)[0])
    prices = [re.findall(r"\$(\d+\.\d+)", one.name) for one in page.all("text")]
    is_low = any(float(price) <= limit for found in prices for price in found)
    return click(page.named("Buy", "button")) if is_low else _PAUSE


def _simon(page: ExpertView) -> Move:
    """Point at what lights up, and once it stays dark press it all in that order."""
    buttons = [one for one in page.all("button") if "rgb" in one.about]
    lit = first(one for one in buttons if min(map(int, re.findall(r"\d+", one.about))) > 100)
    if lit is not None:
        return "hover", {"mark": lit.mark}
    watched = [one for one in page.past if one.name != "click"]
    quiet = [one.name for one in watched[-_SILENCE:]]
    if len(quiet) < _SILENCE or set(quiet) != {_PAUSE[0]}:
        return _PAUSE
    # Each light lasts for several actions, with pauses before the next one.
    said = [mark for mark, _ in groupby(one.arguments.get("mark") for one in watched)]
    order = [int(mark) for mark in said if mark is not None]
    pressed = page.count("click")
    return click(page.view.find(order[pressed]) if pressed < len(order) else None)


def _moving(page: ExpertView) -> Move:
    """Click a circle whose middle is in the picture."""
    circles = [one for one in page.all("circle") if 12 < one.center[0] < 150]
    inside = [one for one in circles if 60 < one.center[1] < 205]
    if inside:
        x, y = inside[0].center
        return "click_at", {"x": x, "y": y}
    return _PAUSE if page.all("circle") else ("wait", {})


TIMING: dict[str, Expert] = {
    "moving-items": _moving, "simon-says": _simon, "stock-market": _stock,
}  # fmt: skip
