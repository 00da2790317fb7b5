"""Our own policy server in this process, and the engine that trains with it."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from helpers import models
from turngym.agents.engine.config import VllmEngineConfig
from turngym.agents.engine.local import LocalEngine
from turngym.agents.engine.vllm.engine import VllmEngine
from turngym.agents.rendering import Renderer
from turngym.agents.serving.policy_server import PolicyServer
from turngym.agents.serving.run import serving

CONTEXT = 64


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
    urls: list[str], folder: str, *, context: int = CONTEXT, **settings: Any
) -> VllmEngine:
    """Return an engine of the small model on running servers."""
    config = VllmEngineConfig(
        type="vllm", urls=tuple(urls), folder=folder, **{"patience_s": 5.0, **settings}
    )
    return VllmEngine(config, models.model(), models.tokenizer(), context=context, max_sessions=4)
