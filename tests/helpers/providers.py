"""Stand-ins for services that rent out sandboxes: real processes behind the services' protocols.

`E2BDouble` answers as E2B's interface and ``envd`` do, which the service's own client 2.63 was run
against; each of its sandboxes has a ``/tmp`` of its own. `swe_rex_app` answers as SWE-ReX 1.4 does:
one command at a time.
"""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import subprocess
import threading
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from turngym.agents.serving.http import serving

KEY = "e2b_key-of-the-test"
TOKEN = "token-of-the-test"


class Rented:
    """One sandbox of the stand-in for E2B."""

    def __init__(self, folder: Path) -> None:
        self.id, self.token = f"i{uuid.uuid4().hex[:12]}", uuid.uuid4().hex
        self.folder = folder / self.id
        self.folder.mkdir()
        self.processes: dict[int, asyncio.subprocess.Process] = {}

    async def start(self, config: dict[str, Any], *, stdin: bool) -> asyncio.subprocess.Process:
        """Start a process that sees a ``/tmp`` of its own."""
        argv = [
            "bwrap", "--dev-bind", "/", "/", "--bind", str(self.folder), "/tmp",
            "--unshare-pid", "--proc", "/proc", "--die-with-parent", "--chdir", "/",
            config["cmd"], *config.get("args", []),
        ]  # fmt: skip
        pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        given = pipe if stdin else nothing
        process = await asyncio.create_subprocess_exec(*argv, stdin=given, stdout=pipe, stderr=pipe)
        self.processes[process.pid] = process
        return process

    async def end(self) -> None:
        """Kill every process and, once none can write any more, remove the files."""
        for process in self.processes.values():
            with suppress(ProcessLookupError):
                process.kill()
        for _ in range(100):
            shutil.rmtree(self.folder, ignore_errors=True)
            if not self.folder.exists():
                break
            await asyncio.sleep(0.05)


def _message(body: dict[str, Any], flags: int = 0) -> bytes:
    payload = json.dumps(body).encode()
    return bytes([flags]) + len(payload).to_bytes(4, "big") + payload


class E2BDouble:
    """The service: makes and ends sandboxes, and answers for what is inside them.

    It refuses to end each the first time, as a busy one may.
    """

    def __init__(self, folder: Path, *, version: int = 2) -> None:
        self._folder = folder
        self._path = "/v2/sandboxes" if version == 2 else "/sandboxes"
        self._rented: dict[str, Rented] = {}
        self._asked_to_end: set[str] = set()

    def app(self) -> Any:
        """Return it as an application."""
        from starlette.applications import Starlette
        from starlette.routing import Route

        return Starlette(
            routes=[
                Route(self._path, self._create, methods=["POST"]),
                Route("/sandboxes/{id}", self._kill, methods=["DELETE"]),
                Route("/files", self._upload, methods=["POST"]),
                Route("/process.Process/Start", self._start, methods=["POST"]),
                Route("/process.Process/SendInput", self._send, methods=["POST"]),
            ]
        )

    async def _create(self, request: Any) -> Any:
        if request.headers.get("x-api-key") != KEY:
            return _refusal(401, "unauthenticated", "Invalid API key")
        body = await request.json()
        if ("secure" in body) == (self._path == "/v2/sandboxes"):
            return _refusal(400, "invalid", "'secure' belongs to the first version")
        if body["templateID"] != "base":
            return _refusal(404, "not_found", f"template '{body['templateID']}' not found")
        one = Rented(self._folder)
        self._rented[one.id] = one
        made = {"sandboxID": one.id, "templateID": "base", "clientID": "here"}
        return _json({**made, "envdVersion": "0.4.0", "envdAccessToken": one.token}, 201)

    async def _kill(self, request: Any) -> Any:
        if (name := request.path_params["id"]) not in self._asked_to_end:
            self._asked_to_end.add(name)
            return _refusal(503, "unavailable", "try again")
        one = self._rented.pop(name, None)
        if one is None or request.headers.get("x-api-key") != KEY:
            return _refusal(404, "not_found", "no such sandbox")
        await one.end()
        return _json(None, 204)

    def _of(self, request: Any) -> Rented | None:
        one = self._rented.get(request.headers.get("e2b-sandbox-id", ""))
        return one if one and request.headers.get("x-access-token") == one.token else None

    async def _upload(self, request: Any) -> Any:
        if (one := self._of(request)) is None:
            return _refusal(401, "unauthenticated", "no such sandbox")
        target = one.folder / Path(request.query_params["path"]).relative_to("/tmp")
        target.parent.mkdir(parents=True, exist_ok=True)
        async with request.form() as form:
            target.write_bytes(await form["file"].read())
        path = request.query_params["path"]
        return _json([{"path": path, "name": Path(path).name, "type": "file"}])

    async def _start(self, request: Any) -> Any:
        from starlette.responses import StreamingResponse

        if (one := self._of(request)) is None:
            return _refusal(401, "unauthenticated", "no such sandbox")
        asked = json.loads((await request.body())[5:])
        process = await one.start(asked["process"], stdin=asked.get("stdin", True))
        return StreamingResponse(_events(process), media_type="application/connect+json")

    async def _send(self, request: Any) -> Any:
        one, asked = self._of(request), await request.json()
        process = one.processes.get(asked["process"]["pid"]) if one else None
        if process is None or process.stdin is None:
            return _refusal(404, "not_found", "no such process")
        process.stdin.write(base64.b64decode(asked["input"]["stdin"]))
        await process.stdin.drain()
        return _json({})


