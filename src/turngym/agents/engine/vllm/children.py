"""Servers that a run starts itself: their command lines, and their lives, here or on other nodes.

On another node a server is a process beside a Ray actor, which gives the run an address and news of
the server's end; requests and weights never go through it. When the node is lost the server is
started again wherever there is room, and loads the newest weights before it gets a request, as one
that died here.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from turngym import nodes
from turngym.agents.engine.config import VllmEngineConfig
from turngym.agents.engine.vllm.replica import Replica, ReplicaError
from turngym.errors import ConfigError
from turngym.plugins import import_extra

HOST = "127.0.0.1"
"""The routes that change weights ask for no key, so no other machine may reach them."""
_PLUGIN = Path(__file__).parent / "plugin"
CPU_CACHE, CPU_CACHE_GIB = "VLLM_CPU_KVCACHE_SPACE", "2"
_GPUS = "CUDA_VISIBLE_DEVICES"
_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM takes for the largest rank."""
_CPU_BATCH = 32
_END_S = 10.0
_PR_SET_PDEATHSIG = 1
_LAST_CHARS = 300
_ERROR = re.compile(
    r"^(\(\w+ pid=\d+\) )?(ERROR [^\]]*\] )?(?P<error>[\w.]*(Error|Exception): .*)$", re.MULTILINE
)


