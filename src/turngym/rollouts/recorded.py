"""Episodes that were recorded: by evaluations, runs and the gateway, or elsewhere.

What others recorded is read from documents in ATIF and from conversations.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from turngym.errors import ConfigError, RecordError
from turngym.records import FORMAT, MANIFEST, from_json, read_lines
from turngym.rollouts.atif import FOREIGN as ATIF
from turngym.rollouts.atif import read_atif
from turngym.rollouts.chats import CHAT, is_chats, read_chats
from turngym.types import Trajectory

FOREIGN = (ATIF, CHAT)
"""Each begins the environment's name of an episode that was not played here."""
_SKIPPED = frozenset({"checkpoints", "tensorboard", "pictures"})


def episodes(run: Path) -> Iterator[tuple[str, Trajectory]]:
    """Yield the episodes of a run, or of what others recorded, with the name of their file.

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
    elsewhere = [run] if run.is_file() else _of_others(run) if others else []
    readers = {path: read_chats if is_chats(path) else read_atif for path in elsewhere}
    if foreign := [p for p in elsewhere if p.suffix == ".json" or readers[p] is read_chats]:
        for path in foreign:
            yield from ((run.stem, one) for one in readers[path](path))
        return
    if not files:
        raise ConfigError(
            f"{run}: no trajectories in here; wanted the folder of 'turngym train' or "
            "'turngym eval --out', a file of trajectories, or of conversations"
        )
    for file in files:
        label = str(file.relative_to(root).with_suffix(""))
        for number, line in enumerate(read_lines(file), start=2):
            if line.endswith(b"\n"):
                try:
                    yield label, from_json(line)
                except RecordError as error:
                    raise RecordError(f"{file}:{number}: {error}") from error


def _of_others(folder: Path) -> list[Path]:
    """Return what may be of others: JSON in a folder, Parquet at any depth of it."""
    parquet = [path for path in files_in(folder) if path.suffix == ".parquet"]
    return [*sorted(folder.glob("*.json*")), *parquet]


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
