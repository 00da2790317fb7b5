"""What environments share that play the problems of a task set: choosing tasks, and scripts."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, ClassVar

from turngym.environments.core.actions import Action
from turngym.environments.core.env import Outcome, opened
from turngym.environments.core.episode import EpisodeCore
from turngym.errors import TaskFault
from turngym.tasks.base import Split, Task
from turngym.tasks.problem import Script, World, expert_script, judge
from turngym.tasks.sets import TaskSet

AT_WORK = math.nan
"""The score while a judge looks; an episode that is cut off there has none."""


def judged_score(score: float | None) -> float | None:
    """Return ``score``.

    Raises:
        TaskFault: The episode was cut off before its judge was done.
    """
    if score is not None and math.isnan(score):
        raise TaskFault("the time was up before the judge was done; give the episode more of it")
    return score


class TaskSetEnv(EpisodeCore):
    """An environment whose tasks are those of ``tasks``, which also names it."""

    tasks: TaskSet[Any]
    _script: Script | None = None
    _said: int = 0

    def count(self, split: Split) -> int | None:
        return self.tasks.count(split)

    def task(self, split: Split, index: int) -> Task:
        return self.tasks.task(split, index)

    def find_task(self, task_id: str) -> Task:
        return self.tasks.find(task_id)

    @property
    def problem(self) -> Any:  # of the family of the set
        """What the running episode is about."""
        return self.tasks.problem(self.current_task)

    def instance_key(self) -> str:
        """Return what makes the problem this one."""
        return str(self.problem.content)

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


class StoppedEnv(TaskSetEnv):
    """A screen whose agent says when it is done: ``stop`` or ``answer`` has the world judged."""

    last_words: ClassVar[tuple[str, str]] = ("done.", "failed.")
    """What the agent reads last, for all that was asked and for less."""
    _problem: Any = None
    _score: float = 0.0

    @abstractmethod
    def world(self, answer: str | None) -> World:
        """Return what the judge sees; ``answer`` is None where the agent just stopped."""

    @property
    def problem(self) -> Any:  # of the family of the set
        return opened(self._problem, self.name)

    def open_problem(self, task: Task) -> Any:  # of the family of the set
        """Return the problem of ``task``; nothing of it was done yet."""
        self._problem, self._score = self.tasks.problem(task), 0.0
        self._new_script()
        return self._problem

    async def judged(self, action: Action) -> Outcome | None:
        """Return the end of the episode after ``action``; None where it goes on."""
        if action.name not in ("stop", "answer"):
            return None
        answer = str(action.arguments["text"]) if action.name == "answer" else None
        self._score = AT_WORK
        result = await judge(self.problem, self.world(answer), self._task_id)
        self._score = result.score
        info = {"problem": result.evidence, "parts": dict(result.parts)}
        text = self.last_words[result.score < 1]
        return Outcome(text=text, reward=result.score, terminated=True, info=info)

    def score(self) -> float | None:
        return judged_score(self._score)
