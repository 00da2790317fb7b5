"""What the scheduler measures of itself: counts, a trace for Perfetto, faults, what stands still.

After a fault it tries again, drops an episode, shuts a task out, or stops the run.
"""

from __future__ import annotations

import asyncio
import heapq
import io
import json
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from turngym.errors import TrainingError
from turngym.records import replacing
from turngym.rollouts.scheduler.admission import LagCounts
from turngym.rollouts.scheduler.config import FailureConfig
from turngym.rollouts.scheduler.groups import OpenGroup
from turngym.types import StopReason

_RECENT = 4096
_SUMS = (
    *("env_s", "policy_s", "turns", "tokens", "episodes", "trained", "masked", "violations"),
    *("waste", "faults", "drops", "groups"),
)


class ListSchedule:
    """The wall time of a work-conserving schedule, one episode at a time.

    Episodes begin in the order given, each on the slot that is free first. It is a tighter bound
    than ``max(sum / slots, longest)``, which ignores that the last slots run dry one by one.

    Args:
        slots: Episodes at once, 1 or more.
        durations: Length of the first episodes.
    """

    def __init__(self, slots: int, durations: Iterable[float] = ()) -> None:
        self._free = [0.0] * slots
        self.wall = 0.0
        """When the last episode so far ends, in the unit of the durations."""
        for duration in durations:
            self.add(duration)

    def add(self, duration: float) -> None:
        """Begin an episode of ``duration`` on the slot that is free first."""
        end = self._free[0] + duration
        heapq.heapreplace(self._free, end)
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

    @classmethod
    def merged(cls, parts: Sequence[SchedulerMetrics]) -> SchedulerMetrics:
        """Return the metrics of schedulers that worked side by side, as of one.

        What they did is added up; the time that a trainer spent or waited is their mean.
        """
        whole = cls(sum(part.slots for part in parts), min(part.began for part in parts))
        for part in parts:
            for name in _SUMS:
                setattr(whole, name, getattr(whole, name) + getattr(part, name))
            for name in ("tokens", "start_version", "oldest", "newest"):
                getattr(whole.lags, name).update(getattr(part.lags, name))
            for name in ("kept_turns", "lost_turns"):
                pairs = zip(getattr(whole, name), getattr(part, name), strict=True)
                setattr(whole, name, [a + b for a, b in pairs])
            whole.learner_s += part.learner_s / len(parts)
            whole.starved_s += part.starved_s / len(parts)
            whole.bound.wall = max(whole.bound.wall, part.bound.wall)
        for name in ("refills", "durations"):
            values = chain.from_iterable(getattr(part, name) for part in parts)
            setattr(whole, name, deque(values, maxlen=_RECENT * len(parts)))
        return whole

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


_MICRO = 1e6


class Timeline:
    """Keeps the newest spans of a run; times are those of the event loop, in seconds.

    Args:
        limit: Spans kept; the oldest are forgotten.
    """

    def __init__(self, limit: int = 200_000) -> None:
        self._spans: deque[tuple[str, str, int, float, float]] = deque(maxlen=limit)
        self._marks: deque[tuple[str, float]] = deque(maxlen=limit)

    def span(self, kind: str, name: str, slot: int, start: float, end: float) -> None:
        """Note that something of ``kind`` ran in ``slot`` from ``start`` to ``end``."""
        self._spans.append((kind, name, slot, start, end))

    def mark(self, name: str, at: float) -> None:
        """Note the moment ``at`` of the whole run, such as new weights."""
        self._marks.append((name, at))

    def to_json(self) -> dict[str, Any]:
        """Return the trace. Each slot is a thread; the learner is thread 0."""
        origin = min((start for _, _, _, start, _ in self._spans), default=0.0)
        events: list[dict[str, Any]] = [
            {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "turngym rollouts"}},
            {"ph": "M", "pid": 1, "tid": 0, "name": "thread_name", "args": {"name": "learner"}},
        ]
        for slot in sorted({span[2] for span in self._spans} - {0}):
            row = {"name": f"slot {slot}"}
            events.append({"ph": "M", "pid": 1, "tid": slot, "name": "thread_name", "args": row})
        for kind, name, slot, start, end in self._spans:
            event = {"ph": "X", "pid": 1, "tid": slot, "cat": kind, "name": name}
            event |= {"ts": (start - origin) * _MICRO, "dur": (end - start) * _MICRO}
            events.append(event)
        for name, at in self._marks:
            ts = (at - origin) * _MICRO
            events.append({"ph": "i", "pid": 1, "tid": 0, "s": "g", "name": name, "ts": ts})
        return {"traceEvents": events, "displayTimeUnit": "ms"}

    def save(self, path: Path) -> None:
        """Write the trace, replacing ``path`` only when all of it is written."""
        with replacing(path) as partial:
            partial.write_text(json.dumps(self.to_json()), encoding="utf-8")


_LONGEST_CAUSE = 100
_ROWS = 12


class TooManyFaults(TrainingError):
    """More tries ended by a fault than the budget allows; the message is a table of causes."""


class FailureBudget:
    """Looks back on the last tries and says when there are too many faults to go on.

    Args:
        config: The settings.
        alive: Episodes alive at once.
    """

    def __init__(self, config: FailureConfig, *, alive: int = 1) -> None:
        self._config = config
        self._alive = alive
        self._recent: deque[str | None] = deque(maxlen=config.window)
        self._good = 0
        self.causes: Counter[str] = Counter()

    def good(self) -> None:
        """Count a try that ended by itself."""
        self._good += 1
        self._recent.append(None)

    def fault(self, stop: StopReason, error: str, task_id: str) -> None:
        """Count a try at ``task_id`` that ended by the fault ``error``.

        Raises:
            TooManyFaults: There are more than the budget allows.
        """
        cause = f"{stop.value}: {_shortened(error)}"
        self._recent.append(cause)
        self.causes[cause] += 1
        if self.is_spent:
            raise TooManyFaults(self.report(task_id))

    @property
    def is_spent(self) -> bool:
        """Whether the run must stop."""
        recent, config = self._recent, self._config
        faults = sum(cause is not None for cause in recent)
        # Episodes that break do so before others end, so as many as are alive may come first.
        hopeless = self._good == 0 and len(recent) >= min(config.window, max(20, self._alive))
        return faults > config.fraction * (len(recent) if hopeless else config.window)

    def report(self, task_id: str) -> str:
        """Return what broke how often, as a table."""
        recent = Counter(cause for cause in self._recent if cause is not None)
        lines = [
            f"scheduler: {recent.total()} of the last {len(self._recent)} tries ended by a fault, "
            f"more than failures.fraction={self._config.fraction:g} allows; last task "
            f"{task_id!r}. Causes:",
            *(f"{count:6d}  {cause}" for cause, count in recent.most_common(_ROWS)),
        ]
        if len(recent) > _ROWS:
            lines.append(f"        and {len(recent) - _ROWS} more kinds")
        return "\n".join(lines)


def _shortened(error: str) -> str:
    """Return the first line of ``error``, cut, so that equal causes count as one."""
    line = error.splitlines()[0] if error else "unknown"
    return line if len(line) <= _LONGEST_CAUSE else line[: _LONGEST_CAUSE - 1] + "…"


logger = logging.getLogger(__name__)

_MOST_STACKS = 8
_MOST_GROUPS = 20


class Stuck(TrainingError):
    """A trainer waits for groups, but nothing runs and nothing can begin: a table says why."""


class Watchdog:
    """Logs the stacks of tasks when there was no sign of life for some seconds.

    One timer of the event loop, set anew when it goes off; signs of life cost an assignment.

    Args:
        seconds: How long nothing may happen.
        suspects: Returns the tasks that might be stuck.
        on_idle: Called when nothing happened, and nothing runs.
    """

    def __init__(
        self,
        seconds: float,
        suspects: Callable[[], Iterable[asyncio.Task[object]]],
        on_idle: Callable[[], None],
    ) -> None:
        self._on_idle = on_idle
        self._seconds = seconds
        self._suspects = suspects
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self._timer = self._loop.call_later(seconds, self._look)

    def alive(self) -> None:
        """Note a sign of life."""
        self._last = self._loop.time()

    def close(self) -> None:
        """Stop watching."""
        self._timer.cancel()

    def _look(self) -> None:
        quiet = self._loop.time() - self._last
        left = self._seconds - quiet
        if left <= 0:
            stuck = list(self._suspects())
            if stuck:
                logger.warning("%s", describe_tasks(stuck, quiet))
            else:
                self._on_idle()
            self._last = self._loop.time()
            left = self._seconds
        self._timer = self._loop.call_later(left, self._look)


def describe_groups(groups: Iterable[OpenGroup]) -> str:
    """Return a table of groups: what each waits for."""
    rows = sorted(groups, key=lambda group: group.index)
    lines = [" group  for update  start_version  finished  missing members  task"]
    for group in rows[:_MOST_GROUPS]:
        target = "any" if group.target is None else str(group.target)
        missing = ", ".join(map(str, sorted(group.waiting))) or "none"
        state = " (closed)" if group.closed else ""
        lines.append(
            f"{group.index:6d}  {target:>10}  {group.start_version:4d}  {len(group.finished):8d}  "
            f"{missing:<15}  {group.request.task.id}{state}"
        )
    if len(rows) > _MOST_GROUPS:
        lines.append(f"and {len(rows) - _MOST_GROUPS} more")
    return "\n".join(lines if rows else ["no group is open"])


def describe_tasks(tasks: Iterable[asyncio.Task[object]], quiet_s: float) -> str:
    """Return the names and stacks of ``tasks``, of the first few in full."""
    stuck = list(tasks)
    text = io.StringIO()
    text.write(f"scheduler: nothing happened for {quiet_s:.1f} s; {len(stuck)} episodes run:\n")
    for task in stuck[:_MOST_STACKS]:
        task.print_stack(file=text, limit=8)
        text.write("".join(f"    awaits {line}\n" for line in awaited(task)))
    if len(stuck) > _MOST_STACKS:
        text.write(f"and {len(stuck) - _MOST_STACKS} more\n")
    return text.getvalue()


def awaited(task: asyncio.Task[object]) -> list[str]:
    """Return where ``task`` waits, from its own function inwards; a stack shows the first only."""
    found: list[str] = []
    here: object = task.get_coro()
    while here is not None:
        if hasattr(here, "cr_frame"):
            frame = here.cr_frame
            if frame is not None:
                code = frame.f_code
                found.append(f"{code.co_qualname} ({code.co_filename}:{frame.f_lineno})")
            here = getattr(here, "cr_await", None)
        else:  # perhaps a call that is watched: what it awaits is in the hands of its generator
            inside = getattr(here, "gi_frame", None)
            work = getattr(inside.f_locals.get("self"), "work", None) if inside else None
            if work is None:
                break
            here = work
    if here is not None:
        found.append(repr(here))
    return found