async def _events(process: asyncio.subprocess.Process) -> AsyncIterator[bytes]:
    yield _message({"event": {"start": {"pid": process.pid}}})
    assert process.stdout is not None
    try:
        while data := await process.stdout.read(1 << 16):
            said = base64.b64encode(data).decode()
            yield _message({"event": {"data": {"stdout": said}}})
        code = await process.wait()
        yield _message({"event": {"end": {"exitCode": code, "exited": True}}})
        yield _message({}, flags=2)
    finally:
        with suppress(ProcessLookupError):
            process.kill()


def _json(body: Any, status: int = 200) -> Any:
    from starlette.responses import JSONResponse, Response

    return Response(status_code=status) if status == 204 else JSONResponse(body, status)


def _refusal(status: int, code: str, message: str) -> Any:
    return _json({"code": code, "message": message}, status)


def swe_rex_app() -> Any:
    """Return an application that runs commands on this machine, one at a time."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    def is_let_in(request: Request) -> bool:
        return request.headers.get("x-api-key") == TOKEN

    async def execute(request: Request) -> Response:
        if not is_let_in(request):
            return JSONResponse({"detail": "Invalid API Key"}, 401)
        asked = await request.json()
        # Blocks everything else meanwhile, as the real one does.
        ended = subprocess.run(asked["command"], shell=asked["shell"], capture_output=True)
        out, err = (text.decode(errors="backslashreplace") for text in (ended.stdout, ended.stderr))
        return JSONResponse({"stdout": out, "stderr": err, "exit_code": ended.returncode})

    async def upload(request: Request) -> Response:
        if not is_let_in(request):
            return JSONResponse({"detail": "Invalid API Key"}, 401)
        async with request.form() as form:
            data = await form["file"].read()  # type: ignore[union-attr]
            Path(str(form["target_path"])).write_bytes(data)
        return JSONResponse({})

    return Starlette(
        routes=[
            Route("/execute", execute, methods=["POST"]),
            Route("/upload", upload, methods=["POST"]),
        ]
    )


@contextmanager
def served_in_a_thread(app: Any) -> Iterator[str]:
    """Serve ``app`` on a loop of its own; yields the address."""
    addresses: list[str] = []
    is_up, is_over = threading.Event(), threading.Event()

    async def serve() -> None:
        async with serving(app) as url:
            addresses.append(url)
            is_up.set()
            await asyncio.to_thread(is_over.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert is_up.wait(60)
        yield addresses[0]
    finally:
        is_over.set()
        thread.join()
