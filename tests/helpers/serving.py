"""A server inside a test or a benchmark."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from turngym.agents.serving.http import App, bind, make_server, url_of


@asynccontextmanager
async def serving(app: App, *, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serve ``app`` at ``host:port`` inside the block; yields ``http://127.0.0.1:4242``, say."""
    sock = bind(host, port)
    server = make_server(app)
    task = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        while not server.started and not task.done():
            await asyncio.sleep(0.01)
        yield url_of(sock)
    finally:
        server.should_exit = True
        await task
        sock.close()
