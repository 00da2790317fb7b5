"""Reads finished runs: are the files as they were written, how success grew, what it cost."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from turngym.errors import ConfigError, RecordError
from turngym.provenance import VERSION
from turngym.records import MANIFEST, Manifest, file_digest, writable_folder, write_json
from turngym.reports.viewer.library import short_name
from turngym.rollouts.evaluation.folder import (
    EVALUATION_FILE,
    Key,
    count_trajectories,
    lost_rows,
    plan_digest,
    read_evaluation,
    trajectories_file,
)
from turngym.rollouts.evaluation.rows import FILE, EpisodeRow, read_rows
from turngym.trainers.metrics import read_metrics
from turngym.trainers.runs.needs import flat
from turngym.trainers.samples import FloatArray

if TYPE_CHECKING:  # what it imports wants the extra ``train``
    from turngym.trainers.runs.comparison import ComparedAlgo

SHARED_FOLDERS = frozenset({"warm-start"})
"""Names of run folders that belong to no algorithm."""
TUNING_FOLDER = "tuning"
"""Where ``turngym compare`` keeps the runs of a search."""
COMPARISON_FILE = "comparison.json"
"""What ``turngym compare`` writes beside its runs: what was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FinishedRun:
    """One run. Curves have one point P for each evaluation on the validation tasks."""

    folder: Path
    env: str
    """Short name."""
    algo: str
    seed: int
    episodes_P: FloatArray
    """Training episodes played before the evaluation."""
    tokens_P: FloatArray
    """Tokens sampled for training before it, those that the credit method sampled included."""
    success_P: FloatArray
    """Sampled success on the validation tasks, in [0, 1]."""
    before: float
    """Sampled success on the held-out tasks before training."""
    held_out: float
    """The same after training."""
    greedy: float
    """Greedy success on the held-out tasks after training."""
    updates: int
    faults: int
    seconds: float
    """Wall-clock time of everything."""
    credit_share: float
    """Credit's part of the time for playing, credit and update, in [0, 1]."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """All its settings, by their full names."""
    episodes: float = 0.0
    """Training episodes, those after the last validation included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """What a comparison was asked for, as far as ``turngym compare`` wrote it down."""

    presets: Mapping[str, str] = field(default_factory=dict)
    """Preset or file of each algorithm."""
    settings: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """What each algorithm had of its own, whether given or chosen."""
    seeds: frozenset[int] = frozenset()
    """Seeds to be reported; empty where that is not known."""
    tuning: Mapping[str, Any] = field(default_factory=dict)
    """Of the search: ``seeds``, ``episodes_each`` and what was ``tried``; empty without one."""

    @classmethod
    def of(
        cls,
        compared: Sequence[ComparedAlgo],
        seeds: Iterable[int],
        tuning: Mapping[str, Any] | None = None,
    ) -> Protocol:
        """Return that of ``compared``, reported on ``seeds`` after the search ``tuning``."""
        return cls(
            presets={one.name: one.algo for one in compared},
            settings={one.name: one.settings for one in compared if one.settings},
            seeds=frozenset(seeds),
            tuning=tuning or {},
        )

    def joined(self, other: Protocol) -> Protocol:
        """Return both as one, with both searches; where they name the same, ``other`` holds."""
        tuning = {**self.tuning, **other.tuning}
        if self.tuning and other.tuning:
            tuning["seeds"] = sorted({*self.tuning["seeds"], *other.tuning["seeds"]})
            tuning["tried"] = {**self.tuning["tried"], **other.tuning["tried"]}
        return Protocol(
            presets={**self.presets, **other.presets},
            settings={**self.settings, **other.settings},
            seeds=self.seeds | other.seeds,
            tuning=tuning,
        )

    def write(self, out: Path, budget_episodes: int) -> None:
        """Write it down in the folder ``out``, which is made, with ``budget_episodes`` of a run."""
        more = {"turngym": VERSION, "budget_episodes": budget_episodes}
        write_json(writable_folder(out) / COMPARISON_FILE, more | self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self) | {"seeds": sorted(self.seeds)}


