"""Solve a problem in a shell; the end state is judged."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, TypedDict, Unpack

from turngym.environments.core.actions import Action, ActionStyle, InvalidAction
from turngym.environments.core.env import Outcome, opened
from turngym.environments.core.limits import WallClockLimit
from turngym.environments.core.tasks import AT_WORK, TaskSetEnv
from turngym.environments.swe.packages import packages_beside
from turngym.environments.workspace.base import Budget, WorkspaceEnv
from turngym.environments.workspace.host import closed_on_failure
from turngym.environments.workspace.tools import Done
from turngym.environments.workspace.world import EndWorld, StartWorld
from turngym.errors import TaskFault
from turngym.sandbox.backends.guest_sandbox import GuestSandbox
from turngym.sandbox.base import LayerRef
from turngym.tasks.base import Task
from turngym.tasks.harbor.folders import harbor_tasks
from turngym.tasks.problem import FileProblem, JudgeResult, Keep, judge, set_up
from turngym.tasks.sets import TaskSet
from turngym.tasks.shell import shell_tasks
from turngym.tasks.sources import task_set


class ShellOptions(TypedDict, total=False):
    """Options of every environment with a shell; see ``WorkspaceEnv``."""

    action_style: ActionStyle
    budget: Budget | Mapping[str, Any] | None
    render_mode: str | None


class ProblemClock(WallClockLimit):
    """The time that a problem gives its agent."""


class ShellEnv(TaskSetEnv, WorkspaceEnv):
    """Solve the problems of a set with files and programs.

    Args:
        tasks: The problems, or where they are: ``FILE.py``, ``FILE.py:NAME``, ``module:NAME``.
        timeout_s: Longest run of one command, in seconds.
        options: As ``WorkspaceEnv``.

    Action: ``bash``, the tools for files, and ``submit``.
    Observation: what the tool gave, cut and normalised by the rules of ``workspace.outputs``.
    Reward: at ``submit``, what the problem's judge gives: 1 for all that was asked.
    Start: what the problem sets up.
    End: ``submit``, or all turns are spent, which is judged as ``submit`` is.
    """

    turns = 20
    max_turns: ClassVar[int] = 30
    programs: ClassVar[tuple[str, ...]] = ("bwrap",)
    provides: ClassVar[tuple[str, ...]] = ("state_key",)
    rules = (
        "You work in a shell. Do what is asked in the workspace, change nothing else, then submit. "
        "There is no network. Programs that a command leaves running end with it."
    )

    def __init__(
        self,
        *,
        tasks: TaskSet[Any] | str,  # of any kind of FileProblem
        timeout_s: float = 20.0,
        **options: Unpack[ShellOptions],
    ) -> None:
        super().__init__(timeout_s=timeout_s, **options)
        self.tasks = task_set(tasks)
        self.name = self.tasks.name
        self._problem: FileProblem | None = None
        self._results: tuple[JudgeResult, ...] = ()
        self._before: dict[str, bytes | None] = {}
        self._usual_s = self.timeout_s

    @property
    def problem(self) -> FileProblem:
        return opened(self._problem, self.name)

    async def open_sandbox(self, task: Task) -> tuple[GuestSandbox, str]:
        self._problem = problem = self.tasks.problem(task)
        self._results = ()
        self._new_script()
        self._keep_time()
        sandbox = await self._start(None)
        async with closed_on_failure(sandbox):
            await set_up(problem, StartWorld(sandbox), task.id)
        return sandbox, problem.prompt

    async def begin(self, task: Task) -> Outcome:
        outcome = await super().begin(task)
        self._before = await self.all_changed()
        return outcome

    def _keep_time(self) -> None:
        """Give commands and the episode the time that the problem wants for them."""
        machine = self.problem.machine
        self.timeout_s = machine.command_s or self._usual_s
        for limit in self.episode_limits:
            if isinstance(limit, ProblemClock):
                limit.max_seconds = machine.seconds or math.inf

    async def reopen_sandbox(self, layer: LayerRef) -> GuestSandbox:
        return await self._start(layer)

    async def _start(self, layer: LayerRef | None) -> GuestSandbox:
        machine = self.problem.machine
        tools = await packages_beside() if machine.needs_pytest else None
        return await self.host.start(layer, machine=machine, tools=tools)

    async def call(self, action: Action) -> Done:
        done = await super().call(action)
        self._said += self._is_next(action)
        return done

    def _is_next(self, action: Action | InvalidAction) -> bool:
        """Return whether a call is the script's next; parsing may take blanks off its ends."""
        try:
            command = None if isinstance(action, InvalidAction) else self._next()
        except TaskFault:  # no solution, or a broken one: an agent can do without
            command = None
        if command is None or isinstance(action, InvalidAction):
            return False
        return str(action.arguments.get("command", "")).strip() == str(command).strip()

    async def judge(self) -> Outcome:
        before = self.problem.total(self._results) if self._results else 0.0
        self._score = AT_WORK
        result = await judge(self.problem, await self._world(), self._task_id)
        self._results = (*self._results, result)
        self._score = self.problem.total(self._results)
        info: dict[str, Any] = {"problem": result.evidence}
        if result.parts:
            info["parts"] = dict(result.parts)
        text = "done." if result.score == 1 else f"not done: {result.evidence}"
        return Outcome(text=text, reward=self._score - before, info=info)

    async def submitted(self) -> Outcome:
        """Judge, and go on to the next step where there is one."""
        outcome = await super().submitted()
        step = self.problem.next_step(self._results)
        if step is not None:
            self._problem = step
            self._new_script()
            self._keep_time()
            await set_up(step, StartWorld(self.sandbox), self._task_id)
            self._state_key = await self._digest()
            self._before = await self.all_changed()
            outcome.terminated = False
            outcome.text = f"[next step]\n{step.prompt}"  # what the judge saw is not shown
            return self._within_budget(outcome)
        return outcome

    async def _world(self) -> EndWorld:

        async def open_copy(keep: Keep) -> GuestSandbox:
            return await self._start(None if keep == "nothing" else await self.sandbox.snapshot())

        found = await self.changed_files()
        return EndWorld(
            self.sandbox, host=self.host, found=found, before=self._before, open_copy=open_copy,
            private=self.problem.machine.private,
        )  # fmt: skip

    def legal_actions(self) -> list[str]:
        files = [self.say("view", path=path) for path in sorted(self.problem.files)[:6]]
        return [self.say("bash", command="ls -R"), *files, self.say("submit")]

    def expert_action(self) -> str:
        """Return the script's next command, then ``submit``.

        Raises:
            TaskFault: A command cannot be said as a call.
        """
        command = self._next()
        if command is None:
            return self.say("submit")
        text = self.say("bash", command=str(command))
        parsed = self.action_format.parse(text)
        if not (self._is_next(parsed) and isinstance(command, str)):  # it would be, again for ever
            why = f": {parsed.reason}" if isinstance(parsed, InvalidAction) else ""
            raise TaskFault(
                f"task {self._task_id}: expert: {command!r:.60} cannot be said as a call of "
                f"bash{why}"
            )
        return text

    def own_state(self) -> Any:
        return self._problem, self._before, self._results, self._script, self._said

    def set_own_state(self, state: Any) -> None:
        self._problem, self._before, self._results, self._script, self._said = state
        self._keep_time()


