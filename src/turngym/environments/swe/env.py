"""Mend a Python project: its own tests judge, in a sandbox that the agent has never touched."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, Literal

from turngym.environments.core.actions import Action
from turngym.environments.core.env import Outcome
from turngym.environments.swe.cutting import without_tests
from turngym.environments.swe.edits import next_edit
from turngym.environments.swe.judge import JudgeResult, judge
from turngym.environments.swe.packages import packages_folder, require_pytest
from turngym.environments.swe.parsing import test_file
from turngym.environments.swe.patches import Patch, collect_patch, diff_text
from turngym.environments.swe.project import Project
from turngym.environments.swe.records import SweRecord, TaskFile
from turngym.environments.swe.running import RUN_TESTS, run_pytest
from turngym.environments.swe.statements import STYLES, Style, statement
from turngym.environments.swe.tasksets import SHIPPED, broken_of, open_tasks, project_of
from turngym.environments.workspace import actions
from turngym.environments.workspace.base import ActionStyle, WorkspaceEnv
from turngym.environments.workspace.budget import Budget
from turngym.errors import ConfigError, unknown_name
from turngym.sandbox.backends.guest_sandbox import GuestSandbox
from turngym.sandbox.base import LayerRef
from turngym.tasks.base import Split, Task, procedural_task

Reward = Literal["resolved", "partial"]

_MENU_FILES = 6


class SweEnv(WorkspaceEnv):
    """Find out what is wrong with a Python project and mend it.

    Args:
        tasks: ``"shipped"``, ``"sample"``, or what ``turngym tasks make-swe`` made: file or folder.
        project: Only tasks of this project.
        style: What is told: a ``"symptom"``, a ``"failing"`` test besides, or an ``"issue"``.
        reward: ``"resolved"`` for 1 or 0, ``"partial"`` for the share of failing tests that were
            mended, while nothing else broke.
        step_reward: For each turn whose call was carried out.
        gate: Step rewards are paid at the end, and only when the outcome is above this (G-RA).
        action_style: As ``WorkspaceEnv``.
        budget: As ``WorkspaceEnv``.
        timeout_s: As ``WorkspaceEnv``.
        render_mode: ``"ansi"`` or None.

    Action: tools on the workspace, ``run_tests`` and ``submit``.
    Observation: what the tool gave, cut and normalised by the rules of ``workspace.outputs``.
    Reward: at ``submit``; see ``reward``, ``step_reward`` and ``gate``. Else 0.
    Start: the broken project, without the tests that are hidden.
    End: ``submit``, or all turns are spent, which is judged as ``submit`` is.

    Source: gated step rewards are G-RA, arXiv:2508.10548.
    """

    tools = (
        actions.BASH,
        actions.VIEW,
        actions.SEARCH,
        actions.EDIT,
        actions.CREATE,
        RUN_TESTS,
        actions.SUBMIT,
    )
    rules = (
        "You mend a Python project in a workspace. Only your changes to its code are judged: tests "
        "and configuration are put back, and hidden tests run in another place."
    )

    def __init__(
        self,
        *,
        tasks: str = SHIPPED,
        project: str | None = None,
        style: Style = "failing",
        reward: Reward = "resolved",
        step_reward: float = 0.0,
        gate: float = 0.0,
        action_style: ActionStyle = "text",
        budget: Budget | Mapping[str, Any] | None = None,
        timeout_s: float = 60.0,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(
            action_style=action_style, budget=as_budget(budget), timeout_s=timeout_s,
            render_mode=render_mode,
        )  # fmt: skip
        if style not in STYLES:
            raise unknown_name("statement style", style, STYLES)
        if reward not in ("resolved", "partial"):
            raise unknown_name("reward", reward, ("resolved", "partial"))
        require_pytest()
        self._set = open_tasks(tasks, project)
        self._set.require()
        self.name = "bugs" if tasks == SHIPPED and project is None else f"bugs-{self._set.name}"
        self._style, self._reward = style, reward
        self._step_reward, self._gate = step_reward, gate
        self._file: TaskFile | None = None
        self._record: SweRecord | None = None
        self._project: Project | None = None
        self._broken: dict[str, bytes | None] = {}
        self._base: dict[str, bytes] = {}
        self._good_calls = 0
        self.judge_result: JudgeResult | None = None
        """Of the last submission."""
        self.patch = Patch()
        """What was submitted last."""

    # Tasks.

    def task(self, split: Split, index: int) -> Task:
        """Return task number ``index`` of ``split``.

        Raises:
            ConfigError: There are fewer.
        """
        self._set.get(split, index)
        return procedural_task(self.name, split, index)

    def find_task(self, task_id: str) -> Task:
        """Return the task that ``task_id`` names."""
        task = super().find_task(task_id)
        return self.task(task.split, int(task_id.rpartition("/")[2]))

    def instance_key(self) -> str:
        """Return the name of the record, which no other task has."""
        return self.record.id

    def _choose_task(self, options: dict[str, Any]) -> Task:
        split: Split = options.get("split", "train")
        if options.get("task") is None and set(options) <= {"split", "task"}:
            number = self._set.count(split) if split in ("train", "test") else 0
            if number:
                return self.task(split, int(self.np_random.integers(number)))
        return super()._choose_task(options)

    # One episode.

    @property
    def record(self) -> SweRecord:
        """The recipe of the running episode's task."""
        if self._record is None:
            raise ConfigError(f"{self.name}: no episode is open")
        return self._record

    async def open_sandbox(self, task: Task) -> tuple[GuestSandbox, str]:
        """Start the broken project, without its hidden tests."""
        self._load(task)
        assert self._project is not None
        self._good_calls, self.judge_result, self.patch = 0, None, Patch()
        layer = await self.host.layer(f"project {self._project.digest}", self._project.write)
        sandbox = await self.reopen_sandbox(layer)
        try:
            for path, data in self._base.items():
                if data != self._project.files.get(path):
                    await sandbox.write_file(path, data)
            gone = [path for path in self._project.files if path not in self._base]
            if gone:
                await sandbox.exec(["/usr/bin/rm", "-f", "--", *gone], timeout_s=30.0)
        except BaseException:
            await sandbox.close()
            raise
        return sandbox, statement(
            self.record, self._project.name, self._project.version, self._style
        )

    async def reopen_sandbox(self, layer: LayerRef) -> GuestSandbox:
        """Start a sandbox with what tests import."""
        roots = [] if self._project is None else self._project.layout.roots
        paths = ["/workspace" if root == "." else f"/workspace/{root}" for root in roots]
        return await self.host.start(layer, tools=packages_folder(), paths=paths)

    def _load(self, task: Task) -> None:
        """Read project and recipe of ``task``."""
        file, record = self._set.get(task.split, int(task.id.rpartition("/")[2]))
        if record is self._record and file is self._file:
            return
        self._file, self._record = file, record
        self._project = project = project_of(file)
        self._broken = broken_of(file, record, project)
        files = {**project.files, **self._broken, **cut_tests(project, record)}
        self._base = {path: data for path, data in files.items() if data is not None}

    async def call(self, action: Action) -> actions.Done:
        """Carry out a call; ``run_tests`` is a command like others, its result is no judgement."""
        if action.name == "run_tests":
            target = str(action.arguments.get("target", "")).strip()
            assert self._project is not None
            everything = self._project.layout.tests
            done = await run_pytest(self.sandbox, target, everything, timeout_s=self.timeout_s)
        else:
            done = await super().call(action)
        self._good_calls += done.problem is None
        return done

    async def judge(self) -> Outcome:
        """Judge what was changed, in a fresh sandbox."""
        assert self._project is not None
        assert self._file is not None
        self.patch = collect_patch(await self.changed_files(), self._base, self._project.layout)
        if self.patch.is_empty:
            result = JudgeResult(
                is_resolved=False, fixed=0.0, kept=1.0, problem="nothing was changed"
            )
        else:
            result = await judge(
                self.host,
                self._project,
                self._broken,
                self.patch,
                fail_to_pass=self.record.fail_to_pass,
                pass_to_pass=self._file.pass_to_pass(self.record),
                packages=packages_folder(),
                timeout_s=20.0 + 3 * self._file.suite_s,
            )
        self.judge_result, self._score = result, float(result.is_resolved)
        return self._paid(result)

    def _paid(self, result: JudgeResult) -> Outcome:
        outcome = float(result.is_resolved)
        if self._reward == "partial" and result.kept == 1.0:
            outcome = result.fixed
        steps = self._step_reward * self._good_calls if outcome > self._gate else 0.0
        text = "resolved." if result.is_resolved else "not resolved."
        if self.patch.left_out:
            text += " Left out of your patch: " + "; ".join(self.patch.left_out[:5])
        info: dict[str, Any] = {
            "fixed": result.fixed, "kept": result.kept, "forged": result.is_forged,
            "problem": result.problem, "patch": self.patch_text(),
        }  # fmt: skip
        if self._step_reward:
            info["reward_parts"] = {"outcome": outcome, "steps": steps}
        return Outcome(text=text, reward=outcome + steps, info=info)

    def patch_text(self) -> str:
        """Return what was submitted last as a unified diff."""
        return diff_text(self.patch.files, self._base)

    def legal_actions(self) -> list[str]:
        """Return a menu: run the tests, look at files, submit. Other calls are carried out too."""
        assert self._project is not None
        files = list(self._project.sources())[:_MENU_FILES]
        menu = [self.say("run_tests", target=test_file(self.record.shown[0]))]
        menu += [self.say("view", path=path) for path in files]
        return [*menu, self.say("bash", command="ls"), self.say("submit")]

    def expert_action(self) -> str:
        """Return the next edit of the repair, then ``submit``."""
        assert self._project is not None
        for path in sorted(self._broken):
            wanted = self._project.files.get(path)
            found = self.current.get(path, self._base.get(path))
            if wanted is None and found is not None:
                return self.say("bash", command=f"rm {shlex.quote(path)}")
            if wanted is not None and found != wanted:
                return self.say(*_as_call(next_edit(path, found, wanted)))
        return self.say("submit")

    def say(self, tool: str, arguments: Mapping[str, Any] | None = None, **more: Any) -> str:
        """Return the text that calls ``tool`` in the action style of this environment."""
        return super().say(tool, **{**(arguments or {}), **more})

    def own_state(self) -> Any:
        """Return the task, the count of calls, and what was submitted."""
        return self._task, self._good_calls, self.judge_result, self.patch

    def set_own_state(self, state: Any) -> None:
        """Take over what ``own_state`` returned."""
        task, self._good_calls, self.judge_result, self.patch = state
        if task is not None:
            self._load(task)


def cut_tests(project: Project, record: SweRecord) -> dict[str, bytes]:
    """Return the test files of the workspace that differ from the project's."""
    hidden = record.hidden
    files: dict[str, bytes] = {}
    for path, data in project.files.items():
        if path.endswith(".py") and project.layout.is_test(path):
            text = data.decode("utf-8", "surrogateescape")
            left = without_tests(text, hidden)
            if left != text:
                files[path] = left.encode("utf-8", "surrogateescape")
    return files


def _as_call(action: Action) -> tuple[str, Mapping[str, Any]]:
    return action.name, action.arguments


def as_budget(budget: Budget | Mapping[str, Any] | None) -> Budget:
    """Return a budget, or what its settings describe.

    Raises:
        ConfigError: There is no such setting.
    """
    if budget is None or isinstance(budget, Budget):
        return budget or Budget(turns=40)
    try:
        return Budget(**budget)
    except TypeError as error:
        known = ", ".join(Budget.__dataclass_fields__)
        raise ConfigError(f"budget: {error}; known: {known}") from error
