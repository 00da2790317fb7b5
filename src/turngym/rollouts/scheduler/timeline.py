"""What happened when, slot by slot, in the trace format that Perfetto and Chrome open."""

from __future__ import annotations

import heapq
import json
from collections import deque
from pathlib import Path
from typing import Any

_MICRO = 1e6


class Timeline:
    """Keeps the newest spans of a run; times are those of the event loop, in seconds.

    Args:
        limit: Spans kept; the oldest are forgotten.
    """

    def __init__(self, limit: int = 200_000) -> None:
        self._spans: deque[tuple[str, str, int, float, float, Any]] = deque(maxlen=limit)
        self._marks: deque[tuple[str, float]] = deque(maxlen=limit)

    def span(self, kind: str, name: str, slot: int, start: float, end: float, note: Any) -> None:
        """Note that something of ``kind`` ran in ``slot`` from ``start`` to ``end``."""
        self._spans.append((kind, name, slot, start, end, note))

    def mark(self, name: str, at: float) -> None:
        """Note the moment ``at`` of the whole run, such as new weights."""
        self._marks.append((name, at))

    def to_json(self) -> dict[str, Any]:
        """Return the trace. Each slot is a thread; the learner is thread 0."""
        origin = min((start for _, _, _, start, _, _ in self._spans), default=0.0)
        events: list[dict[str, Any]] = [
            {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "turngym rollouts"}},
            {"ph": "M", "pid": 1, "tid": 0, "name": "thread_name", "args": {"name": "learner"}},
        ]
        for slot in sorted({span[2] for span in self._spans} - {0}):
            row = {"name": f"slot {slot}"}
            events.append({"ph": "M", "pid": 1, "tid": slot, "name": "thread_name", "args": row})
        for kind, name, slot, start, end, note in self._spans:
            event = {"ph": "X", "pid": 1, "tid": slot, "cat": kind, "name": name}
            event |= {"ts": (start - origin) * _MICRO, "dur": (end - start) * _MICRO}
            events.append(event if note is None else event | {"args": {"note": note}})
        for name, at in self._marks:
            ts = (at - origin) * _MICRO
            events.append({"ph": "i", "pid": 1, "tid": 0, "s": "g", "name": name, "ts": ts})
        return {"traceEvents": events, "displayTimeUnit": "ms"}

    def save(self, path: Path) -> None:
        """Write the trace, replacing ``path`` only when all of it is written."""
        partial = path.with_name(path.name + ".partial")
        partial.write_text(json.dumps(self.to_json()), encoding="utf-8")
        partial.replace(path)


class Slots:
    """Numbers of running episodes, 1 and up, the lowest free one first."""

    def __init__(self) -> None:
        self._free: list[int] = []
        self._most = 0

    def take(self) -> int:
        """Return a number that is not in use."""
        if self._free:
            return heapq.heappop(self._free)
        self._most += 1
        return self._most

    def give_back(self, slot: int) -> None:
        """Let another episode have ``slot``."""
        heapq.heappush(self._free, slot)
