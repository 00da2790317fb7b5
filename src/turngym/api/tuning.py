"""Settings chosen on seeds of their own, with as many tries for one algorithm as for another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from turngym.api.jobs import OnProgress, run_heats
from turngym.errors import ConfigError, TrainingError
from turngym.reports.runs import read_runs
from turngym.rollouts.evaluation.statistics import area_under_curve
from turngym.trainers.runs.comparison import ComparedAlgo, Heat

Tries = Mapping[str, Sequence[tuple[str, ...]]]
"""Settings to try, by algorithm; each beside what the algorithm has of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What a search found."""

    chosen: tuple[ComparedAlgo, ...]
    """The algorithms with the settings that did best."""
    record: dict[str, Any]
    """For ``comparison.json``: seeds, episodes of each algorithm, and the area of every try."""


def candidates(compared: Sequence[ComparedAlgo], tries: Tries) -> dict[str, list[ComparedAlgo]]:
    """Return each algorithm as it is and with each of its tries, by its name.

    Raises:
        ConfigError: One algorithm has more tries than another.
    """
    counts = {one.name: len(tries.get(one.name, ())) for one in compared}
    if len(set(counts.values())) > 1:
        found = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise ConfigError(
            f"--try: {found}; every algorithm gets the same number of tries, and '*:' gives a try "
            "to all"
        )
    return {
        one.name: [
            replace(one, name=f"{one.name}~{number}", settings=(*one.settings, *more))
            for number, more in enumerate([(), *tries.get(one.name, ())])
        ]
        for one in compared
    }


def tune(
    compared: Sequence[ComparedAlgo],
    found: Mapping[str, Sequence[ComparedAlgo]],
    heats: Sequence[Heat],
    *,
    jobs: int,
    advance: OnProgress,
) -> Tuning:
    """Train every candidate and choose, for each algorithm, the one with the largest area.

    The area is that under the validation curve, mean over environments and tuning seeds; of equal
    ones the first is chosen. Held-out tasks have no say. A candidate that failed somewhere is out.

    Args:
        compared: The algorithms.
        found: Their candidates.
        heats: The candidates' runs, on tuning seeds.
        jobs: Runs at a time.
        advance: Watches.

    Raises:
        TrainingError: No candidate of an algorithm is left.
        Interrupted: SIGINT or SIGTERM arrived.
    """
    failures = run_heats(heats, jobs=jobs, advance=advance)
    runs = [run for heat in heats for run in heat.runs]
    judged, notes = read_runs(run.folder for run in runs if run.is_done)
    by_folder = {finished.folder: finished for finished in judged}
    done = [(run, by_folder[run.folder]) for run in runs if run.folder in by_folder]
    areas: defaultdict[str, list[float]] = defaultdict(list)
    for run, finished in done:
        budget = min(float(other.episodes_P[-1]) for at, other in done if at.env == run.env)
        area = area_under_curve(finished.episodes_P, finished.success_P, budget)
        areas[run.name].append(area)
    chosen, record = [], {}
    for one in compared:
        whole = [c for c in found[one.name] if len(areas[c.name]) == len(heats)]
        if not whole:
            reasons = "; ".join([*(f"{run}: {why}" for run, why in failures.items()), *notes])
            raise TrainingError(f"tuning: no setting of {one.name} came through: {reasons}")
        best = max(whole, key=lambda c: sum(areas[c.name]))
        chosen.append(replace(one, settings=best.settings))
        record[one.name] = [_tried(c, areas[c.name], c is best) for c in found[one.name]]
    episodes = sum(
        run.config.run.steps * run.config.rollout.groups_per_step * run.config.rollout.group_size
        for run in runs
    )
    seeds = sorted({run.seed for run in runs})
    each = episodes // max(1, len(compared))
    return Tuning(
        chosen=tuple(chosen), record={"seeds": seeds, "episodes_each": each, "tried": record}
    )


def with_controls(compared: Sequence[ComparedAlgo], names: Sequence[str]) -> list[ComparedAlgo]:
    """Return the algorithms, each of ``names`` followed by its two controls.

    A control has the settings of its method, those that were chosen for it included, and no search
    of its own.
    """
    found = []
    for one in compared:
        found.append(one)
        for control in ("shuffled", "constant") if one.name in names else ():
            own = (*one.settings, f"algo.control={control}")
            found.append(replace(one, name=f"{one.name}-{control}", settings=own))
    return found


def _tried(one: ComparedAlgo, areas: Sequence[float], is_best: bool) -> dict[str, Any]:
    area = sum(areas) / len(areas) if areas else None
    return {"settings": list(one.settings), "area": area, "chosen": is_best}
