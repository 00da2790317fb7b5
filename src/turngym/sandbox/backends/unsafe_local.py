"""No isolation at all: commands run as the user of turngym, with all that implies.

For machines where nothing else works and for commands one would run by hand. It exists under its
full name only, asks for the risk to be accepted in words, and says ``isolation="none"``.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import uuid
from pathlib import Path

from turngym.errors import SandboxRefused, SandboxUnavailable
from turngym.sandbox.backends.channel import Channel, SocketStream
from turngym.sandbox.backends.folder_backend import ENFORCED, FolderBackend, copy_tree
from turngym.sandbox.backends.guest_sandbox import GuestSandbox
from turngym.sandbox.backends.runtime import command, runtime_folder
from turngym.sandbox.base import (
    Capabilities,
    Change,
    Isolation,
    LayerRef,
    Quota,
    SandboxSpec,
)
from turngym.sandbox.trees import difference, manifest

RISK = "commands can do to this machine whatever I can"
"""What `UnsafeLocalBackend` wants to be given as ``accept_risk``."""


class UnsafeLocalBackend(FolderBackend):
    """Runs commands in a temporary folder of the host, and nothing more."""

    name = "unsafe-local"
    isolation: Isolation = "none"

    def __init__(self, *, accept_risk: str = "", quota: Quota | None = None) -> None:
        """Make the back end.

        Args:
            accept_risk: The words of `RISK`.
            quota: What all its sandboxes together may take.

        Raises:
            SandboxRefused: The risk was not accepted.
        """
        if accept_risk != RISK:
            raise SandboxRefused(
                "'unsafe-local' isolates nothing",
                f"accept_risk is {accept_risk!r}",
                f"Use 'bubblewrap' or 'docker', or pass accept_risk={RISK!r}",
            )
        super().__init__(quota)

    async def probe(self) -> Capabilities:
        return Capabilities(
            isolation=self.isolation, limits=ENFORCED, mounts=False, pause="signals",
            evidence=["no isolation"],
        )  # fmt: skip

    def _refuse(self, spec: SandboxSpec) -> None:
        if spec.image != "host" or spec.mounts or spec.links:
            raise SandboxRefused(
                "'unsafe-local' has no root of its own", f"image {spec.image!r}", "Use 'bubblewrap'"
            )

    async def start_on(self, spec: SandboxSpec, base: Path | None) -> UnsafeLocalSandbox:
        give_back = self.quota.take(spec.limits)
        folder = self._root / uuid.uuid4().hex[:12]
        try:
            await asyncio.to_thread(_make_folders, folder, base)
            process, channel = await _start_guest(folder, spec)
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)
            give_back()
            if isinstance(error, OSError):
                raise SandboxUnavailable(f"'unsafe-local' cannot start: {error}") from None
            raise
        sandbox = UnsafeLocalSandbox(self, spec, folder, process, channel)
        sandbox.when_closed.append(give_back)
        self._opened(sandbox)
        return sandbox


class UnsafeLocalSandbox(GuestSandbox):
    """A folder and a process that starts commands in it."""

    isolation: Isolation = "none"

    def __init__(
        self,
        backend: UnsafeLocalBackend,
        spec: SandboxSpec,
        folder: Path,
        process: subprocess.Popen[bytes],
        channel: Channel,
    ) -> None:
        super().__init__(channel, spec, workspace=str(folder / "workspace"), enforced=ENFORCED)
        self._backend = backend
        self._folder = folder
        self._process = process
        self._base_env = {**self._base_env, "HOME": str(folder / "home"), **spec.env}
        self._before = manifest(folder / "workspace")

    async def diff(self) -> list[Change]:
        """See `Sandbox.diff`. Compares all files with those at the start."""
        await self._settled()
        now = await asyncio.to_thread(manifest, self._folder / "workspace")
        return difference(self._before, now)

    async def snapshot(self) -> LayerRef:
        """See `Sandbox.snapshot`. Copies the workspace."""
        await self._settled()
        return await self._backend.keep(self._folder / "workspace", "snapshot")

    async def _fork(self, n: int) -> list[GuestSandbox | Exception]:
        await self._settled()
        base = self._folder / "workspace"
        forks: list[GuestSandbox | Exception] = []
        for _ in range(n):
            try:
                forks.append(await self._backend.start_on(self.spec, base))
            except (SandboxUnavailable, SandboxRefused) as error:
                forks.append(error)
        return forks

    async def _release(self) -> None:
        def wait() -> None:
            try:
                self._process.wait(10.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            shutil.rmtree(self._folder, ignore_errors=True)

        await asyncio.to_thread(wait)


def _make_folders(folder: Path, base: Path | None) -> None:
    folder.mkdir(mode=0o700)
    (folder / "home").mkdir()
    if base is None:
        (folder / "workspace").mkdir()
    else:
        copy_tree(base, folder / "workspace")


async def _start_guest(folder: Path, spec: SandboxSpec) -> tuple[subprocess.Popen[bytes], Channel]:
    limits = spec.limits
    runtime = await asyncio.to_thread(runtime_folder)
    ours, theirs = socket.socketpair()
    fd = theirs.fileno()
    settings = (fd, fd, -1, limits.memory_bytes, -1, -1, limits.open_files, 0, -1)
    process = subprocess.Popen(
        command(",".join(map(str, settings)), str(runtime)), stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={"PATH": os.environ.get("PATH", "/usr/bin:/bin")}, cwd=folder / "workspace",
        pass_fds=[theirs.fileno()], start_new_session=True,
    )  # fmt: skip
    theirs.close()
    channel = Channel(SocketStream(ours), folder.name)
    try:
        await channel.open()
    except BaseException:
        process.kill()
        process.wait()
        raise
    return process, channel