def find_runs(folders: Sequence[Path]) -> tuple[list[FinishedRun], list[str]]:
    """Return the finished runs in ``folders``, at any depth, and a line for each that is left out.

    Raises:
        ConfigError: There is no run, or one cannot be read.
    """
    places: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"{folder}: there is no such folder")
        found = [file.parent for file in folder.rglob("config.json")]
        # A search for settings is no result, unless its own folder is asked for.
        shown = [path for path in found if TUNING_FOLDER not in path.relative_to(folder).parts]
        places += [path for path in shown if is_run(path)]
    unique = sorted(p for p in set(places) if p.name not in SHARED_FOLDERS)
    if not unique:
        raise ConfigError(
            f"{', '.join(map(str, folders))}: no training run and no evaluation in here"
        )
    return read_runs(unique)


def read_runs(folders: Iterable[Path]) -> tuple[list[FinishedRun], list[str]]:
    """Return the runs in ``folders`` that can be compared, and a line for each that is left out.

    A run is left out that is not finished, has no success, or trained nothing where others did.

    Raises:
        ConfigError: One cannot be read.
    """
    found: list[FinishedRun] = []
    notes: list[str] = []
    for folder in folders:
        if not (folder / "summary.json").exists():
            notes.append(f"not finished, left out: {folder}")
            continue
        try:
            found.append(read_run(folder))
        except _NotJudged as error:
            notes.append(f"left out: {error}")
    trained = [run for run in found if run.episodes_P[-1]]
    idle = [run.folder for run in found if trained and not run.episodes_P[-1]]
    return trained or found, notes + [f"no training episode, left out: {path}" for path in idle]


class _NotJudged(ConfigError):
    """A finished run has no success: all its episodes of one kind broke."""


def read_run(folder: Path) -> FinishedRun:
    """Return a finished run.

    Raises:
        ConfigError: A file of it is missing or broken, or it has no success.
    """
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        rows = read_metrics(folder / "metrics.jsonl")
        timings = read_metrics(folder / "timings.jsonl")
        episodes_P, tokens_P, success_P = learning_curve(rows)
        return FinishedRun(
            folder=folder,
            env=short_name(summary["env"]),
            algo=summary["algo"],
            seed=summary["seed"],
            episodes_P=episodes_P,
            tokens_P=tokens_P,
            success_P=success_P,
            before=_success(summary["before"]["sampled"]),
            held_out=_success(summary["after"]["sampled"]),
            greedy=_success(summary["after"]["greedy"]),
            updates=summary["updates"],
            faults=summary["faults"],
            seconds=summary["seconds"],
            credit_share=credit_share(timings),
            episodes=sum(map(_episodes, rows)),
            settings=flat(
                json.loads((folder / "config.json").read_text(encoding="utf-8")).get("config", {})
            ),
        )
    except _NotJudged as error:
        raise _NotJudged(f"{folder}: {error}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{folder}: cannot be read as a finished run ({type(error).__name__}: {error})"
        ) from error


