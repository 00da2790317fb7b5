"""What a sandbox is: the contract that every back end keeps and every caller can rely on.

A back end starts sandboxes; a sandbox runs untrusted commands. Whatever the commands do (fail,
hang, flood, run out of memory) is data in an `ExecResult`. That the sandbox itself broke is a
`SandboxFault`, and such an episode has no reward. That a sandbox cannot be made as safe as was
asked is `SandboxRefused`, before anything runs.

`check_sandbox` proves these promises for a back end; see `turngym.sandbox.checks.check`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, Unpack, runtime_checkable

from turngym.errors import SandboxUnavailable
from turngym.sandbox.processes import ExecResult, Process, Pty, RunOptions, Session, Stream

Isolation = Literal["strong", "standard", "none"]
"""Strong: own kernel. Standard: own namespaces and seccomp filter, shared kernel. None: none."""

Enforcement = Literal["exact", "watched", "per_process", "none"]
"""Exact: the kernel holds the whole sandbox to it. Watched: measured and killed some time after.
Per process: each process is held to it, the sum is not. None: not at all."""

LIMIT_NAMES = ("memory", "pids", "cpus", "disk", "inodes")

MAX_ARGUMENT_BYTES = 16 << 20
"""Longest command, script, standard input chunk or environment that is sent to a sandbox."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one sandbox may use, all its processes together.

    With ``enforce="strict"`` a limit that the back end cannot hold exactly is a `SandboxRefused`;
    with ``"best_effort"`` what it does instead stands in `Sandbox.enforced`.
    """

    memory_bytes: int = 1 << 30
    """Memory of all processes. Files in the sandbox live in memory too; they count in addition,
    up to ``disk_bytes``."""
    pids: int = 256
    """Processes and threads."""
    cpus: float = 1.0
    """CPU seconds per second."""
    disk_bytes: int = 1 << 30
    """Everything written, in all writable places together."""
    inodes: int = 200_000
    """Files, folders and links written."""
    open_files: int = 1024
    """Descriptors of each process."""
    file_bytes: int | None = None
    """Size of one file; None for no limit beyond ``disk_bytes``."""
    lifetime_s: float | None = None
    """Seconds after which the sandbox is closed, even in use; None for no limit."""
    enforce: Literal["strict", "best_effort"] = "strict"

    def __post_init__(self) -> None:
        lowest = {
            "memory_bytes": 32 << 20, "pids": 8, "cpus": 0.01, "disk_bytes": 1 << 20, "inodes": 64,
            "open_files": 32,
        }  # fmt: skip
        for name, least in lowest.items():
            if getattr(self, name) < least:
                raise ValueError(
                    f"Limits.{name}: wanted at least {least}, got {getattr(self, name)}"
                )
        if self.file_bytes is not None and self.file_bytes < 1:
            raise ValueError(f"Limits.file_bytes: wanted at least 1, got {self.file_bytes}")
        if self.lifetime_s is not None and self.lifetime_s <= 0:
            raise ValueError(f"Limits.lifetime_s: wanted more than 0, got {self.lifetime_s}")
        if self.enforce not in ("strict", "best_effort"):
            raise ValueError(f"Limits.enforce: wanted strict or best_effort, got {self.enforce!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOnlyMount:
    """A file or folder of the host that the sandbox can read, and nothing else."""

    source: Path
    target: str
    """Absolute path in the sandbox, below /mnt or /opt."""

    def __post_init__(self) -> None:
        parts = self.target.split("/")
        if parts[:2] not in (["", "mnt"], ["", "opt"]) or len(parts) < 3 or ".." in parts:
            raise ValueError(
                f"ReadOnlyMount.target: wanted a path below /mnt or /opt, got {self.target!r}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRef:
    """Files that sandboxes can start from: an imported folder, or what a snapshot committed.

    Belongs to the back end that made it and lives until that closes or ``drop`` is called.
    """

    id: str
    backend: str
    digest: str
    """SHA-256 over paths, kinds, modes and contents, of this layer and all below it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """What a sandbox holds, may use and may see."""

    image: str = "host"
    """``host`` (this machine's own /usr, read-only), a root folder, a tar of one, or, where the
    back end runs an engine, the name of an image."""
    workspace: LayerRef | None = None
    """What the sandbox starts from; None for an empty workspace."""
    limits: Limits = field(default_factory=Limits)
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables of every command. Nothing is inherited from the host."""
    mounts: Sequence[ReadOnlyMount] = ()
    allow_ptrace: bool = False
    """Let debuggers work inside."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Paths at the root that the image lacks to the writable place that each leads to, for example
    ``/app`` to ``/workspace``; ``bubblewrap`` only."""

    def __post_init__(self) -> None:
        for name, value in self.env.items():
            if not name or "=" in name or "\0" in name + value:
                raise ValueError(f"SandboxSpec.env: {name!r} is no name and value of a variable")


def printable(path: str | bytes) -> str:
    """Return a path that a command chose as text that no terminal or log is changed by."""
    text = os.fsdecode(path)
    return "".join(c if c.isprintable() and c != "\\" else ascii(c)[1:-1] for c in text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One path that differs from what the sandbox started from."""

    path: str
    """Relative to the workspace; bytes that are no UTF-8 are escaped as ``os.fsdecode`` does. It
    may hold anything, control characters too; ``str(change)`` can be shown."""
    kind: Literal["written", "deleted"]

    def __str__(self) -> str:
        return f"{self.kind} {printable(self.path)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeReport:
    """What a copy out of a sandbox brought, and what it left."""

    files: int
    num_bytes: int
    skipped: tuple[str, ...]
    """``path: reason`` for each entry that is no file, folder or harmless link; fit to be shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """What a sandbox uses now."""

    processes: int
    memory_bytes: int
    """Private memory of all processes, the guest's included."""
    disk_bytes: int | None
    """Written so far; None where the back end cannot tell."""
    inodes: int | None


