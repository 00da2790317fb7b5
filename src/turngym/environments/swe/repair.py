"""What environments share in which a Python project is repaired: tools, tasks, expert, report."""

from __future__ import annotations

import difflib
import shlex
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol

from turngym.environments.core.actions import Action
from turngym.environments.core.env import Outcome
from turngym.environments.swe.judge import JudgeResult
from turngym.environments.swe.patches import Patch, diff_text
from turngym.environments.workspace import actions
from turngym.environments.workspace.base import WorkspaceEnv
from turngym.environments.workspace.host import Delta
from turngym.environments.workspace.tools import Done, Parameter, Tool, Workspace
from turngym.errors import ConfigError
from turngym.tasks.base import SPLITS, Split, Task, procedural_task

_CONTEXT = 3
_MOST_HUNKS = 10
"""With more of them a file is written anew: every edit costs a turn."""


class TestedWorkspace(Workspace, Protocol):
    """A workspace that knows where its tests are."""

    test_targets: tuple[str, ...]


async def run_tests(workspace: TestedWorkspace, target: str = "") -> Done:
    """Run the tests that ``target`` names, all of them where it is empty; no judgement."""
    target = target.strip()
    targets = target.split(" ") if target and "[" not in target else [target] if target else []
    if any(one.startswith("-") for one in targets):
        return Done(text="Give files or tests, no options.", problem="an option")
    command = [
        "python3", "-B", "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider",
        "-o", "addopts=", *(targets or workspace.test_targets),
    ]  # fmt: skip
    return await actions.bash(workspace, shlex.join(command))


RUN_TESTS = Tool(
    name="run_tests",
    help="runs tests of the workspace: all, a file, or file::test",
    parameters=(Parameter(name="target", kind="rest", is_optional=True),),
    run=run_tests,
    writes=True,
)


class RepairEnv(WorkspaceEnv):
    """Base of environments in which an agent repairs a project and hidden tests judge."""

    turns = 40
    tools = (
        actions.BASH, actions.VIEW, actions.SEARCH, actions.EDIT, actions.CREATE, RUN_TESTS,
        actions.SUBMIT,
    )  # fmt: skip
    rules = (
        "You mend a Python project in a workspace. Only your changes to its code are judged: tests "
        "and configuration are put back, and hidden tests run in another place."
    )
    default_split: Split = "train"

    def __init__(self, **options: Any) -> None:  # those of WorkspaceEnv
        super().__init__(**options)
        self.test_targets: tuple[str, ...] = ()
        """Where the tests of the workspace are; empty where pytest finds them."""
        self.judge_result: JudgeResult | None = None
        """Of the last submission."""
        self.patch = Patch()
        """What was submitted last."""
        self._base: Mapping[str, bytes | None] = {}
        """Files at the start."""
        self._wanted: Delta = {}
        """Files that the repair changes, as it leaves them."""

    @abstractmethod
    def count(self, split: Split) -> int:
        """Return the number of tasks of a split."""

    def task(self, split: Split, index: int) -> Task:
        """Return task number ``index`` of ``split``.

        Raises:
            ConfigError: There are fewer.
        """
        if not 0 <= index < (count := self.count(split)):
            raise ConfigError(
                f"task {self.name}/{split}/{index}: there are {count} tasks of split {split!r}"
            )
        return procedural_task(self.name, split, index)

    def find_task(self, task_id: str) -> Task:
        task = super().find_task(task_id)
        return self.task(task.split, int(task_id.rpartition("/")[2]))

    def _choose_task(self, options: dict[str, Any]) -> Task:
        split = options.get("split", self.default_split)
        is_plain = options.get("task") is None and set(options) <= {"split", "task"}
        if is_plain and split in SPLITS and (count := self.count(split)):
            return self.task(split, int(self.np_random.integers(count)))
        return super()._choose_task(options)

    def expert_action(self) -> str:
        for path, wanted in self._wanted.items():
            found = self.current.get(path, self._base.get(path))
            if found == wanted:
                continue
            if wanted is None:
                return self.say("bash", command=f"rm {shlex.quote(path)}")
            return self.action_format.render(expert_edit(path, found, wanted))
        return self.say("submit")

    def _report(
        self, result: JudgeResult, base: Mapping[str, bytes], reward: float, **info: Any
    ) -> Outcome:
        """Return the outcome of a submission, and remember it."""
        self.judge_result, self._score = result, float(result.is_resolved)
        text = "resolved." if result.is_resolved else "not resolved."
        if self.patch.left_out:
            text += " Left out of your patch: " + "; ".join(self.patch.left_out[:5])
        info |= {
            "fixed": result.fixed, "kept": result.kept, "forged": result.is_forged,
            "problem": result.problem, "patch": diff_text(self.patch.files, base),
        }  # fmt: skip
        return Outcome(text=text, reward=reward, info=info)


def expert_edit(path: str, found: bytes | None, wanted: bytes) -> Action:
    """Return the call that brings the text ``found`` one hunk nearer to ``wanted``.

    A hunk is as in a diff: changes with at most ``2 * _CONTEXT`` equal lines in between. Lines
    around it are added until the text to replace occurs once. What cannot be edited, or only by
    very many edits, is written anew.
    """
    whole = Action(
        name="create", arguments={"path": path, "content": wanted.decode("utf-8", "replace")}
    )
    if found is None:
        return whole
    try:
        old, new = found.decode(), wanted.decode()
    except UnicodeDecodeError:
        return whole
    before, after = old.split("\n"), new.split("\n")
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    hunks = list(matcher.get_grouped_opcodes(_CONTEXT))
    if len(hunks) > _MOST_HUNKS:
        return whole
    changes = [code for code in hunks[0] if code[0] != "equal"]
    start, first = changes[0][1], changes[0][3]
    end, last = changes[-1][2], changes[-1][4]
    next_change = hunks[1][0][1] + _CONTEXT if len(hunks) > 1 else len(before)
    while True:
        piece, put = "\n".join(before[start:end]), "\n".join(after[first:last])
        if piece and put and old.count(piece) == 1 and "\r" not in piece + put:
            return Action(name="edit", arguments={"path": path, "old": piece, "new": put})
        can_grow = end < next_change
        if start == 0 and not can_grow:
            return whole
        if start > 0:
            start, first = start - 1, first - 1
        if can_grow:
            end, last = end + 1, last + 1
