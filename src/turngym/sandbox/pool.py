"""Sandboxes that are ready before they are asked for, and never more than fit."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace
from typing import Self

from turngym.errors import SandboxClosed, SandboxFault, SandboxUnavailable
from turngym.sandbox.backends.bubblewrap import BubblewrapBackend
from turngym.sandbox.backends.guest_sandbox import GuestSandbox
from turngym.sandbox.backends.unsafe_local import UnsafeLocalBackend
from turngym.sandbox.base import LayerRef, SandboxSpec

HEALTH_TIMEOUT_S = 5.0


class SandboxPool:
    """Hands out fresh sandboxes of one back end; used from one event loop.

    A sandbox is given to one caller, who closes it; none is ever given out twice. ``warm`` of them
    are kept started for the spec that was given, and are looked at before they are handed out. What
    runs at once, forks included, is capped by the back end's quota: `acquire` waits for room.
    """

    def __init__(
        self, backend: BubblewrapBackend | UnsafeLocalBackend, spec: SandboxSpec, *, warm: int = 2
    ) -> None:
        if warm < 0:
            raise ValueError(f"SandboxPool.warm: wanted at least 0, got {warm}")
        if not backend.quota.can_ever_take(spec.limits):
            raise ValueError("SandboxPool: one sandbox of this spec is more than the quota allows")
        self._backend = backend
        self._spec = spec
        self._warm = warm
        self._ready: deque[GuestSandbox] = deque()
        self._filling: asyncio.Task[None] | None = None
        self._room = asyncio.Event()
        self._is_closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        backend.quota.when_freed.append(self._on_freed)

    def _on_freed(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._room.set)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Remove what dead owners left behind and start to fill the pool."""
        self._loop = asyncio.get_running_loop()
        await self._backend.sweep()
        self._refill()

    @property
    def num_ready(self) -> int:
        """Sandboxes that wait to be handed out."""
        return len(self._ready)

    def _refill(self) -> None:
        if self._filling is None or self._filling.done():
            self._filling = asyncio.ensure_future(self._fill())

    async def _fill(self) -> None:
        while not self._is_closed and len(self._ready) < self._warm:
            try:
                sandbox = await self._backend.start(self._spec)
            except SandboxFault:
                return  # no room, or no luck: the next caller finds out which
            self._ready.append(sandbox)
            self._room.set()  # who waits for room may have waited for this one

    async def acquire(
        self, *, workspace: LayerRef | None = None, timeout_s: float | None = None
    ) -> GuestSandbox:
        """Return a fresh sandbox, a warm one where possible; the caller closes it.

        Args:
            workspace: What it starts from, in place of the spec's.
            timeout_s: How long to wait for room.

        Raises:
            SandboxClosed: The pool was closed.
            SandboxUnavailable: There was no room in time.
            SandboxRefused: See `Backend.start`.
        """
        self._loop = asyncio.get_running_loop()
        spec = self._spec if workspace is None else replace(self._spec, workspace=workspace)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._acquire(spec)
        except TimeoutError:
            raise SandboxUnavailable(f"no room for a sandbox within {timeout_s:g} s") from None

    async def _acquire(self, spec: SandboxSpec) -> GuestSandbox:
        while True:
            if self._is_closed:
                raise SandboxClosed("the pool of sandboxes is closed")
            if spec == self._spec:
                while self._ready:
                    sandbox = self._ready.popleft()
                    if await _is_healthy(sandbox):
                        self._refill()
                        return sandbox
                    await sandbox.close()
            self._room.clear()
            try:
                return await self._backend.start(spec)
            except SandboxUnavailable:
                if self._backend.quota.used["sandboxes"] == 0:
                    raise  # not for want of room
                if self._ready:  # warm ones of another spec make room first
                    await self._ready.popleft().close()
                    continue
            await self._room.wait()

    async def close(self) -> None:
        """Close the sandboxes that were not handed out. The others are their owners'."""
        self._is_closed = True
        self._room.set()
        if self._filling is not None:
            self._filling.cancel()
            await asyncio.wait([self._filling])
        while self._ready:
            await self._ready.popleft().close()


async def _is_healthy(sandbox: GuestSandbox) -> bool:
    try:
        async with asyncio.timeout(HEALTH_TIMEOUT_S):
            await sandbox.stats()
    except (SandboxFault, SandboxClosed, TimeoutError):
        return False
    return True
