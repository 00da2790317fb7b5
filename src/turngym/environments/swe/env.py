"""Repair a Python project: its own tests judge, in a sandbox that the agent has never touched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from turngym.environments.core.actions import Action, ActionStyle
from turngym.environments.core.env import Outcome
from turngym.environments.core.episode import opened
from turngym.environments.swe.judge import NOTHING_CHANGED, judge
from turngym.environments.swe.packages import packages_folder, require_pytest
from turngym.environments.swe.parsing import hide_tests, test_file
from turngym.environments.swe.patches import Patch, collect_patch
from turngym.environments.swe.problem_statements import STYLES, Style, problem_statement
from turngym.environments.swe.project import Project
from turngym.environments.swe.records import SweRecord, TaskFile
from turngym.environments.swe.repair import RepairEnv
from turngym.environments.swe.tasksets import SHIPPED, broken_of, open_tasks, project_of
from turngym.environments.workspace.base import Budget
from turngym.environments.workspace.host import Delta, closed_on_failure, put_delta
from turngym.environments.workspace.tools import Done
from turngym.errors import unknown_name
from turngym.sandbox.backends.guest_sandbox import GuestSandbox
from turngym.sandbox.base import LayerRef
from turngym.tasks.base import Split, Task

Reward = Literal["resolved", "partial"]

_MENU_FILES = 6


class SweEnv(RepairEnv):
    """Find out what is wrong with a Python project and repair it.

    Args:
        tasks: ``"shipped"``, ``"sample"``, or what ``turngym tasks make-swe`` made: file or folder.
        project: Only tasks of this project.
        style: Problem statement: a ``"symptom"``, a ``"failing"`` test besides, or an ``"issue"``.
        reward: ``"resolved"`` for 1 or 0, ``"partial"`` for the share of failing tests that were
            fixed, while nothing else broke.
        step_reward: For each turn whose call was carried out.
        gate: Step rewards are paid at the end, and only when the outcome is above this (G-RA).
        action_style, budget, timeout_s: As ``WorkspaceEnv``.
        render_mode: ``"ansi"`` or None.

    Action: tools on the workspace, ``run_tests`` and ``submit``.
    Observation: what the tool gave, cut and normalised by the rules of ``workspace.outputs``.
    Reward: at ``submit``; see ``reward``, ``step_reward`` and ``gate``. Else 0.
    Start: the broken project, without the tests that are hidden.
    End: ``submit``, or all turns are spent, which is judged as ``submit`` is.

    Source: gated step rewards are G-RA, arXiv:2508.10548.
    """

    def __init__(
        self,
        *,
        tasks: str = SHIPPED,
        project: str | None = None,
        style: Style = "failing",
        reward: Reward = "resolved",
        step_reward: float = 0.0,
        gate: float = 0.0,
        action_style: ActionStyle = "commands",
        budget: Budget | Mapping[str, Any] | None = None,
        timeout_s: float = 60.0,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(
            action_style=action_style, budget=budget, timeout_s=timeout_s,
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
        self._broken: Delta = {}
        self._base: dict[str, bytes] = {}
        self._good_calls = 0

    # Tasks.

    def count(self, split: Split) -> int:
        return self._set.count(split)

    def instance_key(self) -> str:
        return self.record.id

    # One episode.

    @property
    def record(self) -> SweRecord:
        """The recipe of the running episode's task."""
        return opened(self._record, self.name)

    async def open_sandbox(self, task: Task) -> tuple[GuestSandbox, str]:
        project = self._load(task)
        self._good_calls, self.judge_result, self.patch = 0, None, Patch()
        layer = await self.host.layer(f"project {project.digest}", project.write)
        sandbox = await self.reopen_sandbox(layer)
        async with closed_on_failure(sandbox):
            files = {
                path: self._base.get(path)
                for path in {**project.files, **self._base}
                if self._base.get(path) != project.files.get(path)
            }
            await put_delta(sandbox, files)
        return sandbox, problem_statement(self.record, project.name, project.version, self._style)

    async def reopen_sandbox(self, layer: LayerRef) -> GuestSandbox:
        roots = [] if self._project is None else self._project.layout.roots
        paths = ["/workspace" if root == "." else f"/workspace/{root}" for root in roots]
        return await self.host.start(layer, tools=packages_folder(), paths=paths)

    def _load(self, task: Task) -> Project:
        """Read project and recipe of ``task``."""
        file, record = self._set.get(task.split, int(task.id.rpartition("/")[2]))
        if self._project is not None and record is self._record and file is self._file:
            return self._project
        self._file, self._record = file, record
        self._project = project = project_of(file)
        self._broken = broken_of(file, record, project)
        self._wanted = {path: project.files.get(path) for path in sorted(self._broken)}
        files = {**project.files, **self._broken, **shown_tests(project, record)}
        self._base = {path: data for path, data in files.items() if data is not None}
        self.test_targets = project.layout.tests
        return project

    async def call(self, action: Action) -> Done:
        """Carry out a call, and count it when it did something."""
        done = await super().call(action)
        self._good_calls += done.problem is None
        return done

    async def judge(self) -> Outcome:
        assert self._project is not None
        assert self._file is not None
        self.patch = collect_patch(await self.changed_files(), self._base, self._project.layout)
        result = NOTHING_CHANGED
        if not self.patch.is_empty:
            result = await judge(
                self.host, self._project, self._broken, self.patch,
                fail_to_pass=self.record.fail_to_pass,
                pass_to_pass=self._file.pass_to_pass(self.record), packages=packages_folder(),
                timeout_s=20.0 + 3 * self._file.suite_s,
            )  # fmt: skip
        outcome = float(result.is_resolved)
        if self._reward == "partial" and result.kept == 1.0:
            outcome = result.fixed
        steps = self._step_reward * self._good_calls if outcome > self._gate else 0.0
        parts = {"reward_parts": {"outcome": outcome, "steps": steps}} if self._step_reward else {}
        return self._report(result, self._base, outcome + steps, **parts)

    def legal_actions(self) -> list[str]:
        """Return a menu: run the tests, look at files, submit. Other calls are carried out too."""
        assert self._project is not None
        files = list(self._project.sources())[:_MENU_FILES]
        menu = [self.say("run_tests", target=test_file(self.record.shown[0]))]
        menu += [self.say("view", path=path) for path in files]
        return [*menu, self.say("bash", command="ls"), self.say("submit")]

    def own_state(self) -> Any:
        return self._task, self._good_calls, self.judge_result, self.patch

    def set_own_state(self, state: Any) -> None:
        task, self._good_calls, self.judge_result, self.patch = state
        if task is not None:
            self._load(task)


def shown_tests(project: Project, record: SweRecord) -> dict[str, bytes]:
    """Return the test files of the workspace that differ from the project's."""
    hidden = record.hidden
    files: dict[str, bytes] = {}
    for path, data in project.files.items():
        if path.endswith(".py") and project.layout.is_test(path):
            text = data.decode("utf-8", "surrogateescape")
            left = hide_tests(text, hidden)
            if left != text:
                files[path] = left.encode("utf-8", "surrogateescape")
    return files
