"""Who may use a sandbox at the same time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Gate:
    """Lets any number of requests in, or one that needs the sandbox to itself, in order."""

    def __init__(self) -> None:
        self._door = asyncio.Lock()
        self._users = 0
        self._is_empty = asyncio.Event()

    @contextlib.asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """Wait while somebody is in alone."""
        async with self._door:
            self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                self._is_empty.set()

    @contextlib.asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Let nobody else in, and wait until all have left."""
        async with self._door:
            while self._users:
                self._is_empty.clear()
                await self._is_empty.wait()
            yield
