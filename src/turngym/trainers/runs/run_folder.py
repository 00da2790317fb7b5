"""The folder of one run: what is in it, who may write to it, and whether it is the same run.

config.json            resolved settings, version, commit, seed, digests of environments and credit
                       of the user's own, and how these were changed later
digests.json           size and SHA-256 of the other files, see ``records``
metrics.jsonl          numbers of every step; no clock, so equal runs give equal bytes
timings.jsonl          seconds of every step
checkpoints/           see ``checkpoints``
trajectories/          the expert's episodes, best, median and worst at each evaluation, and the
                       group of training episodes that teaches most, with its advantages
tensorboard/           event files
trackers/              how far experiment trackers have got, and their own names of the run
curve.png              success against updates
summary.json           what came of it, when the run is done
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import math
import os
import shutil
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self

from turngym import registry
from turngym.coroutines import Uncut
from turngym.custom import custom_parts
from turngym.environments.own import data_digests, files_digest
from turngym.errors import ConfigError, RecordError
from turngym.provenance import VERSION, source_commit, source_digest
from turngym.records import (
    MANIFEST,
    RETRY_S,
    GrowingFile,
    Manifest,
    first_bad_line,
    is_disk_full,
    write_json,
    write_trajectories,
)
from turngym.rollouts.scheduler.ledger import LEDGER_FILE, PART_FOLDER
from turngym.trainers.credit.base import Credit
from turngym.trainers.metrics import read_metrics
from turngym.trainers.runs.annotate_advantages import most_instructive
from turngym.trainers.runs.checkpoints import advice, begins_with, latest_checkpoint
from turngym.trainers.runs.needs import check_change, extends
from turngym.trainers.settings.train import TrainConfig
from turngym.trainers.trackers.base import TRACKERS
from turngym.types import Trajectory

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1
_LOCK = ".lock"

_ANEW = "%s: the run in here has no checkpoint; it begins anew, with the settings of now"


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
        self.config = path / "config.json"
        self.checkpoints = path / "checkpoints"
        self.trajectories = path / "trajectories"
        self.expert = self.trajectories / "expert.jsonl"
        self.metrics = path / "metrics.jsonl"
        self.timings = path / "timings.jsonl"
        self.curve = path / "curve.png"
        self.summary = path / "summary.json"
        self.outbox = Outbox()
        self._timings: GrowingFile | None = None
        self._longer: Mapping[str, Any] | None = None
        self._lock: IO[str] | None = None
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = (path / _LOCK).open("a+", encoding="utf-8")
            self._take_lock(self._lock)
            self.manifest = Manifest(path)
            self._claim(config)
            self.checkpoints.mkdir(exist_ok=True)
            self.trajectories.mkdir(exist_ok=True)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise ConfigError(
                    f"{path}: cannot be used as a run folder ({error.strerror})"
                ) from error
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Let other processes write. Safe to call twice."""
        if self._timings is not None:
            self._timings.close()
            self._timings = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def add_timing(self, row: Mapping[str, Any]) -> None:
        """Append one row of seconds."""
        if self._timings is None:
            self._timings = GrowingFile(self.timings)
        self._timings.append(json.dumps(dict(row)))

    def seconds(self) -> float:
        """Return the wall-clock time of everything so far, over all resumptions."""
        if not self.timings.exists():
            return 0.0
        return float(sum(row["seconds"] for row in read_metrics(self.timings)))

    def mark_logs(self, metrics_bytes: int, metrics_sha256: str) -> None:
        """Note that rows so far belong to a checkpoint, the metrics with ``metrics_sha256``."""
        self.manifest.mark(self.metrics, metrics_bytes, metrics_sha256)
        if self._timings is not None:
            self.manifest.mark(self.timings, self._timings.size, self._timings.sha256)

    def check_metrics(self, size: int, sha256: str | None, checkpoint: Path | None) -> None:
        """Make sure that ``metrics.jsonl`` has the ``size`` and ``sha256`` of a checkpoint.

        Raises:
            RecordError: It is shorter, or something else.
        """
        if checkpoint is None or begins_with(self.metrics, size, sha256):
            return
        found = self.metrics.stat().st_size if self.metrics.exists() else 0
        line = first_bad_line(self.metrics) if found else None
        what = f"{found} bytes of {size} are left" if found < size else "its content has changed"
        where = f", line {line} is not JSON" if line else ""
        raise RecordError(
            f"{self.metrics}: is not what {checkpoint.name} was made with: {what}{where}. The "
            f"checkpoints are whole; restore it from a copy, or "
            f"{advice(checkpoint, metrics=self.metrics)}"
        )

    def keep_trajectories(self, label: str, trajectories: Sequence[Trajectory]) -> None:
        """Keep the best, the median and the worst of some episodes as ``label``, errors aside."""
        usable = [t for t in trajectories if not t.stop_reason.is_error]
        if not usable:
            return
        ranked = sorted(usable, key=lambda t: (t.score or 0.0, t.episode_return, -len(t.turns)))
        chosen = {"worst": ranked[0], "median": ranked[len(ranked) // 2], "best": ranked[-1]}
        self._keep({f"{name}-{label}": [trajectory] for name, trajectory in chosen.items()})

    def keep_group(self, label: str, credit: Credit) -> None:
        """Keep the group of a batch that teaches most as ``label``, with its advantages."""
        members = most_instructive(credit)
        if members:
            self._keep({label: members})

    def _keep(self, chosen: Mapping[str, Sequence[Trajectory]]) -> None:
        files = {self.trajectories / f"{name}.jsonl": kept for name, kept in chosen.items()}

        def write() -> None:
            with self.manifest.writing(*files):
                for file, kept in files.items():
                    write_trajectories(file, kept)

        self.outbox.write(next(iter(files)), write)

    def conclude(self, summary: Mapping[str, Any]) -> None:
        """Write ``summary.json`` and enter what the run leaves behind in the manifest."""
        logs = [file for file in (self.metrics, self.timings) if file.exists()]
        write_json(self.summary, summary)
        self.manifest.add(self.summary, *logs)

    def reopen(self) -> None:
        """Let a run that was done go on."""
        self.manifest.forget(self.summary)
        self.summary.unlink(missing_ok=True)

    def read_summary(self) -> dict[str, Any]:
        """Return what ``conclude`` wrote.

        Raises:
            ConfigError: It cannot be read.
            RecordError: It is not as it was written.
        """
        self.manifest.check(self.summary, advice="delete it to have it written again")
        try:
            content: dict[str, Any] = json.loads(self.summary.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self.summary}: cannot be read; delete it to run on") from error
        return content

    def _take_lock(self, lock: IO[str]) -> None:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.seek(0)
            owner = lock.read().strip() or "unknown"
            raise ConfigError(
                f"{self.path}: another run is writing here (process {owner}); "
                "wait for it or choose another folder"
            ) from error
        lock.truncate(0)
        os.write(lock.fileno(), str(os.getpid()).encode())  # kept in no buffer if the disk is full

    def _claim(self, config: TrainConfig) -> None:
        """Write ``config.json``, or compare with the one that is there."""
        if not self.config.exists() and self.config not in self.manifest:
            self._refuse_strangers()
            self._begin(config)
            return
        check_same_run(self.path, config)
        content = _read_config(self.config)
        if self.manifest.is_new:
            self._enter_what_is_there()
        if content["config"] != (wanted := config.model_dump(mode="json")):
            if not has_begun(self.path):
                self._clear()
                self._begin(config)
                return
            self._change(content, wanted)
        elif self.metrics.exists() and not has_begun(self.path):
            logger.warning(_ANEW, self.path)
        self._compare_sources(config)
        self._warn_of_damage()

    def _refuse_strangers(self) -> None:
        ours = (_LOCK, MANIFEST, "config.json", *(f"{n}.partial" for n in _FIRST_FILES))
        strangers = [p.name for p in self.path.iterdir() if p.name not in ours]
        if strangers:
            raise ConfigError(
                f"{self.path}: is not empty ({sorted(strangers)[0]}) and holds no run; "
                "choose another folder"
            )

    def _begin(self, config: TrainConfig) -> None:
        content = {
            "format": FORMAT_VERSION,
            "turngym": VERSION,
            "commit": source_commit(),
            "seed": config.run.seed,
            "config": config.model_dump(mode="json"),
            "sources": _sources(config),
        }
        with self.manifest.writing(self.config):
            write_json(self.config, content)

    def _clear(self) -> None:
        """Remove what a run left that has no checkpoint."""
        logger.warning(_ANEW, self.path)
        parts = self.path.glob(f"{PART_FOLDER}*")
        copies = map(self.path.joinpath, _COPIES)
        for folder in (self.checkpoints, self.trajectories, *copies, *parts):
            shutil.rmtree(folder, ignore_errors=True)
        ledger = self.path.glob(f"{LEDGER_FILE}*")
        for file in (self.config, self.metrics, self.timings, self.manifest.file, *ledger):
            file.unlink(missing_ok=True)
        self.manifest = Manifest(self.path)

    def _change(self, content: dict[str, Any], wanted: Mapping[str, Any]) -> None:
        """Take settings that only extend the run; ``accept`` keeps them."""
        check_change(self.path, content["config"], wanted)
        if extends(content["config"], wanted) and self.summary.exists():
            self.reopen()
        self._longer = wanted

    def accept(self) -> None:
        """Keep settings that extend the run, and what they were: it could be resumed with them."""
        if (wanted := self._longer) is None:
            return
        content, self._longer = _read_config(self.config), None
        changed = check_change(self.path, content["config"], wanted)
        changes = [*content.get("changes", ()), {"turngym": VERSION, **changed}]
        with self.manifest.writing(self.config):
            write_json(self.config, {**content, "config": wanted, "changes": changes})

    def _compare_sources(self, config: TrainConfig) -> None:
        """Name the environments and credit whose files are others than before, and note it."""
        content, now = _read_config(self.config), _sources(config)
        before = content.get("sources", now)
        others = [name for name in before if before[name] != now.get(name)]
        if self.summary.exists() or not others:
            return
        logger.warning(
            "%s: %s is no longer what the run began with; it goes on with what is there now",
            self.path,
            ", ".join(others),
        )
        changes = [*content.get("changes", ()), {"turngym": VERSION, "sources": others}]
        with self.manifest.writing(self.config):
            write_json(self.config, {**content, "sources": now, "changes": changes})

    def _enter_what_is_there(self) -> None:
        """Make the manifest of a run that has none: an earlier version began it, or it is lost."""
        if has_begun(self.path):
            logger.warning(
                "%s: is missing; whether the files of this run are as they were written cannot be "
                "said, they are taken as they are",
                self.manifest.file,
            )
        kept = sorted(self.trajectories.glob("*.jsonl"))
        done = [self.summary, self.metrics] if self.summary.exists() else []
        self.manifest.add(self.config, *kept, *done)

    def _warn_of_damage(self) -> None:
        """Name the files that are not as they were written, where the run can go on without."""
        if found := self.manifest.damage(self.timings):
            logger.warning("%s; the seconds that cannot be read are not counted", found)
            self.manifest.forget(self.timings)
        _keep_whole_lines(self.timings)
        kept = [f for f in self.manifest.files if f.parent == self.trajectories]
        for found in (self.manifest.damage(file) for file in kept if file != self.expert):
            if found is not None:
                logger.warning("%s; the run goes on without it", found)


def _sources(config: TrainConfig) -> dict[str, str | None]:
    """Return the digests of what environments and parts of the user's own are made of."""
    entries = {part.id: registry.find(part.id) for part in config.env.parts}
    found = {name: files_digest(one.source) for name, one in entries.items() if one.source}
    for part in config.env.parts:
        found |= data_digests(part.options)
    own = [part.function for part in custom_parts(config)]
    return found | {name: source_digest(name) for name in own}


_FIRST_FILES = ("config.json", MANIFEST)
_COPIES = ("tensorboard", TRACKERS)


def has_begun(path: Path) -> bool:
    """Return whether a run has a checkpoint to go on from, or is done."""
    return (path / "summary.json").exists() or latest_checkpoint(path / "checkpoints") is not None


def is_locked(path: Path) -> bool:
    """Return whether a process is writing to the run in a folder."""
    try:
        with (path / _LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    return False


def check_same_run(path: Path, config: TrainConfig) -> None:
    """Make sure that a run of these settings can begin in ``path``, or go on there.

    Raises:
        ConfigError: It holds a run of other settings; the message names the differences.
        RecordError: Its settings are not as they were written.
    """
    file = path / "config.json"
    if not file.exists():
        Manifest(path).check(file)
        return
    found, wanted = _read_config(file)["config"], config.model_dump(mode="json")
    if has_begun(path):
        check_change(path, found, wanted)
        if extends(found, wanted) and latest_checkpoint(path / "checkpoints") is None:
            raise ConfigError(
                f"{path}: holds a run that is done and has no checkpoint any more, so it cannot "
                "be made longer; choose another folder with --out"
            )


def read_settings(path: Path) -> dict[str, Any]:
    """Return the settings of the run in a folder.

    Raises:
        ConfigError: It holds none, or they cannot be read.
        RecordError: They are not as they were written.
    """
    return dict(_read_config(path / "config.json")["config"])


def _read_config(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        version, _ = content["format"], content["config"].items()
        is_newer = version > FORMAT_VERSION
    except FileNotFoundError as error:
        Manifest(file.parent).check(file)
        raise ConfigError(f"{file.parent}: holds no run to resume") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{file}: is not the settings of a run; choose another folder") from error
    if is_newer:
        raise ConfigError(
            f"{file}: format version {version} is newer than {FORMAT_VERSION}; upgrade turngym"
        )
    Manifest(file.parent).check(file)
    return dict(content)


def _keep_whole_lines(file: Path) -> None:
    """Leave the lines of a file that are whole rows of seconds."""
    lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
    kept = [line for line in lines if line.endswith(b"\n") and _has_seconds(line)]
    if kept != lines:
        file.write_bytes(b"".join(kept))


def _has_seconds(line: bytes) -> bool:
    try:
        return math.isfinite(json.loads(line)["seconds"])
    except (ValueError, KeyError, TypeError):
        return False


class Outbox:
    """Writes files in the order they were given, in a thread. Used from one event loop."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Path, Callable[[], object]]] = deque()
        self.is_stuck = False
        """Whether something waits for room."""

    def write(self, file: Path, work: Callable[[], object]) -> None:
        """Have ``work`` called, which writes ``file`` wholly or not at all, by ``settle``."""
        self._waiting.append((file, work))

    async def settle(self) -> None:
        """Wait until everything is written. A cancellation leaves the rest unwritten.

        Raises:
            OSError: Something cannot be written for another reason than a full disk.
        """
        uncut = Uncut()  # a file that is begun is finished
        await asyncio.sleep(0)
        while self._waiting:
            await uncut(self.flush())
            uncut.check()
            if self._waiting:
                await asyncio.sleep(RETRY_S)  # no event says that a full disk has room

    async def flush(self) -> None:
        """Write what there is room for.

        Raises:
            OSError: As of ``settle``.
        """
        await asyncio.to_thread(self._flush)

    def _flush(self) -> None:
        while self._waiting:
            file, work = self._waiting[0]
            try:
                work()
            except Exception as error:
                if not is_disk_full(error):
                    self._waiting.popleft()
                    raise
                self._report(file)
                return
            self._waiting.popleft()
        if self.is_stuck:
            self.is_stuck = False
            logger.warning("there is room again; the run goes on")

    def _report(self, file: Path) -> None:
        if not self.is_stuck:
            self.is_stuck = True
            logger.error(
                "%s: the disk is full; the run waits and loses nothing. Free some space on the "
                "disk of %s, or stop the run with Ctrl-C and resume it later",
                file,
                file.parent,
            )
