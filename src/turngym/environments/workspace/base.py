"""An environment whose state is a sandboxed folder: tools change it, a judge looks at it."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import io
import logging
import struct
import threading
import weakref
import zipfile
import zlib
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

from turngym.environments.core.actions import Action, ActionStyle, InvalidAction, in_style
from turngym.environments.core.env import AsyncTurnEnv, Outcome, SnapshotKind, opened
from turngym.environments.core.limits import TurnLimit
from turngym.environments.core.tasks import judged_score
from turngym.environments.workspace import actions
from turngym.environments.workspace.host import BackendName, SandboxHost
from turngym.environments.workspace.tools import Done, Tool, ToolJson, ToolText
from turngym.environments.workspace.world import summed, tree_of
from turngym.errors import ConfigError, SandboxFileError, SandboxFileTooLarge, TurnGymError
from turngym.sandbox.backends.guest_sandbox import GuestSandbox
from turngym.sandbox.base import LayerRef
from turngym.tasks.base import Task

_INDEX_STAT = 40
"""Bytes of an index entry before its object: times, device, inode, mode, owner, size."""
_INDEX_MODE = slice(24, 28)
_TAR_BLOCK = 512
_TAR_TIMES = slice(136, 156)
"""Modification time and checksum in a header."""
_MAX_UNPACKED = 1 << 24


def stable_content(path: str, data: bytes) -> bytes | None:
    """Return what of a file belongs to the state key: its content, never when it was made.

    Some files hold times, so that the same commands never write the same bytes twice. Of these:

    | file | what counts |
    | --- | --- |
    | ``.git/index`` | mode, object, stage and path of each entry, as in ``git ls-files -s`` |
    | ``.git/objects/`` | nothing: an object's name, in the index and the refs, is its content |
    | gzip | what it holds |
    | tar | names, modes, owners, contents |
    | zip | names, sizes, checksums |
    | ``*.pyc`` | nothing: it follows from its source, whose time it holds |

    Args:
        path: Of the file, in the workspace.
        data: What it holds.

    Returns:
        None where nothing counts.
    """
    parts = path.split("/")
    if path.endswith(".pyc") or (".git" in parts and "objects" in parts):
        return None
    if parts[-2:] == [".git", "index"]:
        return _git_entries(data)
    if data.startswith(b"\x1f\x8b"):
        data = _unpacked(data)
    if data[257:262] == b"ustar":
        return _tar_without_times(data)
    return _zip_list(data) if data.startswith(b"PK\x03\x04") else data


def _git_entries(data: bytes) -> bytes:
    """Return the entries of an index of version 2 or 3; of another, the number of its version."""
    if len(data) < 12 or data[:4] != b"DIRC":
        return data
    version, count = struct.unpack(">II", data[4:12])
    if version not in (2, 3):
        return b"version %d" % version
    found, at = [], 12
    for _ in range(count):
        (flags,) = struct.unpack(">H", data[at + 60 : at + 62].ljust(2, b"\0"))
        start = at + (64 if flags & 0x4000 else 62)
        end = data.find(b"\0", start)
        if end < 0:
            return data
        mode, object_id = data[at:][_INDEX_MODE], data[at + _INDEX_STAT : at + 60]
        found.append(mode + object_id + b"%d " % (flags >> 12 & 3) + data[start:end])
        at += (end - at) // 8 * 8 + 8
    return b"\n".join(found)


def _unpacked(data: bytes) -> bytes:
    """Return what a gzip file holds, or the file where that is too much or broken."""
    unpack = zlib.decompressobj(wbits=31)
    try:
        held = unpack.decompress(data, _MAX_UNPACKED)
    except zlib.error:
        return data
    return held if unpack.eof and not unpack.unused_data else data


def _tar_without_times(data: bytes) -> bytes:
    found, at = bytearray(data), 0
    while at + _TAR_BLOCK <= len(data) and any(data[at : at + _TAR_BLOCK]):
        size = data[at + 124 : at + 136].strip(b"\0 ")
        if not size.isdigit():
            break
        found[at + _TAR_TIMES.start : at + _TAR_TIMES.stop] = bytes(20)
        inside = slice(at + _TAR_BLOCK, at + _TAR_BLOCK + int(size, 8))
        if data[at + 156 : at + 157] == b"x":  # more headers: ``28 mtime=1700000000.25``
            kept = [line for line in data[inside].split(b"\n") if b"time=" not in line]
            found[inside] = b"\n".join(kept).ljust(len(data[inside]), b"\0")
        at += _TAR_BLOCK * (1 + -(-int(size, 8) // _TAR_BLOCK))
    return bytes(found)


def _zip_list(data: bytes) -> bytes:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            rows = [(one.filename, one.file_size, one.CRC) for one in archive.infolist()]
    except (zipfile.BadZipFile, ValueError, NotImplementedError, struct.error):
        return data
    return repr(rows).encode()


# The environment.


_log = logging.getLogger(__name__)
_MAX_CHANGES = 2_000
"""Changed files that are looked at in each turn; of more, only the names count."""
_MAX_DIGEST_BYTES = 1 << 20
_MAX_LOOKED_AT = 1 << 28
_SPENT = "\n[all turns are spent]"
_AT_A_TIME = 32
"""Files that are read at the same time."""
_NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.EINVAL)
_ODD = b"unreadable"
"""By identity: a file with these bytes is a file like others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Turns of one episode, and how they are announced and extended.

    An action that was not understood is a turn, too. With extensions, who has not submitted when
    the turns are spent gets more. An outer limit of turns, time or tokens ends an episode earlier.
    """

    turns: int = 30
    announce: bool = True
    """Say after every turn how many are left."""
    extensions: int = 0
    """How often more turns are granted to who has not submitted yet."""
    extension_turns: int = 10

    def __post_init__(self) -> None:
        for name, least in (("turns", 1), ("extensions", 0), ("extension_turns", 1)):
            if (value := getattr(self, name)) < least:
                raise ConfigError(f"budget.{name}: wanted at least {least}, got {value}")

    @property
    def most(self) -> int | None:
        """Turns with all extensions; None when they are not announced."""
        return self.turns + self.extensions * self.extension_turns if self.announce else None

    def left(self, turns: int, extended: int) -> int:
        """Return the turns that are left after ``turns``, ``extended`` so often."""
        return self.turns + extended * self.extension_turns - turns

    def notice(self, left: int) -> str:
        """Return what an observation says about the turns that are left."""
        return f"\n[{left} {'turn' if left == 1 else 'turns'} left]" if self.announce else ""


def as_budget(settings: Budget | Mapping[str, Any] | None, turns: int) -> Budget:
    """Return a budget, or what its settings describe; ``turns`` where they say nothing at all.

    Raises:
        ConfigError: There is no such setting.
    """
    if settings is None or isinstance(settings, Budget):
        return settings or Budget(turns=turns)
    if unknown := sorted(settings.keys() - Budget.__dataclass_fields__.keys()):
        hint = " (new name: 'announce')" if unknown == ["is_told"] else ""
        known = ", ".join(Budget.__dataclass_fields__)
        raise ConfigError(f"budget: unknown setting {unknown[0]!r}{hint}; known: {known}")
    return Budget(**settings)


@dataclass(frozen=True, kw_only=True)  # no slots: it is referred to weakly
class WorkspaceState:
    """A workspace as it was, and what the environment knew."""

    layer: LayerRef
    touched: frozenset[str]
    """Paths that were written since the episode began."""
    state_key: str
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
        action_style: ``"commands"`` for calls in words with fenced bodies, ``"tools"`` for JSON.
        budget: Turns of an episode, and how they are announced and extended.
        timeout_s: Longest run of one command, in seconds.
        render_mode: ``"ansi"`` or None.
    """

    snapshot_kind: ClassVar[SnapshotKind] = "fs"
    backend: ClassVar[BackendName] = "bubblewrap"
    """Where workspaces live."""
    turns: ClassVar[int] = 30
    """Of an episode whose budget is not set."""
    tools: ClassVar[tuple[Tool, ...]] = (
        actions.BASH, actions.VIEW, actions.SEARCH, actions.EDIT, actions.CREATE, actions.SUBMIT,
    )  # fmt: skip

    def __init__(
        self,
        *,
        action_style: ActionStyle = "commands",
        budget: Budget | Mapping[str, Any] | None = None,
        timeout_s: float = 30.0,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(render_mode=render_mode)
        self.action_format = in_style(action_style, ToolText(self.tools), ToolJson(self.tools))
        self.budget = as_budget(budget, self.turns)
        self.timeout_s = timeout_s
        self._host: SandboxHost | None = None
        self._sandbox: GuestSandbox | None = None
        self._touched: frozenset[str] = frozenset()
        self._state_key = ""
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
        return opened(self._sandbox, self.name)

    async def begin(self, task: Task) -> Outcome:
        await self._close_sandbox()
        self._touched = frozenset()
        self._turns = self._extended = 0
        self._score = 0.0
        self._sandbox, text = await self.open_sandbox(task)
        self._state_key = await self._digest()
        return Outcome(text=text + self._notice(), info={"max_turns": self.budget.most})

    async def turn(self, action: Action) -> Outcome:
        self._turns += 1
        if action.name == "submit":
            return await self.submitted()
        done = await self.call(action)
        if self._tool(action).writes:
            self._state_key = await self._digest()
        outcome = Outcome(text=done.text, invalid_action=done.problem)
        return self._within_budget(outcome)

    async def submitted(self) -> Outcome:
        """Judge, and end the episode."""
        outcome = await self.judge()
        outcome.terminated = True
        return outcome

    async def end_at_limit(self) -> Outcome | None:  # type: ignore[override]  # awaited
        return await self.judge()

    async def call(self, action: Action) -> Done:
        """Carry out a call of a tool other than ``submit``."""
        run = self._tool(action).run
        assert run is not None  # submit alone has none
        return await run(self, **action.arguments)

    def _tool(self, action: Action) -> Tool:
        return next(tool for tool in self.tools if tool.name == action.name)

    def score(self) -> float | None:
        """Return 1 when what was submitted is right; 0 before anything was."""
        return judged_score(self._score)

    def state_key(self) -> str:
        """Return a digest of the task and of the contents of every file that was changed."""
        return self._state_key

    def legal_actions(self) -> list[str]:
        """Return a menu: look around, submit. Endlessly many other calls would be carried out."""
        return [self.say("bash", command="ls"), self.say("view", path="."), self.say("submit")]

    def say(self, tool: str, **arguments: Any) -> str:
        """Return the text that calls ``tool`` in the action style of this environment."""
        return self.action_format.render(Action(name=tool, arguments=arguments))

    async def state_files(self) -> dict[str, bytes]:  # type: ignore[override]  # awaited
        most = {"max_bytes": _MAX_LOOKED_AT, "max_files": 10 * _MAX_CHANGES}
        tree = await tree_of(self.sandbox, ".", **most)
        return {f"files/{name}": data for name, data in tree.items()}

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
            layer=await self.sandbox.snapshot(), touched=self._touched, state_key=self._state_key,
            turns=self._turns, extended=self._extended,
            own=(self._score, self.own_state(), dict(self.current)),
        )  # fmt: skip
        # A snapshot keeps the back end, so that it outlives its environment.
        weakref.finalize(
            state, _drop_layer, SandboxHost.lease(self.backend), state.layer
        ).atexit = False
        return state

    async def set_state(self, state: WorkspaceState) -> None:  # type: ignore[override]  # awaited
        """Start a sandbox on what was committed."""
        await self._close_sandbox()
        self._touched, self._state_key = state.touched, state.state_key
        self._turns, self._extended = state.turns, state.extended
        self._score, own, self.current = state.own
        self.set_own_state(own)
        self._sandbox = await self.reopen_sandbox(state.layer)

    # Helpers.

    async def changed_files(self, most: int | None = None) -> dict[str, bytes | None]:
        """Return what was written since the episode began: contents, or None where a file is gone.

        Of a file of more than ``_MAX_DIGEST_BYTES`` there is what ``summed`` says; what cannot be
        read counts not at all. Only ``most`` files are looked at.
        """
        await self._note_changes()
        paths, found = sorted(self._touched)[:most], dict[str, bytes | None]()
        for start in range(0, len(paths), _AT_A_TIME):
            some = paths[start : start + _AT_A_TIME]
            contents = await asyncio.gather(*map(self._content, some))
            found |= {
                path: data for path, data in zip(some, contents, strict=True) if data is not _ODD
            }
        return found

    async def all_changed(self) -> dict[str, bytes | None]:
        """Return ``changed_files`` as of the last turn, however many they are."""
        is_whole = len(self._touched) <= _MAX_CHANGES
        return dict(self.current) if is_whole else await self.changed_files()

    async def _content(self, path: str) -> bytes | None:
        try:
            return await self.sandbox.read_file(path, max_bytes=_MAX_DIGEST_BYTES)
        except SandboxFileTooLarge:
            return await summed(self.sandbox, path)
        except SandboxFileError as error:
            return None if error.errno in _NO_FILE else _ODD

    async def _note_changes(self) -> None:
        try:
            changes = await self.sandbox.diff()
        except SandboxFileTooLarge as error:  # the agent's own doing, and no fault
            _log.warning("%s: what changed is not noted: %s", self.name, error)
            return
        self._touched |= {change.path for change in changes}

    async def _digest(self) -> str:
        digest = hashlib.sha256(self._task_id.encode())
        self.current = await self.changed_files(_MAX_CHANGES)
        if rest := sorted(self._touched)[_MAX_CHANGES:]:
            digest.update(repr(rest).encode())
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
            outcome.text += _SPENT
            return outcome
        outcome.text += self._notice()
        return outcome

    def _notice(self) -> str:
        """Return what is said of the turns that are left, of the budget or a nearer limit."""
        outer = (one.max_turns for one in self.episode_limits if isinstance(one, TurnLimit))
        own = self.budget.left(self._turns, self._extended)
        left = min([own, *(most - self._turns for most in outer)])
        return self.budget.notice(left) if left > 0 else _SPENT

    async def _close_sandbox(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await sandbox.close()


def _drop_layer(host: SandboxHost, layer: LayerRef) -> None:
    """Forget the layer of a snapshot that is not held any more, unless it was copied."""
    if layer.id in _copied:
        return

    async def work() -> None:
        with suppress(TurnGymError):  # the sandbox below is gone, and the layer with it
            await host.drop(layer)
        with suppress(RuntimeError):  # the program ends: no more threads, and the launcher goes too
            await host.release()

    # The loop in which the snapshot was taken may be closed, or be the one that collects garbage.
    thread = threading.Thread(target=lambda: asyncio.run(work()), name="turngym-drop-layer")
    thread.start()


_copied: set[str] = set()
"""Layers of snapshots that were copied; they and the back end are kept to the end."""
