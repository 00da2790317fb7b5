"""Episodes that were recorded: by evaluations, runs and the gateway, or elsewhere, as ATIF."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from turngym.errors import ConfigError, RecordError
from turngym.records import FORMAT, MANIFEST, from_json, read_lines
from turngym.rollouts.atif import read_atif
from turngym.types import Trajectory

_SKIPPED = frozenset({"checkpoints", "tensorboard", "pictures"})


def episodes(run: Path) -> Iterator[tuple[str, Trajectory]]:
    """Yield the episodes of a run, or of documents in ATIF, with the name of their file.

    Args:
        run: Folder of a training run or an evaluation, any folder, or one file of trajectories.

    Raises:
        ConfigError: There are none.
        RecordError: One is broken.
    """
    if not run.exists():
        raise ConfigError(f"{run}: there is no such folder or file")
    root, files = (run if run.is_dir() else run.parent), sources_of(run)
    others = not files and not (run / MANIFEST).exists()  # else a run that holds nothing yet
    if run.suffix == ".json" or (others and next(run.glob("*.json"), None) is not None):
        yield from ((run.stem, one) for one in read_atif(run))
        return
    if not files:
        raise ConfigError(
            f"{run}: no trajectories in here; wanted the folder of 'turngym train' or "
            "'turngym eval --out', or a file of trajectories"
        )
    for file in files:
        label = str(file.relative_to(root).with_suffix(""))
        for number, line in enumerate(read_lines(file), start=2):
            if line.endswith(b"\n"):
                try:
                    yield label, from_json(line)
                except RecordError as error:
                    raise RecordError(f"{file}:{number}: {error}") from error


def sources_of(run: Path) -> list[Path]:
    """Return the files of trajectories in a folder, at any depth, or the one file."""
    files = [run] if run.is_file() else [path for path in files_in(run) if path.suffix == ".jsonl"]
    return [path for path in files if _has_trajectories(path)]


def files_in(folder: Path) -> list[Path]:
    """Return the files of a folder, at any depth and sorted, without those of checkpoints."""
    found: list[Path] = []
    for path in sorted(folder.iterdir()):
        if path.is_dir() and path.name not in _SKIPPED and not path.is_symlink():
            found += files_in(path)
        elif path.is_file():
            found.append(path)
    return found


def _has_trajectories(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return bool(json.loads(file.readline(4096))["format"] == FORMAT)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False
