"""Sandboxes of E2B and of every service that speaks its protocol.

Two halves, both HTTP with JSON: an interface that makes and ends sandboxes, and ``envd`` inside
each, which starts processes (Connect streams) and takes files.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shlex
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, aclosing, suppress
from typing import TYPE_CHECKING, Any

from turngym.errors import SandboxRefused, SandboxUnavailable
from turngym.plugins import import_extra
from turngym.sandbox.backends.machine import Machine, MachineBackend, guest_command, runtime_archive
from turngym.sandbox.backends.runtime import runtime_folder
from turngym.sandbox.base import Quota, SandboxSpec

if TYPE_CHECKING:
    import httpx

_ENVD_PORT = 49983
_PATIENCE_S = 60.0
_CHUNK = 1 << 20
_END = 2
"""Flag of the last message of a Connect stream."""
_HOME = "/tmp/turngym"
_MARGIN_S = 600
"""A sandbox outlives its time by this much, so that it is us who end it."""


class E2BBackend(MachineBackend):
    """Machines of E2B, each a Firecracker virtual machine by its word.

    Args:
        api_key: Of the account; ``E2B_API_KEY`` if empty.
        domain: Of the service; ``E2B_DOMAIN``, or ``e2b.app``, if empty.
        api_url: Where sandboxes are made; ``https://api.DOMAIN`` if empty.
        sandbox_url: Where all sandboxes are reached, distinguished by headers; one address each if
            empty.
        lifetime_s: Seconds after which the service ends a sandbox of a spec that sets none.
        internet: Let commands reach the internet.
        quota: What all sandboxes together may take.

    Raises:
        SandboxRefused: There is no key.
    """

    name = "e2b"

    def __init__(
        self,
        *,
        api_key: str = "",
        domain: str = "",
        api_url: str = "",
        sandbox_url: str = "",
        lifetime_s: float = 3600.0,
        internet: bool = False,
        quota: Quota | None = None,
    ) -> None:
        self._key = api_key or os.environ.get("E2B_API_KEY", "")
        if not self._key:
            raise SandboxRefused("'e2b' has no key", "", "Set E2B_API_KEY, or pass api_key=")
        self._domain = domain or os.environ.get("E2B_DOMAIN", "") or "e2b.app"
        self._api_url = (api_url or f"https://api.{self._domain}").rstrip("/")
        self._sandbox_url = sandbox_url.rstrip("/")
        self._lifetime_s = lifetime_s
        self._internet = internet
        self._httpx = import_extra("httpx", "sandbox 'e2b'", "remote")
        super().__init__(isolation="strong", quota=quota)

    async def machine(self, spec: SandboxSpec, undo: AsyncExitStack) -> Machine:
        """See `MachineBackend.machine`. The spec's image is the name of a template."""
        client: httpx.AsyncClient = self._httpx.AsyncClient(timeout=_PATIENCE_S)
        undo.push_async_callback(client.aclose)
        creation = asyncio.ensure_future(self._create(client, spec))
        try:
            made = await asyncio.shield(creation)
        except asyncio.CancelledError:
            with suppress(SandboxUnavailable, SandboxRefused):
                await self._end(client, (await creation)["sandboxID"])
            raise
        streams: list[EnvdStream] = []

        async def release() -> None:
            for one in streams:
                with suppress(self._httpx.HTTPError):
                    await one.settled()
            await self._end(client, made["sandboxID"])

        undo.push_async_callback(release)
        try:
            envd = _Envd(client, self._url(made), _headers(made))
            await envd.upload(f"{_HOME}/runtime.tgz", runtime_archive())
            runtime = f"{_HOME}/{runtime_folder().name}"
            await envd.run(
                f"mkdir -p {_HOME}/workspace {_HOME}/home {runtime} && "
                f"tar -xzf {_HOME}/runtime.tgz -C {runtime} && rm {_HOME}/runtime.tgz"
            )
            guest = shlex.join(guest_command(spec, runtime))
            script = f"cd {_HOME}/workspace && exec {guest} 2>/dev/null"
            streams.append(await envd.start(script))
        except (self._httpx.HTTPError, EOFError) as error:
            raise SandboxUnavailable(_one_line(error)) from error
        return Machine(id=made["sandboxID"], folder=_HOME, stream=streams[0])

    async def _end(self, client: httpx.AsyncClient, name: str) -> None:
        """Have the service end a sandbox; after three tries in vain its time ends it."""
        for _ in range(3):  # a connection that idled may be gone
            with suppress(self._httpx.HTTPError):
                url, headers = f"{self._api_url}/sandboxes/{name}", {"x-api-key": self._key}
                if (await client.delete(url, headers=headers)).status_code < 500:
                    return

    async def _create(self, client: httpx.AsyncClient, spec: SandboxSpec) -> dict[str, Any]:
        body = {
            "templateID": "base" if spec.image == "host" else spec.image,
            "timeout": int((spec.limits.lifetime_s or self._lifetime_s) + _MARGIN_S),
            "metadata": {"owner": "turngym"},
            "allow_internet_access": self._internet,
        }
        status, found = await self._post(client, "/v2/sandboxes", body)
        if status in (404, 405) and not found.get("message"):  # a service that has only the first
            status, found = await self._post(client, "/sandboxes", {**body, "secure": True})
        if status < 300 and found.get("sandboxID"):
            return found
        text = f"{self._api_url}: {status}: {str(found.get('message', ''))[:300]}"
        if status in (400, 401, 403, 404):
            raise SandboxRefused("'e2b' makes no such sandbox", text, "Check key and template")
        raise SandboxUnavailable(text)

    async def _post(
        self, client: httpx.AsyncClient, path: str, body: Mapping[str, Any]
    ) -> tuple[int, dict[str, Any]]:
        """Return status and answer, empty where it is no JSON object."""
        try:
            answer = await client.post(
                f"{self._api_url}{path}", json=body, headers={"x-api-key": self._key}
            )
        except self._httpx.HTTPError as error:
            raise SandboxUnavailable(f"{self._api_url}: {_one_line(error)}") from error
        try:
            found = answer.json()
        except ValueError:
            found = {}
        return answer.status_code, found if isinstance(found, dict) else {}

    def _url(self, made: Mapping[str, Any]) -> str:
        host = made.get("domain") or self._domain
        return self._sandbox_url or f"https://{_ENVD_PORT}-{made['sandboxID']}.{host}"


