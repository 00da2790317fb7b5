"""The default back end: bubblewrap, without a daemon, as root or as a plain user.

Every start is checked from inside: the guest reports its capabilities, seccomp mode, user map,
network and limits, and one that is not as wanted is a `SandboxRefused`, with nothing run.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import threading
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from turngym.errors import (
    SandboxClosed,
    SandboxDied,
    SandboxFault,
    SandboxFileTooLarge,
    SandboxRefused,
    SandboxUnavailable,
    SnapshotError,
)
from turngym.sandbox.backends import images, refusals, seccomp
from turngym.sandbox.backends.bubblewrap_command import Root, arguments
from turngym.sandbox.backends.channel import Channel, SocketStream, to_int
from turngym.sandbox.backends.guest_sandbox import GuestSandbox, layer_of, settled
from turngym.sandbox.backends.launcher_client import (
    Answer,
    LauncherError,
    LauncherGone,
    LauncherProcess,
)
from turngym.sandbox.base import (
    Capabilities,
    Change,
    Enforcement,
    Isolation,
    LayerRef,
    Limits,
    Quota,
    SandboxSpec,
)
from turngym.sandbox.launcher import cgroups
from turngym.sandbox.launcher.layers import FIRST, MAX_LAYERS

MAX_CHANGES = 250_000
"""More than a sandbox of the usual ``Limits.inodes`` can make; a long path counts as several."""


@dataclass(frozen=True, slots=True)
class Started:
    """A guest that answers, and where the launcher keeps what belongs to it."""

    launcher: LauncherProcess
    id: str
    """The launcher's name for it."""
    channel: Channel
    enforced: Mapping[str, Enforcement]
    oom_file: str
    evidence: list[str]


