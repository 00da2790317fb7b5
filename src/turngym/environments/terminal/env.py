"""Solve a problem in a shell; the end state is judged."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from turngym.environments.core.actions import Action, ActionStyle, InvalidAction
from turngym.environments.core.env import Outcome
from turngym.environments.terminal import databases, files, programs, repositories, text
from turngym.environments.terminal.problems import Generator, Problem, same_text
from turngym.environments.workspace.base import Budget, WorkspaceEnv
from turngym.environments.workspace.host import closed_on_failure, put_delta
from turngym.environments.workspace.tools import Done
from turngym.errors import ConfigError, EnvironmentFault, unknown_name
from turngym.sandbox.backends.bubblewrap_command import WRITABLE
from turngym.sandbox.backends.guest_sandbox import GuestSandbox
from turngym.sandbox.base import LayerRef
from turngym.seeding import derive_seed
from turngym.tasks.base import Task

_PROBE_S = 30.0
_EMPTY = [
    "/usr/bin/find",
    *(place for _, place in WRITABLE if place != "/workspace"),
    *("-mindepth", "1", "-delete"),
]
_MAX_SAMPLES = 1_000
_BY_GROUP: Mapping[str, tuple[Generator, ...]] = {
    "files": (
        files.rename_ending, files.sort_into_folders, files.delete_empty, files.largest_file,
        files.find_by_content, files.copy_tree, files.remove_duplicates, files.number_files,
        files.merge_files, files.odd_names, files.make_executable, files.lock_down, files.links,
        files.dated_names, files.inventory,
    ),
    "text": (
        text.count_status, text.busiest_client, text.failed_paths, text.sum_column,
        text.totals_by_group, text.replace_word, text.sort_unique, text.join_tables,
        text.word_counts, text.json_field, text.line_range, text.reorder_columns,
        text.config_value, text.common_lines,
    ),
    "archives": (
        files.pack, files.unpack, files.nested_archive, files.compress_old, files.checksum,
    ),
    "git": (
        repositories.commit_change, repositories.find_author, repositories.new_branch,
        repositories.merge_conflict, repositories.restore_file, repositories.tag_release,
    ),
    "programs": (
        programs.fix_script, programs.write_filter, programs.stop_process, programs.serve_files,
        programs.write_service, programs.fix_python, programs.makefile, programs.environment,
    ),
}  # fmt: skip
_SQL: Mapping[str, Generator] = {
    "total_of_city": databases.total_of_city, "never_ordered": databases.never_ordered,
    "large_orders": databases.large_orders, "best_customer": databases.best_customer,
    "write_query": databases.write_query, "repair_rows": databases.repair_rows,
    "load_table": databases.load_table,
}  # fmt: skip

GENERATORS: Mapping[str, Generator] = {
    **{one.__name__: one for group in _BY_GROUP.values() for one in group},
    **_SQL,
}
"""Kind of problem to its generator."""
GROUPS: Mapping[str, tuple[str, ...]] = {
    **{name: tuple(one.__name__ for one in group) for name, group in _BY_GROUP.items()},
    "sql": tuple(_SQL),
}
"""Group to the kinds of problems in it."""


class TerminalEnv(WorkspaceEnv):
    """Solve a problem with files and programs.

    Args:
        group: Kinds of problems: ``"all"`` or a key of ``GROUPS``.
        kind: One kind instead.
        action_style, budget, timeout_s: As ``WorkspaceEnv``.
        render_mode: ``"ansi"`` or None.

    Action: ``bash``, the tools for files, and ``submit``.
    Observation: what the tool gave, cut and normalised by the rules of ``workspace.outputs``.
    Reward: at ``submit``, 1 when files and programs are as asked and nothing else was changed.
    Start: the problem's files.
    End: ``submit``, or all turns are spent, which is judged as ``submit`` is.
    """

    turns = 20
    rules = (
        "You work in a shell. Do what is asked in the workspace, change nothing else, then submit. "
        "There is no network. Programs that a command leaves running end with it."
    )

    def __init__(
        self,
        *,
        group: str = "all",
        kind: str | None = None,
        action_style: ActionStyle = "commands",
        budget: Budget | Mapping[str, Any] | None = None,
        timeout_s: float = 20.0,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(
            action_style=action_style, budget=budget, timeout_s=timeout_s, render_mode=render_mode
        )
        if group != "all" and group not in GROUPS:
            raise unknown_name("group of terminal tasks", group, ["all", *GROUPS])
        if kind is not None and kind not in GENERATORS:
            raise unknown_name("kind of terminal task", kind, GENERATORS)
        every = [name for names in GROUPS.values() for name in names]
        self.kinds = [kind] if kind else every if group == "all" else list(GROUPS[group])
        self.name = f"shell-{kind or group}"
        self._problem: Problem | None = None
        self._is_done = False

    @property
    def problem(self) -> Problem:
        """The problem of the running episode."""
        if self._problem is None:
            raise ConfigError(f"{self.name}: no episode is open")
        return self._problem

    def instance_key(self) -> str:
        """Return what was sampled."""
        return repr([self.problem.goal, sorted(self.problem.files.items()), self.problem.prepare])

    async def open_sandbox(self, task: Task) -> tuple[GuestSandbox, str]:
        """Sample a problem of the task's split, and make what it begins with."""
        self._problem = problem = self._sample(task)
        self._is_done = False
        sandbox = await self.host.start(None)
        async with closed_on_failure(sandbox):
            await put_delta(sandbox, {path: text.encode() for path, text in problem.files.items()})
            script = problem.prepare
            if script and not (result := await sandbox.exec(script, timeout_s=_PROBE_S)).ok:
                error = result.stderr.decode("utf-8", "replace").strip()[-200:]
                raise EnvironmentFault(f"{self.name}: the problem could not be prepared: {error}")
        return sandbox, problem.goal

    def _sample(self, task: Task) -> Problem:
        rng = Random(derive_seed(task.seed, "terminal"))
        for _ in range(_MAX_SAMPLES):
            problem = GENERATORS[rng.choice(self.kinds)](rng)
            if problem.split == task.split:
                return problem
        raise ConfigError(
            f"{self.name}: no problem of split {task.split!r} in {_MAX_SAMPLES} samples"
        )

    async def begin(self, task: Task) -> Outcome:
        """Open the workspace, and remember what it holds."""
        outcome = await super().begin(task)
        self._before = dict(self.current)
        return outcome

    async def reopen_sandbox(self, layer: LayerRef) -> GuestSandbox:
        """Start a sandbox on a snapshot."""
        return await self.host.start(layer)

    async def call(self, action: Action) -> Done:
        """Carry out a call."""
        done = await super().call(action)
        self._is_done = self._is_done or self._is_expert(action)
        return done

    def _is_expert(self, action: Action | InvalidAction) -> bool:
        """Return whether a call is the expert's script; parsing may take blanks off its ends."""
        if isinstance(action, InvalidAction):
            return False
        return str(action.arguments.get("command", "")).strip() == self.problem.expert.strip()

    async def judge(self) -> Outcome:
        """Compare files, and run the probe."""
        flaw = await self._flaw()
        self._score = float(not flaw)
        text = f"not done: {flaw}" if flaw else "done."
        return Outcome(text=text, reward=self._score, info={"problem": flaw})

    async def _flaw(self) -> str:
        """Return what is not as it should be, "" for nothing."""
        found, problem = await self.changed_files(), self.problem
        for path, wanted in problem.wanted.items():
            if not same_text(found.get(path), wanted):
                return f"{path} is not as wanted"
        for path in sorted({*found, *self._before}):
            if path in problem.wanted or path.startswith(problem.free):
                continue
            if found.get(path) != self._before.get(path):
                return f"{path} should not have changed"
        if (
            problem.probe
            and (await self._probed(problem.probe)).strip() != problem.expected.strip()
        ):
            return "what was asked for does not work"
        return ""

    async def _probed(self, probe: str) -> str:
        """Return what ``probe`` says in a sandbox that the agent never ran in.

        Of the agent's only the workspace is there: no process, and nothing in the other folders.
        """
        sandbox = await self.reopen_sandbox(await self.sandbox.snapshot())
        try:
            await sandbox.exec(_EMPTY, timeout_s=_PROBE_S)
            result = await sandbox.exec(probe, timeout_s=_PROBE_S, max_output=1 << 16)
        finally:
            await sandbox.close()
        return result.stdout.decode("utf-8", "replace")

    def legal_actions(self) -> list[str]:
        """Return a menu: look around, submit. Other calls are carried out too."""
        files = [self.say("view", path=path) for path in sorted(self.problem.files)[:6]]
        return [self.say("bash", command="ls -R"), *files, self.say("submit")]

    def expert_action(self) -> str:
        """Return the expert's script, then ``submit``."""
        if self._is_done:
            return self.say("submit")
        text = self.say("bash", command=self.problem.expert)
        if not self._is_expert(self.action_format.parse(text)):  # it would be said again for ever
            raise ConfigError(f"{self.name}: the expert's script cannot be said as a call of bash")
        return text

    def own_state(self) -> Any:
        """Return the problem, what it began with, and whether it was done."""
        return self._problem, self._before, self._is_done

    def set_own_state(self, state: Any) -> None:
        """Take over what ``own_state`` returned."""
        self._problem, self._before, self._is_done = state