def learning_curve(rows: Iterable[Mapping[str, Any]]) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return episodes [P], sampled tokens [P] and success [P] at each validation.

    Args:
        rows: Rows of ``metrics.jsonl``. The evaluation at step k comes after k updates.

    Raises:
        ConfigError: No validation has a success.
    """
    episodes = tokens = 0.0
    points: list[tuple[float, float, float]] = []
    for row in rows:
        if "rollout/episodes" in row:
            episodes += _episodes(row)
            tokens += row["rollout/tokens"] + row.get("credit/sampled_tokens", 0.0)
        if "validation/success" in row:
            points.append((episodes, tokens, row["validation/success"]))
    if not points:
        raise _NotJudged("no episode of a validation was judged")
    episodes_P, tokens_P, success_P = np.array(points, dtype=np.float64).T
    return episodes_P, tokens_P, success_P


def _episodes(row: Mapping[str, Any]) -> float:
    """Return the episodes of an update, those that a credit method played included."""
    return float(row.get("rollout/episodes", 0.0) + row.get("credit/episodes", 0.0))


def credit_share(timings: Iterable[Mapping[str, Any]]) -> float:
    """Return ``credit / (rollout + credit + update)`` in seconds; 0 when nothing was trained."""
    parts = dict.fromkeys(("rollout_s", "credit_s", "update_s"), 0.0)
    for row in timings:
        if row["phase"] == "train":
            for name in parts:
                parts[name] += row.get(name, 0.0)
    total = sum(parts.values())
    return parts["credit_s"] / total if total else 0.0


def read_protocol(folders: Sequence[Path]) -> Protocol:
    """Return what ``turngym compare`` wrote down in ``folders``, all of it together.

    Raises:
        ConfigError: It is something else.
    """
    found = Protocol()
    for folder in folders:
        file = folder / COMPARISON_FILE
        if not file.exists():
            continue
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            more = Protocol(
                presets=content.get("presets", {}),
                settings=content["settings"],
                seeds=frozenset(content.get("seeds", ())),
                tuning=content.get("tuning") or {},
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{file}: is not what 'turngym compare' writes ({type(error).__name__}: {error}); "
                "the same comparison writes it again, or delete it to report the runs alone"
            ) from error
        found = found.joined(more)
    return found


def _success(evaluation: Mapping[str, Any]) -> float:
    found = evaluation["success"]
    if found is None:
        raise _NotJudged("no held-out episode was judged")
    return float(found)


_REPORTED = frozenset(
    {"config.json", "summary.json", "metrics.jsonl", "timings.jsonl"}
    | {"evaluation.json", "episodes.jsonl"}
)
_SHOWN = frozenset({".json", ".jsonl", ".png"})


def is_run(folder: Path) -> bool:
    """Return whether a folder with settings is that of a training run, and not of a model."""
    return (folder / ".lock").exists() or (folder / MANIFEST).exists()


def check_reported(folders: Sequence[Path]) -> list[str]:
    """Make sure that the files that a report reads are as they were written; return what is lost.

    Raises:
        RecordError: One is not; the message names it.
    """
    notes = []
    for manifest in _manifests(folders):
        files = [file for file in manifest.files if file.name in _REPORTED]
        manifest.check(*files, advice="restore it from a copy, or leave this run out of the report")
        notes += _unfinished(manifest)
    return notes


def check_shown(run: Path) -> list[str]:
    """Make sure that what a viewer shows is as it was written, and return what is missing of it.

    Raises:
        RecordError: A file is there, but not as it was written; the message names it.
    """
    missing = []
    for manifest in _manifests([run]) if run.is_dir() else [Manifest(run.parent)]:
        for file in manifest.files:
            if file.suffix not in _SHOWN or (run.is_file() and file != run):
                continue
            if not file.exists():
                missing.append(f"{file}: is missing; the rest is shown")
            else:
                manifest.check(
                    file, advice="restore it from a copy, or delete it to look at the rest"
                )
        missing += _unfinished(manifest)
    for tokenizer in sorted(run.rglob("checkpoints/*/model/tokenizer.json")):
        _check_tokenizer(tokenizer)
    return missing


def _unfinished(manifest: Manifest) -> list[str]:
    """Compare rows and trajectories of an evaluation that goes on, and return what is lost."""
    folder, rows_file = manifest.folder, manifest.folder / FILE
    if manifest.folder / EVALUATION_FILE not in manifest or rows_file in manifest:
        return []
    plan = read_evaluation(folder)["plan"]
    files = {env: trajectories_file(folder, env) for env in plan["envs"]}
    counts = {env: count_trajectories(file) for env, file in files.items()}  # each before its row
    rows: dict[str, dict[Key, EpisodeRow]] = {env: {} for env in plan["envs"]}
    for row in read_rows(rows_file, plan_digest(plan)) if rows_file.exists() else ():
        rows.setdefault(row.env, {})[row.key] = row
    notes = []
    for env, file in files.items():
        found = rows[env]
        if lost := len(lost_rows(file, list(found.values()))):
            notes.append(f"{file}: {lost} of {len(found)} episodes are gone")
        if (more := counts[env] - len(found) + lost) > 0:
            notes.append(f"{rows_file}: {more} episodes of {file.name} have no row")
    return notes


def _check_tokenizer(tokenizer: Path) -> None:
    checkpoint = tokenizer.parents[1]
    try:
        files = json.loads((checkpoint / "manifest.json").read_bytes())["files"]
        wanted = files[str(tokenizer.relative_to(checkpoint))]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecordError(
            f"{checkpoint / 'manifest.json'}: cannot be read; delete {checkpoint} to see the rest"
        ) from error
    if file_digest(tokenizer) != wanted:
        raise RecordError(
            f"{tokenizer}: differs from its SHA-256 digest; delete {checkpoint} to see the rest"
        )


def _manifests(folders: Sequence[Path]) -> Iterator[Manifest]:
    for folder in folders:
        for file in sorted(folder.rglob(MANIFEST)) if folder.is_dir() else ():
            yield Manifest(file.parent)
