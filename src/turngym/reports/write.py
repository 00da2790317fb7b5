"""Writes a whole report: tables, plots and numbers of every environment."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from turngym.reports.comparison import Ranking
from turngym.reports.plots import draw
from turngym.reports.tables import csv_text, markdown

TITLE = "# Algorithms compared at equal episodes"


def write_report(rankings: Sequence[Ranking], out: Path, *, notes: Sequence[str] = ()) -> Path:
    """Write ``report.md``, ``report.csv``, ``report.json`` and one plot for each environment.

    Args:
        rankings: At least one.
        out: A folder that is there.
        notes: Lines that a reader must see first, for example which runs failed.

    Returns:
        The Markdown file.
    """
    sections = []
    for ranking in rankings:
        image = draw(ranking, out / ranking.env.replace("/", "-"))[0]
        sections.append(markdown(ranking, image=image.name))
    warnings = [f"- {note}" for note in notes]
    parts = [TITLE, *(["\n".join(warnings)] if warnings else []), *sections]
    content = {"notes": list(notes), "envs": [ranking.to_json() for ranking in rankings]}
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    (out / "report.json").write_text(text, encoding="utf-8")
    (out / "report.csv").write_text(csv_text(rankings), encoding="utf-8")
    page = out / "report.md"
    page.write_text("\n\n".join(part.strip() for part in parts) + "\n", encoding="utf-8")
    return page
