"""The default back end: bubblewrap, without a daemon, as root or as a plain user.

Every start is checked from inside: the guest tells its capabilities, seccomp mode, user map,
network and limits, and one that is not as wanted is a `SandboxRefused`, with nothing run.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import threading
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, cast

from turngym.errors import (
    SandboxClosed,
    SandboxDied,
    SandboxRefused,
    SandboxUnavailable,
    SnapshotError,
)
from turngym.sandbox.backends import images, refusals, seccomp
from turngym.sandbox.backends.bubblewrap_command import Root, arguments
from turngym.sandbox.backends.bubblewrap_sandbox import BubblewrapSandbox, Started, limits_json
from turngym.sandbox.backends.channel import Channel, SocketStream
from turngym.sandbox.backends.launcher_client import LauncherError, LauncherProcess
from turngym.sandbox.backends.quota import Quota
from turngym.sandbox.base import (
    Capabilities,
    Enforcement,
    Isolation,
    LayerRef,
    Limits,
    SandboxSpec,
)
from turngym.sandbox.launcher.layers import MAX_LAYERS
from turngym.sandbox.launcher.users import FIRST


class BubblewrapBackend:
    """Makes sandboxes of bubblewrap; owns one launcher process, started when first needed.

    Its layers and sandboxes end with it. May be used from several event loops.
    """

    name = "bubblewrap"
    isolation: Isolation = "standard"

    def __init__(self, *, quota: Quota | None = None) -> None:
        """Make the back end; nothing is started yet.

        Args:
            quota: What all its sandboxes together may take, forks included; None for no cap.
        """
        self.quota = quota or Quota()
        self._launcher: LauncherProcess | None = None
        self._launching = threading.Lock()
        self._is_closed = False
        self._roots: dict[str, Root] = {}
        self._capabilities: Capabilities | None = None
        self._chains: dict[str, int] = {"skeleton": 0}
        """Sealed layers below and including each layer."""

    async def launcher(self) -> LauncherProcess:
        """Return the launcher, started again when it has died.

        Raises:
            SandboxRefused: bubblewrap is missing, or the kernel forbids namespaces.
            SandboxClosed: The back end was closed.
        """
        launcher = self._launcher
        if launcher is not None and launcher.is_alive and not self._is_closed:
            return launcher
        # In a thread that goes on when the caller is cancelled, so that no launcher is lost.
        return await asyncio.to_thread(self._launch)

    def _launch(self) -> LauncherProcess:
        with self._launching:
            if self._is_closed:
                raise SandboxClosed("back end 'bubblewrap' is closed")
            if self._launcher is None or not self._launcher.is_alive:
                if shutil.which("bwrap", path="/usr/bin:/bin") is None:
                    raise refusals.missing_bubblewrap()
                if self._launcher is not None:
                    self._launcher.close()
                self._roots = {}
                try:
                    self._launcher = LauncherProcess()
                except LauncherError as error:
                    raise refusals.of_kernel(str(error)) from None
            return self._launcher

    async def probe(self) -> Capabilities:
        """See `Backend.probe`. Found out once."""
        if self._capabilities is None:
            sandbox = await self.start(SandboxSpec(limits=Limits(enforce="best_effort")))
            try:
                result = await sandbox.exec(["true"], timeout_s=30.0)
                if not result.ok:
                    raise SandboxRefused(
                        "a sandbox cannot run 'true'", result.stderr.decode()[:200]
                    )
                launcher = await self.launcher()
                frozen = await launcher.call("freeze", id=sandbox.box, frozen=False)
                self._capabilities = Capabilities(
                    isolation=self.isolation,
                    limits=sandbox.enforced,
                    pause="exact" if frozen["done"] else "signals",
                    evidence=sandbox.evidence,
                )
            finally:
                await sandbox.close()
        return self._capabilities

    async def start(self, spec: SandboxSpec) -> BubblewrapSandbox:
        """See `Backend.start`."""
        layer = spec.workspace.id if spec.workspace else "skeleton"
        if spec.workspace is not None and spec.workspace.id not in self._chains:
            raise SnapshotError(
                f"layer {spec.workspace.id!r} of {spec.workspace.backend!r} is gone"
            )
        return await self.start_on(spec, layer)

    async def start_on(self, spec: SandboxSpec, layer: str) -> BubblewrapSandbox:
        """Start a sandbox on a layer of the launcher."""
        give_back = self.quota.take(spec.limits)
        try:
            started = await self.start_box(spec, layer)
        except BaseException:
            give_back()
            raise
        sandbox = BubblewrapSandbox(self, spec, layer, started)
        sandbox.when_closed.append(give_back)
        return sandbox

    async def start_box(self, spec: SandboxSpec, layer: str) -> Started:
        """Start the processes of a sandbox, and check from inside that it is as it must be."""
        launcher = await self.launcher()
        root = await self._root(spec.image, launcher)
        box = uuid.uuid4().hex[:12]
        options = arguments(
            spec,
            root,
            overlay=f"{launcher.base}/boxes/{box}/m",
            runtime=f"{launcher.base}/runtime",
            watch_memory=spec.limits.enforce == "best_effort",
        )
        ours, theirs = socket.socketpair()
        try:
            with theirs:  # once the guest has it, our copy would hide the guest's end
                answer = await launcher.call(
                    "start",
                    fds=[theirs.fileno()],
                    id=box,
                    layer=layer,
                    args=options,
                    seccomp=seccomp.bpf(
                        allow_ptrace=spec.allow_ptrace, system_v=launcher.facts["system_v"]
                    ).hex(),
                    limits=limits_json(spec.limits),
                    strict=spec.limits.enforce == "strict",
                )
            channel = Channel(SocketStream(ours), box)
            facts = await channel.open()
        except LauncherError as error:
            ours.close()
            raise refusals.of_start(str(error), spec) from None
        except SandboxDied:
            messages = (await launcher.call("kill", id=box))["messages"]
            raise refusals.of_start(messages, spec) from None
        except BaseException:
            ours.close()
            with contextlib.suppress(SandboxUnavailable):  # then the box has ended with it
                launcher.ask("kill", id=box)
            raise
        try:
            evidence = refusals.check_greeting(
                facts,
                spec,
                host_uid=answer["uid"],
                wanted_uid=max(FIRST, answer["user"]) if launcher.facts["root"] else 0,
                system_v=launcher.facts["system_v"],
            )
        except SandboxRefused:
            await channel.close()
            await launcher.call("kill", id=box)
            raise
        enforced = enforcement(cast("dict[str, Enforcement]", answer["enforced"]))
        return Started(launcher, box, channel, enforced, answer["oom_file"], evidence)

    async def _root(self, image: str, launcher: LauncherProcess) -> Root:
        if image not in self._roots:
            if image == "host":
                etc = await asyncio.to_thread(images.host_etc)
                path = (await launcher.call("image", folder=str(etc)))["path"]
                self._roots[image] = Root(entries=images.host_entries(), etc=path)
            else:
                folder = await asyncio.to_thread(images.unpacked, image)
                images.root_entries(folder)
                path = (await launcher.call("image", folder=str(folder)))["path"]
                self._roots[image] = Root(entries=images.root_entries(folder))
                moved = [
                    images.RootEntry(
                        name=entry.name,
                        source=f"{path}/{entry.name}" if entry.source else "",
                        link=entry.link,
                    )
                    for entry in self._roots[image].entries
                ]
                self._roots[image] = Root(entries=moved)
        return self._roots[image]

    # Layers

    async def import_folder(self, folder: Path) -> LayerRef:
        """See `Backend.import_folder`. The copy lives in memory.

        Raises:
            SnapshotError: It cannot be read, or there is no memory for it.
        """
        num_bytes, inodes = await asyncio.to_thread(_size_of, folder)
        launcher = await self.launcher()
        try:
            answer = await launcher.call(
                "import", folder=os.path.abspath(folder), bytes=num_bytes, inodes=inodes
            )
        except LauncherError as error:
            raise SnapshotError(f"import_folder {str(folder)!r}: {error}") from None
        self._chains[answer["layer"]] = 0
        return await self.layer_ref(answer["layer"], "folder")

    async def layer_ref(self, layer: str, kind: Literal["folder", "snapshot"]) -> LayerRef:
        """Return the handle of a layer that exists, with its digest."""
        launcher = await self.launcher()
        try:
            digest = (await launcher.call("digest", layer=layer))["digest"]
        except LauncherError as error:
            raise SnapshotError(f"layer {layer!r}: its digest: {error}") from None
        return LayerRef(id=layer, backend=self.name, kind=kind, digest=digest)

    def note_layer(self, layer: str, below: str) -> None:
        """Remember a sealed layer and how many it stands on."""
        self._chains[layer] = self._chains.get(below, 0) + 1

    async def flat(self, layer: str, limits: Limits) -> str:
        """Return ``layer``, or one layer that stands for a stack that has grown too high."""
        if self._chains[layer] < MAX_LAYERS:
            return layer
        launcher = await self.launcher()
        several = limits_json(limits)
        several["disk_bytes"] *= 2
        several["inodes"] *= 2
        try:
            merged = (await launcher.call("flatten", layer=layer, limits=several))["layer"]
        except LauncherError as error:
            raise SnapshotError(
                f"snapshot: cannot merge {self._chains[layer]} layers: {error}"
            ) from None
        self._chains[merged] = 1
        await launcher.call("drop", layer=layer)
        return str(merged)

    async def drop(self, layer: LayerRef) -> None:
        """See `Backend.drop`."""
        if self._chains.pop(layer.id, None) is not None and not self._is_closed:
            await (await self.launcher()).call("drop", layer=layer.id)

    # The end

    async def sweep(self) -> int:
        """See `Backend.sweep`. Mounts and processes end with their launcher; groups may stay."""
        return int((await self.launcher()).facts["swept"])

    async def close(self) -> None:
        """See `Backend.close`."""
        await asyncio.to_thread(self._shut_down)

    def _shut_down(self) -> None:
        with self._launching:
            self._is_closed = True
            launcher, self._launcher = self._launcher, None
        if launcher is not None:
            launcher.close()


def enforcement(held: Mapping[str, Enforcement]) -> dict[str, Enforcement]:
    """Return how each limit is held, given those that the kernel holds for the whole sandbox."""
    # RLIMIT_NPROC is counted per user namespace, and each sandbox has one.
    fallback: dict[str, Enforcement] = {"memory": "watched", "pids": "exact", "cpus": "none"}
    return {**fallback, **held}


def _size_of(folder: Path) -> tuple[int, int]:
    """Return bytes and inodes that a copy of ``folder`` needs, with some to spare."""
    if not folder.is_dir():
        raise SnapshotError(f"import_folder: not a folder: {str(folder)!r}")
    num_bytes, inodes = 1 << 20, 64
    for path, folders, files in os.walk(folder):
        inodes += len(folders) + len(files)
        for name in files:
            num_bytes += os.lstat(os.path.join(path, name)).st_size + 4096
        num_bytes += 4096 * len(folders)
    return num_bytes + num_bytes // 8, inodes + inodes // 8


def has_bubblewrap() -> str:
    """Return bubblewrap's version, "" when there is none."""
    program = shutil.which("bwrap", path="/usr/bin:/bin")
    if program is None:
        return ""
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    return told.stdout.strip()
