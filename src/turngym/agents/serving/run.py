"""Run an ASGI application: until a signal comes, or for the length of a block."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from turngym.errors import ConfigError, missing_extra

if TYPE_CHECKING:
    import uvicorn

App = Callable[..., Any]

_KEEP_ALIVE_S = 75
"""For an idle connection. On a busy machine five seconds, as is usual, may pass while the client's
next request is under way, which then fails."""


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens, so that its port is known before it is announced.

    Args:
        host: Address to listen at.
        port: 0 for any free one.

    Raises:
        ConfigError: The port is taken, or the address is not of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(1024)  # a client that knows the address may call before the server takes over
    except OSError as error:
        sock.close()
        raise ConfigError(f"cannot listen at {host}:{port}: {error.strerror or error}") from error
    return sock


def url_of(sock: socket.socket) -> str:
    """Return the address of a bound socket."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def serve_until_signal(app: App, sock: socket.socket) -> None:
    """Serve ``app`` at ``sock`` until Ctrl-C or SIGTERM; a second one cuts what is answered."""
    server = _server(app)

    def stop() -> None:
        server.force_exit, server.should_exit = server.should_exit, True

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    await _quietly(server, sock)


@asynccontextmanager
async def serving(app: App, *, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serve ``app`` at ``host:port`` inside the block; yields ``http://127.0.0.1:4242``, say."""
    sock = bind(host, port)
    server = _server(app)
    task = asyncio.create_task(_quietly(server, sock))
    try:
        while not server.started and not task.done():  # noqa: ASYNC110  (it has no event for it)
            await asyncio.sleep(0.01)
        yield url_of(sock)
    finally:
        server.should_exit = True
        await task
        sock.close()


async def _quietly(server: uvicorn.Server, sock: socket.socket) -> None:
    """Serve without taking over the signals of a program that only wants a server inside."""

    @contextmanager
    def no_signals() -> Iterator[None]:
        yield

    server.capture_signals = no_signals
    await server.serve(sockets=[sock])


def _server(app: App) -> uvicorn.Server:
    try:
        import uvicorn
    except ImportError as error:
        raise missing_extra("a server", "serve") from error
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=5,
        timeout_keep_alive=_KEEP_ALIVE_S,
    )
    return uvicorn.Server(config)