def command(
    config: VllmEngineConfig,
    model: Path,
    *,
    context: int,
    port: int,
    folder: Path,
    number: int = 0,
    host: str = HOST,
) -> tuple[list[str], dict[str, str]]:
    """Return the command line of a server and what it adds to the environment.

    Args:
        config: What is started, and how.
        model: Folder of the model.
        context: Longest sequence in tokens.
        port: Where it listens.
        folder: Where it finds new weights.
        number: Of the server, among those that are started: says which GPUs it has.
        host: Address that it listens at.

    Raises:
        ConfigError: There are fewer GPUs.
    """
    where = ["--host", host, "--port", str(port)]
    if config.server == "turngym":
        line = [sys.executable, "-m", "turngym", "serve", "policy", f"hf:{model}", "--name"]
        line += ["policy", "--context", str(context), "--weights", str(folder)]
        return [*line, *where, *config.args], {"OMP_NUM_THREADS": "1"}
    # Deprecated for `vllm serve`, which dies of vllm-cpu: it asks for a package of the name vllm.
    line = [config.python or sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    line += ["--model", str(model), "--served-model-name", "policy", *where]
    line += ["--dtype", config.dtype, "--max-model-len", str(context), "--enable-scale-out"]
    line += ["--enable-prefix-caching", "--logprobs-mode", "processed_logprobs"]
    line += ["--generation-config", "vllm"]  # else a card's top_k and penalties count, unasked
    backend = "turngym_files" if config.weights == "files" else config.weights
    line += ["--weight-transfer-config", json.dumps({"backend": backend})]
    if config.dtype != "float32":
        line += ["--hf-overrides", json.dumps({"head_dtype": "float32"})]
    if config.gpus:
        line += ["--tensor-parallel-size", str(config.gpus)]
        line += ["--gpu-memory-utilization", str(config.gpu_memory)]
    else:
        # A seeded request whose prompt is read in pieces ends the CPU build, so none is.
        line += ["--enforce-eager", "--no-enable-chunked-prefill", f"--max-num-seqs={_CPU_BATCH}"]
        line += ["--max-num-batched-tokens", str(_CPU_BATCH * context)]
    if config.adapter_rank:  # the old ones, the new ones, and ones in reserve
        rank = min(size for size in _LORA_RANKS if size >= config.adapter_rank)
        line += ["--enable-lora", "--max-loras=2", "--max-cpu-loras=4"]
        line += ["--max-lora-rank", str(rank)]
    if config.routing:
        line += ["--enable-return-routed-experts"]
    environment = {
        "TURNGYM_WEIGHTS": str(folder),
        "PYTHONPATH": str(_PLUGIN),
        "PYTHONSAFEPATH": "1",  # a folder here may have the name of a package that vLLM imports
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "75",  # with 5 a request meets a connection that closes
    }
    if config.weights == "ipc":  # handles of memory come pickled
        environment["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
    if config.routing:  # no other runner reports it
        environment["VLLM_USE_V2_MODEL_RUNNER"] = "1"
    if config.adapter_rank:
        environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    if config.gpus:
        environment[_GPUS] = _visible(config.gpus_of(number))
    else:  # the CPU build else wants nearly all of the memory, and a compiler at its first request
        environment[CPU_CACHE] = os.environ.get(CPU_CACHE, CPU_CACHE_GIB)
        environment["TORCHDYNAMO_DISABLE"] = "1"
    return [*line, *config.args], environment


def _visible(wanted: range) -> str:
    """Return the GPUs of those numbers, of the ones that this process may use."""
    own = [name for name in os.environ.get(_GPUS, "").split(",") if name]
    if own and wanted.stop > len(own):
        raise ConfigError(f"engine.gpus: wanted GPU {wanted.stop - 1}, {_GPUS} names {len(own)}")
    return ",".join(own[i] if own else str(i) for i in wanted)


class Child:
    """A server process of ours. It ends when we do, however we end.

    Args:
        line: Its command line.
        environment: Added to ours.
        log: Where its output goes.
    """

    def __init__(self, line: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._line, self.log = line, log
        self._environment = {**os.environ, **environment, "TURNGYM_RUN": str(os.getpid())}
        self._process: asyncio.subprocess.Process | None = None

    @property
    def is_running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.returncode is None

    @property
    def has_died(self) -> bool:
        """Whether the process ended, and not by ``end``."""
        return self._process is not None and not self.is_running

    async def start(self) -> None:
        """Start it; what is left of an earlier one is ended first.

        Raises:
            ReplicaError: There is no such program.
        """
        await self.end()
        try:
            with self.log.open("ab") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *self._line,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self._environment,
                    start_new_session=True,
                    preexec_fn=_end_with_parent,
                )
        except OSError as error:
            raise ReplicaError(f"{self._line[0]}: {error.strerror}") from error

    async def died(self) -> str:
        """Wait for its end, and return why in one line."""
        if self._process is None:
            return "was not started"
        code = await self._process.wait()
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        return f"ended with code {code}: {cause(self.log.read_text(errors='replace'))}"

    async def give_up(self, why: str) -> str:
        """End it after a failure, and return ``why`` with the place of a copy of its output."""
        await self.end()
        # The run's folder in memory goes with the run.
        log = Path(tempfile.gettempdir()) / f"turngym-{os.getpid()}-{self.log.name}"
        try:
            shutil.copyfile(self.log, log)
        except OSError:
            return why
        return f"{why} (see {log})"

    async def end(self) -> None:
        """End it and all that it started. Safe to call twice."""
        process, self._process = self._process, None
        if process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)  # its helpers too, which may outlive it
            if process.returncode is None:
                with suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), _END_S)


def cause(log: str) -> str:
    """Return the line of a server's ``log`` that says why it ended.

    That is its first error: processes that wait for the one that failed fail after it.
    """
    if found := _ERROR.search(log):
        return found["error"].strip()[:_LAST_CHARS]
    lines = log.strip().splitlines()
    return lines[-1].strip()[:_LAST_CHARS] if lines else "it said nothing"


def free_port(wanted: int, host: str = HOST) -> int:
    """Return ``wanted``, or any port of ``host`` that is free when it is 0.

    Raises:
        OSError: It is taken.
    """
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, wanted))
        return int(sock.getsockname()[1])


_libc = ctypes.CDLL(None)


def _end_with_parent() -> None:
    """Have the kernel end this process when the one that started it dies, even by SIGKILL."""
    with suppress(AttributeError):  # Linux alone has it
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


