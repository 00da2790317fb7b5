"""An environment whose state is a sandboxed folder: tools change it, a judge looks at it."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
import weakref
from abc import abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from turngym.environments.core.actions import Action, ActionFormat, InvalidAction
from turngym.environments.core.env import AsyncTurnEnv, Outcome, SnapshotKind
from turngym.environments.workspace import actions
from turngym.environments.workspace.budget import Budget
from turngym.environments.workspace.digests import stable_content
from turngym.environments.workspace.host import BackendName, SandboxHost
from turngym.environments.workspace.tools import Tool, ToolJson, ToolText
from turngym.errors import (
    EnvironmentFault,
    SandboxFileError,
    SandboxFileTooLarge,
    TurnGymError,
    unknown_name,
)
from turngym.sandbox.backends.guest_sandbox import GuestSandbox
from turngym.sandbox.base import LayerRef
from turngym.tasks.base import Task

ActionStyle = Literal["text", "tools"]

_log = logging.getLogger(__name__)
_MAX_CHANGES = 2_000
"""Changed files that are looked at; a workspace with more is told apart by their names only."""
_MAX_DIGEST_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)  # no slots: it is referred to weakly
class WorkspaceState:
    """A workspace as it was, and what the environment knew."""

    layer: LayerRef
    touched: frozenset[str]
    """Paths that were written since the episode began."""
    anchor: str
    turns: int
    extended: int
    own: Any
    """What a subclass adds."""

    def __getstate__(self) -> dict[str, Any]:
        """Keep the layer: a copy or pickle may outlive this."""
        _copied.add(self.layer.id)
        return self.__dict__


class WorkspaceEnv(AsyncTurnEnv):
    """Change a workspace with tools, then submit.

    A subclass says what the workspace holds (``open_sandbox``), and judges it (``judge``).

    Args:
        action_style: ``"text"`` for calls in words with fenced bodies, ``"tools"`` for JSON.
        budget: Turns of an episode, and how they are told and extended.
        timeout_s: Longest run of one command, in seconds.
        render_mode: ``"ansi"`` or None.
    """

    snapshot_kind: ClassVar[SnapshotKind] = "fs"
    backend: ClassVar[BackendName] = "bubblewrap"
    """Where workspaces live."""
    tools: ClassVar[tuple[Tool, ...]] = (
        actions.BASH,
        actions.VIEW,
        actions.SEARCH,
        actions.EDIT,
        actions.CREATE,
        actions.SUBMIT,
    )

    def __init__(
        self,
        *,
        action_style: ActionStyle = "text",
        budget: Budget | None = None,
        timeout_s: float = 30.0,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(render_mode=render_mode)
        if action_style not in ("text", "tools"):
            raise unknown_name("action_style", action_style, ("text", "tools"))
        self.action_format: ActionFormat = (
            ToolText(self.tools) if action_style == "text" else ToolJson(self.tools)
        )
        self.budget = budget or Budget()
        self.timeout_s = timeout_s
        self._host: SandboxHost | None = None
        self._sandbox: GuestSandbox | None = None
        self._touched: frozenset[str] = frozenset()
        self._anchor = ""
        self._turns = self._extended = 0
        self._score: float | None = 0.0
        self.current: dict[str, bytes | None] = {}
        """Files that were written, as they were after the last turn."""

    # What a subclass gives.

    @abstractmethod
    async def open_sandbox(self, task: Task) -> tuple[GuestSandbox, str]:
        """Start the workspace of ``task``; return it and what is asked."""

    @abstractmethod
    async def reopen_sandbox(self, layer: LayerRef) -> GuestSandbox:
        """Start a sandbox like the one of ``open_sandbox`` on a snapshot of it."""

    @abstractmethod
    async def judge(self) -> Outcome:
        """Judge what was submitted; sets ``_score``."""

    def own_state(self) -> Any:
        """Return what of the episode the workspace does not hold; immutable."""
        return None

    def set_own_state(self, state: Any) -> None:
        """Take over what ``own_state`` returned."""

    def packages(self) -> Path | None:
        """Return a folder of Python packages that the workspace can import."""
        return None

    # One episode.

    @property
    def host(self) -> SandboxHost:
        """The back end, leased when first needed."""
        if self._host is None:
            self._host = SandboxHost.lease(self.backend)
        return self._host

    @property
    def sandbox(self) -> GuestSandbox:
        """The sandbox of the running episode."""
        if self._sandbox is None:
            raise EnvironmentFault(f"{self.name}: no episode is open")
        return self._sandbox

    async def begin(self, task: Task) -> Outcome:
        """Open the workspace of the task."""
        await self._close_sandbox()
        self._touched = frozenset()
        self._turns = self._extended = 0
        self._score = 0.0
        self._sandbox, text = await self.open_sandbox(task)
        self._anchor = await self._digest()
        return Outcome(text=text + self._told(), info={"max_turns": self.budget.most})

    async def turn(self, action: Action) -> Outcome:
        """Carry out one tool call."""
        self._turns += 1
        if action.name == "submit":
            outcome = await self.judge()
            outcome.terminated = True
            return outcome
        done = await self.call(action)
        self._anchor = await self._digest()
        outcome = Outcome(text=done.text, invalid_action=done.problem)
        return self._within_budget(outcome)

    async def end_at_limit(self) -> Outcome | None:  # type: ignore[override]  # awaited
        """Judge as at ``submit``."""
        return await self.judge()

    async def call(self, action: Action) -> actions.Done:
        """Carry out a call of a tool other than ``submit``."""
        sandbox, values = self.sandbox, action.arguments
        if action.name == "bash":
            return await actions.bash(sandbox, str(values["command"]), timeout_s=self.timeout_s)
        if action.name == "view":
            start, end = values.get("start"), values.get("end")
            return await actions.view(sandbox, str(values["path"]), start, end)
        if action.name == "search":
            return await actions.search(sandbox, str(values["text"]))
        if action.name == "edit":
            return await actions.edit(
                sandbox, str(values["path"]), str(values["old"]), str(values["new"])
            )
        return await actions.create(sandbox, str(values["path"]), str(values["content"]))

    def score(self) -> float | None:
        """Return 1 when what was submitted is right; 0 before anything was."""
        return self._score

    def anchor(self) -> str:
        """Return a digest of the task and of the contents of every file that was changed."""
        return self._anchor

    def legal_actions(self) -> list[str]:
        """Return a menu: look around, submit. Endlessly many other calls would be carried out."""
        return [self.say("bash", command="ls"), self.say("view", path="."), self.say("submit")]

    def say(self, tool: str, **arguments: Any) -> str:
        """Return the text that calls ``tool`` in the action style of this environment."""
        return self.action_format.render(Action(name=tool, arguments=arguments))

    async def close(self) -> None:
        """Close the workspace; the last environment of the process also ends the back end."""
        host, self._host = self._host, None
        try:
            await self._close_sandbox()
        finally:
            if host is not None:
                await host.release()

    # Snapshots.

    async def get_state(self) -> WorkspaceState:
        """Commit what was written, without copying it."""
        await self._note_changes()
        state = WorkspaceState(
            layer=await self.sandbox.snapshot(),
            touched=self._touched,
            anchor=self._anchor,
            turns=self._turns,
            extended=self._extended,
            own=(self._score, self.own_state(), dict(self.current)),
        )
        # A snapshot keeps the back end, so that it outlives its environment.
        weakref.finalize(
            state, _let_go, SandboxHost.lease(self.backend), state.layer
        ).atexit = False
        return state

    async def set_state(self, state: WorkspaceState) -> None:  # type: ignore[override]  # awaited
        """Start a sandbox on what was committed."""
        await self._close_sandbox()
        self._touched, self._anchor = state.touched, state.anchor
        self._turns, self._extended = state.turns, state.extended
        self._score, own, self.current = state.own
        self.set_own_state(own)
        self._sandbox = await self.reopen_sandbox(state.layer)

    # Helpers.

    async def changed_files(self) -> dict[str, bytes | None]:
        """Return what was written since the episode began: contents, or None where a file is gone.

        A file of more than ``_MAX_DIGEST_BYTES`` counts by its size; what is no regular file, not
        at all.
        """
        await self._note_changes()
        found: dict[str, bytes | None] = {}
        for path in sorted(self._touched)[:_MAX_CHANGES]:
            try:
                found[path] = await self.sandbox.read_file(path, max_bytes=_MAX_DIGEST_BYTES)
            except SandboxFileTooLarge:
                found[path] = b"\0too large\0"
            except SandboxFileError as error:
                if isinstance(error.errno, int) and error.errno == 2:
                    found[path] = None
        return found

    async def _note_changes(self) -> None:
        try:
            changes = await self.sandbox.diff()
        except SandboxFileTooLarge as error:  # the agent's own doing, and no fault
            _log.warning("%s: what changed is not noted: %s", self.name, error)
            return
        self._touched |= {change.path for change in changes}

    async def _digest(self) -> str:
        digest = hashlib.sha256(self._task_id.encode())
        self.current = await self.changed_files()
        for path, data in self.current.items():
            content = None if data is None else stable_content(path, data)
            if data is None or content is not None:
                digest.update(repr((path, content)).encode())
        return digest.hexdigest()[:16]

    def _not_understood(self, problem: InvalidAction) -> Outcome:
        self._turns += 1
        return self._within_budget(super()._not_understood(problem))

    def _within_budget(self, outcome: Outcome) -> Outcome:
        """End the episode when its turns are spent, extend it, or say how many are left."""
        left = self.budget.left(self._turns, self._extended)
        if left <= 0 and self._extended < self.budget.extensions:
            self._extended += 1
            outcome.text += f"\n[{self.budget.extension_turns} more turns are granted]"
        elif left <= 0:
            outcome.truncated = True
            outcome.text += "\n[all turns are spent]"
            return outcome
        outcome.text += self._told()
        return outcome

    def _told(self) -> str:
        return self.budget.told(self.budget.left(self._turns, self._extended))

    async def _close_sandbox(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await sandbox.close()


def _let_go(host: SandboxHost, layer: LayerRef) -> None:
    """Forget the layer of a snapshot that nobody holds any more, unless it was copied."""
    if layer.id in _copied:
        return

    async def work() -> None:
        with suppress(TurnGymError):  # the sandbox below is gone, and the layer with it
            await host.drop(layer)
        await host.release()

    # The loop in which the snapshot was taken may be closed, or be the one that collects garbage.
    thread = threading.Thread(target=lambda: asyncio.run(work()), name="turngym-let-go")
    thread.start()


_copied: set[str] = set()
"""Layers of snapshots that were copied; they and the back end are kept to the end."""
