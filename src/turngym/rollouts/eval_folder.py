"""The folder of one evaluation: what was asked, every episode as it ends, and what came of it.

evaluation.json        the plan, where the numbers come from, and the table when it is done
episodes.jsonl         one row of numbers for each episode; the table is computed from it alone
<family>-<name>.jsonl  the trajectories
pictures/              what agents saw, where environments are visual
tokenizer.json         the agent's tokenizer, where it has one; the viewer shows tokens with it

An episode is there as soon as it is over, so a killed evaluation goes on where it was.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Self

from turngym.errors import ConfigError, RecordError
from turngym.provenance import provenance
from turngym.records import append_trajectory, read_lines, write_json, write_lines
from turngym.rollouts.episode_rows import (
    FILE,
    EpisodeRow,
    open_rows,
    read_rows,
    to_line,
    write_rows,
)
from turngym.rollouts.pictures import PictureFolder
from turngym.tasks.base import Task
from turngym.types import Trajectory

EVALUATION_FILE = "evaluation.json"
FORMAT = "turngym.evaluation"
FORMAT_VERSION = 1

Key = tuple[str, str, int]
"""Environment, task, attempt."""


class EvalFolder:
    """A folder that this process alone writes to, until ``close``.

    Args:
        path: There already; empty of evaluations, or with one of the same plan.
        plan: What decides the results, as JSON values.
        retry_faults: Play again the episodes that broke.

    Raises:
        ConfigError: It holds something else, an evaluation of another plan or of a newer format,
            or another process is writing to it.
        RecordError: A row of it is broken.
    """

    def __init__(self, path: Path, plan: Mapping[str, Any], *, retry_faults: bool = False) -> None:
        self.path = path
        self.pictures = PictureFolder(path)
        self._lock = _locked(path)
        try:
            self._content = self._claim(dict(plan))
            self.rows = self._kept_rows(retry_faults=retry_faults)
            self._content["sessions"].append({"began": _now(), **provenance()})
            write_json(self.path / EVALUATION_FILE, self._content)
            self._file = open_rows(path / FILE)
        except BaseException:
            self._lock.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Let other processes write. Safe to call twice."""
        self._file.close()
        self._lock.close()

    def check_tasks(self, env: str, tasks: Sequence[Task]) -> None:
        """Keep the digest of the tasks, or make sure that they are those of before.

        Raises:
            ConfigError: They are not.
        """
        digest = hashlib.sha256("\n".join(task.hash for task in tasks).encode()).hexdigest()
        if self._content["tasks"].setdefault(env, digest) != digest:
            raise ConfigError(
                f"{self.path}: the tasks of {env!r} are not those of the episodes in here; "
                "choose another folder"
            )
        write_json(self.path / EVALUATION_FILE, self._content)

    def add(self, row: EpisodeRow, trajectory: Trajectory) -> None:
        """Keep an episode; the row last, so that no row is without its trajectory."""
        append_trajectory(trajectories_file(self.path, row.env), trajectory)
        self._file.write(to_line(row))
        self._file.flush()
        self.rows[row.key] = row

    def finish(self, order: Iterable[Key], results: Mapping[str, Any]) -> None:
        """Put everything in its order and write the table.

        Args:
            order: All episodes of the plan that were played.
            results: What ``evaluation.json`` tells.
        """
        keys = list(order)
        write_rows(self.path / FILE, [self.rows[key] for key in keys])
        for env in dict.fromkeys(key[0] for key in keys):
            _order(trajectories_file(self.path, env), [key[1:] for key in keys if key[0] == env])
        self._content["results"] = dict(results)
        self._content["sessions"][-1]["ended"] = _now()
        write_json(self.path / EVALUATION_FILE, self._content)

    def _claim(self, plan: dict[str, Any]) -> dict[str, Any]:
        if (self.path / EVALUATION_FILE).exists():
            content = read_evaluation(self.path)
            _check_same(self.path, content["plan"], plan)
            return content
        strangers = [*self.path.glob(FILE), *self.path.glob("config.json")]
        strangers += [
            file for env in plan["envs"] if (file := trajectories_file(self.path, env)).exists()
        ]
        if strangers:
            raise ConfigError(
                f"{self.path}: holds {strangers[0].name} of something else; choose another folder"
            )
        return {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "plan": plan,
            "recompute": "turngym report FOLDER",
            "tasks": {},
            "sessions": [],
            "results": None,
        }

    def _kept_rows(self, *, retry_faults: bool) -> dict[Key, EpisodeRow]:
        file = self.path / FILE
        if not file.exists():
            return {}
        rows = {row.key: row for row in read_rows(file)}
        kept = {key: row for key, row in rows.items() if not (retry_faults and row.is_fault)}
        write_rows(file, list(kept.values()))  # without a half line at its end
        return kept


def trajectories_file(folder: Path, env: str) -> Path:
    """Return where the trajectories of an environment go, by its short name."""
    return folder / f"{env.replace('/', '-')}.jsonl"


def read_evaluation(folder: Path) -> dict[str, Any]:
    """Return ``evaluation.json``.

    Raises:
        ConfigError: It is missing, broken, or of another or newer format.
    """
    file = folder / EVALUATION_FILE
    try:
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        found, version = content.get("format"), content.get("version", 0)
        whole = {"plan", "tasks", "sessions", "results"} <= content.keys()
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(f"{file}: cannot be read as an evaluation ({error})") from error
    if found != FORMAT or not whole:
        raise ConfigError(f"{file}: is no evaluation of this format; choose another folder")
    if version > FORMAT_VERSION:
        raise ConfigError(
            f"{file}: format version {version} is newer than {FORMAT_VERSION}; upgrade turngym"
        )
    return content


def _locked(path: Path) -> IO[str]:
    lock = (path / ".lock").open("a+", encoding="utf-8")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise ConfigError(
            f"{path}: another evaluation is writing here; wait for it or choose another folder"
        ) from error
    return lock


def _check_same(path: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    for key in sorted(found.keys() | wanted.keys()):
        if found.get(key) != wanted.get(key):
            raise ConfigError(
                f"{path}: holds an evaluation with {key}={found.get(key)!r}, not "
                f"{wanted.get(key)!r}; choose another folder, or the same options to go on"
            )


def _order(file: Path, keys: Sequence[tuple[str, int]]) -> None:
    """Sort the lines of a file of trajectories; of several with one key the last stays."""
    lines: dict[tuple[str, int], bytes] = {}
    found: list[tuple[str, int]] = []
    for line in read_lines(file):
        content = json.loads(line)
        key = (content["task_id"], content["attempt"])
        found.append(key)
        lines[key] = line
    missing = [key for key in keys if key not in lines]
    if missing:
        raise RecordError(f"{file}: the episode {missing[0]} is gone; choose another folder")
    if found != list(keys):
        write_lines(file, (lines[key] for key in keys))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
