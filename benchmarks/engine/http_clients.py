"""What a request to an engine server costs the client, by its library and by requests under way.

    http_clients.py        under a minute; needs the extras vllm, remote and serve

A server in a process of its own answers after 50 ms with what an answer for a few tokens looks
like. Processor time of the client alone, medians of five rounds whose order alternates.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what all parts share
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

import aiohttp
import httpx

from harness import machine
from turngym.agents.serving.http import guarded_app, serving

UNDER_WAY = (8, 96, 400)
REQUESTS, ROUNDS = 800, 5
QUESTION = {"token_ids": list(range(60)), "sampling_params": {"max_tokens": 6}}
_ROW = {"token_id": 1, "logprob": -0.1}
ANSWER = {
    "prompt_token_ids": list(range(60)),
    "choices": [{"token_ids": [1] * 3, "logprobs": {"content": [_ROW] * 3}}],
}
Ask = Callable[[], Awaitable[object]]


async def with_httpx(url: str, drive: Callable[[Ask], Awaitable[float]]) -> float:
    """Measure httpx, as the engine used it until 2026-11-25."""
    limits = httpx.Limits(max_connections=None, keepalive_expiry=4.0)
    async with httpx.AsyncClient(limits=limits, timeout=None, trust_env=False) as client:

        async def ask() -> object:
            return (await client.post(url, json=QUESTION)).json()

        return await drive(ask)


async def with_aiohttp(url: str, drive: Callable[[Ask], Awaitable[float]]) -> float:
    """Measure aiohttp, as the engine uses it."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0)
    timeout = aiohttp.ClientTimeout()
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as client:

        async def ask() -> object:
            async with client.post(url, json=QUESTION) as response:
                return json.loads(await response.read())

        return await drive(ask)


def driver(under_way: int) -> Callable[[Ask], Awaitable[float]]:
    """Return what asks with ``under_way`` requests at a time, for milliseconds a request."""

    async def drive(ask: Ask) -> float:
        async def worker(requests: int) -> None:
            for _ in range(requests):
                await ask()

        each = max(2, REQUESTS // under_way)
        await asyncio.gather(*(worker(1) for _ in range(under_way)))  # connections are made
        before = time.process_time()
        await asyncio.gather(*(worker(each) for _ in range(under_way)))
        return (time.process_time() - before) / (under_way * each) * 1e3

    return drive


async def serve() -> None:
    """Be the server: print the address, and answer until this process is ended."""
    from starlette.responses import JSONResponse

    from turngym.agents.serving.http import Access

    async def answer(request: Any) -> JSONResponse:
        await asyncio.sleep(0.05)
        return JSONResponse(ANSWER)

    async with serving(guarded_app([("POST", "/ask", answer)], Access())) as url:
        print(f"{url}/ask", flush=True)
        await asyncio.Event().wait()


def main() -> int:
    """Measure and print."""
    if sys.argv[1:] == ["--serve"]:
        asyncio.run(serve())
    line = [sys.executable, __file__, "--serve"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        try:
            print(machine(), "milliseconds of processor time a request", sep="\n")
            for under_way in UNDER_WAY:
                found: dict[str, list[float]] = {"httpx": [], "aiohttp": []}
                clients = [("httpx", with_httpx), ("aiohttp", with_aiohttp)]
                for number in range(ROUNDS):
                    for name, client in clients[:: -1 if number % 2 else 1]:
                        found[name].append(asyncio.run(client(url, driver(under_way))))
                a, b = (statistics.median(values) for values in found.values())
                print(f"{under_way:4} under way: httpx {a:.2f}, aiohttp {b:.2f}, {a / b:.1f} times")
        finally:
            server.terminate()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
