"""Sandboxes on machines of a provider: our guest is brought there and spoken to over its protocol.

The guest comes with an interpreter of its own, so an image needs a shell, ``tar`` and ``gzip`` and
nothing else. Commands, files, sessions, terminals and ports then work as they do here. Layers are
folders of this machine: files travel when a sandbox starts on one, and when it is looked at.
"""

from __future__ import annotations

import asyncio
import functools
import io
import shlex
import shutil
import tarfile
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from turngym.errors import SandboxFault, SandboxRefused, SandboxUnavailable, SnapshotError
from turngym.sandbox import trees
from turngym.sandbox.backends.channel import ByteStream, Channel
from turngym.sandbox.backends.folder_backend import ENFORCED, FolderBackend
from turngym.sandbox.backends.guest_sandbox import GuestSandbox, settled
from turngym.sandbox.backends.runtime import command, runtime_folder
from turngym.sandbox.base import (
    Capabilities,
    Change,
    Isolation,
    LayerRef,
    Limits,
    Quota,
    SandboxSpec,
)
from turngym.sandbox.trees import Manifest, difference, manifest

_PROBE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A place where a guest runs, and the connection to it."""

    id: str
    folder: str
    """Where it has ``workspace`` and ``home``."""
    stream: ByteStream
    release: Callable[[], Awaitable[None]]
    """Remove every trace."""


class RemoteBackend(FolderBackend):
    """What the back ends of all providers share.

    Args:
        isolation: What its machines give, by the provider's word.
        quota: What all sandboxes together may take.
    """

    def __init__(self, *, isolation: Isolation, quota: Quota | None) -> None:
        super().__init__(quota)
        self.isolation: Isolation = isolation

    @abstractmethod
    async def machine(self, spec: SandboxSpec) -> Machine:
        """Return a machine with a guest that has been started.

        Raises:
            SandboxUnavailable: There is none just now.
            SandboxRefused: The provider does not let us in.
        """

    async def probe(self) -> Capabilities:
        """See `Backend.probe`. Starts a sandbox, and pays for it."""
        sandbox = await self.start(SandboxSpec(limits=Limits(enforce="best_effort")))
        try:
            found = await sandbox.exec(["uname", "-srm"], timeout_s=_PROBE_S)
        finally:
            await sandbox.close()
        return Capabilities(
            isolation=self.isolation,
            limits=ENFORCED,
            mounts=False,
            pause="signals",
            evidence=[
                f"isolation {self.isolation!r} is the provider's word, not checked here",
                found.stdout.decode("utf-8", "replace").strip(),
            ],
        )

    def _refuse(self, spec: SandboxSpec) -> None:
        if spec.mounts or spec.links:
            raise SandboxRefused(
                f"{self.name!r} cannot mount what is here", "", "Copy it with put_tree"
            )

    async def start_on(self, spec: SandboxSpec, base: Path | None) -> RemoteSandbox:
        async with AsyncExitStack() as undo:
            undo.callback(self.quota.take(spec.limits))
            try:
                machine = await self.machine(spec)
                undo.push_async_callback(machine.release)
                channel = Channel(machine.stream, machine.id)
                await channel.open()
            except (OSError, SandboxFault) as error:
                raise SandboxUnavailable(f"{self.name!r} cannot start: {error}") from error
            before = await asyncio.to_thread(manifest, base) if base else {}
            sandbox = RemoteSandbox(self, spec, machine, channel, undo.pop_all(), before)
        self._opened(sandbox)
        if base is not None:
            try:
                await sandbox.put_tree(base, ".")
            except BaseException:
                await sandbox.close()
                raise
        return sandbox


class RemoteSandbox(GuestSandbox):
    """A guest on the machine of a provider."""

    def __init__(
        self,
        backend: RemoteBackend,
        spec: SandboxSpec,
        machine: Machine,
        channel: Channel,
        undo: AsyncExitStack,
        before: Manifest,
    ) -> None:
        workspace = f"{machine.folder}/workspace"
        super().__init__(channel, spec, id=machine.id, workspace=workspace, enforced=ENFORCED)
        self.isolation = backend.isolation
        self._backend = backend
        self._undo = undo
        self._before = before
        self._base_env = {**self._base_env, "HOME": f"{machine.folder}/home", **spec.env}

    async def _copied(self) -> Path:
        """Return the workspace as a new folder of this machine.

        Raises:
            SnapshotError: A file of it cannot be read.
        """
        folder = self._backend.new_folder()
        limits = self.spec.limits
        try:
            async with self._using():
                report = await trees.get_tree(
                    self._channel, self._path("."), folder, is_layer=True,
                    max_bytes=limits.disk_bytes, max_files=limits.inodes,
                )  # fmt: skip
            if lost := [line for line in report.skipped if not line.endswith(trees.NO_FILE)]:
                raise SnapshotError(f"the workspace cannot be copied whole: {lost[0]}")
        except BaseException:
            await asyncio.to_thread(shutil.rmtree, folder, True)
            raise
        return folder

    async def diff(self) -> list[Change]:
        """See `Sandbox.diff`. Copies the workspace here and compares all files."""
        folder = await self._copied()
        try:
            return difference(self._before, await asyncio.to_thread(manifest, folder))
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, True)

    async def snapshot(self) -> LayerRef:
        """See `Sandbox.snapshot`. Copies the workspace here."""
        return await self._backend.register(await self._copied(), "snapshot")

    async def _fork(self, n: int) -> list[GuestSandbox | Exception]:
        folder = await self._copied()
        try:
            started = (self._backend.start_on(self.spec, folder) for _ in range(n))
            return settled(await asyncio.gather(*started, return_exceptions=True))
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, True)

    async def _release(self) -> None:
        await self._undo.aclose()


def guest_command(spec: SandboxSpec, runtime: str) -> str:
    """Return the shell command of a guest on its standard input and output."""
    limits = spec.limits
    settings = (0, 1, -1, limits.memory_bytes, -1, -1, limits.open_files, 0, -1)
    return shlex.join(command(",".join(map(str, settings)), runtime))


def runtime_name() -> str:
    """Return the name of the runtime folder, which changes with everything in it."""
    return runtime_folder().name


@functools.cache
def runtime_archive() -> bytes:
    """Return the runtime folder as a compressed tar, about ten megabytes."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=6) as archive:
        archive.add(runtime_folder(), ".", filter=_as_root)
    return packed.getvalue()


def _as_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry
