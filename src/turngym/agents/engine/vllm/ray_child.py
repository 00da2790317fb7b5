"""Servers of a run on other nodes: each a Ray actor beside which the server is a process.

An actor gives the run an address and news of the server's end; requests and weights never go
through it. When the node is lost the server is started again wherever there is room, and loads the
newest weights before it gets a request, as one that died here.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

from turngym import nodes
from turngym.agents.engine.config import VllmEngineConfig
from turngym.agents.engine.vllm.children import Child, command, free_port
from turngym.agents.engine.vllm.replica import Replica, ReplicaError
from turngym.plugins import import_extra

SETTING = "engine.resource"
_END_S = 30.0


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
        self._model, self._context, self._log = model, context, log
        self._actor: Any = None
        self._end: asyncio.Future[str] | None = None

    @property
    def is_running(self) -> bool:
        """Whether the server lives, as far as is known."""
        return self._end is not None and not self._end.done()

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
            url = await self._actor.start.remote(
                self._config, self._model, self._context, self._log
            )
        except self._ray.exceptions.RayError as error:
            raise ReplicaError(f"{self._log}: {_cause(error)}") from error
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

    async def end(self) -> None:
        """End it and all that it started. Safe to call twice."""
        actor, self._actor = self._actor, None
        if self._end is not None:
            self._end.cancel()
            self._end = None
        if actor is None:
            return
        with suppress(self._ray.exceptions.RayError, TimeoutError):
            await asyncio.wait_for(_done(actor.end.remote()), _END_S)
        self._ray.kill(actor)


async def _done(reference: Any) -> None:
    await reference


def _cause(error: Exception) -> str:
    return str(error).strip().splitlines()[-1].strip()
