"""Sandboxes on machines that we do not make: our guest is brought there and spoken to.

They are a provider's, or this one as it is. The guest comes with an interpreter of its own, so an
image needs a shell, ``tar`` and ``gzip`` and nothing else. Commands, files, sessions, terminals and
ports then work as in any sandbox. Layers are folders of this machine: files travel when a sandbox
starts on one, and when it is looked at.
"""

from __future__ import annotations

import asyncio
import functools
import io
import shutil
import tarfile
import tempfile
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from turngym.errors import (
    SandboxClosed,
    SandboxFault,
    SandboxRefused,
    SandboxUnavailable,
    SnapshotError,
)
from turngym.sandbox import trees
from turngym.sandbox.backends.channel import ByteStream, Channel
from turngym.sandbox.backends.guest_sandbox import GuestSandbox, layer_of, settled
from turngym.sandbox.backends.runtime import command, runtime_folder
from turngym.sandbox.base import (
    LIMIT_NAMES,
    Capabilities,
    Change,
    Enforcement,
    Isolation,
    LayerRef,
    Limits,
    Quota,
    SandboxSpec,
)
from turngym.sandbox.launcher.layers import special_files
from turngym.sandbox.trees import Manifest, difference, digest, manifest

ENFORCED: Mapping[str, Enforcement] = {**dict.fromkeys(LIMIT_NAMES, "none"), "memory": "watched"}
"""What a guest can hold that is not the first process of a namespace."""
_PROBE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A place where a guest runs, and the connection to it."""

    id: str
    folder: str
    """Where it has ``workspace`` and ``home``."""
    stream: ByteStream


class MachineBackend(ABC):
    """Holds layers as folders, and the sandboxes that run; ``isolation`` is the provider's word."""

    name: str

    def __init__(self, *, isolation: Isolation, quota: Quota | None) -> None:
        self.isolation: Isolation = isolation
        self.quota = quota or Quota()
        self._root = Path(tempfile.mkdtemp(prefix=f"turngym-{self.name}-"))
        self._layers: dict[str, Path] = {}
        self._open: set[GuestSandbox] = set()
        self._is_closed = False

    @abstractmethod
    async def machine(self, spec: SandboxSpec, undo: AsyncExitStack) -> Machine:
        """Return a machine with a guest that has been started.

        Args:
            spec: What was asked for.
            undo: Gets what removes every trace of it, also of one that does not come up.

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

    async def start(self, spec: SandboxSpec) -> GuestSandbox:
        """See `Backend.start`.

        Raises:
            SandboxClosed: The back end is closed.
            SandboxRefused: Limits, mounts, links or an image that it cannot give are asked for.
        """
        if self._is_closed:
            raise SandboxClosed(f"back end {self.name!r} is closed")
        if spec.limits.enforce == "strict":
            raise SandboxRefused(
                f"{self.name!r} holds no limit", "", "Set Limits(enforce='best_effort')"
            )
        self._refuse(spec)
        layer = layer_of(spec, self._layers)
        return await self.start_on(spec, self._layers[layer] if layer else None)

    def _refuse(self, spec: SandboxSpec) -> None:
        """Raise `SandboxRefused` for what it cannot give."""
        if spec.mounts or spec.links:
            raise SandboxRefused(
                f"{self.name!r} cannot mount what is here", "", "Copy it with put_tree"
            )

    async def start_on(self, spec: SandboxSpec, base: Path | None) -> MachineSandbox:
        """Start a sandbox on a copy of ``base``.

        Raises:
            SandboxUnavailable: The guest cannot start.
        """
        async with AsyncExitStack() as undo:
            undo.callback(self.quota.take(spec.limits))
            try:
                machine = await self.machine(spec, undo)
                channel = Channel(machine.stream, machine.id)
                await channel.open()
            except (OSError, SandboxFault) as error:
                raise SandboxUnavailable(f"{self.name!r} cannot start: {error}") from error
            before = await asyncio.to_thread(manifest, base) if base else {}
            sandbox = MachineSandbox(self, spec, machine, channel, undo.pop_all(), before)
        self._open.add(sandbox)
        sandbox.when_closed.append(lambda: self._open.discard(sandbox))
        if base is not None:
            try:
                await sandbox.put_tree(base, ".")
            except BaseException:
                await sandbox.close()
                raise
        return sandbox

    async def import_folder(self, folder: Path) -> LayerRef:
        """See `Backend.import_folder`.

        Raises:
            SnapshotError: There is no such folder.
        """
        if not folder.is_dir():
            raise SnapshotError(f"import_folder: not a folder: {str(folder)!r}")
        target = self.new_folder()
        copy = functools.partial(shutil.copytree, symlinks=True, ignore=special_files)
        await asyncio.to_thread(copy, folder, target)
        return await self.register(target)

    def new_folder(self) -> Path:
        """Return a path for a layer that does not exist yet."""
        return self._root / f"layer-{uuid.uuid4().hex[:12]}"

    async def register(self, folder: Path) -> LayerRef:
        """Return the handle of a folder that ``new_folder`` named."""
        self._layers[folder.name] = folder
        found = digest(await asyncio.to_thread(manifest, folder))
        return LayerRef(id=folder.name, backend=self.name, digest=found)

    async def drop(self, layer: LayerRef) -> None:
        if path := self._layers.pop(layer.id, None):
            await asyncio.to_thread(shutil.rmtree, path, True)

    async def sweep(self) -> int:
        """See `Backend.sweep`. Leftovers look like the work of others, so nothing goes."""
        return 0

    async def close(self) -> None:
        self._is_closed = True
        for sandbox in list(self._open):
            await sandbox.close()
        await asyncio.to_thread(shutil.rmtree, self._root, True)


class MachineSandbox(GuestSandbox):
    """A guest on such a machine."""

    def __init__(
        self,
        backend: MachineBackend,
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
        """Return the workspace as a new folder of this machine: all of it, or a `SnapshotError`."""
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
        return await self._backend.register(await self._copied())

    async def _fork(self, n: int) -> list[GuestSandbox | Exception]:
        folder = await self._copied()
        try:
            started = (self._backend.start_on(self.spec, folder) for _ in range(n))
            return settled(await asyncio.gather(*started, return_exceptions=True))
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, True)

    async def _release(self) -> None:
        await self._undo.aclose()


def guest_command(spec: SandboxSpec, runtime: str) -> list[str]:
    """Return the command of a guest on its standard input and output."""
    limits = spec.limits
    settings = (0, 1, -1, limits.memory_bytes, -1, -1, limits.open_files, 0, -1)
    return command(",".join(map(str, settings)), runtime)


@functools.cache
def runtime_archive() -> bytes:
    """Return the runtime folder as a compressed tar of a few megabytes."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=6) as archive:
        archive.add(runtime_folder(), ".", filter=_as_root)
    return packed.getvalue()


def _as_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry
