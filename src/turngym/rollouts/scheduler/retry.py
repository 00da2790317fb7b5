"""Faults and what stands still: try again, drop an episode, shut a task out, stop the run."""

from __future__ import annotations

import asyncio
import io
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from turngym.errors import TrainingError
from turngym.rollouts.scheduler.config import FailureConfig, RetryConfig
from turngym.rollouts.scheduler.groups import OpenGroup
from turngym.types import StopReason

_LONGEST_CAUSE = 100
_ROWS = 12


class TooManyFaults(TrainingError):
    """More tries ended by a fault than the budget allows; the message is a table of causes."""


@dataclass(slots=True)
class Quarantine:
    """Tasks on which the environment broke too often."""

    after: int
    faults: Counter[str] = field(default_factory=Counter)

    def blame(self, task_id: str) -> None:
        """Count one fault of the environment."""
        self.faults[task_id] += 1

    def holds(self, task_id: str) -> bool:
        """Return whether the task is shut out."""
        return self.faults[task_id] >= self.after

    @property
    def tasks(self) -> list[str]:
        """The tasks that are shut out."""
        return sorted(task for task, count in self.faults.items() if count >= self.after)


def may_retry(
    config: RetryConfig, quarantine: Quarantine, *, stop: StopReason, tries: int, task_id: str
) -> bool:
    """Return whether an episode that ended by a fault is begun again.

    Args:
        config: The settings.
        quarantine: Knows which tasks are shut out, the last fault included.
        stop: Why the episode ended.
        tries: Tries so far, the failed one included.
        task_id: The task.
    """
    return stop.is_error and tries < config.max_tries and not quarantine.holds(task_id)


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
    while here is not None and hasattr(here, "cr_frame"):
        frame = here.cr_frame
        if frame is not None:
            code = frame.f_code
            found.append(f"{code.co_qualname} ({code.co_filename}:{frame.f_lineno})")
        here = getattr(here, "cr_await", None)
    if here is not None:
        found.append(repr(here))
    return found
