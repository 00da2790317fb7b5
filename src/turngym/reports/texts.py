"""Numbers with intervals as text; tables as Markdown and CSV; checks as a page of HTML."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from turngym.check_report import CheckReport, CheckResult
from turngym.records import replacing
from turngym.rollouts.evaluation.statistics import Estimate, Measure

Number = Measure | Estimate | float | None
Ends = Sequence[float | None] | None


def figure(value: Number, interval: Ends = None, digits: int = 2, *, signed: bool = False) -> str:
    """Return ``"0.51 [0.45, 0.57]"``, without an interval that is unknown.

    Args:
        value: The number, perhaps with its own interval; None is a dash.
        interval: Its low and high end.
        digits: After the point.
        signed: Show the sign of positive numbers as well.
    """
    return _text(value, interval, f"{'+' * signed}.{digits}f", 1, "")


def percent(share: Number, interval: Ends = None, *, signed: bool = False) -> str:
    """Return ``"45.0 % [35.6, 54.8]"`` for a share in [0, 1]; interval, sign as in ``figure``."""
    return _text(share, interval, f"{'+' * signed}.1f", 100, " %")


def _text(found: Number, interval: Ends, form: str, scale: int, unit: str) -> str:
    if isinstance(found, Measure | Estimate):
        value, *interval = found.to_json()
    else:
        value = found
    if value is None:
        return "–"
    ends = [f"{scale * end:{form}}" for end in interval or () if end is not None]
    text = f"{scale * value:{form}}{unit}"
    return f"{text} [{', '.join(ends)}]" if len(ends) == 2 else text


def markdown_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table with these ``headers`` and ``rows``."""
    lines = [f"| {' | '.join(headers)} |", f"|{' --- |' * len(headers)}"]
    return lines + [f"| {' | '.join(row)} |" for row in rows]


def interval_columns(found: Mapping[str, Measure | Estimate | None]) -> dict[str, float | None]:
    """Return three columns for each of some numbers: its name, ``_low`` and ``_high``."""
    row: dict[str, float | None] = {}
    for name, one in found.items():
        row[name], row[f"{name}_low"], row[f"{name}_high"] = one.to_json() if one else [None] * 3
    return row


def write_tables(
    stem: Path, content: Mapping[str, Any], rows: Sequence[Mapping[str, object]], page: str
) -> Path:
    """Write JSON, CSV of ``rows`` and a Markdown ``page`` beside each other; return the last."""
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    for suffix, content_of in ((".json", text), (".csv", csv_text(rows)), (".md", page)):
        with replacing(stem.with_suffix(suffix)) as partial:
            partial.write_text(content_of, encoding="utf-8")
    return stem.with_suffix(".md")


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


_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem }
table { width: 100% } td { padding: .2rem .6rem; vertical-align: top;
box-shadow: 0 1px #8884 } td:last-child { text-align: right }
.pass { color: #197a3a } .fail { color: #b3211d; font-weight: 600 } .warn { color: #9a6700 }
.not-run { color: #777 } pre { white-space: pre-wrap; font-size: 12px; margin: .3rem 0 }
"""


def soundness_page(title: str, reports: Sequence[CheckReport]) -> str:
    """Return a page that stands alone, with this title: it loads nothing and runs nothing."""
    results = [result for report in reports for result in report.results]
    counts = {s: sum(r.status == s for r in results) for s in ("pass", "warn", "fail", "not-run")}
    summary = ", ".join(f"{count} {_shown(status)}" for status, count in counts.items())
    tables = "\n".join(map(_table, reports))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style><h1>{escape(title)}</h1><p>{summary}</p>{tables}</html>\n"
    )


def _table(report: CheckReport) -> str:
    rows = "\n".join(map(_row, report.results))
    return f"<h2>{escape(report.subject)}</h2><table>{rows}</table>"


def _row(result: CheckResult) -> str:
    text = f"<div>{escape(result.reason)}</div>" if result.reason else ""
    if result.evidence:
        shown = escape(json.dumps(dict(result.evidence), indent=1, ensure_ascii=False, default=str))
        text += f"<details><summary>evidence</summary><pre>{shown}</pre></details>"
    return (
        f'<tr><td class="{result.status}">{_shown(result.status)}</td><td>{escape(result.name)}'
        f"</td><td>{text}</td><td>{result.seconds:.1f} s</td></tr>"
    )


def _shown(status: str) -> str:
    return "NOT RUN" if status == "not-run" else status


def amount(count: int, noun: str) -> str:
    """Return ``1 task`` or ``2 tasks``.

    Args:
        count: How many.
        noun: What, in the singular.
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