class BubblewrapBackend:
    """Makes sandboxes of bubblewrap; owns one launcher process, started when first needed.

    Its layers and sandboxes end with it. May be used from several event loops.
    """

    name = "bubblewrap"
    isolation: Isolation = "standard"

    def __init__(self, *, quota: Quota | None = None) -> None:
        """Make the back end; all its sandboxes together, forks too, take what ``quota`` allows."""
        self.quota = quota or Quota()
        self._launcher: LauncherProcess | None = None
        self._launching = threading.Lock()
        self._is_closed = False
        self._roots: dict[str, Root] = {}
        self._capabilities: Capabilities | None = None
        self._chains: dict[str, int] = {"skeleton": 0}
        """Committed layers below and including each layer."""

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
        """See `Backend.probe`. Found out once.

        Raises:
            SandboxRefused: A sandbox cannot run anything.
        """
        if self._capabilities is None:
            sandbox = await self.start(SandboxSpec(limits=Limits(enforce="best_effort")))
            try:
                result = await sandbox.exec(["true"], timeout_s=30.0)
                if not result.ok:
                    raise SandboxRefused("it cannot run 'true'", result.stderr.decode()[:200])
                launcher = await self.launcher()
                frozen = await launcher.call("freeze", id=sandbox.running().id, frozen=False)
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
        return await self.start_on(spec, layer_of(spec, self._chains) or "skeleton")

    async def start_on(self, spec: SandboxSpec, layer: str) -> BubblewrapSandbox:
        """Start a sandbox on a layer of the launcher."""
        give_back = self.quota.take(spec.limits)
        try:
            started = await self.start_guest(spec, layer)
        except BaseException:
            give_back()
            raise
        sandbox = BubblewrapSandbox(self, spec, layer, started)
        sandbox.when_closed.append(give_back)
        return sandbox

    async def start_guest(self, spec: SandboxSpec, layer: str) -> Started:
        """Start the processes of a sandbox on ``layer``, and check it from inside.

        Raises:
            SandboxRefused: It came up otherwise than it must, or cannot come up here.
            SandboxUnavailable: It did not come up.
        """
        refusals.check_own_limits(spec.limits)
        launcher = await self.launcher()
        root = await self._root(spec.image, launcher)
        name = uuid.uuid4().hex[:12]
        options = arguments(
            spec, root, overlay=f"{launcher.base}/sandboxes/{name}/m",
            runtime=f"{launcher.base}/runtime", watch_memory=spec.limits.enforce == "best_effort",
        )  # fmt: skip
        ours, theirs = socket.socketpair()
        try:
            with theirs:  # once the guest has it, our copy would hide the guest's end
                answer = await launcher.call(
                    "start",
                    fds=[theirs.fileno()],
                    id=name,
                    layer=layer,
                    args=options,
                    seccomp=seccomp.bpf(
                        allow_ptrace=spec.allow_ptrace, system_v=launcher.facts["system_v"]
                    ).hex(),
                    limits=limits_json(spec.limits),
                    strict=spec.limits.enforce == "strict",
                )
            channel = Channel(SocketStream(ours), name)
            facts = await channel.open()
        except LauncherError as error:
            ours.close()
            raise refusals.of_start(str(error), spec) from None
        except SandboxDied:
            # Bubblewrap says why on its standard error, which the launcher has once all is gone.
            messages = (await launcher.call("kill", id=name))["messages"]
            raise refusals.of_start(messages, spec) from None
        except BaseException:
            ours.close()
            with contextlib.suppress(SandboxUnavailable):  # then the sandbox has ended with it
                launcher.ask("kill", id=name)
            raise
        return await self._checked(launcher, name, channel, spec, answer, facts)

    async def _checked(
        self,
        launcher: LauncherProcess,
        name: str,
        channel: Channel,
        spec: SandboxSpec,
        answer: Answer,
        facts: dict[str, str],
    ) -> Started:
        """Return what was started, or end it where its guest reports another cage than wanted."""
        try:
            evidence = refusals.check_greeting(
                facts,
                spec,
                host_uid=answer["uid"],
                # A plain user's launcher sees itself as 0 of its user namespace, sandboxes too.
                wanted_uid=max(FIRST, answer["user"]) if launcher.facts["root"] else 0,
                system_v=launcher.facts["system_v"],
            )
        except SandboxRefused:
            await channel.close()
            await launcher.call("kill", id=name)
            raise
        # RLIMIT_NPROC is counted per user namespace, and each sandbox has one.
        enforced: dict[str, Enforcement] = {"memory": "watched", "pids": "exact", "cpus": "none"}
        enforced |= answer["enforced"]  # what the kernel holds for the whole sandbox
        return Started(launcher, name, channel, enforced, answer["oom_file"], evidence)

    async def _root(self, image: str, launcher: LauncherProcess) -> Root:
        if image not in self._roots:
            is_host = image == "host"
            make = images.host_etc if is_host else partial(images.unpacked, image)
            folder = await asyncio.to_thread(make)
            entries = images.host_entries() if is_host else images.root_entries(folder)
            # Only the launcher's mounts are seen by the sandboxes' user.
            path = (await launcher.call("image", folder=str(folder)))["path"]
            if not is_host:
                entries = [
                    replace(entry, source=f"{path}/{entry.name}") if entry.source else entry
                    for entry in entries
                ]
            self._roots[image] = Root(entries=entries, etc=path if is_host else "")
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
        return await self.layer_ref(answer["layer"])

    async def layer_ref(self, layer: str) -> LayerRef:
        """Return the handle of a layer that exists, with its digest.

        Raises:
            SnapshotError: It cannot be read.
        """
        try:
            digest = (await (await self.launcher()).call("digest", layer=layer))["digest"]
        except LauncherError as error:
            raise SnapshotError(f"layer {layer!r}: its digest: {error}") from None
        return LayerRef(id=layer, backend=self.name, digest=digest)

    async def flat(self, layer: str, below: str, limits: Limits) -> str:
        """Return a committed layer, or one that stands for a stack that has grown too high.

        Args:
            layer: What was committed.
            below: What it stands on.
            limits: Of the sandbox.

        Raises:
            SnapshotError: The stack cannot be merged.
        """
        self._chains[layer] = self._chains.get(below, 0) + 1
        if self._chains[layer] < MAX_LAYERS:
            return layer  # each layer costs a path in the options of a mount, which the kernel caps
        launcher = await self.launcher()
        several = replace(limits, disk_bytes=2 * limits.disk_bytes, inodes=2 * limits.inodes)
        try:
            answer = await launcher.call("flatten", layer=layer, limits=limits_json(several))
        except LauncherError as error:
            raise SnapshotError(
                f"snapshot: cannot merge {self._chains[layer]} layers: {error}"
            ) from None
        merged = str(answer["layer"])
        self._chains[merged] = 1
        await launcher.call("drop", layer=layer)
        return merged

    async def drop(self, layer: LayerRef) -> None:
        if self._chains.pop(layer.id, None) is not None and not self._is_closed:
            await (await self.launcher()).call("drop", layer=layer.id)

    # The end

    async def sweep(self) -> int:
        """See `Backend.sweep`. Mounts and processes end with their launcher; groups may stay."""
        return int((await self.launcher()).facts["swept"])

    async def close(self) -> None:
        await asyncio.to_thread(self._shut_down)

    def _shut_down(self) -> None:
        with self._launching:
            self._is_closed = True
            launcher, self._launcher = self._launcher, None
        if launcher is not None:
            launcher.close()


