"""Back ends of services that rent out sandboxes, against stand-ins that speak their protocols.

The real server of SWE-ReX: benchmarks/setup.sh swe-rex, then make proof PART=sandboxes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from helpers.providers import KEY, TOKEN, E2BDouble, served_in_a_thread, swe_rex_app
from turngym.errors import SandboxClosed, SandboxDied, SandboxRefused, SandboxUnavailable
from turngym.sandbox import Limits, SandboxSpec, open_backend
from turngym.sandbox.checks.check import check_sandbox

SPEC = SandboxSpec(limits=Limits(enforce="best_effort"))
NEVER = {"a mount can be read and not written"}
SWE_REX = os.environ.get("TURNGYM_SWE_REX", "")
"""Interpreter of an environment with swe-rex: make proof PART=sandboxes."""
pytestmark = [pytest.mark.extra("httpx", "starlette", "uvicorn")]


@pytest.fixture
def e2b(tmp_path: Path) -> Iterator[dict[str, Any]]:
    with served_in_a_thread(E2BDouble(tmp_path).app()) as url:
        yield {"api_key": KEY, "api_url": url, "sandbox_url": url}
    assert not list(tmp_path.iterdir()), "every sandbox was ended"


@pytest.fixture
def swe_rex() -> Iterator[dict[str, Any]]:
    with served_in_a_thread(swe_rex_app()) as url:
        yield {"url": url, "token": TOKEN}


@pytest.fixture(params=[pytest.param("e2b", marks=pytest.mark.extra("bwrap")), "swe-rex"])
def provider(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return request.param, request.getfixturevalue(request.param.replace("-", "_"))


def is_running(line: str) -> bool:
    """Say whether a process has this command line."""
    wanted = "\0".join(line.split()).encode()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes().rstrip(b"\0") == wanted:
                return True
    return False


@pytest.mark.slow
@pytest.mark.extra("bwrap")
def test_a_rented_sandbox_keeps_every_promise(e2b: dict[str, Any]) -> None:
    report = check_sandbox("e2b", attacks=False, **e2b)
    failed = [str(result) for result in report.results if result.status == "fail"]
    assert failed == []
    assert {result.name for result in report.results if result.status == "not-run"} == NEVER


async def test_files_travel_with_layers_and_forks(provider: tuple[str, dict[str, Any]]) -> None:
    name, options = provider
    backend = open_backend(name, **options)
    sandbox = await backend.start(SPEC)
    assert (await sandbox.exec("mkdir a && echo one > a/b && chmod 600 a/b", timeout_s=60)).ok
    assert [str(change) for change in await sandbox.diff()] == ["written a/b"]
    snapshot = await sandbox.snapshot()
    [fork] = await sandbox.fork(1)
    assert not isinstance(fork, Exception)
    await sandbox.close()
    again = await backend.start(SandboxSpec(limits=SPEC.limits, workspace=snapshot))
    for one in (fork, again):
        assert await one.diff() == []
        assert (await one.exec("stat -c %a a/b; cat a/b", timeout_s=60)).stdout == b"600\none\n"
        await one.close()
    await backend.close()


async def test_a_machine_that_goes_away_is_a_fault(provider: tuple[str, dict[str, Any]]) -> None:
    name, options = provider
    backend = open_backend(name, **options)
    sandbox = await backend.start(SPEC)
    with pytest.raises(SandboxDied):
        # Between a command and the guest stands one process.
        await sandbox.exec("kill -9 $(cut -d' ' -f4 /proc/$PPID/stat); sleep 60", timeout_s=60)
    await sandbox.close()
    with pytest.raises(SandboxClosed):
        await sandbox.exec("true", timeout_s=60)
    await backend.close()


@pytest.mark.extra("bwrap")
@pytest.mark.parametrize("delay_s", [0.001, 0.01, 0.03, 0.3])
async def test_a_start_that_is_cancelled_leaves_no_machine(
    e2b: dict[str, Any], delay_s: float
) -> None:
    backend = open_backend("e2b", **e2b)
    starting = asyncio.ensure_future(backend.start(SPEC))
    await asyncio.sleep(delay_s)
    starting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await (await starting).close()
    await backend.close()


async def start(name: str, options: dict[str, Any], image: str) -> None:
    backend = open_backend(name, **options)
    try:
        await backend.start(SandboxSpec(limits=SPEC.limits, image=image))
    finally:
        await backend.close()


@pytest.mark.extra("bwrap")
async def test_a_service_of_the_first_version_is_spoken_to_in_it(tmp_path: Path) -> None:
    with served_in_a_thread(E2BDouble(tmp_path, version=1).app()) as url:
        backend = open_backend("e2b", api_key=KEY, api_url=url, sandbox_url=url)
        async with await backend.start(SPEC) as sandbox:
            assert (await sandbox.exec("echo up", timeout_s=60)).stdout == b"up\n"
        await backend.close()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("e2b", {}, "'e2b' has no key. Set E2B_API_KEY"),
        ("swe-rex", {}, "'swe-rex' has no server. Set SWE_REX_URL"),
        ("e2b", {"api_key": "wrong"}, "401: Invalid API key). Check key and template"),
        ("e2b", {"image": "none"}, "404: template 'none' not found). Check key and template"),
        ("swe-rex", {"token": "wrong"}, "401: {'detail': 'Invalid API Key'}"),
        ("swe-rex", {"url": "http://127.0.0.1:9"}, "All connection attempts failed"),
        ("swe-rex", {"image": "none"}, "has the image of its server"),
        ("e2b", {"api_url": "http://127.0.0.1:9"}, "All connection attempts failed"),
    ],
)
async def test_what_a_provider_refuses_is_one_line(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    options: dict[str, Any],
    message: str,
) -> None:
    for variable in ("E2B_API_KEY", "SWE_REX_URL"):
        monkeypatch.delenv(variable, raising=False)
    image = options.get("image", "host")
    served = request.getfixturevalue(name.replace("-", "_")) if options else {}
    given = {key: value for key, value in {**served, **options}.items() if key != "image"}
    with pytest.raises((SandboxRefused, SandboxUnavailable)) as caught:
        await start(name, given, image)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "key-of-the-test" not in str(caught.value)


@pytest.mark.slow
async def test_a_guest_that_nobody_asks_any_more_ends(
    swe_rex: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turngym.sandbox.backends.swe_rex._SILENCE_S", 1)
    backend = open_backend("swe-rex", **swe_rex)
    sandbox: Any = await backend.start(SPEC)
    await sandbox.spawn("sleep 1000.4711")
    sandbox._channel._stream.close()  # as if this process were gone
    until = time.monotonic() + 60
    while is_running("sleep 1000.4711"):
        assert time.monotonic() < until
        await asyncio.sleep(0.5)
    await sandbox.close()
    await backend.close()
    assert not Path(f"/tmp/turngym-{sandbox.id}").exists()


@pytest.mark.skipif(not SWE_REX, reason="make proof PART=sandboxes")
def test_the_real_server_of_swe_rex_keeps_every_promise(tmp_path: Path) -> None:
    from turngym.agents.engine.vllm.children import free_port

    port = free_port(0)
    line = [SWE_REX, "-m", "swerex.server", "--host", "127.0.0.1", "--port", str(port)]
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen([*line, "--auth-token", TOKEN], stdout=log, stderr=log)
    try:
        url, until = f"http://127.0.0.1:{port}", time.monotonic() + 60
        while True:
            try:
                httpx.get(f"{url}/is_alive", headers={"x-api-key": TOKEN}).raise_for_status()
                break
            except httpx.TransportError:
                assert time.monotonic() < until
                time.sleep(0.2)
        report = check_sandbox("swe-rex", attacks=False, url=url, token=TOKEN)
    finally:
        server.terminate()
        server.wait()
    failed = [str(result) for result in report.results if result.status == "fail"]
    assert failed == []
    assert {result.name for result in report.results if result.status == "not-run"} == NEVER
