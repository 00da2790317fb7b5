"""Rankings as Markdown for people, CSV for spreadsheets and JSON for programs."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

from turngym.reports.comparison import Ranking, RankingEntry, Reach
from turngym.reports.plots import draw
from turngym.reports.texts import csv_text, markdown_table
from turngym.reports.texts import percent as percent_of
from turngym.rollouts.evaluation.statistics import Estimate

_HEADERS = (
    "algorithm",
    "seeds",
    "held-out, sampled",
    "held-out, greedy",
    "validation",
    "area",
    "area − {reference}",
    "episodes to {reference}'s end",
    "seeds that get there",
    "tokens",
    "minutes",
    "credit",
)

TITLE = "# Algorithms compared at equal episodes"
NOTES = """\
Every interval is 95 %, percentile bootstrap over seeds (10 000 resamples; differences resample by
seed); with few seeds it is narrower than it should be. *Held-out* is success on tasks of the test
split after training, *validation* at the last evaluation before the budget. *Area* is the area
under the validation curve over episodes, divided by the budget. *Episodes to the reference's end*
is where the mean curve first reaches the final validation success of the reference ({level}),
with its share of the budget. *Tokens* were sampled for training. *Credit* is its share of the time
for playing, credit and update."""


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
    (out / "report.csv").write_text(
        csv_text([_flat(s, r) for r in rankings for s in r.entries]), encoding="utf-8"
    )
    page = out / "report.md"
    page.write_text("\n\n".join(part.strip() for part in parts) + "\n", encoding="utf-8")
    return page


def markdown(ranking: Ranking, *, image: str | None = None) -> str:
    """Return a ranking as a section of Markdown.

    Args:
        ranking: One environment.
        image: Link of its plot.
    """
    first = ranking.entries[0]
    headers = [header.format(reference=ranking.reference) for header in _HEADERS]
    lines = [f"## {ranking.env}", ""]
    lines += [
        f"{ranking.budget:.0f} training episodes for each run. Held-out success before training: "
        f"{percent(first.before)}.",
        "",
        *markdown_table(headers, [_row(s, ranking) for s in ranking.entries]),
    ]
    own = [s for s in ranking.entries if s.settings]
    if own:
        lines += ["", "Settings of their own:", ""]
        lines += [f"- {s.algo}: `{' '.join(s.settings)}`" for s in own]
    if broken := sum(s.faults for s in ranking.entries):
        lines += ["", f"{broken} episodes broke and were left out."]
    if image is not None:
        lines += ["", f"![Success against episodes and tokens in {ranking.env}]({image})"]
    lines += ["", NOTES.format(level=f"{100 * first.reach.level:.1f} %")]
    return "\n".join(lines) + "\n"


def percent(found: Estimate, *, signed: bool = False) -> str:
    """Return ``"45.0 % [35.6, 54.8]"``, ``signed`` or not."""
    return percent_of(found.mean, (found.low, found.high), signed=signed)


def episodes(reach: Reach, budget: float) -> str:
    """Return ``"640 (21 %) [512, 900]"``, with ``>`` the budget where it is never reached."""

    def count(value: float | None) -> str:
        return f"> {budget:.0f}" if value is None or math.isinf(value) else f"{value:.0f}"

    share = "" if reach.episodes is None else f" ({100 * reach.episodes / budget:.0f} %)"
    interval = "" if reach.low is None else f" [{count(reach.low)}, {count(reach.high)}]"
    return f"{count(reach.episodes)}{share}{interval}"


def _row(entry: RankingEntry, ranking: Ranking) -> list[str]:
    gain = entry.area_gain
    return [
        entry.algo,
        str(len(entry.seeds)),
        percent(entry.held_out),
        percent(entry.greedy),
        percent(entry.validation),
        percent(entry.area),
        "–" if gain is None else percent(gain, signed=True),
        episodes(entry.reach, ranking.budget),
        f"{entry.reach.seeds_reached} of {len(entry.seeds)}",
        f"{entry.tokens:.0f}",
        f"{entry.seconds / 60:.1f}",
        f"{100 * entry.credit_share:.1f} %",
    ]


def _flat(entry: RankingEntry, ranking: Ranking) -> dict[str, object]:
    row: dict[str, object] = {
        "env": ranking.env,
        "algo": entry.algo,
        "seeds": len(entry.seeds),
        "settings": " ".join(entry.settings),
        "budget_episodes": ranking.budget,
        "reference": ranking.reference,
    }
    estimates = {
        name: getattr(entry, name)
        for name in ("before", "held_out", "greedy", "validation", "area", "area_gain")
    }
    estimates["held_out_gain"] = entry.held_out_gain
    reach = entry.reach
    estimates["episodes_to_reference_per_seed"] = reach.per_seed
    for name, found in estimates.items():
        row[name] = None if found is None else found.mean
        row[f"{name}_low"] = None if found is None else found.low
        row[f"{name}_high"] = None if found is None else found.high
    return row | {
        "reference_level": reach.level,
        "episodes_to_reference": reach.episodes,
        "episodes_to_reference_low": reach.low,
        "episodes_to_reference_high": reach.high,
        "seeds_reached": reach.seeds_reached,
        "tokens": entry.tokens,
        "updates": entry.updates,
        "faults": entry.faults,
        "seconds": entry.seconds,
        "credit_share": entry.credit_share,
    }
