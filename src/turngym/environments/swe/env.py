"""Repair a Python project: its own tests judge, in a sandbox that the agent has never touched."""

from __future__ import annotations

import math
import shlex
from functools import wraps
from typing import Any, ClassVar, Literal, Unpack, cast

from turngym.environments.core.actions import Action
from turngym.environments.core.env import Outcome
from turngym.environments.swe.instances import PATH, InstanceProblem, instance_tasks
from turngym.environments.swe.judge import RepairResult
from turngym.environments.swe.packages import require_pytest
from turngym.environments.swe.parsing import test_file
from turngym.environments.swe.records import STYLES, Style
from turngym.environments.swe.repair import RepairProblem
from turngym.environments.swe.tasksets import SHIPPED, BugProblem, open_tasks, require_projects
from turngym.environments.terminal.env import ShellEnv, ShellOptions
from turngym.environments.workspace import actions
from turngym.environments.workspace.host import BackendName
from turngym.environments.workspace.tools import Done, Parameter, Tool
from turngym.errors import ConfigError, require_known
from turngym.sandbox.backends.guest_sandbox import GuestSandbox
from turngym.sandbox.base import LayerRef
from turngym.tasks.base import Split, Task

Reward = Literal["resolved", "partial"]

_MENU_FILES = 6


async def run_tests(workspace: RepairEnv, target: str = "") -> Done:
    """Run the tests that ``target`` names, all of them where it is empty; no judgement."""
    target = target.strip()
    targets = target.split(" ") if target and "[" not in target else [target] if target else []
    if any(one.startswith("-") for one in targets):
        return Done(text="Give files or tests, no options.", problem="an option")
    command = [
        "python3", "-B", "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider",
        "-o", "addopts=", *(targets or workspace.problem.test_targets),
    ]  # fmt: skip
    return await actions.bash(workspace, shlex.join(command))


RUN_TESTS = Tool(
    name="run_tests",
    help="runs tests of the workspace: all, a file, or file::test",
    parameters=(Parameter(name="target", kind="rest", is_optional=True),),
    run=run_tests,
    writes=True,
)


class RepairEnv(ShellEnv):
    """Base of environments in which an agent repairs a project and hidden tests judge."""

    turns = 40
    max_turns: ClassVar[int] = 60
    tools = (
        actions.BASH, actions.VIEW, actions.SEARCH, actions.EDIT, actions.CREATE, RUN_TESTS,
        actions.SUBMIT,
    )  # fmt: skip
    rules = (
        "You mend a Python project in a workspace. Only your changes to its code are judged: tests "
        "and configuration are put back, and hidden tests run in another place."
    )
    _good_calls = 0

    @property
    def problem(self) -> RepairProblem:
        return cast(RepairProblem, super().problem)

    @property
    def judge_result(self) -> RepairResult | None:
        """What the judge found in the submission."""
        return cast(RepairResult, self._results[-1]) if self._results else None

    async def open_sandbox(self, task: Task) -> tuple[GuestSandbox, str]:
        self._good_calls = 0
        return await super().open_sandbox(task)

    async def _start(self, layer: LayerRef | None) -> GuestSandbox:
        return await self.problem.start(self.host, layer)

    async def call(self, action: Action) -> Done:
        """Carry out a call, and count it when it did something."""
        done = await super().call(action)
        self._good_calls += done.problem is None
        return done

    async def judge(self) -> Outcome:
        outcome = await super().judge()
        result = self._results[-1]
        assert isinstance(result, RepairResult)
        outcome.text = "resolved." if result.is_resolved else "not resolved."
        if result.left_out:
            outcome.text += " Left out of your patch: " + "; ".join(result.left_out[:5])
            more = len(result.left_out) - 5
            outcome.text += f"; {more} more" if more > 0 else ""
        outcome.info = {
            "fixed": result.fixed, "kept": result.kept, "forged": result.is_forged,
            "problem": result.evidence, "patch": result.diff, "instance_id": self.problem.content,
        }  # fmt: skip
        return outcome

    def legal_actions(self) -> list[str]:
        return [self.say("bash", command="ls"), self.say("run_tests"), self.say("submit")]

    def expert_action(self) -> str:
        """Return the next call of the repair, or what ``follow`` was given."""
        step = self._next()
        if not callable(step):
            return super().expert_action()
        call = step(self.current)
        return self.say("submit") if call is None else self.action_format.render(call)

    def own_state(self) -> Any:
        return self._results, self._good_calls

    def set_own_state(self, state: Any) -> None:
        self._results, self._good_calls = state
        self._problem = self.tasks.problem(self.current_task)
        self._new_script()


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
        timeout_s: As of ``ShellEnv``, and so ``options``.

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
        timeout_s: float = 60.0,
        **options: Unpack[ShellOptions],
    ) -> None:
        require_known("statement style", style, STYLES)
        require_known("reward", reward, ("resolved", "partial"))
        for name, value in (("step_reward", step_reward), ("gate", gate)):
            if not isinstance(value, int | float) or not math.isfinite(value):
                raise ConfigError(f"option {name}: wanted a number, got {value!r}")
        require_pytest()
        found = open_tasks(tasks, project, style)
        require_projects(found)
        super().__init__(tasks=found, timeout_s=timeout_s, **options)
        self._reward = reward
        self._step_reward, self._gate = step_reward, gate

    async def judge(self) -> Outcome:
        outcome, result = await super().judge(), self.judge_result
        assert result is not None
        if self._reward == "partial" and result.kept == 1.0:
            outcome.reward = result.fixed
        if self._step_reward:
            paid = self._step_reward * self._good_calls if outcome.reward > self._gate else 0.0
            parts = {"outcome": outcome.reward, "steps": paid}
            outcome.info = {**(outcome.info or {}), "reward_parts": parts}
            outcome.reward += paid
        return outcome

    def legal_actions(self) -> list[str]:
        problem = cast(BugProblem, self.problem)
        shown = [self.say("run_tests", target=test_file(problem.record.shown[0]))]
        shown += [
            self.say("view", path=path) for path in list(problem.project.sources())[:_MENU_FILES]
        ]
        return [*shown, self.say("bash", command="ls"), self.say("submit")]


