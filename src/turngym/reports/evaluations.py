"""Evaluations read back from their rows, compared task by task, and as tables.

Axis letters: T task.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from turngym.errors import ConfigError, unknown_name
from turngym.reports.texts import (
    amount,
    figure,
    interval_columns,
    markdown_table,
    percent,
    write_tables,
)
from turngym.rollouts.evaluation.folder import EVALUATION_FILE, plan_digest, read_evaluation
from turngym.rollouts.evaluation.rows import FILE, EpisodeRow, Summary, read_rows, summarize_rows
from turngym.rollouts.evaluation.statistics import Measure, bootstrap_ratio, paired_interval

MEASURED: dict[str, Callable[[EpisodeRow], float | None]] = {
    "success": lambda row: None if row.score is None else float(row.is_success),
    "return": lambda row: row.episode_return,
    "turns": lambda row: row.turns,
    "completion_tokens": lambda row: row.completion_tokens,
    "cost_usd": lambda row: row.cost_usd,
}
"""What two evaluations are compared by."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EvalRun:
    """One evaluation, finished or not."""

    name: str
    folder: Path
    plan: dict[str, Any]
    tasks: dict[str, str]
    """Digest of the tasks of each environment."""
    rows: dict[str, list[EpisodeRow]]
    """Of each environment."""
    not_run: dict[str, str]
    """Environments of a family that could not run, with the reason."""
    is_finished: bool

    def summaries(self) -> dict[str, Summary]:
        """Return the table, computed from the rows."""
        return {env: summarize_rows(rows) for env, rows in self.rows.items()}

    def results(self) -> dict[str, dict[str, Any]]:
        """Return the table as ``turngym eval --json`` prints it."""
        found = {env: summary.to_json() for env, summary in self.summaries().items()}
        for env, reason in self.not_run.items():
            found[env] = {**summarize_rows(self.rows.get(env, [])).to_json(), "not_run": reason}
        return {env: found[env] for env in self.plan["envs"] if env in found}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One evaluation minus another, in one environment, over the tasks that both played."""

    env: str
    run: str
    reference: str
    tasks: int
    better: int
    """Tasks with more success."""
    worse: int
    differences: dict[str, Measure]
    """By name of ``MEASURED``; the mean over tasks of the difference of the task's means."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        differences = {name: found.to_json() for name, found in self.differences.items()}
        return asdict(self) | {"differences": differences}


def find_evaluations(folders: Sequence[Path]) -> list[EvalRun]:
    """Return the evaluations in ``folders``, at any depth, in the order given.

    Raises:
        ConfigError: One cannot be read, or is of a newer format.
        RecordError: A row is broken.
    """
    places = {
        file.parent.resolve(): file.parent  # a folder may be given twice, by different paths
        for folder in folders
        if folder.is_dir()
        for file in sorted(folder.rglob(EVALUATION_FILE))
    }
    names = _names(list(places))
    return [_read(place, names[path]) for path, place in places.items()]


def _names(paths: Sequence[Path]) -> dict[Path, str]:
    """Return the shortest ends of the paths that differ."""
    size = 1
    while len({path.parts[-size:] for path in paths}) < len(paths):
        size += 1
    return {path: "/".join(path.parts[-size:]) for path in paths}


def _read(folder: Path, name: str) -> EvalRun:
    content = read_evaluation(folder)
    rows: dict[str, list[EpisodeRow]] = {env: [] for env in content["tasks"]}
    latest: dict[tuple[str, str, int], EpisodeRow] = {}
    if (folder / FILE).exists():
        rows_read = read_rows(folder / FILE, plan_digest(content["plan"]))
        latest = {row.key: row for row in rows_read}
    for row in latest.values():
        rows.setdefault(row.env, []).append(row)
    results = content["results"] or {}
    return EvalRun(
        name=name,
        folder=folder,
        plan=content["plan"],
        tasks=content["tasks"],
        rows={env: found for env, found in rows.items() if found},
        not_run={env: r["not_run"] for env, r in results.items() if "not_run" in r},
        is_finished=content["results"] is not None,
    )


def compare_runs(runs: Sequence[EvalRun], reference: str | None = None) -> list[Comparison]:
    """Return every run minus the ``reference``, the first by default, where both played.

    The interval is a bootstrap over tasks: what both did at a task is sampled together. That of
    success is Newcombe's for pairs where each task counts 0 or 1.

    Raises:
        ConfigError: There is no such run, or two runs played other tasks under one name.
    """
    names = [run.name for run in runs]
    if reference is not None and reference not in names:
        raise unknown_name("reference", reference, names)
    base = runs[0] if reference is None else runs[names.index(reference)]
    return [
        _compare(env, run, base)
        for run in runs
        if run is not base
        for env in run.rows
        if env in base.rows
    ]


