"""What is done about faults: try again, drop an episode, shut a task out, stop the run."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from turngym.errors import TrainingError
from turngym.rollouts.scheduler.config import FailureConfig, RetryConfig
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
