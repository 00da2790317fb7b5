"""Answer a question; a scorer judges the answer."""

from __future__ import annotations

from typing import Any, ClassVar

from turngym.environments.core.actions import Action, ActionStyle, Commands, in_style
from turngym.environments.core.env import AsyncTurnEnv, Outcome, SnapshotKind
from turngym.environments.core.tasks import AT_WORK, TaskSetEnv, judged_score
from turngym.tasks.base import Task
from turngym.tasks.problem import AnswerProblem, AnswerWorld, judge, set_up
from turngym.tasks.scorers.answers import UNKNOWN
from turngym.tasks.sets import TaskSet
from turngym.tasks.sources import task_set


class QuestionEnv(TaskSetEnv, AsyncTurnEnv):
    """Answer the questions of a set, one an episode.

    Args:
        tasks: The questions, or where they are: a TOML file, ``FILE.py:NAME``, ``module:NAME``.
        action_style: ``"commands"`` for actions in words, ``"tools"`` for JSON tool calls.
        render_mode: ``"ansi"`` or None.

    Action: ``answer TEXT``.
    Observation: the question.
    Reward: what the question's judge gives for the answer, in [0, 1].
    Start: the question; ``info["ground_truth"]`` holds the answer where there is just one text.
    End: the answer.
    """

    snapshot_kind: ClassVar[SnapshotKind] = "exact"
    max_turns: ClassVar[int] = 4
    """An answer is one turn; the others are for what is not understood."""
    provides: ClassVar[tuple[str, ...]] = ("ground_truth",)
    rules = "Answer the question. Your answer is the last line: the word answer, then the answer."

    def __init__(
        self,
        *,
        tasks: TaskSet[Any] | str,  # of any kind of AnswerProblem
        action_style: ActionStyle = "commands",
        render_mode: str | None = None,
    ) -> None:
        super().__init__(render_mode=render_mode)
        self.action_format = in_style(
            action_style, Commands({"answer": "answer {text...:raw}"}, keep_case=True)
        )
        self.tasks = task_set(tasks)
        self.name = self.tasks.name
        self._given: str | None = None
        self._score = 0.0

    async def begin(self, task: Task) -> Outcome:
        self._given, self._score = None, 0.0
        self._new_script()
        problem: AnswerProblem = self.problem
        await set_up(problem, AnswerWorld(), task.id)
        truth = {} if problem.truth is None else {"ground_truth": problem.truth}
        return Outcome(text=problem.prompt, info=truth)

    async def turn(self, action: Action) -> Outcome:
        self._given, self._score = str(action.arguments["text"]), AT_WORK
        result = await judge(self.problem, AnswerWorld(answer=self._given), self._task_id)
        self._score = result.score
        text = "right." if result.score == 1 else "not right."
        info: dict[str, Any] = {"problem": result.evidence, "parts": dict(result.parts)}
        return Outcome(text=text, reward=self._score, terminated=True, info=info)

    def score(self) -> float | None:
        return judged_score(self._score)

    def legal_actions(self) -> list[str]:
        """Return a menu of one answer, which says that none is known; any other will do too."""
        return [self.answer(UNKNOWN)]

    def reminder(self) -> str:
        return str(self.problem.prompt)

    def answer(self, ground_truth: str) -> str:
        if isinstance(self.action_format, Commands):  # a command is one line
            ground_truth = " ".join(ground_truth.splitlines())
        return self.action_format.render(Action(name="answer", arguments={"text": ground_truth}))

    def expert_action(self) -> str:
        """Return the right answer, or what ``follow`` was given."""
        return self.answer(str(self._next()))

    def get_state(self) -> Any:
        return self._given, self._score

    def set_state(self, state: Any) -> None:
        self._given, self._score = state
