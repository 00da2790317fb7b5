"""One page over all stored comparisons of credit assignment: methods by tasks, places, costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from turngym.reports.comparison import Ranking, RankingEntry
from turngym.reports.overall import ranks
from turngym.reports.runs import FinishedRun
from turngym.reports.tables import episodes
from turngym.reports.texts import figure, markdown_table, percent
from turngym.rollouts.evaluation.statistics import Estimate

FEWEST = 3
"""Seeds below which a method gets no place."""


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A comparison as it is stored."""

    ranking: Ranking
    runs: Sequence[FinishedRun]

    @property
    def reference(self) -> RankingEntry:
        """The one that the others are measured against."""
        return next(e for e in self.ranking.entries if e.algo == self.ranking.reference)

    def places(self) -> dict[str, Estimate]:
        """Return the place of each method by held-out success, seeds resampled."""
        many = [one.algo for one in self.ranking.entries if len(one.seeds) >= FEWEST]
        held_out = {
            algo: [np.array([run.held_out for run in self.runs if run.algo == algo])]
            for algo in many
        }
        return ranks(held_out) if many else {}


def overview(found: Mapping[str, Stored]) -> str:
    """Return the table of methods by tasks, and one of ends, places and costs."""
    methods = list(dict.fromkeys(e.algo for one in found.values() for e in one.ranking.entries))
    headers = ["method", *(f"{name}: {head(one)}" for name, one in found.items())]
    matrix = [[method, *(gain(one, method) for one in found.values())] for method in methods]
    rows = [row for name, one in found.items() for row in details(name, one)]
    titles = ["comparison", "method", "seeds", "held-out", "place", "episodes to GRPO's end",
              "tokens", "minutes", "credit"]  # fmt: skip
    return "\n".join(
        [
            "### Area under the curve, minus that of GRPO",
            "",
            *markdown_table(headers, matrix),
            "",
            "### Ends, places and costs",
            "",
            *markdown_table(titles, rows),
        ]
    )


def head(one: Stored) -> str:
    """Return what a comparison was made on."""
    budget = f"{one.ranking.budget:.0f} episodes"
    return f"`{one.ranking.env}` from {100 * one.reference.before.mean:.0f} %, {budget}"


def gain(one: Stored, method: str) -> str:
    """Return how much larger the area of a method is, seed by seed."""
    entry = next((e for e in one.ranking.entries if e.algo == method), None)
    if entry is None:
        return ""
    if entry.area_gain is None:
        return "0" if entry is one.reference else f"? ({len(entry.seeds)} seeds)"
    return percent(entry.area_gain, signed=True)


def details(name: str, one: Stored) -> list[list[str]]:
    """Return a row for each method of a comparison, tokens and minutes as multiples of GRPO's."""
    places, base = one.places(), one.reference
    return [
        [
            name,
            entry.algo,
            str(len(entry.seeds)),
            percent(entry.held_out),
            figure(places.get(entry.algo), digits=1),
            episodes(entry.reach, one.ranking.budget),
            f"{entry.tokens / base.tokens:.2f}",
            f"{entry.seconds / base.seconds:.1f}",
            percent(entry.credit_share),
        ]
        for entry in one.ranking.entries
    ]