class InstanceEnv(RepairEnv):
    """Resolve an issue of a repository that comes in an image.

    Args:
        instances: File of JSON lines in SWE-bench's schema; each names its image.
        folder: Where the images hold the repository.
        path: Folders of programs in the images, as ``PATH`` has them; its ``python3`` runs tests.
        split: Which split the instances are.
        timeout_s: As of ``ShellEnv``, and so ``options``.
        tests_timeout_s: Longest run of the tests that judge.

    Action: tools on the workspace, ``run_tests`` and ``submit``.
    Observation: what the tool gave, cut and normalised by the rules of ``workspace.outputs``.
    Reward: at ``submit``, 1 when all tests of the instance pass that should, else 0.
    Start: the repository at the instance's commit, and its problem statement.
    End: ``submit``, or all turns are spent, which scores 0.

    Source: Jimenez et al. 2023, SWE-bench, arXiv:2310.06770.
    """

    backend: ClassVar[BackendName] = "docker"

    def __init__(
        self,
        *,
        instances: str,
        folder: str = "/testbed",
        path: str = PATH,
        split: Split = "test",
        timeout_s: float = 60.0,
        tests_timeout_s: float = 1800.0,
        **options: Unpack[ShellOptions],
    ) -> None:
        found = instance_tasks(
            instances, folder=folder, path=path, split=split, tests_timeout_s=tests_timeout_s
        )
        super().__init__(tasks=found, timeout_s=timeout_s, **options)

    def own_state(self) -> Any:
        return super().own_state(), dict(self.problem.base)

    def set_own_state(self, state: Any) -> None:
        own, files = state
        super().set_own_state(own)
        cast(InstanceProblem, self.problem).know(files)


@wraps(SweEnv, assigned=(), updated=())  # whose options they are
def bugs(tasks: str = "shipped", **kwargs: Any) -> SweEnv | InstanceEnv:
    """Return the environment of a set of SWE tasks.

    Args:
        tasks: As for ``SweEnv``; a file ``*.jsonl`` holds SWE-bench instances, for ``InstanceEnv``.
        kwargs: More arguments of the one or the other.
    """
    if tasks.endswith(".jsonl"):
        return InstanceEnv(instances=tasks, **kwargs)
    return SweEnv(tasks=tasks, **kwargs)
