"""One page over all stored comparisons of credit assignment: methods by tasks, places, costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from comparisons import Comparison

from turngym.reports.comparison import Ranking, RankingEntry, rank
from turngym.reports.overall import ranks
from turngym.reports.runs import FinishedRun
from turngym.reports.tables import episodes
from turngym.reports.texts import figure, markdown_table, percent
from turngym.rollouts.evaluation.statistics import Estimate

FEWEST = 3
"""Seeds below which a method gets no place."""


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A comparison as it is stored, against GRPO."""

    comparison: Comparison
    ranking: Ranking
    runs: Sequence[FinishedRun]

    @property
    def reference(self) -> RankingEntry:
        """The one that the others are measured against."""
        return next(e for e in self.ranking.entries if e.algo == self.ranking.reference)

    @property
    def methods(self) -> list[RankingEntry]:
        """Those that are no control and lack no part."""
        return [e for e in self.ranking.entries if self.comparison.whole(e.algo) is None]

    def places(self) -> dict[str, Estimate]:
        """Return the place of each method by held-out success on the seeds that all of them have.

        Seeds are resampled.
        """
        many = [one for one in self.methods if len(one.seeds) >= FEWEST]
        shared = set.intersection(*(set(one.seeds) for one in many)) if many else set()
        held_out = {
            one.algo: [
                np.array([r.held_out for r in self.runs if r.algo == one.algo and r.seed in shared])
            ]
            for one in many
        }
        return ranks(held_out) if shared else {}


def overview(found: Mapping[str, Stored]) -> str:
    """Return the tables: methods by tasks, ends and costs, fresh seeds, controls and parts."""
    first = {name: one for name, one in found.items() if one.comparison.again is None}
    tables = [
        ("Area under the curve, minus that of GRPO", by_task(first)),
        ("Ends, places and costs", ends(first)),
        ("The winners again, with fresh seeds", repeated(found)),
        ("What controls and missing parts cost", lacking(first)),
    ]
    return "\n\n".join("\n".join([f"### {title}", "", *table]) for title, table in tables)


def by_task(found: Mapping[str, Stored]) -> list[str]:
    """Return a row for each method, a column for each comparison."""
    methods = list(dict.fromkeys(e.algo for one in found.values() for e in one.methods))
    headers = ["method", *(f"{name}: {head(one)}" for name, one in found.items())]
    rows = [[method, *(gain(one, method) for one in found.values())] for method in methods]
    return markdown_table(headers, rows)


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


def ends(found: Mapping[str, Stored]) -> list[str]:
    """Return a row for each method of each comparison; tokens and minutes in those of GRPO."""
    headers = ["comparison", "method", "seeds", "held-out", "place", "episodes to GRPO's end",
               "tokens", "minutes", "credit"]  # fmt: skip
    rows = []
    for name, one in found.items():
        places, base = one.places(), one.reference
        rows += [
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
            for entry in one.methods
        ]
    return markdown_table(headers, rows)


def repeated(found: Mapping[str, Stored]) -> list[str]:
    """Return the methods of a repeated comparison: first seeds, fresh ones, and both together."""
    headers = ["comparison", "method", "seeds", "held-out", "held-out − GRPO's", "area",
               "area − GRPO's"]  # fmt: skip
    rows = []
    for again in found.values():
        name = again.comparison.again
        if name is None or name not in found:
            continue
        algos = {entry.algo for entry in again.ranking.entries}
        before = [run for run in found[name].runs if run.algo in algos]
        parts = {"first": before, "fresh": again.runs, "together": [*before, *again.runs]}
        for part, runs in parts.items():
            [ranking] = rank(runs)
            rows += [
                [
                    name,
                    entry.algo,
                    f"{len(entry.seeds)} {part}",
                    percent(entry.held_out),
                    difference(entry.held_out_gain),
                    percent(entry.area),
                    difference(entry.area_gain),
                ]
                for entry in ranking.entries
            ]
    return markdown_table(headers, rows)


def lacking(found: Mapping[str, Stored]) -> list[str]:
    """Return each control and each method without a part, beside the whole method."""
    headers = ["comparison", "instead of", "this", "seeds", "held-out", "held-out, difference",
               "area, difference"]  # fmt: skip
    rows = []
    for name, one in found.items():
        wholes = {e.algo: one.comparison.whole(e.algo) for e in one.ranking.entries}
        for whole in dict.fromkeys(filter(None, wholes.values())):
            [ranking] = rank(one.runs, reference=whole)
            rows += [
                [
                    name,
                    whole,
                    entry.algo,
                    str(len(entry.seeds)),
                    percent(entry.held_out),
                    difference(entry.held_out_gain),
                    difference(entry.area_gain),
                ]
                for entry in ranking.entries
                if wholes[entry.algo] == whole
            ]
    return markdown_table(headers, rows)


def difference(found: Estimate | None) -> str:
    """Return a difference with its sign, a dash for the reference itself."""
    return "–" if found is None else percent(found, signed=True)