SETTING = "engine.resource"
_ACTOR_END_S = 30.0


def needed(config: VllmEngineConfig) -> dict[str, float]:
    """Return what a server takes of its node."""
    return {config.resource: 1.0, nodes.GPU: float(config.gpus)}


class Server:
    """What runs on a node: one server process."""

    def __init__(self) -> None:
        self._child: Child | None = None

    async def start(self, config: VllmEngineConfig, model: Path, context: int, log: str) -> str:
        """Start the server and return its address.

        Args:
            config: What is started, and how.
            model: Folder of the model, which all nodes see, below that of the weights.
            context: Longest sequence in tokens.
            log: Name of the file beside the model that its output goes to.
        """
        host: str = import_extra("ray", SETTING, "ray").util.get_node_ip_address()
        port, folder = free_port(0, host), model.parent
        own = config.model_copy(update={"first_gpu": 0})  # Ray shows an actor its GPUs alone
        line, more = command(own, model, context=context, port=port, folder=folder, host=host)
        self._child = Child(line, more, folder / log)
        await self._child.start()
        return f"http://{host}:{port}"

    async def died(self) -> str:
        """Wait for the server's end, and return why."""
        return "was not started" if self._child is None else await self._child.died()

    async def end(self) -> None:
        """End the server."""
        if self._child is not None:
            await self._child.end()


class RayChild:
    """A server on some node; to be used as a ``Child``.

    Args:
        replica: Its client, which is given its address.
        config: What is started.
        model: Folder of the model.
        context: Longest sequence in tokens.
        log: Name of the file that its output goes to.
    """

    def __init__(
        self, replica: Replica, config: VllmEngineConfig, model: Path, context: int, log: str
    ) -> None:
        self._ray = nodes.connect(SETTING)
        self._replica, self._config = replica, config
        self._model, self._context, self.log = model, context, log
        self._actor: Any = None
        self._end: asyncio.Future[str] | None = None

    @property
    def is_running(self) -> bool:
        """Whether the server lives, as far as is known."""
        return self._end is not None and not self._end.done()

    @property
    def has_died(self) -> bool:
        """Whether the server ended, and not by ``end``."""
        return self._end is not None and self._end.done()

    async def start(self) -> None:
        """Start it on a node that has room; what is left of an earlier one is ended first.

        Raises:
            ReplicaError: It cannot be started there.
        """
        await self.end()
        resources = needed(self._config)
        gpus = resources.pop(nodes.GPU)
        self._actor = (
            self._ray.remote(Server)
            .options(num_cpus=0, num_gpus=gpus, resources=resources, scheduling_strategy="SPREAD")
            .remote()
        )
        try:
            url = await self._actor.start.remote(self._config, self._model, self._context, self.log)
        except self._ray.exceptions.RayError as error:
            raise ReplicaError(f"{self.log}: {_cause(error)}") from error
        await self._replica.move(url)
        self._end = asyncio.ensure_future(self._until_death())

    async def _until_death(self) -> str:
        try:
            return str(await self._actor.died.remote())
        except self._ray.exceptions.RayError as error:
            return f"its node is lost: {_cause(error)}"

    async def died(self) -> str:
        """Wait for its end, and return why in one line."""
        return "was not started" if self._end is None else await asyncio.shield(self._end)

    async def give_up(self, why: str) -> str:
        """End it after a failure, and return ``why`` with the place of its output."""
        await self.end()
        return f"{why} (see {self._model.parent / self.log})"

    async def end(self) -> None:
        """End it and all that it started. Safe to call twice."""
        actor, self._actor = self._actor, None
        if self._end is not None:
            self._end.cancel()
            self._end = None
        if actor is None:
            return
        with suppress(self._ray.exceptions.RayError, TimeoutError):
            async with asyncio.timeout(_ACTOR_END_S):
                await actor.end.remote()
        self._ray.kill(actor)


def _cause(error: Exception) -> str:
    return str(error).strip().splitlines()[-1].strip()
