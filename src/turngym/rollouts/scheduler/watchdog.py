"""Says what is stuck: episodes where nothing happens for too long, or a wait for nothing."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import Callable, Iterable

from turngym.errors import TrainingError
from turngym.rollouts.scheduler.groups import OpenGroup

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
        self.barks = 0
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
                self.barks += 1
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