class BubblewrapSandbox(GuestSandbox):
    """One sandbox of bubblewrap.

    A snapshot of an idle sandbox commits what it wrote, without a copy; the sandbox starts again on
    top of it when it is next used. With commands that run, or processes in the background, what was
    written is copied instead while all are frozen, and they go on. Requests that come during a
    snapshot wait for its end, and it waits for files that are just being copied in or out.
    """

    isolation: Isolation = "standard"

    def __init__(
        self, backend: BubblewrapBackend, spec: SandboxSpec, layer: str, started: Started
    ) -> None:
        super().__init__(started.channel, spec, id=started.id, enforced=started.enforced)
        self._backend = backend
        self._layer = layer
        self._own_layers: list[str] = []
        """Committed since the start, oldest first; what `diff` looks at."""
        self._started: Started | None = started
        self._restart_lock = asyncio.Lock()
        self.evidence = started.evidence

    def running(self) -> Started:
        """Return the processes that it has at the moment.

        Raises:
            SandboxDied: It was committed and could not start again.
        """
        if self._started is None:
            raise SandboxDied(f"sandbox {self.id} died: it was committed and could not start again")
        return self._started

    async def _settled(self) -> None:
        await super()._settled()
        if self._started is None:
            async with self._restart_lock:
                if self._started is None:
                    self._started = await self._backend.start_guest(self.spec, self._layer)
                    self._channel = self._started.channel
                    await self._started.launcher.call("unhold", layer=self._layer)
                    if self._is_closed:  # closed while it started: `close` found nothing to end
                        await self._channel.close()
                        await self._end()
                        await super()._settled()

    def _oom_kills(self) -> int:
        return cgroups.oom_kills(self._started.oom_file if self._started else "")

    async def _freeze(self, frozen: bool) -> None:
        if not (await self._ask("freeze", frozen=frozen))["done"]:
            await super()._freeze(frozen)

    async def _disk_use(self) -> tuple[int | None, int | None]:
        answer = await self._ask("usage")
        return int(answer["bytes"]), int(answer["inodes"])

    async def _ask(self, do: str, **fields: Any) -> Answer:  # JSON
        """Ask the launcher to ``do`` something with this sandbox.

        Raises:
            SandboxDied: It cannot: all that it knew of the sandbox went when that died.
        """
        started = self.running()
        try:
            return await started.launcher.call(do, id=started.id, **fields)
        except LauncherError as error:
            raise SandboxDied(f"sandbox {self.id} died: {error}") from None

    async def diff(self) -> list[Change]:
        """See `Sandbox.diff`. Read from what the overlay keeps, not by comparing trees.

        Raises:
            SandboxFileTooLarge: There are too many changes.
        """
        async with self._lock.exclusive():
            await self._settled()
            async with self._frozen():  # or a tree would be read that never was as a whole
                answer = await self._ask("diff", layers=self._own_layers, limit=MAX_CHANGES)
        if answer["changes"] is None:
            raise SandboxFileTooLarge(f"diff: more than {MAX_CHANGES} changes")
        return [Change(path=path, kind=kind) for path, kind in answer["changes"]]

    @contextlib.asynccontextmanager
    async def _frozen(self) -> AsyncIterator[None]:
        await self._freeze(True)
        try:
            yield
        finally:
            if not self._is_paused:
                await self._freeze(False)

    async def snapshot(self) -> LayerRef:
        return await self._backend.layer_ref(await self._commit())

    async def _is_idle(self) -> bool:
        if self._is_paused:
            return False  # frozen, it could not answer
        processes, _, jobs = (await self._channel.call("stats"))[:3]
        return to_int(processes) == 0 and to_int(jobs) == 0

    async def _commit(self) -> str:
        async with self._lock.exclusive():
            await self._settled()
            started = self.running()
            is_idle = await self._is_idle()
            try:
                layer = await (self._commit_idle if is_idle else self._copy_busy)(started)
            except LauncherError as error:
                if isinstance(error, LauncherGone) or not self._channel.is_alive:
                    raise SandboxDied(f"sandbox {self.id} died before its snapshot") from None
                raise SnapshotError(f"sandbox {self.id}: snapshot: {error}") from None
            layer = await self._backend.flat(layer, self._layer, self.spec.limits)
            if is_idle:
                self._layer = layer
                self._own_layers.append(layer)
            return layer

    async def _commit_idle(self, started: Started) -> str:
        # Its processes end: an upper folder may become a layer only when nothing writes to it. The
        # sandbox starts again on that layer when it is next used (`_settled`).
        self._started = None
        answer = await started.launcher.call("commit", id=started.id)
        await self._channel.close()
        return str(answer["layer"])

    async def _copy_busy(self, started: Started) -> str:
        async with self._frozen():
            limits = limits_json(self.spec.limits)
            answer = await started.launcher.call("copy", id=started.id, limits=limits)
        return str(answer["layer"])

    async def _fork(self, n: int) -> list[GuestSandbox | Exception]:
        layer = await self._commit()
        outcomes = await asyncio.gather(
            *(self._backend.start_on(self.spec, layer) for _ in range(n)), return_exceptions=True
        )
        # Ours until no sandbox stands on it any more.
        await (await self._backend.launcher()).call("drop", layer=layer)
        return settled(outcomes)

    async def _release(self) -> None:
        async with self._lock.exclusive():  # what is just being committed has to be let go, too
            await self._end()

    async def _end(self) -> None:
        # Without the launcher everything it started is gone too.
        with contextlib.suppress(SandboxFault, LauncherError, SandboxClosed):
            if self._started is not None:
                await self._started.launcher.call("kill", id=self._started.id)
            else:
                await (await self._backend.launcher()).call("unhold", layer=self._layer)


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


def limits_json(limits: Limits) -> dict[str, float]:
    """Return the limits of a whole sandbox as the launcher reads them."""
    names = ("memory_bytes", "pids", "cpus", "disk_bytes", "inodes")
    return {name: getattr(limits, name) for name in names}
