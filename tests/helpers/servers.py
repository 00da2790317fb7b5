"""Our own policy server in this process, and the engine that trains with it."""

from __future__ import annotations

import asyncio
import atexit
import os
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import httpx

from helpers import models
from turngym.agents.engine.config import TinyModelConfig, VllmEngineConfig
from turngym.agents.engine.local import LocalEngine
from turngym.agents.engine.models import build_tiny_model, save_model_dir
from turngym.agents.engine.vllm.children import command, free_port
from turngym.agents.engine.vllm.engine import VllmEngine
from turngym.agents.rendering import Renderer
from turngym.agents.serving.http import serving
from turngym.agents.serving.policy_server import PolicyServer

CONTEXT = 64
VLLM = os.environ.get("TURNGYM_VLLM", "")
"""Interpreter of an environment with vLLM, where there is one: make proof PART=vllm."""
_START_S = 900.0


@cache
def wide_model() -> Any:
    """Return a small model whose heads are wide enough for vLLM on a CPU."""
    config = TinyModelConfig(hidden=64, layers=2, heads=2, context=1024)
    return build_tiny_model(config, models.tokenizer(), seed=5)


@cache
def vllm_server(adapter_rank: int = 0) -> tuple[str, str]:
    """Return address and folder of a vLLM that is started once and ends with this process."""
    folder = Path(tempfile.mkdtemp(prefix="turngym-vllm-"))
    save_model_dir(wide_model(), models.tokenizer(), folder / "model")
    config = VllmEngineConfig(type="vllm", python=VLLM, adapter_rank=adapter_rank)
    port = free_port(0)
    context = wide_model().config.max_position_embeddings
    line, more = command(config, folder / "model", context=context, port=port, folder=folder)
    with (folder / "log").open("wb") as log:
        environment = {**os.environ, **more}
        process = subprocess.Popen(line, env=environment, stdout=log, stderr=log)
    atexit.register(process.terminate)
    until = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < until:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/weight_info", trust_env=False).is_success:
                return f"http://127.0.0.1:{port}", str(folder)
        except httpx.TransportError:
            time.sleep(1.0)
    raise AssertionError((folder / "log").read_text(errors="replace")[-3000:])


@asynccontextmanager
async def engine_on_vllm(**settings: Any) -> AsyncIterator[VllmEngine]:
    """Yield an engine of the wide model on vLLM."""
    url, folder = await asyncio.to_thread(vllm_server, settings.get("adapter_rank", 0))
    engine = engine_on([url], folder, model=wide_model(), **{"patience_s": 120.0, **settings})
    try:
        yield engine
    finally:
        await engine.close()


@asynccontextmanager
async def policy_server(
    folder: Path, *, context: int = CONTEXT, name: str = "policy"
) -> AsyncIterator[tuple[str, LocalEngine]]:
    """Serve the small model inside the block; yields the address and the engine behind it."""
    engine = LocalEngine(models.model(), models.tokenizer(), context=context)
    server = PolicyServer(engine, Renderer(models.tokenizer()), name=name, weights=folder)
    async with serving(server.app()) as url:
        yield url, engine


@asynccontextmanager
async def engine_on_a_server(**settings: Any) -> AsyncIterator[VllmEngine]:
    """Yield an engine of the small model on one server of ours."""
    with tempfile.TemporaryDirectory() as folder:
        async with policy_server(Path(folder)) as (url, _):
            engine = engine_on([url], folder, **settings)
            try:
                yield engine
            finally:
                await engine.close()


def engine_on(
    urls: list[str],
    folder: str,
    *,
    context: int = CONTEXT,
    model: Any = None,
    max_sessions: int = 4,
    **settings: Any,
) -> VllmEngine:
    """Return an engine of the small model on running servers."""
    config = VllmEngineConfig(
        type="vllm", urls=tuple(urls), folder=folder, **{"patience_s": 5.0, **settings}
    )
    return VllmEngine(
        config,
        model or models.model(),
        models.tokenizer(),
        context=context,
        max_sessions=max_sessions,
    )


def servers_of_ours() -> list[int]:
    """Return the processes that this one started as policy servers."""
    return children_with(b"--weights")


def children_with(word: bytes) -> list[int]:
    """Return the processes that this one started with ``word`` in their command line, in order."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text().rpartition(")")[2].split()
            line = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if int(stat[1]) == os.getpid() and stat[0] != "Z" and word in line:
            found.append(int(folder.name))
    return sorted(found)
