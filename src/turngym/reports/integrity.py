"""Before a run is reported or shown: are its files as they were written?"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from turngym.errors import RecordError
from turngym.records import MANIFEST, Manifest, file_digest
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
    for manifest in _manifests([run if run.is_dir() else run.parent]):
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
    rows: dict[str, dict[Key, EpisodeRow]] = {env: {} for env in plan["envs"]}
    for row in read_rows(rows_file, plan_digest(plan)) if rows_file.exists() else ():
        rows.setdefault(row.env, {})[row.key] = row
    notes = []
    for env, found in rows.items():
        file = trajectories_file(folder, env)
        if lost := len(lost_rows(file, list(found.values()))):
            notes.append(f"{file}: {lost} of {len(found)} episodes are gone")
        if (more := count_trajectories(file) - len(found) + lost) > 0:
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
