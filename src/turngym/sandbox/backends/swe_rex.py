"""Sandboxes on a machine that runs SWE-ReX's remote server (``swerex-remote``).

The server runs one command at a time and has no streams, so the guest listens on two named pipes,
and each request to the server takes what goes in and brings what came out.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import shlex
import uuid
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from turngym.errors import SandboxRefused, SandboxUnavailable
from turngym.plugins import import_extra
from turngym.sandbox.backends.machine import Machine, MachineBackend, guest_command, runtime_archive
from turngym.sandbox.backends.runtime import runtime_folder
from turngym.sandbox.base import Isolation, Quota, SandboxSpec

if TYPE_CHECKING:
    import httpx

_PATIENCE_S = 120.0
_CHUNK = 48 << 10
"""Bytes sent at once: in base64 they are one argument of a shell, of 128 KiB at most."""
_SHORTEST_S, _LONGEST_S = 0.01, 0.25
"""Between two looks for an answer; twice as long after each that found none."""
_SILENCE_S = 120
"""A guest ends when it was not asked for so long."""
_ROOT = "/tmp/turngym"

_HOLD = """
cd {folder}/workspace
exec 3<>{folder}/in 4<>{folder}/out
echo $$ > {folder}/holder
( {guest} <{folder}/in >{folder}/out 2>/dev/null; : > {folder}/ended ) 3>&- 4>&- &
while [ ! -e {folder}/ended ] && [ -n "$(find {folder}/asked -newermt '-{silence} seconds')" ]
do sleep 2 3>&- 4>&-; done
"""
"""Holds both pipes open, so that neither ends between two requests. When it goes, the guest reads
the end of its input and ends every command with it."""
_EXCHANGE = """
cd {folder} && : > asked
{send}
k=0
while [ $k -lt 16 ]; do
  s=$(dd if=out bs=65536 count=1 iflag=nonblock 2>/dev/null | base64 -w0)
  [ -n "$s" ] || break
  echo "$s"; k=$((k+1))
done
if [ $k = 0 ] && [ -e ended ]; then echo .; fi
"""
"""Looks once: a request that waits in the server keeps all others out."""


class SweRexBackend(MachineBackend):
    """Sandboxes on one server; they share its machine and see each other's processes.

    Args:
        url: Of the server.
        token: That it was started with; ``SWE_REX_TOKEN`` if empty.
        isolation: What the machine behind the server gives; only its owner knows.
        quota: What all sandboxes together may take.
    """

    name = "swe-rex"

    def __init__(
        self,
        *,
        url: str = "",
        token: str = "",
        isolation: Isolation = "none",
        quota: Quota | None = None,
    ) -> None:
        self._url = (url or os.environ.get("SWE_REX_URL", "")).rstrip("/")
        if not self._url:
            raise SandboxRefused(
                "'swe-rex' has no server", "", "Set SWE_REX_URL, or pass url=; see swerex-remote"
            )
        self._token = token or os.environ.get("SWE_REX_TOKEN", "")
        self._httpx = import_extra("httpx", "sandbox 'swe-rex'", "remote")
        super().__init__(isolation=isolation, quota=quota)

    def _refuse(self, spec: SandboxSpec) -> None:
        super()._refuse(spec)
        if spec.image != "host":
            raise SandboxRefused(
                "'swe-rex' has the image of its server", f"image {spec.image!r}", "Leave it out"
            )

    async def machine(self, spec: SandboxSpec, undo: AsyncExitStack) -> Machine:
        headers = {"x-api-key": self._token} if self._token else {}
        client: httpx.AsyncClient = self._httpx.AsyncClient(
            base_url=self._url, headers=headers, timeout=_PATIENCE_S
        )
        server = _Server(client)
        name = uuid.uuid4().hex[:12]
        folder = f"{_ROOT}-{name}"
        stream = PolledStream(server, folder)

        async def release() -> None:
            # The holder's end is the guest's, and the guest ends all its commands.
            script = (
                f"kill $(cat {folder}/holder) 2>/dev/null; n=0; "
                f"while [ ! -e {folder}/ended ] && [ $n -lt 100 ]; "
                f"do n=$((n+1)); sleep 0.05; done; rm -rf {folder}"
            )
            await stream.settled()
            with contextlib.suppress(OSError):  # a guest that is not asked ends by itself
                await server.run(script)

        undo.push_async_callback(client.aclose)
        undo.push_async_callback(release)
        try:
            runtime = f"{_ROOT}-{runtime_folder().name}"
            if await server.run(f"[ -e {runtime}/whole ] || echo no"):
                await server.upload(f"{folder}.tgz", runtime_archive())
                await server.run(
                    f"mkdir -p {runtime} && tar -xzf {folder}.tgz -C {runtime} && "
                    f"rm {folder}.tgz && : > {runtime}/whole"
                )
            guest = shlex.join(guest_command(spec, runtime))
            hold = _HOLD.format(folder=folder, guest=guest, silence=_SILENCE_S)
            await server.run(
                f"mkdir -p -m 700 {folder} && cd {folder} && mkdir workspace home && "
                f"mkfifo in out && : > asked && "
                f"(setsid sh -c {shlex.quote(hold)} </dev/null >/dev/null 2>&1 &)"
            )
        except OSError as error:
            raise SandboxUnavailable(f"{self._url}: {error}") from error
        return Machine(id=name, folder=folder, stream=stream)


class _Server:
    """What is asked of a server; whatever goes wrong is an ``OSError``."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def run(self, script: str) -> str:
        """Run a script and return what it prints."""
        body = {"command": script, "shell": True, "timeout": _PATIENCE_S, "check": False}
        found = await self._post("/execute", json=body)
        if found.get("exit_code"):
            text = str(found.get("stderr", "")).strip()[-300:]
            raise OSError(f"{script.strip()[:60]!r}: exit code {found['exit_code']}: {text}")
        return str(found.get("stdout", ""))

    async def upload(self, path: str, data: bytes) -> None:
        """Write a file."""
        await self._post(
            "/upload", files={"file": (path, data)}, data={"target_path": path, "unzip": "false"}
        )

    async def _post(self, path: str, **body: Any) -> dict[str, Any]:
        import httpx

        try:
            answer = await self._client.post(path, **body)
            found = answer.json()
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise OSError(f"{path}: {str(error) or type(error).__name__}") from error
        if answer.is_success and isinstance(found, dict):
            return found
        raise OSError(f"{path}: {answer.status_code}: {str(found)[:300]}")


