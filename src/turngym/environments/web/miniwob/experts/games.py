"""Experts of tasks that are guessed, searched, played, or about time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from itertools import groupby

import numpy as np

from turngym.environments.web.expert_view import Expert, ExpertView, Move, click, first


def _number(page: ExpertView) -> Move:
    """Have numbers made until one is as wanted."""
    shown = first(one for one in page.all("text") if re.fullmatch(r"-?\d+", one.name))
    if shown is None or not _is_wanted(int(shown.name), page.goal):
        return click(page.named("Generate", "button"))
    return page.submit()


def _is_wanted(number: int, goal: str) -> bool:
    bound = re.findall(r"(less|greater) than (\d+)", goal)
    if bound:
        word, limit = bound[0]
        return number < int(limit) if word == "less" else number > int(limit)
    return number % 2 == ("odd" in goal)


# The hidden place of "hot-cold": the word below the area says how far the mouse is from it.

_LEVELS = {"HOT": 5.0, "WARM": 10.0, "COLD": 40.0, "ICE COLD": np.inf}
"""Each is a distance below its number of pixels, and not below the one before."""
_OUTSIDE = 300, 205
"""A drag that begins here, away from all text, moves the mouse into the area without a click."""
_PROBES = 100

Points = np.ndarray[tuple[int, int], np.dtype[np.float64]]
"""Shape [N, 2], in pixels of the view."""
Area = tuple[int, int, int, int]
"""Left, top, width and height."""


def _hot_cold(page: ExpertView) -> Move:
    """Narrow down where the place may be, from what the drags before showed.

    Each drag went where the answers before it made it go, so those are known from the drags.
    """
    box, signal = first(page.all("box")), first(page.all("text"))
    if box is None:
        return "wait", {}
    area = box.x, box.y, box.width, box.height
    drags = [
        (int(one.arguments["to_x"]), int(one.arguments["to_y"]))
        for one in page.past
        if one.name == "drag_at"
    ]
    levels: tuple[str, ...] = ()
    for after in drags[1:]:
        levels = next(
            (*levels, level) for level in _LEVELS if _probe(area, (*levels, level)) == after
        )
    if drags:
        levels = (*levels, signal.name if signal else "ICE COLD")
    place = _probe(area, levels)
    if place is None:
        return "wait", {}
    x, y = place
    if np.hypot(*(_left(area, levels) - place).T).max() < _LEVELS["HOT"]:
        return "click_at", {"x": x, "y": y}
    return "drag_at", {"x": _OUTSIDE[0], "y": _OUTSIDE[1], "to_x": x, "to_y": y}


@lru_cache(maxsize=512)
def _left(area: Area, levels: tuple[str, ...]) -> Points:
    """Return where the hidden place may be after these answers."""
    if not levels:
        return _grid(area)
    before, here = _left(area, levels[:-1]), _probe(area, levels[:-1])
    if here is None:
        return before[:0]
    distance = np.hypot(*(before - here).T)
    bounds = [0.0, *_LEVELS.values()]
    place = list(_LEVELS).index(levels[-1])
    found: Points = before[(distance >= bounds[place]) & (distance < bounds[place + 1])]
    return found


def _grid(area: Area) -> Points:
    left, top, width, height = area
    xs, ys = np.meshgrid(np.arange(left, left + width), np.arange(top, top + height))
    return np.stack([xs.ravel(), ys.ravel()], axis=1).astype(float)


@lru_cache(maxsize=512)
def _probe(area: Area, levels: tuple[str, ...]) -> tuple[int, int] | None:
    """Return where to go: where all is hot, or else where the worst answer leaves the fewest."""
    left = _left(area, levels)
    if not len(left):
        return None
    middle = np.rint((left.min(axis=0) + left.max(axis=0)) / 2)
    probes = np.concatenate(
        [[middle], *(few[:: 1 + len(few) // _PROBES] for few in (left, _grid(area)))]
    )
    inside = np.array(area[:2]) + 1
    probes = np.clip(probes, inside, inside + np.array(area[2:]) - 3)
    distances_PN = np.hypot(*(left[None] - probes[:, None]).transpose(2, 0, 1))
    best = 0
    if distances_PN[0].max() >= _LEVELS["HOT"]:
        levels_PN = np.searchsorted(list(_LEVELS.values())[:-1], distances_PN, side="right")
        counts = [(levels_PN == level).sum(axis=1) for level in range(len(_LEVELS))]
        best = int(np.max(counts, axis=0).argmin())
    return int(probes[best, 0]), int(probes[best, 1])


# Tic-tac-toe against the page, which often plays at random and else wins or stops a row of three.

_X, _O = 1, -1
_ROWS, _COLUMNS = ((0, 1, 2), (3, 4, 5), (6, 7, 8)), ((0, 3, 6), (1, 4, 7), (2, 5, 8))
_DIAGONALS = (0, 4, 8), (2, 4, 6)
_LINES = (*_ROWS, *_COLUMNS, *_DIAGONALS)
_GAPS = (
    *((line, place) for place in (2, 1, 0) for line in _COLUMNS),
    *((line, place) for line in _DIAGONALS for place in (0, 1, 2)),
    *((line, place) for place in (2, 1, 0) for line in _ROWS),
)
"""Lines and the place in them that may be empty, in the order in which the page looks."""
_RANDOM = 0.55
"""How often the page plays at random."""

Board = tuple[int, ...]
"""Nine fields: ours, the page's, or 0 for a free one."""


