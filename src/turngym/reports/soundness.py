"""Reports of checks as one page of HTML, with the evidence folded below each line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape

from turngym.check_report import CheckReport, CheckResult

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem }
table { width: 100% } td { padding: .2rem .6rem; vertical-align: top;
box-shadow: 0 1px #8884 } td:last-child { text-align: right }
.pass { color: #197a3a } .fail { color: #b3211d; font-weight: 600 } .warn { color: #9a6700 }
.not-run { color: #777 } pre { white-space: pre-wrap; font-size: 12px; margin: .3rem 0 }
"""


def soundness_page(title: str, reports: Sequence[CheckReport]) -> str:
    """Return a page that stands alone: it loads nothing and runs nothing.

    Args:
        title: What was checked.
        reports: What was found, in order.
    """
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
