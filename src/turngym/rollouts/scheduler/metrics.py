"""What the scheduler measures of itself."""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from turngym.rollouts.scheduler.staleness import LagCounts

_RECENT = 4096


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


@dataclass(slots=True)
class SchedulerMetrics:
    """Counts and times since the scheduler began; ``metrics`` makes numbers of them.

    Times are seconds of the event loop. ``busy`` is what episodes spent in the environment, in the
    policy and waiting for the ledger; slots that had nothing to do are idle.
    """

    slots: int
    began: float
    bound: ListSchedule = field(init=False)
    env_s: float = 0.0
    policy_s: float = 0.0
    learner_s: float = 0.0
    starved_s: float = 0.0
    """Time that the learner waited for a batch."""
    turns: int = 0
    tokens: int = 0
    episodes: int = 0
    refills: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))
    """Seconds from a freed slot to the next reset, where work was waiting."""
    durations: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))
    lags: LagCounts = field(default_factory=LagCounts)
    waste: Counter[str] = field(default_factory=Counter)
    """Sampled tokens that are not trained on, by reason."""
    trained: int = 0
    masked: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    """Tries that ended by a fault, by stop reason."""
    drops: Counter[str] = field(default_factory=Counter)
    """Dropped episodes by reason."""
    groups: Counter[str] = field(default_factory=Counter)
    """Groups by what became of them."""
    kept_turns: list[int] = field(default_factory=lambda: [0, 0])
    """Episodes and turns that were kept, for the length bias."""
    lost_turns: list[int] = field(default_factory=lambda: [0, 0])
    """Episodes and turns so far of those that were dropped for being slow."""
    violations: int = 0
    """Trained tokens beyond the bound. A bug if it is ever more than 0."""

    def __post_init__(self) -> None:
        self.bound = ListSchedule(self.slots)

    def ended(self, duration: float) -> None:
        """Count an episode that ended by itself."""
        self.episodes += 1
        self.durations.append(duration)
        self.bound.add(duration)

    def kept(self, turns: int) -> None:
        """Count an episode that goes to training."""
        self.kept_turns[0] += 1
        self.kept_turns[1] += turns

    def dropped(self, reason: str, *, tokens: int, turns: int, slow: bool = False) -> None:
        """Count an episode dropped for ``reason``, its ``turns``, and whether it was ``slow``."""
        self.drops[reason] += 1
        self.waste[reason] += tokens
        if slow:
            self.lost_turns[0] += 1
            self.lost_turns[1] += turns

    def metrics(self, now: float) -> dict[str, float]:
        """Return everything as named numbers.

        ``sched/efficiency`` is the wall time of a work-conserving schedule for the episodes that
        ended, divided by the wall time that passed: 1 is perfect. It also falls while admission
        holds slots back, which ``sched/slot_share`` shows.
        """
        wall = max(now - self.began, 1e-9)
        room = self.slots * wall
        found = {
            "sched/efficiency": min(1.0, self.bound.wall / wall),
            "sched/slot_share": min(1.0, (self.env_s + self.policy_s) / room),
            "sched/env_share": self.env_s / room,
            "sched/policy_share": self.policy_s / room,
            "sched/learner_share": self.learner_s / wall,
            "sched/starved_share": self.starved_s / wall,
            "sched/turns_per_s": self.turns / wall,
            "sched/episodes": float(self.episodes),
            "lag/violations": float(self.violations),
            **_quantiles("sched/refill_ms", [1e3 * s for s in self.refills]),
            **_quantiles("sched/episode_s", self.durations),
            **self.lags.metrics(),
        }
        generated = max(self.tokens, 1)
        found["waste/share"] = (self.waste.total() + self.masked) / generated
        found["waste/masked"] = float(self.masked)
        found |= {f"waste/{reason}": float(count) for reason, count in self.waste.items()}
        found |= {f"drop/{reason}": float(count) for reason, count in self.drops.items()}
        found |= {f"group/{what}": float(count) for what, count in self.groups.items()}
        if self.kept_turns[0] and self.lost_turns[0]:
            kept = self.kept_turns[1] / self.kept_turns[0]
            lost = self.lost_turns[1] / self.lost_turns[0]
            found["group/dropped_to_kept_turns"] = lost / max(kept, 1e-9)
        if self.durations:
            recent = sorted(self.durations)
            middle = recent[len(recent) // 2]
            found["sched/straggler_ratio"] = recent[int(0.99 * (len(recent) - 1))] / max(
                middle, 1e-9
            )
        return found


def _quantiles(name: str, values: Sequence[float] | deque[float]) -> dict[str, float]:
    if not values:
        return {}
    p50, p99 = np.percentile(np.fromiter(values, dtype=np.float64), (50, 99))
    return {f"{name}_p50": float(p50), f"{name}_p99": float(p99)}
