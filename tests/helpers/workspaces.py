"""One sandbox back end for all tests of a module, so that each does not start its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from turngym.environments.workspace.host import SandboxHost


@contextmanager
def shared_host() -> Iterator[SandboxHost]:
    """Hold a lease; the back end may be used from the event loop of every test."""
    host = SandboxHost.lease("bubblewrap")
    try:
        yield host
    finally:
        asyncio.run(host.release())
