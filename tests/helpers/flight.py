"""Servers of vLLM that take weights in flight over gloo, and the engine that sends them.

For vLLM's own interpreter: `make proof PART=vllm`.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest

from helpers import models, servers
from turngym.agents.engine.config import VllmEngineConfig
from turngym.agents.engine.models import save_model_dir
from turngym.agents.engine.vllm import children, transfer
from turngym.agents.engine.vllm.children import command, free_port
from turngym.agents.engine.vllm.engine import VllmEngine

IS_HERE = find_spec("vllm") is not None
NOT_RUN = pytest.mark.skipif(
    not IS_HERE, reason="make proof PART=vllm runs it in vLLM's environment"
)


@dataclass(frozen=True)
class Served:
    """A server that runs."""

    url: str
    folder: Path
    process: subprocess.Popen[bytes]

    @property
    def fault(self) -> Path:
        """The file that says what goes wrong in its next update."""
        return self.folder / "fault"

    def kill(self) -> None:
        """End it and all that it started, by SIGKILL."""
        if self.process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            shutil.rmtree(self.folder, ignore_errors=True)


@cache
def gloo_ends() -> Any:
    """Return the back end; it is known to vLLM in this process from now on."""
    sys.path.append(str(children._PLUGIN))
    from helpers import gloo_transfer

    gloo_transfer.register()
    transfer.WAYS["gloo"] = lambda at: gloo_transfer.GlooInitInfo(
        rank=0, address=at.address, port=at.port, size=at.size
    )
    return gloo_transfer


def config(**settings: Any) -> VllmEngineConfig:
    """Return settings of an engine, whose ``weights`` may be gloo: so they are not checked."""
    return VllmEngineConfig(type="vllm").model_copy(update={"weights": "gloo", **settings})


def start(backend: str, model: Any) -> Served:
    """Start a server, without waiting for it."""
    folder = Path(tempfile.mkdtemp(prefix="turngym-flight-"))
    save_model_dir(model, models.tokenizer(), folder / "model")
    plugin = folder / "plugin"
    (plugin / "flight-0.1.0.dist-info").mkdir(parents=True)
    entry = "[vllm.general_plugins]\nflight = gloo_transfer:register\n"
    (plugin / "flight-0.1.0.dist-info" / "entry_points.txt").write_text(entry)
    (plugin / "flight-0.1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: flight\nVersion: 0.1.0\n"
    )
    shutil.copy(Path(__file__).parent / "gloo_transfer.py", plugin)
    port, context = free_port(0), model.config.max_position_embeddings
    where: Any = {"context": context, "port": port, "folder": folder}
    line, more = command(config(python=sys.executable), folder / "model", **where)
    line[line.index("--weight-transfer-config") + 1] = json.dumps({"backend": backend})
    more["PYTHONPATH"] += os.pathsep + str(plugin)
    more["TURNGYM_FAULT"] = str(folder / "fault")
    more["VLLM_CPU_KVCACHE_SPACE"] = "1"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            line, env={**os.environ, **more}, stdout=log, stderr=log, start_new_session=True
        )
    made = Served(f"http://{children.HOST}:{port}", folder, process)
    atexit.register(made.kill)
    return made


def ready(served: Served) -> Served:
    """Return a server when it answers."""
    until = time.monotonic() + servers._START_S
    while served.process.poll() is None and time.monotonic() < until:
        with suppress(httpx.TransportError):
            if httpx.get(f"{served.url}/weight_info", trust_env=False).is_success:
                return served
        time.sleep(1.0)
    raise AssertionError((served.folder / "log").read_text(errors="replace")[-3000:])


@cache
def gloo_server() -> Served:
    """Return a server of the wide model that is started once."""
    return ready(start("gloo", servers.wide_model()))


def engine_on(
    urls: list[str], *, context: int = 1000, max_sessions: int = 8, model: Any = None, **more: Any
) -> VllmEngine:
    """Return an engine that sends weights over gloo, unless ``weights`` says otherwise."""
    gloo_ends()
    settings = config(urls=tuple(urls), **{"patience_s": 120.0, **more})
    model = model or servers.wide_model()
    size = {"context": context, "max_sessions": max_sessions}
    return VllmEngine(settings, model, models.tokenizer(), **size)


@asynccontextmanager
async def engine_on_vllm(**settings: Any) -> AsyncIterator[VllmEngine]:
    """Yield an engine of the wide model on a server that is started once."""
    served = await asyncio.to_thread(gloo_server)
    engine = engine_on([served.url], **settings)
    try:
        yield engine
    finally:
        await engine.close()
