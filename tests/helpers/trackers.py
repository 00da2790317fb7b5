"""Trackers that keep what they get, and that fail when they are asked to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Event

from turngym.trainers.settings.trackers import CustomTracker
from turngym.trainers.trackers.base import End, TrackedRun


@dataclass
class Kept:
    """What one tracker got, over all processes of a run."""

    runs: list[TrackedRun] = field(default_factory=list)
    rows: list[tuple[int, int, dict[str, float]]] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)
    """Raised one by one, by the next calls of ``log``."""
    release: Event | None = None
    """Awaited by ``log``, where there is one."""


kept: defaultdict[str, Kept] = defaultdict(Kept)
"""By ``settings.key``."""


class Keeping:
    """Keeps everything in ``kept``."""

    def __init__(self, config: CustomTracker) -> None:
        self._kept = kept[str(config.settings["key"])]

    def begin(self, run: TrackedRun) -> str:
        self._kept.runs.append(run)
        return run.id or f"id {len(self._kept.runs)}"

    def log(self, number: int, step: int, metrics: Mapping[str, float]) -> None:
        if self._kept.release is not None:
            self._kept.release.wait()
        if self._kept.errors:
            raise self._kept.errors.pop(0)
        self._kept.rows.append((number, step, dict(metrics)))

    def end(self, how: End) -> None:
        self._kept.ends.append(how)


def keeping(key: str) -> CustomTracker:
    """Return the settings of a tracker that keeps everything as ``kept[key]``."""
    spec = "helpers.trackers:Keeping"
    return CustomTracker(type="custom", tracker=spec, settings={"key": key})