def _headers(made: Mapping[str, Any]) -> dict[str, str]:
    """Return what a request to a sandbox carries: who asks, and for which sandbox."""
    rows = {"e2b-sandbox-id": str(made["sandboxID"]), "e2b-sandbox-port": str(_ENVD_PORT)}
    if token := made.get("envdAccessToken"):
        rows["x-access-token"] = str(token)
    return rows


class _Envd:
    """The half of the protocol that a sandbox answers itself."""

    def __init__(self, client: httpx.AsyncClient, url: str, headers: Mapping[str, str]) -> None:
        self._client, self._url, self._headers = client, url, headers

    async def upload(self, path: str, data: bytes) -> None:
        answer = await self._client.post(
            f"{self._url}/files",
            params={"path": path},
            files={"file": (path, data)},
            headers=self._headers,
        )
        answer.raise_for_status()

    async def run(self, script: str) -> None:
        """Run a script to its end.

        Raises:
            SandboxUnavailable: It failed.
        """
        said = b""
        async with aclosing(self._events(script, stdin=False)) as events:
            async for event in events:
                data = event.get("data", {})
                said += base64.b64decode(data.get("stdout") or data.get("stderr") or b"")
                if "end" in event:
                    if code := event["end"].get("exitCode", 0):
                        text = said.decode("utf-8", "replace").strip()[-300:]
                        raise SandboxUnavailable(f"{script[:60]}: exit code {code}: {text}")
                    return
        raise EOFError("the stream of a process broke off")

    async def start(self, script: str) -> EnvdStream:
        """Start a script and return its standard input and output."""
        events = self._events(script, stdin=True)
        async for event in events:
            if "start" in event:
                return EnvdStream(self, events, int(event["start"]["pid"]))
        raise EOFError("the process did not start")

    async def send(self, pid: int, data: bytes) -> None:
        """Write to a process's standard input."""
        answer = await self._client.post(
            f"{self._url}/process.Process/SendInput",
            json={
                "process": {"pid": pid},
                "input": {"stdin": base64.b64encode(data).decode("ascii")},
            },
            headers={**self._headers, "connect-protocol-version": "1"},
        )
        answer.raise_for_status()

    async def _events(self, script: str, *, stdin: bool) -> AsyncGenerator[dict[str, Any], None]:
        """Start a script; yield what happens to it."""
        import httpx

        body = {"process": {"cmd": "/bin/sh", "args": ["-c", script]}, "stdin": stdin}
        payload = json.dumps(body).encode()
        headers = {
            **self._headers,
            "content-type": "application/connect+json",
            "connect-protocol-version": "1",
            "keepalive-ping-interval": "50",
        }
        async with self._client.stream(
            "POST",
            f"{self._url}/process.Process/Start",
            content=b"\0" + len(payload).to_bytes(4, "big") + payload,
            headers=headers,
            timeout=httpx.Timeout(_PATIENCE_S, read=None),
        ) as answer:
            answer.raise_for_status()
            rest = bytearray()
            async for chunk in answer.aiter_bytes():
                rest += chunk
                while len(rest) >= 5 and len(rest) >= (
                    size := 5 + int.from_bytes(rest[1:5], "big")
                ):
                    flags, message = rest[0], json.loads(rest[5:size])
                    del rest[:size]
                    if flags & _END:
                        if error := message.get("error"):
                            raise EOFError(str(error.get("message") or error.get("code"))[:300])
                        return
                    yield message.get("event", {})


class EnvdStream:
    """Standard input and output of a process in a sandbox, as a connection."""

    def __init__(self, envd: _Envd, events: AsyncGenerator[dict[str, Any], None], pid: int) -> None:
        self._envd, self._events, self._pid = envd, events, pid
        self._rest = bytearray()
        self._turn = asyncio.Lock()
        self._is_closed = False

    async def read_exactly(self, size: int) -> bytes:
        """See `ByteStream.read_exactly`."""
        import httpx

        try:
            while len(self._rest) < size:
                event = await anext(self._events, None)
                if event is None or "end" in event or self._is_closed:
                    raise EOFError
                self._rest += base64.b64decode(event.get("data", {}).get("stdout", ""))
        except (httpx.HTTPError, ValueError) as error:
            raise EOFError(_one_line(error)) from error
        taken = bytes(self._rest[:size])
        del self._rest[:size]
        return taken

    async def write(self, data: bytes) -> None:
        """See `ByteStream.write`."""
        import httpx

        for at in range(0, len(data), _CHUNK):
            async with self._turn:
                if self._is_closed:
                    raise OSError("closed")
                try:
                    await self._envd.send(self._pid, data[at : at + _CHUNK])
                except httpx.HTTPError as error:
                    raise OSError(_one_line(error)) from error

    def close(self) -> None:
        """See `ByteStream.close`. The process ends with its machine."""
        self._is_closed = True

    async def settled(self) -> None:
        """Close, and wait until no request runs any more."""
        self.close()
        async with self._turn:
            await self._events.aclose()


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
