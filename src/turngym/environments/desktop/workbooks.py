"""What a workbook holds, as text: a spreadsheet says nothing about its cells through AT-SPI."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable
from html import unescape

MAX_ROWS, MAX_COLUMNS, MAX_CELL = 30, 12, 40
_MAX_BYTES = 4 << 20
_TITLE = re.compile(r"\*?([^*/]+\.gnumeric) - Gnumeric")
_SHEET = re.compile(r"<gnm:Cells>(.*?)</gnm:Cells>", re.DOTALL)
_CELL = re.compile(r"<gnm:Cell\b([^>]*?)(?:/>|>([^<]*)</gnm:Cell>)")
_PLACE = re.compile(r'\b(Row|Col)="(\d{1,6})"')


def contents(titles: Iterable[str], read_file: Callable[[str], bytes | None]) -> tuple[str, ...]:
    """Return the cells of the workbooks that windows called ``titles`` show, as lines.

    They are those of the file: what was changed and not saved is not among them, and is said to be
    missing where the title has its star.

    Args:
        titles: Of windows.
        read_file: Returns a file below home, None when there is none.
    """
    lines: list[str] = []
    for title in titles:
        named = _TITLE.fullmatch(title)
        data = read_file(named[1]) if named else None
        if named and data is not None:
            changed = "; changed since" if title.startswith("*") else ""
            lines.append(f"Cells of {named[1]} as last saved{changed}:")
            lines += _table(cells(data))
    return tuple(lines)


def cells(data: bytes) -> dict[tuple[int, int], str]:
    """Return what stands in the first sheet of a workbook, by row and column from 0."""
    if data[:2] == b"\x1f\x8b":
        try:
            data = zlib.decompressobj(wbits=31).decompress(data, _MAX_BYTES)
        except zlib.error:
            return {}
    sheet = _SHEET.search(data.decode(errors="replace"))
    found: dict[tuple[int, int], str] = {}
    for about, text in _CELL.findall(sheet[1]) if sheet else ():
        place = dict(_PLACE.findall(about))
        if place.keys() == {"Row", "Col"}:
            text = text or "(a formula of another cell)" * ("ExprID" in about)
            found[int(place["Row"]), int(place["Col"])] = " ".join(unescape(text).split())
    return found


def _table(found: dict[tuple[int, int], str]) -> list[str]:
    if not found:
        return ["  (empty)"]
    rows, columns = (max(place[axis] for place in found) + 1 for axis in (0, 1))
    shown = range(min(columns, MAX_COLUMNS))
    lines = ["     " + " | ".join(chr(ord("A") + column) for column in shown)]
    for row in range(min(rows, MAX_ROWS)):
        texts = [found.get((row, column), "") for column in shown]
        cut = [one if len(one) <= MAX_CELL else one[: MAX_CELL - 3] + "..." for one in texts]
        lines.append(f"  {row + 1:<2} {' | '.join(cut)}".rstrip())
    if rows > MAX_ROWS or columns > MAX_COLUMNS:
        lines.append(f"  ... {rows} rows and {columns} columns in all; the table is cut here")
    return lines
