"""What a tracker is, and how it is fed: a thread of its own reads ``metrics.jsonl`` behind the run.

The file stays the truth. A tracker that is away holds nothing up and misses nothing: what it has
not got yet is in the file, and is sent when it is there again, also when the run is resumed or,
once it is done, asked for again. How far it has got, whether it knows the end, and its own name of
the run stand in ``trackers/NAME.json`` of the run folder.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol

from turngym.errors import ConfigError, missing_extra
from turngym.faults import describe
from turngym.plugins import import_function
from turngym.records import write_json
from turngym.trainers.settings.trackers import TrackerConfig

logger = logging.getLogger(__name__)

TRACKERS = "trackers"
"""Folder of a run in which is kept how far each tracker has got."""
RETRY_S = 30.0
"""After a failure, seconds until a tracker is tried again."""
CLOSE_S = 30.0
"""Seconds that a run waits for its trackers at its end."""
End = Literal["finished", "failed", "stopped"]
"""How a run ends; ``stopped`` can be resumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """What a tracker gets to know of a run at its beginning."""

    name: str
    folder: Path
    settings: Mapping[str, Any]
    """By their full names, such as ``algo.name``."""
    id: str | None = None
    """What ``begin`` returned when the run began; None for a run that begins now."""


class Tracker(Protocol):
    """Gets a run's metrics. Every call comes from one thread, which nothing waits for.

    It may raise: that is logged once, and the call is made again later.
    """

    def begin(self, run: TrackedRun) -> str:
        """Open ``run``, or go on with the one that ``run.id`` names; return its id."""

    def log(self, number: int, step: int, metrics: Mapping[str, float]) -> None:
        """Take row ``number`` of ``metrics.jsonl``, of update ``step``.

        Rows come in order and once each, but for one thing: of a process that was killed the last
        ones may come again, by the same ``number``.
        """

    def end(self, how: End) -> None:
        """Send what is left and close the run."""


def check_trackers(configs: Sequence[TrackerConfig]) -> None:
    """Make sure, before anything starts, that every tracker can be made.

    Raises:
        MissingExtraError: Its package is not installed; the message holds the install line.
        ConfigError: There is no such class, or it is no tracker.
    """
    for config in configs:
        if config.module is not None and find_spec(config.module) is None:
            raise missing_extra(f"run.trackers: {config.module!r}", config.module)
        made = import_function("tracker", config.spec)
        if missing := [name for name in ("begin", "log", "end") if not hasattr(made, name)]:
            raise ConfigError(
                f"run.trackers: {config.spec!r} lacks {', '.join(missing)} of "
                "turngym.trainers.trackers.base.Tracker"
            )


class Trackers:
    """The trackers of one run. Their threads run from here until ``close``.

    Args:
        configs: Which.
        run: What they get to know.
        metrics: ``metrics.jsonl``, cut to where the run stands.
        done: Whether the run is done, so that only those begin that have not got all of it.
    """

    def __init__(
        self,
        configs: Sequence[TrackerConfig],
        run: TrackedRun,
        metrics: Path,
        *,
        done: bool = False,
    ) -> None:
        waiting = [one for one in configs if not (done and _has_ended(_memory(run, one)))]
        self._senders = [_Sender(config, run, metrics) for config in waiting]

    def wake(self) -> None:
        """Let them look for new rows. Waits for nothing; may be called from any thread."""
        for sender in self._senders:
            sender.woken.set()

    def close(self, how: End) -> None:
        """Have the rest sent and the run closed; wait for that, but not for long."""
        for sender in self._senders:
            sender.how = how
        self.wake()
        deadline = time.monotonic() + CLOSE_S
        for sender in self._senders:
            sender.join(max(0.0, deadline - time.monotonic()))


def _memory(run: TrackedRun, config: TrackerConfig) -> Path:
    return run.folder / TRACKERS / f"{config.name}.json"


def _has_ended(memory: Path) -> bool:
    try:
        return bool(json.loads(memory.read_text(encoding="utf-8"))["ended"] == "finished")
    except (OSError, ValueError, KeyError, TypeError):
        return False


class _Sender:
    """Feeds one tracker."""

    def __init__(self, config: TrackerConfig, run: TrackedRun, metrics: Path) -> None:
        self.woken = threading.Event()
        self.how: End | None = None
        self._config = config
        self._name = config.name
        self._metrics = metrics
        self._file = _memory(run, config)
        self._rows = 0
        """Rows that the tracker has got."""
        self._line = self._offset = 0
        """Where in the file the next row stands. A resumed run writes rows again that were sent."""
        self._run = self._recall(run)
        self._tracker: Tracker | None = None
        self._retry_at: float | None = None
        self._thread = threading.Thread(
            target=self._work, name=f"tracker {self._name}", daemon=True
        )
        self.woken.set()
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait for the end."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            logger.warning(
                "tracker %s: has not got everything after %g s and is left behind; "
                "metrics.jsonl has it",
                self._name,
                CLOSE_S,
            )

    def _work(self) -> None:
        while True:
            self.woken.wait(None if self._retry_at is None else RETRY_S)
            self.woken.clear()
            how = self.how
            if how is not None or self._retry_at is None or time.monotonic() >= self._retry_at:
                self._try(how)
            if how is not None:
                return

    def _try(self, how: End | None) -> None:
        try:
            if self._tracker is None:
                tracker: Tracker = import_function("tracker", self._config.spec)(self._config)
                self._run = replace(self._run, id=tracker.begin(self._run))
                self._tracker = tracker
                self._remember()
            self._send(self._tracker)
            if how is not None:
                self._tracker.end(how)
                self._remember(how)
        except BaseException as error:
            if self._retry_at is None:
                logger.warning(
                    "tracker %s: %s; the run goes on without it, metrics.jsonl has everything",
                    self._name,
                    describe(error),
                )
                logger.info("tracker %s", self._name, exc_info=error)
            self._retry_at = time.monotonic() + RETRY_S
        else:
            if self._retry_at is not None:
                logger.info("tracker %s: has got everything now", self._name)
            self._retry_at = None

    def _send(self, tracker: Tracker) -> None:
        before = self._rows
        try:
            with self._metrics.open("rb") as file:
                file.seek(self._offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        return  # it is being written
                    if self._line >= self._rows:
                        row = json.loads(line)
                        tracker.log(self._line, row.pop("step"), row)
                        self._rows = self._line + 1
                    self._line += 1
                    self._offset += len(line)
        finally:
            if self._rows != before:
                self._remember()

    def _remember(self, ended: End | None = None) -> None:
        self._file.parent.mkdir(exist_ok=True)
        write_json(self._file, {"id": self._run.id, "rows": self._rows, "ended": ended})

    def _recall(self, run: TrackedRun) -> TrackedRun:
        try:
            content = json.loads(self._file.read_text(encoding="utf-8"))
            run = replace(run, id=str(content["id"]))
            self._rows = int(content["rows"])
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as error:
            logger.warning(
                "%s: cannot be read (%s); %s gets a new run with all metrics",
                self._file,
                error,
                self._name,
            )
        return run
