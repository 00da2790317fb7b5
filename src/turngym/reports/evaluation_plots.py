"""Evaluations as a picture: success of every run in every environment, and pass@k."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from turngym.reports.evaluations import EvalRun
from turngym.reports.plots import COLOURS, DASHES, saved, tidy, written
from turngym.rollouts.evaluation.intervals import Measure


def draw_evaluations(runs: Sequence[EvalRun], path: Path) -> list[Path]:
    """Draw success with intervals, and pass@k where there are several attempts, as PNG and SVG.

    Args:
        runs: At least one.
        path: Without suffix.

    Returns:
        What was written.
    """
    envs = list(dict.fromkeys(env for run in runs for env in run.rows))
    summaries = [run.summaries() for run in runs]
    most = max((k for found in summaries for s in found.values() for k in s.pass_at), default=0)
    panels = 2 if most > 1 else 1
    height = 1.4 + 0.24 * max(1, len(envs)) * (len(runs) + 0.6)
    with saved(path, (5.6 * panels, max(3.4, height))) as figure:
        axes = figure.subplots(1, panels, squeeze=False)[0]
        for number, (run, found) in enumerate(zip(runs, summaries, strict=True)):
            shift = (number - (len(runs) - 1) / 2) * 0.7 / len(runs)
            _dots(axes[0], run.name, [found.get(env) for env in envs], number, shift)
        axes[0].set(xlabel="success", xlim=(-0.02, 1.02), yticks=range(len(envs)))
        axes[0].set_yticklabels(envs)
        axes[0].set_ylim(len(envs) - 0.5, -0.5)
        if panels == 2:
            _passes(axes[1], runs, summaries, most)
        _finish(figure, axes, runs)
    return written(path)


def _dots(axes: Any, name: str, found: Sequence[Any], number: int, shift: float) -> None:
    places = [i for i, summary in enumerate(found) if summary is not None and summary.success]
    values: list[Measure] = [found[i].success for i in places]
    axes.errorbar(
        [m.value for m in values],
        [i + shift for i in places],
        xerr=_errors(values),
        fmt="o",
        ms=4,
        lw=1.2,
        color=COLOURS[number % len(COLOURS)],
        label=name,
    )


def _passes(axes: Any, runs: Sequence[EvalRun], summaries: Sequence[Any], most: int) -> None:
    for number, found in enumerate(summaries):
        for place, (env, summary) in enumerate(found.items()):
            measures: list[Measure] = list(summary.pass_at.values())
            colour = COLOURS[number % len(COLOURS)]
            ks = list(summary.pass_at)
            lows = [m.interval[0] if m.interval else m.value for m in measures]
            highs = [m.interval[1] if m.interval else m.value for m in measures]
            axes.fill_between(ks, lows, highs, color=colour, alpha=0.1, lw=0)
            axes.plot(ks, [m.value for m in measures], DASHES[place % len(DASHES)], color=colour)
            if ks and number == 0:
                axes.plot([], [], DASHES[place % len(DASHES)], color="0.4", label=env)
    axes.set(xlabel="attempts k", ylabel="pass@k", ylim=(-0.02, 1.02), xlim=(0.9, most + 0.1))
    axes.legend(fontsize=7, frameon=False)


def _errors(values: Sequence[Measure]) -> list[list[float]]:
    ends = [m.interval or (m.value, m.value) for m in values]
    return [
        [max(0.0, m.value - low) for m, (low, _) in zip(values, ends, strict=True)],
        [max(0.0, high - m.value) for m, (_, high) in zip(values, ends, strict=True)],
    ]


def _finish(figure: Any, axes: Any, runs: Sequence[EvalRun]) -> None:
    for panel in axes:
        tidy(panel)
    if len(runs) > 1:
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
