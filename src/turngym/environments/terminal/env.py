"""Do a job in a shell; the end state is judged."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from turngym.environments.core.actions import Action
from turngym.environments.core.env import Outcome
from turngym.environments.terminal.catalogue import GROUPS, TEMPLATES
from turngym.environments.terminal.jobs import Job, same_text
from turngym.environments.workspace import actions
from turngym.environments.workspace.base import ActionStyle, WorkspaceEnv
from turngym.environments.workspace.budget import Budget
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
_MAX_DRAWS = 1_000


class TerminalEnv(WorkspaceEnv):
    """Do a job with files and programs.

    Args:
        group: Kinds of jobs: ``"all"`` or a key of ``GROUPS``.
        kind: One kind of job instead.
        action_style: As ``WorkspaceEnv``.
        budget: As ``WorkspaceEnv``.
        timeout_s: As ``WorkspaceEnv``.
        render_mode: ``"ansi"`` or None.

    Action: ``bash``, the tools for files, and ``submit``.
    Observation: what the tool gave, cut and normalised by the rules of ``workspace.outputs``.
    Reward: at ``submit``, 1 when files and programs are as asked and nothing else was changed.
    Start: the job's files.
    End: ``submit``, or all turns are spent, which is judged as ``submit`` is.
    """

    rules = (
        "You work in a shell. Do what is asked in the workspace, change nothing else, then submit. "
        "There is no network. Programs that a command leaves running end with it."
    )

    def __init__(
        self,
        *,
        group: str = "all",
        kind: str | None = None,
        action_style: ActionStyle = "text",
        budget: Budget | Mapping[str, Any] | None = None,
        timeout_s: float = 20.0,
        render_mode: str | None = None,
    ) -> None:
        if budget is not None and not isinstance(budget, Budget):
            budget = Budget(**budget)
        super().__init__(
            action_style=action_style, budget=budget or Budget(turns=20), timeout_s=timeout_s,
            render_mode=render_mode,
        )  # fmt: skip
        if group != "all" and group not in GROUPS:
            raise unknown_name("group of terminal tasks", group, ["all", *GROUPS])
        if kind is not None and kind not in TEMPLATES:
            raise unknown_name("kind of terminal task", kind, TEMPLATES)
        every = [name for names in GROUPS.values() for name in names]
        self.kinds = [kind] if kind else every if group == "all" else list(GROUPS[group])
        self.name = f"shell-{kind or group}"
        self._job: Job | None = None
        self._is_done = False

    @property
    def job(self) -> Job:
        """The job of the running episode."""
        if self._job is None:
            raise ConfigError(f"{self.name}: no episode is open")
        return self._job

    def instance_key(self) -> str:
        """Return what was drawn."""
        return repr([self.job.goal, sorted(self.job.files.items()), self.job.prepare])

    async def open_sandbox(self, task: Task) -> tuple[GuestSandbox, str]:
        """Draw a job of the task's split, and make what it begins with."""
        self._job, self._is_done = self._draw(task), False
        sandbox = await self.host.start(None)
        try:
            for path, text in self._job.files.items():
                await sandbox.write_file(path, text.encode())
            if self._job.prepare:
                result = await sandbox.exec(self._job.prepare, timeout_s=_PROBE_S)
                if not result.ok:
                    told = result.stderr.decode("utf-8", "replace").strip()[-200:]
                    raise EnvironmentFault(f"{self.name}: the job could not be prepared: {told}")
        except BaseException:
            await sandbox.close()
            raise
        return sandbox, self._job.goal

    def _draw(self, task: Task) -> Job:
        rng = Random(derive_seed(task.seed, "terminal"))
        for _ in range(_MAX_DRAWS):
            job = TEMPLATES[rng.choice(self.kinds)](rng)
            if job.split == task.split:
                return job
        raise ConfigError(f"{self.name}: no job of split {task.split!r} in {_MAX_DRAWS} draws")

    async def begin(self, task: Task) -> Outcome:
        """Open the workspace, and remember what it holds."""
        outcome = await super().begin(task)
        self._before = dict(self.current)
        return outcome

    async def reopen_sandbox(self, layer: LayerRef) -> GuestSandbox:
        """Start a sandbox on a snapshot."""
        return await self.host.start(layer)

    async def call(self, action: Action) -> actions.Done:
        """Carry out a call."""
        done = await super().call(action)
        self._is_done = self._is_done or self._is_expert(action)
        return done

    def _is_expert(self, action: object) -> bool:
        """Return whether a call is the expert's script; parsing may take blanks off its ends."""
        if not isinstance(action, Action):
            return False
        return str(action.arguments.get("command", "")).strip() == self.job.expert.strip()

    async def judge(self) -> Outcome:
        """Compare files, and ask the job's probe."""
        problem = await self._problem()
        self._score = float(not problem)
        return Outcome(
            text="done." if not problem else f"not done: {problem}",
            reward=self._score,
            info={"problem": problem},
        )

    async def _problem(self) -> str:
        """Return what is not as it should be, "" for nothing."""
        found, job = await self.changed_files(), self.job
        for path, wanted in job.wanted.items():
            if not same_text(found.get(path), wanted):
                return f"{path} is not as wanted"
        for path in sorted({*found, *self._before}):
            if path in job.wanted or path.startswith(job.free):
                continue
            if found.get(path) != self._before.get(path):
                return f"{path} should not have changed"
        if job.probe and (await self._probed(job.probe)).strip() != job.told.strip():
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
        files = [self.say("view", path=path) for path in sorted(self.job.files)[:6]]
        return [self.say("bash", command="ls -R"), *files, self.say("submit")]

    def expert_action(self) -> str:
        """Return the expert's script, then ``submit``."""
        if self._is_done:
            return self.say("submit")
        text = self.say("bash", command=self.job.expert)
        if not self._is_expert(self.action_format.parse(text)):  # it would be said again for ever
            raise ConfigError(f"{self.name}: the expert's script cannot be said as a call of bash")
        return text

    def own_state(self) -> Any:
        """Return the job, what it began with, and whether it was done."""
        return self._job, self._before, self._is_done

    def set_own_state(self, state: Any) -> None:
        """Take over what ``own_state`` returned."""
        self._job, self._before, self._is_done = state