def _compare(env: str, run: EvalRun, base: EvalRun) -> Comparison:
    if run.tasks.get(env) != base.tasks.get(env) and run.plan["episodes"] == base.plan["episodes"]:
        raise ConfigError(
            f"{run.folder} and {base.folder}: the tasks of {env!r} are not the same; nothing can "
            "be compared"
        )
    differences: dict[str, Measure] = {}
    gains_T = np.zeros(0)
    for name, value in MEASURED.items():
        ours, theirs = _task_means(run.rows[env], value), _task_means(base.rows[env], value)
        shared = [task for task in ours if task in theirs]
        found_T = np.array([ours[task] - theirs[task] for task in shared])
        if name == "success":
            gains_T = found_T
        if shared:
            interval = bootstrap_ratio(found_T, np.ones(len(found_T)))
            pairs_2T = np.array([[each[task] for task in shared] for each in (ours, theirs)])
            # A bootstrap is no use where tasks count 0 or 1, or where all differences are alike.
            if name == "success" and (np.isin(pairs_2T, (0, 1)).all() or np.ptp(found_T) < 1e-9):
                interval = paired_interval(*pairs_2T)
            differences[name] = Measure(value=float(found_T.mean()), interval=interval)
    return Comparison(
        env=env,
        run=run.name,
        reference=base.name,
        tasks=len(gains_T),
        better=int((gains_T > 0).sum()),
        worse=int((gains_T < 0).sum()),
        differences=differences,
    )


def _task_means(
    rows: Sequence[EpisodeRow], value: Callable[[EpisodeRow], float | None]
) -> dict[str, float]:
    """Return the mean over the attempts at each task, episodes that broke left out."""
    values: dict[str, list[float]] = {}
    for row in rows:
        found = None if row.is_fault else value(row)
        if found is not None:
            values.setdefault(row.task_id, []).append(float(found))
    return {task: sum(found) / len(found) for task, found in values.items()}


NOTES = """\
Every interval is 95 %. *Success* is the solved share of the judged episodes, and *pass@k* the
chance that at least one of k attempts solves a task, estimated without bias from all attempts;
their intervals are Wilson's, and attempts at one task count for as much as tasks differ. Means
have a bootstrap over tasks (5 000 resamples). Episodes that broke are *faults*: masked, counted,
in no mean. Differences are paired: a task with all its attempts in both evaluations is sampled at
once; where each task counts 0 or 1, the interval of a difference in success is Newcombe's."""


def write_evaluations(
    runs: Sequence[EvalRun], comparisons: Sequence[Comparison], out: Path, *, image: str | None
) -> Path:
    """Write ``evaluations.md``, ``.csv`` and ``.json`` into the folder ``out``; return the first.

    ``image`` is the file name of the plot, which is there.
    """
    content = evaluations_json(runs, comparisons)
    page = markdown(runs, comparisons, image=image)
    return write_tables(out / "evaluations", content, flat_rows(runs), page)


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
        lines += [*markdown_table(DIFFERENCES, [difference_row(c) for c in comparisons]), ""]
    if image is not None:
        lines += [f"![Success and pass@k with intervals]({image})", ""]
    return "\n".join([*lines, NOTES]) + "\n"


_HEADERS = (
    "environment", "episodes", "success", "pass@k", "return", "turns", "tokens in", "tokens out",
    "cost $", "seconds", "faults",
)  # fmt: skip
DIFFERENCES = (
    "environment", "run", "minus", "tasks", "success", "better / worse", "return", "turns",
)  # fmt: skip
"""Headers of a table of `difference_row`."""


def _plan_text(run: EvalRun) -> str:
    plan = run.plan
    options = "".join(f", {key}={value!r}" for key, value in plan["env_options"].items())
    return (
        f"Agent `{plan['agent']}`, {amount(plan['episodes'], 'task')} of the "
        f"{plan['split']} split, {amount(plan['seeds'], 'attempt')} at each, "
        f"seed {plan['seed']}{options}."
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
        figure(found.turns, digits=1),
        figure(found.prompt_tokens, digits=0),
        figure(found.completion_tokens, digits=0),
        figure(found.cost_usd, digits=4),
        figure(found.seconds),
        "<br>".join([str(found.faults), *kinds]),
    ]


def difference_row(found: Comparison) -> list[str]:
    """Return the cells of a comparison."""
    return [
        found.env,
        found.run,
        found.reference,
        str(found.tasks),
        percent(found.differences.get("success"), signed=True),
        f"{found.better} / {found.worse}",
        figure(found.differences.get("return"), signed=True),
        figure(found.differences.get("turns"), signed=True),
    ]


def flat_rows(runs: Sequence[EvalRun]) -> list[dict[str, object]]:
    """Return a row for each run and environment; intervals are ``_low`` and ``_high``."""
    return [
        {"run": run.name, "agent": run.plan["agent"], "env": env, **_flat(found)}
        for run in runs
        for env, found in run.summaries().items()
    ]


def _flat(found: Summary) -> dict[str, object]:
    measures = {
        "success": found.success,
        **{f"pass_at_{k}": measure for k, measure in found.pass_at.items()},
        "score": found.score,
        "return": found.episode_return,
        **{name: getattr(found, name) for name in _MEANS},
        **{f"share_{kind}": share for kind, share in found.faults_by_kind.items()},
    }
    return {name: getattr(found, name) for name in _COUNTS} | interval_columns(measures)


_COUNTS = ("episodes", "tasks", "solved", "faults", "unscored")
_MEANS = ("turns", "prompt_tokens", "completion_tokens", "cost_usd", "seconds")
