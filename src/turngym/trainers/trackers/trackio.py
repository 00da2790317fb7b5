"""Trackio."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Mapping
from contextlib import redirect_stdout
from typing import Any

from turngym.plugins import import_extra
from turngym.trainers.settings.trackers import TrackioTracker
from turngym.trainers.trackers.base import End, TrackedRun, Tracker

LEVELS = {"finished": "INFO", "failed": "ERROR", "stopped": "WARN"}


class Trackio(Tracker):
    """A run of Trackio; ``TRACKIO_*`` variables say where it is kept.

    It knows runs by name, so names end in something random. It greets on stdout, which is for
    results.
    """

    def __init__(self, config: TrackioTracker) -> None:
        self._config = config
        self._trackio: Any = None
        self._run: Any = None

    def begin(self, run: TrackedRun) -> str:
        """Open the run."""
        with redirect_stdout(sys.stderr):
            self._trackio = import_extra("trackio", "run.trackers: 'trackio'", "trackio")
            name = run.id or f"{run.name}-{uuid.uuid4().hex[:6]}"
            self._run = self._trackio.init(
                project=self._config.project,
                name=name,
                resume="allow",
                config={**run.settings, "folder": str(run.folder)},
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
        return name

    def log(self, number: int, step: int, metrics: Mapping[str, float]) -> None:
        """Log one row."""
        self._run.log(dict(metrics), step=step)

    def end(self, how: End) -> None:
        """Note how the run ended, as an alert, and wait until everything is stored."""
        with redirect_stdout(sys.stderr):
            self._run.alert(title=f"run {how}", level=self._trackio.AlertLevel[LEVELS[how]])
            self._run.finish()
