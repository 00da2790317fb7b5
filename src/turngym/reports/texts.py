"""Numbers with intervals as text; tables as Markdown and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence


def figure(
    value: float | None,
    interval: Sequence[float | None] | None = None,
    digits: int = 2,
    *,
    signed: bool = False,
) -> str:
    """Return ``"0.51 [0.45, 0.57]"``, without an interval that is unknown.

    Args:
        value: The number; None is a dash.
        interval: Its low and high end.
        digits: After the point.
        signed: Show the sign of positive numbers as well.
    """
    return _text(value, interval, f"{'+' * signed}.{digits}f", 1, "")


def percent(
    share: float | None, interval: Sequence[float | None] | None = None, *, signed: bool = False
) -> str:
    """Return ``"45.0 % [35.6, 54.8]"`` for a share in [0, 1]; interval, sign as in ``figure``."""
    return _text(share, interval, f"{'+' * signed}.1f", 100, " %")


def _text(
    value: float | None, interval: Sequence[float | None] | None, form: str, scale: int, unit: str
) -> str:
    if value is None:
        return "–"
    ends = [f"{scale * end:{form}}" for end in interval or () if end is not None]
    text = f"{scale * value:{form}}{unit}"
    return f"{text} [{', '.join(ends)}]" if len(ends) == 2 else text


def markdown_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table with these ``headers`` and ``rows``."""
    lines = [f"| {' | '.join(headers)} |", f"|{' --- |' * len(headers)}"]
    return lines + [f"| {' | '.join(row)} |" for row in rows]


def csv_text(rows: Sequence[Mapping[str, object]]) -> str:
    """Return CSV with the columns of all rows; floats have six digits, None is empty."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, names, lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return buffer.getvalue()


def _cell(value: object) -> object:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else value
