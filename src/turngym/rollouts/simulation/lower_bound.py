"""The best that any scheduler could do: list scheduling of the same episodes at no cost."""

from __future__ import annotations

import heapq
from collections.abc import Iterable


def list_schedule(durations: Iterable[float], slots: int) -> float:
    """Return the wall time of a work-conserving schedule, in the unit of ``durations``.

    Episodes begin in the order given, each on the slot that is free first. It is a tighter bound
    than ``max(sum / slots, longest)``, which ignores that the last slots run dry one by one.

    Args:
        durations: Length of each episode.
        slots: Episodes at once, 1 or more.
    """
    clock = ListSchedule(slots)
    for duration in durations:
        clock.add(duration)
    return clock.wall


class ListSchedule:
    """``list_schedule`` one episode at a time.

    Args:
        slots: Episodes at once, 1 or more.
    """

    def __init__(self, slots: int) -> None:
        self._free = [0.0] * slots
        self.wall = 0.0
        """When the last episode so far ends."""
        self.busy = 0.0
        """Sum of the durations."""

    def add(self, duration: float) -> None:
        """Begin an episode of ``duration`` on the slot that is free first."""
        end = self._free[0] + duration
        heapq.heapreplace(self._free, end)
        self.busy += duration
        self.wall = max(self.wall, end)
