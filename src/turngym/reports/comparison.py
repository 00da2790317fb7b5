"""Algorithms side by side in one environment, at the episodes that all of them played.

Axis letters: S seed, P point of a curve, R resample.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from turngym.errors import ConfigError, unknown_name
from turngym.reports.runs import FinishedRun, Protocol
from turngym.reports.scaling import Fit, fit
from turngym.rollouts.evaluation.statistics import (
    Estimate,
    aligned,
    area_under_curve,
    first_reach,
    percentiles,
    resamples,
)
from turngym.trainers.samples import FloatArray

DEFAULT_REFERENCE = "grpo"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Curve:
    """Mean success over seeds at P points, with its interval where there are several seeds."""

    x_P: FloatArray
    mean_P: FloatArray
    low_P: FloatArray
    high_P: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How many episodes it takes to be as good as the reference is at the end."""

    level: float
    """Success of the reference at the end, mean over its seeds."""
    episodes: float | None
    """Until the mean curve first is there; None when it never is."""
    low: float | None
    """Interval of ``episodes``; None when there is one seed."""
    high: float | None
    """None when there is one seed; infinity when resampled curves never get there."""
    seeds_reached: int
    """Seeds whose own curve gets there."""
    per_seed: Estimate
    """Mean over seeds of each curve's own; a seed that never gets there counts as the budget."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankingEntry:
    """What one algorithm did in one environment."""

    algo: str
    seeds: tuple[int, ...]
    preset: str
    """Preset or file; its name where that is not known."""
    settings: tuple[str, ...]
    """What it had of its own."""
    other_settings: tuple[str, ...]
    """Of what all have in common by name: values in which the algorithms differ."""
    validation: Estimate
    """Sampled success on the validation tasks at the budget."""
    before: Estimate
    """Sampled success on the held-out tasks before training."""
    held_out: Estimate
    """The same after training."""
    greedy: Estimate
    """Greedy success on the held-out tasks after training."""
    area: Estimate
    """Area under the validation curve over the budget, in [0, 1]."""
    area_gain: Estimate | None
    """Area minus that of the reference, by seed; None for the reference itself."""
    held_out_gain: Estimate | None
    """``held_out`` minus that of the reference, by seed; None for the reference itself."""
    reach: Reach
    tokens: float
    """Tokens sampled for training, mean over seeds."""
    updates: float
    faults: int
    seconds: float
    """Wall-clock time of a run, mean over seeds."""
    credit_share: float
    """Credit's part of the time for playing, credit and update, mean over seeds."""
    by_episodes: Curve
    by_tokens: Curve
    fit: Fit | None = None
    """What more episodes would bring; None with too few seeds or validations."""

    def to_json(self) -> dict[str, Any]:
        """Return all numbers but the curve over tokens; infinity becomes None."""
        row: dict[str, Any] = {}
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, Estimate | Fit):
                row[name] = value.to_json()
            elif isinstance(value, Curve):
                row[name] = {
                    key: [round(float(point), 6) for point in points]
                    for key, points in asdict(value).items()
                }
            elif isinstance(value, Reach):
                row[name] = {
                    key: None if found == math.inf else found
                    for key, found in asdict(value).items()
                }
            else:
                row[name] = value
        return row


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ranking:
    """All algorithms in one environment, the best area first."""

    env: str
    budget: float
    """Training episodes that every run played at least; all curves are cut here."""
    reference: str
    entries: tuple[RankingEntry, ...]
    remarks: tuple[str, ...] = ()
    """What makes the comparison less than fair or less than whole, and how settings were chosen."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {
            "env": self.env,
            "budget_episodes": self.budget,
            "reference": self.reference,
            "remarks": list(self.remarks),
            "algos": [entry.to_json() for entry in self.entries],
        }


def rank(
    runs: Sequence[FinishedRun], *, reference: str | None = None, protocol: Protocol | None = None
) -> list[Ranking]:
    """Return one ranking for each environment among ``runs``, sorted by name.

    Args:
        runs: Finished runs, at most one for each algorithm and seed in an environment.
        reference: Whom the others are measured against; ``grpo`` by default, or else the first in
            the alphabet.
        protocol: What was asked for; None where that is not known.

    Raises:
        ConfigError: A run is there twice, nothing was trained, or the reference has no run.
    """
    places: dict[tuple[str, str, int], FinishedRun] = {}
    for run in runs:
        other = places.setdefault((run.env, run.algo, run.seed), run)
        if other is not run:
            raise ConfigError(
                f"{run.folder}: the same environment, algorithm and seed as {other.folder}; "
                "report one of them"
            )
    envs = sorted({run.env for run in runs})
    return [
        _rank_env(env, [r for r in runs if r.env == env], reference, protocol or Protocol())
        for env in envs
    ]


def _rank_env(
    env: str, runs: Sequence[FinishedRun], reference: str | None, protocol: Protocol
) -> Ranking:
    by_algo: dict[str, list[FinishedRun]] = {}
    for run in sorted(runs, key=lambda r: (r.algo, r.seed)):
        by_algo.setdefault(run.algo, []).append(run)
    if reference is None:
        reference = DEFAULT_REFERENCE if DEFAULT_REFERENCE in by_algo else next(iter(by_algo))
    if reference not in by_algo:
        raise unknown_name(f"reference, without a finished run in {env},", reference, by_algo)
    budget = min(float(run.episodes_P[-1]) for run in runs)
    if budget <= 0:
        raise ConfigError(f"{env}: a run without any training episode; nothing to compare")
    measured = by_algo[reference]
    others = _differences(by_algo, protocol)
    entries = [
        replace(
            _entry(group, measured, budget),
            preset=protocol.presets.get(name, name),
            settings=tuple(protocol.settings.get(name, ())),
            other_settings=others[name],
        )
        for name, group in by_algo.items()
    ]
    entries.sort(key=lambda s: -s.area.mean)
    return Ranking(
        env=env,
        budget=budget,
        reference=reference,
        entries=tuple(entries),
        remarks=tuple(_remarks(by_algo, budget, protocol)),
    )


_COMPARED_SETTINGS = ("engine", "learner", "regularizer", "rollout")
"""Blocks of settings in which algorithms of one comparison may differ, besides their own."""


def _differences(
    by_algo: Mapping[str, Sequence[FinishedRun]], protocol: Protocol
) -> dict[str, tuple[str, ...]]:
    """Return, for each algorithm, the settings that are not the same for all and not its own.

    One that a run lacks is no difference: it may have been played before there was such a setting.
    """
    first = {name: runs[0].settings for name, runs in by_algo.items()}
    keys = sorted({key for found in first.values() for key in found})
    differing = [
        key
        for key in keys
        if key.split(".")[0] in _COMPARED_SETTINGS
        and len({repr(found[key]) for found in first.values() if key in found}) > 1
    ]
    own = {
        name: {setting.split("=")[0] for setting in protocol.settings.get(name, ())}
        for name in by_algo
    }
    return {
        name: tuple(f"{k}={found[k]}" for k in differing if k in found and k not in own[name])
        for name, found in first.items()
    }


def _remarks(
    by_algo: Mapping[str, Sequence[FinishedRun]], budget: float, protocol: Protocol
) -> list[str]:
    """Return what a reader must know before believing the table, a line each."""
    seeds = {name: {run.seed for run in runs} for name, runs in by_algo.items()}
    wanted = set(protocol.seeds) or set().union(*seeds.values())
    remarks = [
        f"{name}: {len(found & wanted)} of {len(wanted)} seeds, without "
        f"{_listed(wanted - found)}; differences use the seeds that both have"
        for name, found in seeds.items()
        if wanted - found
    ]
    played = {name: max(run.episodes for run in runs) for name, runs in by_algo.items()}
    if len(set(played.values())) > 1:
        counts = ", ".join(f"{name} {count:.0f}" for name, count in played.items())
        remarks.append(
            f"budgets differ: {counts} episodes; curves are cut at {budget:.0f}, held-out success "
            "is after all of them"
        )
    return remarks + _tuning_remarks(seeds, protocol.tuning)


def _tuning_remarks(seeds: Mapping[str, set[int]], tuning: Mapping[str, Any]) -> list[str]:
    if not tuning:
        return []
    counts = sorted({len(tried) for tried in tuning["tried"].values()})
    remarks = [
        f"settings: {' or '.join(map(str, counts))} of each algorithm were tried on seeds "
        f"{_listed(tuning['seeds'])}, {tuning['episodes_each']} episodes each that are not counted "
        "here; the largest validation area was chosen"
    ]
    if len(counts) > 1:
        remarks.append("search budgets differ: some algorithms had more tries than others")
    if both := set(tuning["seeds"]) & set().union(*seeds.values()):
        remarks.append(
            f"seeds {_listed(both)} chose the settings and are among those reported: what they say "
            "is too good; leave their runs out"
        )
    return remarks


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))


def _entry(
    runs: Sequence[FinishedRun], reference: Sequence[FinishedRun], budget: float
) -> RankingEntry:
    def per_seed(name: str) -> FloatArray:
        return np.array([getattr(run, name) for run in runs], dtype=np.float64)

    is_reference = runs[0].algo == reference[0].algo
    areas = {run.seed: _area(run, budget) for run in runs}
    return RankingEntry(
        algo=runs[0].algo,
        seeds=tuple(run.seed for run in runs),
        preset=runs[0].algo,
        settings=(),
        other_settings=(),
        validation=Estimate.of(_at_budget(runs, budget)),
        before=Estimate.of(per_seed("before")),
        held_out=Estimate.of(per_seed("held_out")),
        greedy=Estimate.of(per_seed("greedy")),
        area=Estimate.of(np.array(list(areas.values()))),
        area_gain=None
        if is_reference
        else _gain(areas, {run.seed: _area(run, budget) for run in reference}),
        held_out_gain=None
        if is_reference
        else _gain({r.seed: r.held_out for r in runs}, {r.seed: r.held_out for r in reference}),
        reach=_reach(runs, reference, budget),
        tokens=float(np.mean([run.tokens_P[-1] for run in runs])),
        updates=float(per_seed("updates").mean()),
        faults=sum(run.faults for run in runs),
        seconds=float(per_seed("seconds").mean()),
        credit_share=float(per_seed("credit_share").mean()),
        by_episodes=_curve([(run.episodes_P, run.success_P) for run in runs], budget),
        by_tokens=_curve(
            [(run.tokens_P, run.success_P) for run in runs],
            min(float(run.tokens_P[-1]) for run in runs),
        ),
        fit=fit([(run.episodes_P, run.success_P) for run in runs], budget),
    )


def _area(run: FinishedRun, budget: float) -> float:
    return area_under_curve(run.episodes_P, run.success_P, budget)


def _at_budget(runs: Sequence[FinishedRun], budget: float) -> FloatArray:
    """Return each run's validation success at the budget, shape [S]."""
    return np.array([np.interp(budget, run.episodes_P, run.success_P) for run in runs])


