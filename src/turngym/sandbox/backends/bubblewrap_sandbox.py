"""One sandbox of bubblewrap: when it is sealed, and how it goes on afterwards."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from turngym.errors import (
    SandboxClosed,
    SandboxDied,
    SandboxFault,
    SandboxFileTooLarge,
    SnapshotError,
)
from turngym.sandbox.backends.channel import Channel, to_int
from turngym.sandbox.backends.guest_sandbox import GuestSandbox, settled
from turngym.sandbox.backends.launcher_client import Answer, LauncherError, LauncherProcess
from turngym.sandbox.base import (
    Change,
    Enforcement,
    Isolation,
    LayerRef,
    Limits,
    SandboxSpec,
)
from turngym.sandbox.launcher import cgroups

if TYPE_CHECKING:
    from turngym.sandbox.backends.bubblewrap import BubblewrapBackend

MAX_CHANGES = 250_000
"""More than a sandbox of the usual ``Limits.inodes`` can make; a long path counts as several."""


class Started:
    """A guest that answers, and where the launcher keeps what belongs to it."""

    def __init__(
        self,
        launcher: LauncherProcess,
        box: str,
        channel: Channel,
        enforced: Mapping[str, Enforcement],
        oom_file: str,
        evidence: list[str],
    ) -> None:
        self.launcher = launcher
        self.box = box
        self.channel = channel
        self.enforced = enforced
        self.oom_file = oom_file
        self.evidence = evidence


class BubblewrapSandbox(GuestSandbox):
    """One sandbox of bubblewrap.

    A snapshot of an idle sandbox seals what it wrote, without a copy; the sandbox starts again on
    top of it when it is next used. With commands that run, or processes in the background, what was
    written is copied instead while all are frozen, and they go on. Requests that come during a
    snapshot wait for its end, and it waits for files that are just being copied in or out.
    """

    isolation: Isolation = "standard"

    def __init__(
        self, backend: BubblewrapBackend, spec: SandboxSpec, layer: str, started: Started
    ) -> None:
        super().__init__(started.channel, spec, id=started.box, enforced=started.enforced)
        self._backend = backend
        self._layer = layer
        self._own_layers: list[str] = []
        """Sealed since the start, oldest first; what `diff` looks at."""
        self._started: Started | None = started
        self._restart_lock = asyncio.Lock()
        self.evidence = started.evidence

    @property
    def box(self) -> str:
        """The launcher's name for it at the moment."""
        return self._running().box

    def _running(self) -> Started:
        if self._started is None:
            raise SandboxDied(f"sandbox {self.id} died: it was sealed and could not start again")
        return self._started

    async def _settled(self) -> None:
        await super()._settled()
        if self._started is None:
            async with self._restart_lock:
                if self._started is None:
                    self._started = await self._backend.start_box(self.spec, self._layer)
                    self._channel = self._started.channel
                    await self._started.launcher.call("unhold", layer=self._layer)
                    if self._is_closed:
                        await self._channel.close()
                        await self._end()
                        await super()._settled()

    def _oom_kills(self) -> int:
        return cgroups.oom_kills(self._started.oom_file if self._started else "")

    async def _freeze(self, frozen: bool) -> None:
        started = self._running()
        answer = await started.launcher.call("freeze", id=started.box, frozen=frozen)
        if not answer["done"]:
            await super()._freeze(frozen)

    async def _disk_use(self) -> tuple[int | None, int | None]:
        started = self._running()
        answer = await started.launcher.call("usage", id=started.box)
        return int(answer["bytes"]), int(answer["inodes"])

    async def diff(self) -> list[Change]:
        """See `Sandbox.diff`. Read from what the overlay keeps, not by comparing trees."""
        async with self._gate.alone():
            answer = await self._diff_frozen()
        if answer["changes"] is None:
            raise SandboxFileTooLarge(f"diff: more than {MAX_CHANGES} changes")
        return [Change(path=path, kind=kind) for path, kind in answer["changes"]]

    async def _diff_frozen(self) -> Answer:
        await self._settled()
        started = self._running()
        await self._freeze(True)
        try:
            return await started.launcher.call(
                "diff", id=started.box, layers=self._own_layers, limit=MAX_CHANGES
            )
        except LauncherError as error:
            raise SandboxDied(f"sandbox {self.id} died: {error}") from None
        finally:
            if not self._is_paused:
                await self._freeze(False)

    async def snapshot(self) -> LayerRef:
        """See `Sandbox.snapshot`."""
        layer = await self._seal()
        return await self._backend.layer_ref(layer, "snapshot")

    async def _seal(self) -> str:
        async with self._gate.alone():
            return await self._seal_alone()

    async def _is_idle(self) -> bool:
        if self._is_paused:
            return False  # frozen, it could not answer
        processes, _, jobs = (await self._channel.call("stats"))[:3]
        return to_int(processes) == 0 and to_int(jobs) == 0

    async def _seal_alone(self) -> str:
        await self._settled()
        started = self._running()
        is_idle = await self._is_idle()
        try:
            if is_idle:
                layer = await self._seal_idle(started)
            else:
                layer = await self._copy_busy(started)
        except LauncherError as error:
            if not self._channel.is_alive:
                raise SandboxDied(f"sandbox {self.id} died before its snapshot") from None
            raise SnapshotError(f"sandbox {self.id}: snapshot: {error}") from None
        self._backend.note_layer(layer, self._layer)
        layer = await self._backend.flat(layer, self.spec.limits)
        if is_idle:
            self._layer = layer
            self._own_layers.append(layer)
        return layer

    async def _seal_idle(self, started: Started) -> str:
        self._started = None
        answer = await started.launcher.call("seal", id=started.box)
        await self._channel.close()
        return str(answer["layer"])

    async def _copy_busy(self, started: Started) -> str:
        await self._freeze(True)
        try:
            limits = limits_json(self.spec.limits)
            answer = await started.launcher.call("copy", id=started.box, limits=limits)
        finally:
            if not self._is_paused:
                await self._freeze(False)
        return str(answer["layer"])

    async def fork(self, n: int) -> list[GuestSandbox | Exception]:
        """See `Sandbox.fork`."""
        if n < 1:
            raise ValueError(f"fork: wanted at least 1, got {n}")
        layer = await self._seal()
        outcomes = await asyncio.gather(
            *(self._backend.start_on(self.spec, layer) for _ in range(n)), return_exceptions=True
        )
        # Ours until nobody stands on it any more.
        await (await self._backend.launcher()).call("drop", layer=layer)
        return settled(outcomes)

    async def _release(self) -> None:
        async with self._gate.alone():  # what is just being sealed has to be let go, too
            await self._end()

    async def _end(self) -> None:
        # Without the launcher everything it started is gone too.
        with contextlib.suppress(SandboxFault, LauncherError, SandboxClosed):
            if self._started is not None:
                await self._started.launcher.call("kill", id=self._started.box)
            else:
                launcher = await self._backend.launcher()
                await launcher.call("unhold", layer=self._layer)


def limits_json(limits: Limits) -> dict[str, float]:
    """Return the limits of a whole sandbox as the launcher reads them."""
    return {
        "memory_bytes": limits.memory_bytes,
        "pids": limits.pids,
        "cpus": limits.cpus,
        "disk_bytes": limits.disk_bytes,
        "inodes": limits.inodes,
    }