class TerminalEnv(ShellEnv):
    """Solve a problem with files and programs.

    Args:
        group: Kinds of problems: ``"all"`` or a key of ``GROUPS``.
        kind: One kind instead.
        timeout_s: As of ``ShellEnv``, and so ``options``.

    Action: ``bash``, the tools for files, and ``submit``.
    Observation: what the tool gave, cut and normalised by the rules of ``workspace.outputs``.
    Reward: at ``submit``, 1 when files and programs are as asked and nothing else was changed.
    Start: the problem's files.
    End: ``submit``, or all turns are spent, which is judged as ``submit`` is.
    """

    def __init__(
        self,
        *,
        group: str = "all",
        kind: str | None = None,
        timeout_s: float = 20.0,
        **options: Unpack[ShellOptions],
    ) -> None:
        super().__init__(tasks=shell_tasks(group, kind), timeout_s=timeout_s, **options)


class HarborEnv(ShellEnv):
    """Play a task folder in Harbor's format, or a folder of them.

    Args:
        folder: Where they are.
        without_network: Play also those that want a network, which they do not get.
        timeout_s: As of ``ShellEnv``, and so ``options``.

    Action: ``bash``, the tools for files, and ``submit``, which ends a step.
    Observation: what the tool gave, cut and normalised by the rules of ``workspace.outputs``.
    Reward: at ``submit``, what ``tests/test.sh`` wrote; of a task with steps each pays its share.
    Start: what the Dockerfile makes.
    End: ``submit`` of the last step, or all turns or seconds are spent, which is judged too.
    """

    turns = max_turns = 60
    rules = (
        "You work in a shell. Do what is asked, then submit. There is no network. Programs that a "
        "command leaves running end with it."
    )

    def __init__(
        self,
        *,
        folder: str,
        without_network: bool = False,
        timeout_s: float = 20.0,
        **options: Unpack[ShellOptions],
    ) -> None:
        tasks = harbor_tasks(Path(folder), without_network=without_network)
        super().__init__(tasks=tasks, timeout_s=timeout_s, **options)
        self.episode_limits.append(ProblemClock(max_seconds=math.inf))
