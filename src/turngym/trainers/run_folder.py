"""The folder of one run: what is in it, who may write to it, and whether it is the same run.

config.json            resolved settings, version, commit, seed
metrics.jsonl          numbers of every step; no clock, so equal runs give equal bytes
timings.jsonl          seconds of every step
checkpoints/           see ``checkpoints``
trajectories/          the expert's episodes, best, median and worst at each evaluation, and the
                       group of training episodes that teaches most, with its advantages
tensorboard/           event files
curve.png              success against updates
summary.json           what came of it, when the run is done
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self

import turngym
from turngym.errors import ConfigError
from turngym.provenance import source_commit
from turngym.records import write_json, write_trajectories
from turngym.trainers.config import TrainConfig
from turngym.trainers.credit.base import Credit
from turngym.trainers.told_advantages import most_telling
from turngym.types import Trajectory

FORMAT_VERSION = 1


class RunFolder:
    """A folder that this process alone writes to, until ``close``.

    Args:
        path: Made when it is missing; may hold an unfinished run of the same settings.
        config: The run's settings.

    Raises:
        ConfigError: It holds something else, a run of other settings or of a newer format, or
            another process is writing to it.
    """

    def __init__(self, path: Path, config: TrainConfig) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.trajectories = path / "trajectories"
        self.metrics = path / "metrics.jsonl"
        self.timings = path / "timings.jsonl"
        self.curve = path / "curve.png"
        self.summary = path / "summary.json"
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock: IO[str] | None = (path / ".lock").open("a+", encoding="utf-8")
        except OSError as error:
            raise ConfigError(
                f"{path}: cannot be used as a run folder ({error.strerror})"
            ) from error
        try:
            self._take_lock()
            self._claim(config)
            self.checkpoints.mkdir(exist_ok=True)
            self.trajectories.mkdir(exist_ok=True)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Let other processes write. Safe to call twice."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def add_timing(self, row: Mapping[str, Any]) -> None:
        """Append one row of seconds."""
        with self.timings.open("a", encoding="utf-8") as file:
            file.write(json.dumps(dict(row)) + "\n")

    def seconds(self) -> float:
        """Return the wall-clock time of everything so far, over all resumptions."""
        if not self.timings.exists():
            return 0.0
        lines = self.timings.read_text(encoding="utf-8").splitlines(keepends=True)
        return float(sum(json.loads(row)["seconds"] for row in lines if row.endswith("\n")))

    def keep_trajectories(self, label: str, trajectories: Sequence[Trajectory]) -> None:
        """Keep the best, the median and the worst of some episodes, errors aside."""
        usable = [t for t in trajectories if not t.stop_reason.is_error]
        if not usable:
            return
        ranked = sorted(usable, key=lambda t: (t.score or 0.0, t.episode_return, -len(t.turns)))
        chosen = {"worst": ranked[0], "median": ranked[len(ranked) // 2], "best": ranked[-1]}
        for name, trajectory in chosen.items():
            write_trajectories(self.trajectories / f"{name}-{label}.jsonl", [trajectory])

    def keep_group(self, label: str, credit: Credit) -> None:
        """Keep the group of a batch that teaches most, with its advantages; there may be none."""
        members = most_telling(credit)
        if members:
            write_trajectories(self.trajectories / f"{label}.jsonl", members)

    def write_summary(self, content: Mapping[str, Any]) -> None:
        """Write ``summary.json`` as a whole."""
        write_json(self.summary, content)

    def read_summary(self) -> dict[str, Any]:
        """Return what ``write_summary`` wrote.

        Raises:
            ConfigError: It cannot be read.
        """
        try:
            content: dict[str, Any] = json.loads(self.summary.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self.summary}: cannot be read; delete it to run on") from error
        return content

    def _take_lock(self) -> None:
        assert self._lock is not None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.seek(0)
            owner = self._lock.read().strip() or "unknown"
            raise ConfigError(
                f"{self.path}: another run is writing here (process {owner}); "
                "wait for it or choose another folder"
            ) from error
        self._lock.truncate(0)
        self._lock.write(str(os.getpid()))
        self._lock.flush()

    def _claim(self, config: TrainConfig) -> None:
        """Write ``config.json``, or compare with the one that is there."""
        file = self.path / "config.json"
        if file.exists():
            check_same_run(self.path, config)
            return
        strangers = [p.name for p in self.path.iterdir() if p.name not in (".lock", "config.json")]
        if strangers:
            raise ConfigError(
                f"{self.path}: is not empty ({sorted(strangers)[0]}) and holds no run; "
                "choose another folder"
            )
        content = {
            "format": FORMAT_VERSION,
            "turngym": turngym.__version__,
            "commit": source_commit(),
            "seed": config.run.seed,
            "config": config.model_dump(mode="json"),
        }
        write_json(file, content)


def check_same_run(path: Path, config: TrainConfig) -> None:
    """Make sure that ``path`` holds no run of other settings; it may hold nothing.

    Raises:
        ConfigError: It does; the message names the first difference.
    """
    file = path / "config.json"
    if file.exists():
        _check_same(path, _read_config(file), config.model_dump(mode="json"))


def _read_config(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        version, config = content["format"], content["config"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{file}: is not the settings of a run; choose another folder") from error
    if version > FORMAT_VERSION:
        raise ConfigError(
            f"{file}: format version {version} is newer than {FORMAT_VERSION}; upgrade turngym"
        )
    return dict(config)


def _check_same(path: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    before, now = _flat(found), _flat(wanted)
    for key in sorted(before.keys() | now.keys()):
        if before.get(key) != now.get(key):
            raise ConfigError(
                f"{path}: holds a run with {key}={before.get(key)!r}, not {now.get(key)!r}; "
                "choose another folder, or the same settings to resume"
            )


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