def _tic_tac_toe(page: ExpertView) -> Move:
    fields = page.all("icon")
    board = tuple({"x": _X, "o": _O}.get(one.about, 0) for one in fields)
    if len(board) != len(_LINES) + 1 or all(board):
        return "wait", {}
    return click(fields[_best_place(board)])


def beats_the_page(randoms: Sequence[float]) -> bool:
    """Say whether the expert wins the game of tic-tac-toe that the page plays by these numbers.

    Args:
        randoms: What ``Math.random`` returns from the start of the problem on; at most 11 are used.
    """
    chance = iter(randoms)
    board: Board = (0,) * 9
    is_ours = int(100 * next(chance)) <= 50
    while not (_is_row(board, _X) or _is_row(board, _O) or all(board)):
        if is_ours:
            board = _put(board, _best_place(board), _X)
        else:
            is_random = int(100 * next(chance)) < 100 * _RANDOM or not any(board)
            place = None if is_random else _clever(board)
            if place is None:
                free = _free(board)
                place = free[int(len(free) * next(chance))]
            board = _put(board, place, _O)
        is_ours = not is_ours
    return _is_row(board, _X)


def _best_place(board: Board) -> int:
    return max(_free(board), key=lambda place: _chance_after(board, place))


def _free(board: Board) -> list[int]:
    return [place for place, piece in enumerate(board) if not piece]


def _chance_after(board: Board, place: int) -> float:
    """Return the chance to win with a piece of ours at ``place``."""
    board = _put(board, place, _X)
    if _is_row(board, _X):
        return 1.0
    free = _free(board)
    if not free:
        return 0.0
    by_chance = sum(_best_chance(_put(board, one, _O)) for one in free) / len(free)
    clever = _clever(board)
    if clever is None:
        return by_chance
    return _RANDOM * by_chance + (1 - _RANDOM) * _best_chance(_put(board, clever, _O))


@cache
def _best_chance(board: Board) -> float:
    if _is_row(board, _O) or all(board):
        return 0.0
    return _chance_after(board, _best_place(board))


def _put(board: Board, place: int, piece: int) -> Board:
    return (*board[:place], piece, *board[place + 1 :])


def _is_row(board: Board, piece: int) -> bool:
    return any(all(board[one] == piece for one in line) for line in _LINES)


def _clever(board: Board) -> int | None:
    """Return where the page goes when it does not play at random: to win, or to stop us."""
    return next(_gaps(board, _O), next(_gaps(board, _X), None))


def _gaps(board: Board, piece: int) -> Iterator[int]:
    """Return the free fields that would complete a row of ``piece``."""
    for line, place in _GAPS:
        if not board[line[place]] and sum(board[one] for one in line) == 2 * piece:
            yield line[place]


# Tasks about time, in which every action takes a tenth of a second.

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
    return click(first(one for one in page.elements if one.mark in order[pressed : pressed + 1]))


def _moving(page: ExpertView) -> Move:
    """Click a circle whose middle is in the picture."""
    circles = [one for one in page.all("circle") if 12 < one.center[0] < 150]
    inside = [one for one in circles if 60 < one.center[1] < 205]
    if inside:
        x, y = inside[0].center
        return "click_at", {"x": x, "y": y}
    return _PAUSE if page.all("circle") else ("wait", {})


GAMES: dict[str, Expert] = {
    "generate-number": _number, "hot-cold": _hot_cold, "moving-items": _moving,
    "simon-says": _simon, "stock-market": _stock, "tic-tac-toe": _tic_tac_toe,
}  # fmt: skip