Gap = Literal["command line", "deep folders", "spared commands"]
"""The kernel's command line is shown; a folder deeper than any path is cut in a snapshot; a command
can ask the kernel to be killed last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a back end can do on this machine, found out by doing it."""

    isolation: Isolation
    limits: Mapping[str, Enforcement]
    """For each of `LIMIT_NAMES` how it is held."""
    mounts: bool = True
    """Folders of this machine can be seen inside."""
    pause: Literal["exact", "signals", "none"] = "exact"
    """Exact: frozen by the kernel. Signals: stopped by one the processes cannot ignore."""
    gaps: frozenset[Gap] = frozenset()
    """What it does not hold although it isolates; docs/security.md says what follows."""
    evidence: Sequence[str] = ()
    """What was seen, a line each."""


@runtime_checkable
class Sandbox(Protocol):
    """One isolated place that runs commands, until ``close``.

    Used from one event loop. Commands may run at the same time. Every method but ``close`` raises
    `SandboxClosed` after it, and `SandboxDied` once the sandbox is gone.
    """

    id: str
    isolation: Isolation
    workspace: str
    """Where commands start, as they see it."""
    enforced: Mapping[str, Enforcement]

    async def exec(
        self,
        command: Sequence[str] | str,
        *,
        timeout_s: float,
        cwd: str | None = None,
        stdin: bytes | None = None,
        **options: Unpack[RunOptions],
    ) -> ExecResult:
        """Run a command and everything it starts to the end.

        Args:
            command: A program with its arguments, or one string for ``bash -c``.
            timeout_s: Seconds of the host's clock. Then all of the command is killed, its output
                so far is kept and the sandbox stays usable.
            cwd: Where it starts, relative to the workspace.
            stdin: What it reads; None for nothing.
            options: ``env``, ``idle_timeout_s``, ``max_output``, ``keep_background``.
        """

    async def spawn(
        self,
        command: Sequence[str] | str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Process:
        """Start a command and go on; it ends with ``Process.close`` or the sandbox."""

    async def open_pty(
        self,
        command: Sequence[str] | str = ("bash",),
        *,
        rows: int = 24,
        cols: int = 80,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Pty:
        """Start a command on a terminal of its own with so many ``rows`` and ``cols``."""

    def session(self) -> Session:
        """Return a shell that keeps directory, variables and functions from command to command."""

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Write a file with permission bits ``mode``, and the folders that lead to it.

        Raises:
            SandboxFileError: The path is no regular file, or cannot be written.
        """

    async def read_file(self, path: str, *, max_bytes: int) -> bytes:
        """Return the contents of a regular file.

        Raises:
            SandboxFileError: There is none, it is something else, or cannot be read.
            SandboxFileTooLarge: It holds more than ``max_bytes``.
        """

    async def put_tree(self, source: Path, target: str) -> None:
        """Copy a folder of the host to ``target`` in the sandbox; links are copied as links."""

    async def get_tree(
        self, source: str, target: Path, *, max_bytes: int, max_files: int
    ) -> TreeReport:
        """Copy a folder out. Only files, folders and links that stay inside come along.

        Args:
            source: The folder, relative to the workspace.
            target: Where it goes on the host; must not exist. Nothing is written elsewhere.
            max_bytes: Most bytes of all files and links.
            max_files: Most entries, folders included.

        Raises:
            SandboxFileTooLarge: There is more than allowed; ``target`` is removed again.
        """

    async def diff(self) -> list[Change]:
        """Return what of the workspace differs from what the sandbox was started from.

        Of a folder whose path is longer than the kernel takes only the folder is reported.

        Raises:
            SandboxFileTooLarge: There is more than can be reported; nothing is cut silently.
        """

    async def snapshot(self) -> LayerRef:
        """Return the files as they are now, for other sandboxes to start from. Copies nothing."""

    async def fork(self, n: int) -> list[Sandbox | Exception]:
        """Return ``n`` sandboxes that start from the files as they are now; each may fail alone."""

    async def dial(self, port: int) -> Stream:
        """Connect to a TCP port that a process of the sandbox listens on."""

    async def pause(self) -> None:
        """Stop every process, until ``resume``."""

    async def resume(self) -> None:
        """Let paused processes go on."""

    async def stats(self) -> Stats:
        """Return what the sandbox uses now."""

    async def close(self) -> None:
        """End every process and remove every trace. May be called twice, and at any moment."""


@runtime_checkable
class Backend(Protocol):
    """A way of making sandboxes."""

    name: str

    async def probe(self) -> Capabilities:
        """Start a sandbox and return what it can do.

        Raises:
            SandboxRefused: No sandbox can be made safe here; with evidence and what to do.
        """

    async def start(self, spec: SandboxSpec) -> Sandbox:
        """Start a sandbox.

        Raises:
            SandboxRefused: It cannot be made as safe as ``spec`` asks.
            SandboxUnavailable: It could not be started just now.
        """

    async def import_folder(self, folder: Path) -> LayerRef:
        """Copy a folder of the host once, for any number of sandboxes to start from."""

    async def drop(self, layer: LayerRef) -> None:
        """Forget a layer; it goes when no sandbox stands on it any more."""

    async def sweep(self) -> int:
        """Remove what owners that died left behind; return how many sandboxes that was."""

    async def close(self) -> None:
        """Close every sandbox and remove every trace."""


class Quota:
    """Hard caps on number, memory and disk, summed over the limits of running sandboxes.

    Thread-safe. ``None`` is no cap.
    """

    def __init__(
        self,
        *,
        max_sandboxes: int | None = None,
        max_memory_bytes: int | None = None,
        max_disk_bytes: int | None = None,
    ) -> None:
        self.caps = {
            "sandboxes": max_sandboxes,
            "memory_bytes": max_memory_bytes,
            "disk_bytes": max_disk_bytes,
        }
        for name, cap in self.caps.items():
            if cap is not None and cap < 1:
                raise ValueError(f"Quota.max_{name}: wanted at least 1, got {cap}")
        self.used = dict.fromkeys(self.caps, 0)
        self._lock = threading.Lock()
        self.when_freed: list[Callable[[], None]] = []
        """Called each time something was given back, from whichever thread that was."""

    def take(self, limits: Limits) -> Callable[[], None]:
        """Take what a sandbox with ``limits`` may use; return how to give it back, once.

        Raises:
            SandboxUnavailable: That is more than is left.
        """
        wanted = self.cost(limits)
        with self._lock:
            for name, cap in self.caps.items():
                if cap is not None and self.used[name] + wanted[name] > cap:
                    raise SandboxUnavailable(
                        f"quota of {cap} {name} is used up ({self.used[name]} taken, "
                        f"{wanted[name]} wanted): close sandboxes or raise it"
                    )
            for name, amount in wanted.items():
                self.used[name] += amount
        is_taken = [True]

        def give_back() -> None:
            with self._lock:
                if not is_taken:
                    return
                is_taken.clear()
                for name, amount in wanted.items():
                    self.used[name] -= amount
            for act in list(self.when_freed):
                act()

        return give_back

    @staticmethod
    def cost(limits: Limits) -> dict[str, int]:
        """Return what one sandbox counts for."""
        return {
            "sandboxes": 1,
            "memory_bytes": limits.memory_bytes,
            "disk_bytes": limits.disk_bytes,
        }

    def can_ever_take(self, limits: Limits) -> bool:
        """Say whether such a sandbox fits when no other runs."""
        wanted = self.cost(limits)
        return all(cap is None or wanted[name] <= cap for name, cap in self.caps.items())
