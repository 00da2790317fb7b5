"""The only way out of one episode's browser: an HTTP proxy on loopback that holds its policy.

Each site of a task has a name (``http://shop.test/``) that is the same in every episode and on
every machine; the proxy sends its requests to the server of this episode, or answers them itself.
Everything else is refused, so two episodes cannot meet and nothing leaves the machine. It also
knows how many requests are under way, which is how a step knows that a page has gone quiet.
"""

from __future__ import annotations

import asyncio
import mimetypes
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

_MAX_HEAD_BYTES = 64 << 10
_CHUNK_BYTES = 64 << 10
_CONNECT_TIMEOUT_S = 5.0
_TEXT_TYPES = ("text/", "application/javascript", "application/json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """What a site answers to one request."""

    body: bytes = b""
    status: int = 200
    type: str = "text/html; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Server:
    """A site that a program on this machine serves."""

    port: int = 80
    host: str = "127.0.0.1"
    socket: str = ""
    """Path of the Unix socket that it listens on instead of a port."""

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return a new connection to it."""
        if self.socket:
            return await asyncio.open_unix_connection(self.socket)
        return await asyncio.open_connection(self.host, self.port)


Pages = Callable[[str], Response | Awaitable[Response]]
"""A site that answers in this process: path with query -> response."""

Site = Server | Pages


class Folder:
    """A site made of the files of one folder; nothing outside of it is ever served.

    An address that ends in ``/`` is that folder's ``index.html``.

    Files are kept in memory, because every episode asks for the same few.
    """

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        self._known: dict[str, Response] = {}

    def __call__(self, path: str) -> Response:
        name = unquote(urlsplit(path).path)
        if name not in self._known:
            self._known[name] = self._read(name)
        return self._known[name]

    def _read(self, name: str) -> Response:
        try:
            name += "index.html" if name.endswith("/") else ""
            file = (self._root / name.lstrip("/")).resolve()
            body = file.read_bytes() if file.is_relative_to(self._root) else None
        except (OSError, ValueError):
            body = None
        if body is None:
            return Response(status=404, body=b"Not found")
        kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        kind += "; charset=utf-8" if kind.startswith(_TEXT_TYPES) else ""
        return Response(body=body, type=kind)


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    target: str
    """As the browser wrote it: absolute, or ``host:port`` for CONNECT."""
    headers: tuple[tuple[str, str], ...]

    def header(self, name: str) -> str:
        return next((value for key, value in self.headers if key.lower() == name), "")


class EgressProxy:
    """One proxy, for one browser context.

    Args:
        sites: Host name to what answers for it.
        allow: Hosts beyond this machine that may be reached as they are; empty by default.
    """

    def __init__(self, sites: Mapping[str, Site], allow: Collection[str] = ()) -> None:
        self._sites = dict(sites)
        self._allow = frozenset(allow)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._open = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.refused: list[str] = []
        """Hosts that were asked for and refused, in order."""

    @property
    def address(self) -> str:
        """Address that the browser uses as its proxy."""
        assert self._server is not None, "the proxy is not open"
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    @property
    def is_idle(self) -> bool:
        """No request is under way."""
        return self._open == 0

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no request is under way; False when that took too long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        return self.is_idle

    def admits(self, url: str) -> bool:
        """Say whether a page may be opened at ``url``."""
        try:
            parts = urlsplit(url)
            host = parts.hostname or ""
        except ValueError:  # no address at all
            return False
        if parts.scheme not in ("http", "https"):
            return False
        return (host in self._sites and parts.scheme == "http") or host in self._allow

    def serve(self, sites: Mapping[str, Site], allow: Collection[str] = ()) -> None:
        """Take other ``sites`` and ``allow``, as the constructor does."""
        self._sites, self._allow = dict(sites), frozenset(allow)

    async def open(self) -> None:
        """Listen on a port of this machine."""
        self._server = await asyncio.start_server(
            self._connected, "127.0.0.1", 0, limit=_MAX_HEAD_BYTES
        )

    async def close(self) -> None:
        """Stop, and cut off what is under way. Safe to call twice."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # Not in the task: one that is cancelled before it starts would leave the connection open.
        task.add_done_callback(lambda _: writer.close())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await _read_request(reader)) is not None:
                if request.method == "CONNECT":  # may stay open for as long as the page does
                    return await self._connect(request, reader, writer)
                if not await self._counted(request, reader, writer):
                    break
        except (OSError, ValueError, asyncio.LimitOverrunError):
            pass  # the browser went away in the middle, or does not speak HTTP

    async def _counted(
        self, request: _Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answer one request; False when the connection ends with it."""
        self._open += 1
        self._idle.clear()
        try:
            return await self._answer(request, reader, writer)
        finally:
            self._open -= 1
            if self._open == 0:
                self._idle.set()

    async def _connect(
        self, request: _Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Carry what a page says to a host over TLS, or to a site of its own by WebSocket."""
        host, _, port = request.target.rpartition(":")
        site = self._sites.get(host) if port == "80" else None
        if host in self._allow:
            await _tunnel(Server(int(port), host), reader, writer)
        elif isinstance(site, Server):
            await _tunnel(site, reader, writer)
        else:
            await self._refuse(host, writer)

    async def _answer(
        self, request: _Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        parts = urlsplit(request.target)
        host = parts.hostname or ""
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        site = self._sites.get(host)
        if site is None and host in self._allow:
            site = Server(parts.port or 80, host)
        if site is None:
            return await self._refuse(host, writer)
        if isinstance(site, Server):
            return await _forward(site, request, path, reader, writer)
        await _read_body(request, reader)
        response = site(path)
        if not isinstance(response, Response):
            response = await response
        await _write(writer, response, with_body=request.method != "HEAD")
        return True

    async def _refuse(self, host: str, writer: asyncio.StreamWriter) -> bool:
        self.refused.append(host)
        body = f"<title>Refused</title>{host} is not part of this task.".encode()
        await _write(writer, Response(status=403, body=body))
        return True


async def _read_request(reader: asyncio.StreamReader) -> _Request | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None  # the browser is done with this connection
    first, *lines = head[:-4].decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ", 2)
    headers = [line.split(":", 1) for line in lines]
    return _Request(method, target, tuple((key.strip(), value.strip()) for key, value in headers))


async def _read_body(request: _Request, reader: asyncio.StreamReader) -> None:
    left = int(request.header("content-length") or 0)
    while left > 0 and (part := await reader.read(min(left, _CHUNK_BYTES))):
        left -= len(part)


async def _write(
    writer: asyncio.StreamWriter, response: Response, *, with_body: bool = True
) -> None:
    headers = [
        ("Content-Type", response.type),
        ("Content-Length", str(len(response.body))),
        *response.headers,
    ]
    lines = [f"HTTP/1.1 {response.status} {'OK' if response.status < 400 else 'Error'}"]
    lines += [f"{key}: {value}" for key, value in headers]
    writer.write("\r\n".join([*lines, "", ""]).encode("latin-1"))
    if with_body:
        writer.write(response.body)
    await writer.drain()


async def _forward(
    site: Server,
    request: _Request,
    path: str,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> bool:
    """Send one request to a server and its answer back. One connection per request."""
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            up_reader, up_writer = await site.connect()
    except (OSError, TimeoutError):
        await _read_body(request, reader)
        await _write(writer, Response(status=502, body=b"The site does not answer"))
        return True
    dropped = ("connection", "proxy-connection", "keep-alive", "upgrade")
    lines = [f"{request.method} {path} HTTP/1.1"]
    lines += [f"{key}: {value}" for key, value in request.headers if key.lower() not in dropped]
    up_writer.write("\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1"))
    try:
        left = int(request.header("content-length") or 0)
        while left > 0 and (part := await reader.read(min(left, _CHUNK_BYTES))):
            left -= len(part)
            up_writer.write(part)
            await up_writer.drain()
        await _copy(up_reader, writer)
    finally:
        up_writer.close()
    return False


async def _tunnel(site: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        up_reader, up_writer = await site.connect()
    except OSError:
        return await _write(writer, Response(status=502))
    writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
    ways = [
        asyncio.ensure_future(_copy(*ends)) for ends in ((reader, up_writer), (up_reader, writer))
    ]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        up_writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while part := await reader.read(_CHUNK_BYTES):
        writer.write(part)
        await writer.drain()
