"""The host's end of the connection to a guest: requests out, answers in, nothing trusted."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
from collections.abc import AsyncIterator
from typing import Protocol

from turngym.errors import SandboxClosed, SandboxDied, SandboxFileError
from turngym.sandbox.guest import wire

HELLO_TIMEOUT_S = 60.0
_READ_BYTES = 1 << 18


class ByteStream(Protocol):
    """Bytes to and from a guest, whatever carries them."""

    async def read_exactly(self, size: int) -> bytes:
        """Return ``size`` bytes; raises ``EOFError`` or ``OSError`` when there are no more."""

    async def write(self, data: bytes) -> None:
        """Send ``data``, waiting while the other side is slow."""

    def close(self) -> None:
        """Let go. Harmless twice."""


class SocketStream:
    """A connected socket. Belongs to the event loop that first uses it."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._loop = asyncio.get_running_loop()
        self._rest = bytearray()

    async def read_exactly(self, size: int) -> bytes:
        while len(self._rest) < size:
            data = await self._loop.sock_recv(self._socket, _READ_BYTES)
            if not data:
                raise EOFError
            self._rest += data
        taken = bytes(self._rest[:size])
        del self._rest[:size]
        return taken

    async def write(self, data: bytes) -> None:
        await self._loop.sock_sendall(self._socket, data)

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            # Who still waits for the descriptor must not be left waiting for its next owner.
            if not self._loop.is_closed():
                self._loop.remove_reader(self._socket)
                self._loop.remove_writer(self._socket)
            self._socket.close()


class GuestError(SandboxFileError):
    """The guest answered with an error of its operating system."""


class Channel:
    """Numbered requests to one guest, any number at a time.

    A frame that does not keep to the protocol ends the connection: every waiting request raises
    `SandboxDied`. The guest cannot make the host hold more than one frame.
    """

    def __init__(self, stream: ByteStream, name: str) -> None:
        self._stream = stream
        self._name = name
        self._numbers = itertools.count(1)
        self._waiting: dict[bytes, asyncio.Future[list[bytes]]] = {}
        self._send_lock = asyncio.Lock()
        self._why_dead: Exception | None = None
        self._reader: asyncio.Task[None] | None = None

    async def open(self) -> dict[str, str]:
        """Wait for the guest's greeting and return what it says of itself.

        Raises:
            SandboxDied: The guest ended before it said anything.
        """
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                _, word, *facts = await self._receive()
        except (EOFError, OSError, ValueError, TimeoutError) as error:
            self._stream.close()
            raise SandboxDied(f"sandbox {self._name}: the guest did not start: {error!r}") from None
        except asyncio.CancelledError:
            self._stream.close()
            raise
        if word != b"hello":
            self._stream.close()
            raise SandboxDied(f"sandbox {self._name}: wanted a greeting, got {word[:40]!r}")
        self._reader = asyncio.create_task(self._read())
        return dict(fact.decode("ascii", "replace").split("=", 1) for fact in facts)

    async def _receive(self) -> list[bytes]:
        size = int.from_bytes(await self._stream.read_exactly(4), "big")
        if size > wire.MAX_FRAME_BYTES:
            raise ValueError(f"frame of {size} bytes")
        fields = wire.load(await self._stream.read_exactly(size))
        if len(fields) < 2:
            raise ValueError(f"frame of {len(fields)} fields")
        return fields

    async def _read(self) -> None:
        why = "its process has ended"
        try:
            while True:
                number, status, *fields = await self._receive()
                future = self._waiting.pop(number, None)
                if future is None or future.done():
                    continue
                if status == b"ok":
                    future.set_result(fields)
                else:
                    future.set_exception(_guest_error(status, fields))
        except ValueError as error:
            why = f"it broke the protocol: {error}"
        except (EOFError, OSError):
            pass
        self.kill(SandboxDied(f"sandbox {self._name} died: {why}"))

    def kill(self, error: Exception) -> None:
        """End the connection; waiting and later requests raise ``error``."""
        self._why_dead = self._why_dead or error
        self._stream.close()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)
                future.exception()  # a caller that was cancelled does not come back for it
        self._waiting.clear()
        reader = self._reader
        if reader is not None and not reader.get_loop().is_closed():
            reader.cancel()  # no harm to a reader that is just ending by itself

    @property
    def is_alive(self) -> bool:
        """True until the connection broke or was closed."""
        return self._why_dead is None

    async def send(self, method: str, *fields: bytes) -> tuple[bytes, asyncio.Future[list[bytes]]]:
        """Send a request; return its number and what becomes its answer.

        Raises:
            SandboxClosed: The sandbox was closed.
            SandboxDied: It is gone.
        """
        if self._why_dead is not None:
            raise self._why_dead.with_traceback(None)
        number = wire.number(next(self._numbers))
        future: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            async with self._send_lock:
                await self._stream.write(wire.frame([number, method.encode(), *fields]))
        except OSError:
            self.kill(SandboxDied(f"sandbox {self._name} died: its guest does not listen"))
        return number, future

    async def call(self, method: str, *fields: bytes) -> list[bytes]:
        """Send a request and return the fields of its answer.

        Raises:
            SandboxFileError: The guest could not do it.
            SandboxClosed: The sandbox was closed.
            SandboxDied: It is gone.
        """
        _, future = await self.send(method, *fields)
        return await future

    async def close(self) -> None:
        """Let go of the guest, which ends itself. Harmless twice."""
        self.kill(SandboxClosed(f"sandbox {self._name} is closed"))
        reader = self._reader
        if reader is not None and reader.get_loop() is asyncio.get_running_loop():
            reader.cancel()
            await asyncio.wait([reader])


def _guest_error(status: bytes, fields: list[bytes]) -> GuestError:
    number = int(status) if status.isdigit() and len(status) < 6 else 5
    text = fields[0].decode("utf-8", "replace")[:500].strip() if fields else ""
    return GuestError(number, text or os.strerror(number))


def to_int(field: bytes, most: int = (1 << 63) - 1) -> int:
    """Return the number in ``field`` that a guest wrote, no larger than ``most``.

    Raises:
        SandboxDied: It is none, or larger than any true one.
    """
    if not field.isdigit() or len(field) > 20 or int(field) > most:
        raise SandboxDied(f"the guest broke the protocol: {field[:40]!r} is no number")
    return int(field)


class RequestLock:
    """Fair readers-writer lock: any number of requests, or one that needs the sandbox alone."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._users = 0
        self._is_empty = asyncio.Event()

    @contextlib.asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """Wait while somebody is in alone."""
        async with self._lock:
            self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                self._is_empty.set()

    @contextlib.asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Wait until all have left, and let none in meanwhile."""
        async with self._lock:
            while self._users:
                self._is_empty.clear()
                await self._is_empty.wait()
            yield