def _gain(values: Mapping[int, float], reference: Mapping[int, float]) -> Estimate | None:
    """Return the difference over the seeds that both have; None when there are none."""
    shared = sorted(values.keys() & reference.keys())
    if not shared:
        return None
    return Estimate.of(np.array([values[seed] - reference[seed] for seed in shared]))


def _curve(curves: Sequence[tuple[FloatArray, FloatArray]], end: float) -> Curve:
    x_P, y_SP = aligned(curves, end)
    mean_P = y_SP.mean(0)
    if len(curves) < 2:
        return Curve(x_P=x_P, mean_P=mean_P, low_P=mean_P, high_P=mean_P)
    means_RP = y_SP[resamples(len(curves))].mean(1)
    low_P, high_P = np.percentile(means_RP, [2.5, 97.5], axis=0)
    return Curve(x_P=x_P, mean_P=mean_P, low_P=low_P, high_P=high_P)


def _reach(runs: Sequence[FinishedRun], reference: Sequence[FinishedRun], budget: float) -> Reach:
    """Return when ``runs`` are as good as ``reference`` is at the budget.

    In a resample both are sampled by seed, with the same seeds where they have the same seeds.
    """
    curves = [(run.episodes_P, run.success_P) for run in runs]
    x_P, y_SP = aligned(curves, budget)
    final_S = _at_budget(reference, budget)
    level = float(final_S.mean())
    [mean] = first_reach(x_P, y_SP.mean(0)[None], np.array([level]))
    own_S = first_reach(x_P, y_SP, np.full(len(runs), level))
    low = high = None
    if len(runs) > 1:
        means_RP = y_SP[resamples(len(runs))].mean(1)
        levels_R = final_S[resamples(len(final_S))].mean(1)
        low, high = percentiles(first_reach(x_P, means_RP, levels_R))
    return Reach(
        level=level,
        episodes=None if np.isinf(mean) else float(mean),
        low=low,
        high=high,
        seeds_reached=int(np.isfinite(own_S).sum()),
        per_seed=Estimate.of(np.minimum(own_S, budget)),
    )
