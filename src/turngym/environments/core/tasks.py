"""What environments share that play the problems of a task set: choosing tasks, and scripts."""

from __future__ import annotations

from typing import Any

from turngym.environments.core.episode import EpisodeCore
from turngym.tasks.base import SPLITS, Split, Task
from turngym.tasks.problem import Script, expert_script
from turngym.tasks.sets import TaskSet


class TaskSetEnv(EpisodeCore):
    """An environment whose tasks are those of ``tasks``, which also names it."""

    tasks: TaskSet[Any]
    default_split: Split = "train"
    """Where ``reset`` samples a task of no split in particular, if there is any."""
    _script: Script | None = None
    _said: int = 0

    def count(self, split: Split) -> int | None:
        """Return the number of tasks of a split; None where there is no end of them."""
        return self.tasks.count(split)

    def task(self, split: Split, index: int) -> Task:
        """Return task number ``index`` of ``split``."""
        return self.tasks.task(split, index)

    def find_task(self, task_id: str) -> Task:
        """Return the task that an id names."""
        return self.tasks.find(task_id)

    def _choose_task(self, options: dict[str, Any]) -> Task:
        if options.get("task") is None and options.keys() <= {"split", "task"}:
            first = self.default_split
            sides = [first, *(one for one in SPLITS if one != first)]
            split = options.get("split") or next(one for one in sides if self.count(one) != 0)
            if split in SPLITS and (count := self.count(split)):
                return self.task(split, int(self.np_random.integers(count)))
        return super()._choose_task(options)

    @property
    def problem(self) -> Any:  # of the family of the set
        """What the running episode is about."""
        return self.tasks.problem(self.current_task)

    # Scripts: the expert's, or what a check wants to be tried instead.

    def follow(self, script: Script) -> None:
        """Have ``expert_action`` say this script and then end the episode, until the next reset."""
        self._script, self._said = script, 0

    def _next(self) -> Any | None:
        """Return what the script says next; None at its end."""
        if self._script is None:
            self._script = expert_script(self.problem, self._task_id)
        return self._script[self._said] if self._said < len(self._script) else None

    def _new_script(self) -> None:
        """Go back to the expert's own script, at its beginning."""
        self._script, self._said = None, 0
