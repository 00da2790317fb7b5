"""Rankings as Markdown for people, CSV for spreadsheets and JSON for programs."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence

from turngym.reports.comparison import Ranking, Reach, Standing
from turngym.reports.statistics import Estimate

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

NOTES = """\
Every interval is 95 %, percentile bootstrap over seeds (10 000 resamples; differences resample by
seed); with few seeds it is narrower than it should be. *Held-out* is success on tasks of the test
split after training, *validation* at the last evaluation before the budget. *Area* is the area
under the validation curve over episodes, divided by the budget. *Episodes to the reference's end*
is where the mean curve first reaches the final validation success of the reference ({level}),
with its share of the budget. *Tokens* were drawn for training. *Credit* is its share of the time
for playing, credit and update."""


def markdown(ranking: Ranking, *, image: str | None = None) -> str:
    """Return a ranking as a section of Markdown.

    Args:
        ranking: One environment.
        image: Link of its plot.
    """
    first = ranking.standings[0]
    headers = [header.format(reference=ranking.reference) for header in _HEADERS]
    lines = [f"## {ranking.env}", ""]
    lines += [
        f"{ranking.budget:.0f} training episodes for each run. Held-out success before training: "
        f"{percent(first.before)}.",
        "",
        f"| {' | '.join(headers)} |",
        f"|{' --- |' * len(headers)}",
    ]
    lines += [f"| {' | '.join(_row(s, ranking))} |" for s in ranking.standings]
    own = [s for s in ranking.standings if s.settings]
    if own:
        lines += ["", "Settings of their own:", ""]
        lines += [f"- {s.algo}: `{' '.join(s.settings)}`" for s in own]
    if broken := sum(s.faults for s in ranking.standings):
        lines += ["", f"{broken} episodes broke and were left out."]
    if image is not None:
        lines += ["", f"![Success against episodes and tokens in {ranking.env}]({image})"]
    lines += ["", NOTES.format(level=f"{100 * first.reach.level:.1f} %")]
    return "\n".join(lines) + "\n"


def csv_text(rankings: Sequence[Ranking]) -> str:
    """Return one line for each environment and algorithm; intervals are ``_low`` and ``_high``."""
    rows = [_flat(standing, ranking) for ranking in rankings for standing in ranking.standings]
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def percent(found: Estimate, *, signed: bool = False) -> str:
    """Return ``"45.0 % [35.6, 54.8]"``."""
    form = "+.1f" if signed else ".1f"
    text = f"{100 * found.mean:{form}} %"
    if found.low is None or found.high is None:
        return text
    return f"{text} [{100 * found.low:{form}}, {100 * found.high:{form}}]"


def episodes(reach: Reach, budget: float) -> str:
    """Return ``"640 (21 %) [512, 900]"``, with ``>`` the budget where it is never reached."""

    def count(value: float | None) -> str:
        return f"> {budget:.0f}" if value is None or math.isinf(value) else f"{value:.0f}"

    share = "" if reach.episodes is None else f" ({100 * reach.episodes / budget:.0f} %)"
    interval = "" if reach.low is None else f" [{count(reach.low)}, {count(reach.high)}]"
    return f"{count(reach.episodes)}{share}{interval}"


def _row(standing: Standing, ranking: Ranking) -> list[str]:
    gain = standing.area_gain
    return [
        standing.algo,
        str(len(standing.seeds)),
        percent(standing.held_out),
        percent(standing.greedy),
        percent(standing.validation),
        percent(standing.area),
        "–" if gain is None else percent(gain, signed=True),
        episodes(standing.reach, ranking.budget),
        f"{standing.reach.seeds_reached} of {len(standing.seeds)}",
        f"{standing.tokens:.0f}",
        f"{standing.seconds / 60:.1f}",
        f"{100 * standing.credit_share:.1f} %",
    ]


def _flat(standing: Standing, ranking: Ranking) -> dict[str, str]:
    row: dict[str, object] = {
        "env": ranking.env,
        "algo": standing.algo,
        "seeds": len(standing.seeds),
        "settings": " ".join(standing.settings),
        "budget_episodes": ranking.budget,
        "reference": ranking.reference,
    }
    estimates = {
        name: getattr(standing, name)
        for name in ("before", "held_out", "greedy", "validation", "area", "area_gain")
    }
    estimates["held_out_gain"] = standing.held_out_gain
    reach = standing.reach
    estimates["episodes_to_reference_per_seed"] = reach.per_seed
    for name, found in estimates.items():
        row[name] = None if found is None else found.mean
        row[f"{name}_low"] = None if found is None else found.low
        row[f"{name}_high"] = None if found is None else found.high
    row |= {
        "reference_level": reach.level,
        "episodes_to_reference": reach.episodes,
        "episodes_to_reference_low": reach.low,
        "episodes_to_reference_high": reach.high,
        "seeds_reached": reach.seeds_reached,
        "tokens": standing.tokens,
        "updates": standing.updates,
        "faults": standing.faults,
        "seconds": standing.seconds,
        "credit_share": standing.credit_share,
    }
    return {key: _cell(value) for key, value in row.items()}


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
