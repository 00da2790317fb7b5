"""Evaluations as Markdown for people, CSV for spreadsheets and JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from turngym.reports import texts
from turngym.reports.evaluations import Comparison, EvalRun
from turngym.reports.texts import csv_text, markdown_table
from turngym.rollouts.evaluation.statistics import Measure
from turngym.rollouts.evaluation.summary import Summary

NOTES = """\
Every interval is 95 %. *Success* is the solved share of the judged episodes; its interval is
Wilson's with one attempt at each task, and a bootstrap over tasks (5 000 resamples) with several.
*Pass@k* is the chance that at least one of k attempts solves a task, estimated without bias from
all attempts. Means have a bootstrap over tasks. Episodes that broke are *faults*: masked, counted,
in no mean. Differences are paired: a task with all its attempts in both evaluations is sampled at
once; where each task counts 0 or 1, the interval of a difference in success is Newcombe's."""


def write_evaluations(
    runs: Sequence[EvalRun], comparisons: Sequence[Comparison], out: Path, *, image: str | None
) -> Path:
    """Write ``evaluations.md``, ``evaluations.csv`` and ``evaluations.json``.

    Args:
        runs: At least one.
        comparisons: Of them.
        out: A folder that is there.
        image: File name of the plot, in ``out``.

    Returns:
        The Markdown file.
    """
    content = evaluations_json(runs, comparisons)
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    (out / "evaluations.json").write_text(text, encoding="utf-8")
    (out / "evaluations.csv").write_text(csv_of(runs), encoding="utf-8")
    page = out / "evaluations.md"
    page.write_text(markdown(runs, comparisons, image=image), encoding="utf-8")
    return page


def evaluations_json(
    runs: Sequence[EvalRun], comparisons: Sequence[Comparison]
) -> dict[str, list[dict[str, Any]]]:
    """Return everything as JSON values."""
    return {
        "evaluations": [
            {"run": run.name, "plan": run.plan, "results": run.results()} for run in runs
        ],
        "comparisons": [comparison.to_json() for comparison in comparisons],
    }


def markdown(
    runs: Sequence[EvalRun], comparisons: Sequence[Comparison], *, image: str | None = None
) -> str:
    """Return a page with a table for each run, one of the differences, and a link to ``image``."""
    lines = ["# Evaluations", ""]
    for run in runs:
        unfinished = "" if run.is_finished else " (unfinished)"
        lines += [f"## {run.name}{unfinished}", "", _plan_text(run), ""]
        lines += markdown_table(
            _HEADERS, [_row(env, found) for env, found in run.summaries().items()]
        )
        lines += [f"- {env}: not run: {reason}" for env, reason in run.not_run.items()]
        lines.append("")
    if comparisons:
        lines += ["## Differences", ""]
        lines += [*markdown_table(_DIFFERENCES, [_difference_row(c) for c in comparisons]), ""]
    if image is not None:
        lines += [f"![Success and pass@k with intervals]({image})", ""]
    return "\n".join([*lines, NOTES]) + "\n"


_HEADERS = (
    "environment",
    "episodes",
    "success",
    "pass@k",
    "return",
    "turns",
    "tokens in",
    "tokens out",
    "cost $",
    "seconds",
    "faults",
)
_DIFFERENCES = ("environment", "run", "minus", "tasks", "success", "better / worse", "return")


def _plan_text(run: EvalRun) -> str:
    plan = run.plan
    options = "".join(f", {key}={value!r}" for key, value in plan["env_options"].items())
    return (
        f"Agent `{plan['agent']}`, {plan['episodes']} tasks of the {plan['split']} split, "
        f"{plan['seeds']} attempts at each, seed {plan['seed']}{options}."
    )


def _row(env: str, found: Summary) -> list[str]:
    passes = [f"{k}: {percent(measure)}" for k, measure in found.pass_at.items()]
    kinds = [f"{kind} {percent(share)}" for kind, share in found.faults_by_kind.items()]
    return [
        env,
        str(found.episodes),
        percent(found.success),
        "<br>".join(passes) if len(passes) > 1 else "–",
        figure(found.episode_return),
        figure(found.turns, 1),
        figure(found.prompt_tokens, 0),
        figure(found.completion_tokens, 0),
        figure(found.cost_usd, 4),
        figure(found.seconds),
        "<br>".join([str(found.faults), *kinds]),
    ]


def _difference_row(found: Comparison) -> list[str]:
    return [
        found.env,
        found.run,
        found.reference,
        str(found.tasks),
        percent(found.differences.get("success"), signed=True),
        f"{found.better} / {found.worse}",
        figure(found.differences.get("return"), signed=True),
    ]


def percent(found: Measure | None, *, signed: bool = False) -> str:
    """Return ``"45.0 % [35.6, 54.8]"``, ``signed`` or not; a dash when there is no number."""
    return "–" if found is None else texts.percent(found.value, found.interval, signed=signed)


def figure(found: Measure | None, digits: int = 2, *, signed: bool = False) -> str:
    """Return ``"0.51 [0.45, 0.57]"``, or a dash; ``digits`` and ``signed`` as in ``texts``."""
    if found is None:
        return "–"
    return texts.figure(found.value, found.interval, digits, signed=signed)


def csv_of(runs: Sequence[EvalRun]) -> str:
    """Return one line for each run and environment; intervals are ``_low`` and ``_high``."""
    return csv_text(
        [
            {"run": run.name, "agent": run.plan["agent"], "env": env, **_flat(found)}
            for run in runs
            for env, found in run.summaries().items()
        ]
    )


def _flat(found: Summary) -> dict[str, object]:
    measures: Mapping[str, Measure | None] = {
        "success": found.success,
        **{f"pass_at_{k}": measure for k, measure in found.pass_at.items()},
        "score": found.score,
        "return": found.episode_return,
        "turns": found.turns,
        "prompt_tokens": found.prompt_tokens,
        "completion_tokens": found.completion_tokens,
        "cost_usd": found.cost_usd,
        "seconds": found.seconds,
        **{f"share_{kind}": share for kind, share in found.faults_by_kind.items()},
    }
    row: dict[str, object] = {"episodes": found.episodes, "tasks": found.tasks}
    row |= {"solved": found.solved, "faults": found.faults, "unscored": found.unscored}
    for name, measure in measures.items():
        low, high = (None, None) if measure is None else measure.interval or (None, None)
        row |= {name: None if measure is None else float(measure.value)}
        row |= {f"{name}_low": low, f"{name}_high": high}
    return row