class PolledStream:
    """Two named pipes of a server's machine as a connection."""

    def __init__(self, server: _Server, folder: str) -> None:
        self._server, self._folder = server, folder
        self._rest = bytearray()
        self._turn = asyncio.Lock()
        self._to_send = bytearray()
        self._running = set[asyncio.Task[None]]()
        self._news = asyncio.Event()
        self._pause_s = 0.0
        self._is_closed = False
        self._is_over = False

    async def read_exactly(self, size: int) -> bytes:
        """See `ByteStream.read_exactly`."""
        while len(self._rest) < size:
            if self._is_over or self._is_closed:
                raise EOFError
            if self._pause_s:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._pause_s):
                        await self._news.wait()
            self._news.clear()
            await self._exchange()
        taken = bytes(self._rest[:size])
        del self._rest[:size]
        return taken

    async def write(self, data: bytes) -> None:
        """See `ByteStream.write`. Sent when the exchange that runs is over."""
        if self._is_over or self._is_closed:
            raise OSError("closed")
        self._to_send += data
        while self._to_send and not self._is_over:
            await self._exchange()

    async def _exchange(self) -> None:
        # Goes on when its caller is cancelled: what it takes out of a pipe would be lost.
        task = asyncio.create_task(self._exchanged())
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        await asyncio.shield(task)

    async def _exchanged(self) -> None:
        async with self._turn:
            chunk = bytes(self._to_send[:_CHUNK])
            del self._to_send[:_CHUNK]
            send = f"printf %s {base64.b64encode(chunk).decode()} | base64 -d > in" if chunk else ""
            script = _EXCHANGE.format(folder=self._folder, send=send)
            try:
                lines = (await self._server.run(script)).split()
            except OSError:
                self._is_over = True
                self._news.set()
                raise
            for line in lines:
                if line == ".":
                    self._is_over = True
                else:
                    self._rest += base64.b64decode(line)
            if chunk or lines:
                self._pause_s = 0.0
                self._news.set()
            else:
                self._pause_s = min(max(2 * self._pause_s, _SHORTEST_S), _LONGEST_S)

    async def settled(self) -> None:
        """Close, and wait until no request runs any more."""
        self.close()
        if self._running:
            await asyncio.wait(self._running)

    def close(self) -> None:
        """See `ByteStream.close`."""
        self._is_closed = True
        self._news.set()
