"""Weights in flight: from the learner to a server by vLLM's own transfer, with no file between.

vLLM has both ends of it: one in its servers, one that is made here. So vLLM must be installed
beside this program, too, and be the release that the servers are. A server has a connection of its
own: one that dies in the middle keeps no other waiting. Its end here may wait for ever, in a thread
that no one waits for.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from turngym.agents.engine.vllm.replica import Publication, Replica, ReplicaError

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")

_CALL_S = 150.0
"""For a call to the server, which has a limit of its own below this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """Where the ends of a connection find each other."""

    address: str
    """Of this machine, as the server sees it."""
    port: int
    size: int
    """Processes of the server, and this one."""


def _nccl(at: Meeting) -> Any:  # untyped, as is all of vLLM
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

    return NCCLTrainerInitInfo(
        rank=0, master_address=at.address, master_port=at.port, world_size=at.size
    )


def _ipc(at: Meeting) -> Any:
    from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

    return IPCTrainerInitInfo(rank=0, packed=True)  # else all weights would be there twice at once


WAYS: dict[str, Callable[[Meeting], Any]] = {"nccl": _nccl, "ipc": _ipc}
"""What makes the end of a connection, by the name that vLLM has for it."""


class Transfer:
    """A connection to one server. Made by ``open``; after a failure another one is."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._loop = asyncio.get_running_loop()
        self._failed: asyncio.Future[Exception] = self._loop.create_future()
        """The first call to the server that failed: nothing more will come of it."""
        import torch  # processes that only sample do without

        self._device = torch.device("cpu")
        if torch.cuda.is_available():
            self._device = torch.device("cuda", torch.cuda.current_device())
        self._is_closed = False
        self._label = ""
        self._weights: Mapping[str, Tensor] = {}
        self._end: Any = None

    @classmethod
    async def open(cls, replica: Replica, way: str) -> Transfer:
        """Return a connection to a server.

        Args:
            replica: The server.
            way: What vLLM calls the transfer; the server was started with it.

        Raises:
            ReplicaError: The server did not join.
            OSError: It has no address that can be reached.
        """
        made = cls(replica)
        try:
            await replica.end_update()
            with suppress(ReplicaError):  # what an earlier run, or try, left there
                await replica.post("/shutdown_weight_transfer_engine")
            try:
                size = 1 + int((await replica.get("/get_world_size"))["world_size"])
            except (KeyError, TypeError, ValueError) as error:
                raise ReplicaError(f"{replica.url}/get_world_size: says no number") from error
            address, port = await asyncio.to_thread(_reachable, replica.url)
            at = Meeting(address=address, port=port, size=size)
            await made._watched(partial(made._begin, WAYS[way], at))
        except BaseException:
            made.close()
            raise
        return made

    async def send(self, new: Publication) -> None:
        """Have the server load ``new``, which it then calls by its label.

        Raises:
            ReplicaError: It did not, or the transfer failed on this side.
        """
        assert new.weights is not None
        self._label, self._weights = new.label, new.weights
        try:
            await self._watched(self._end.send_weights)
        finally:
            self._weights = {}

    def close(self) -> None:
        """Let go of it, without waiting. What still runs cannot reach the server any more."""
        self._is_closed = True
        if self._end is not None:
            _in_thread(self._end.shutdown)

    def _begin(self, make: Callable[[Meeting], Any], at: Meeting) -> None:
        from vllm.distributed.weight_transfer import WeightTransferTrainerFactory as Ends

        self._end = Ends.trainer_init(make(at), client=self._client(), source=self._source())
        if self._is_closed:  # what it waited for came too late
            self._end.shutdown()

    def _client(self) -> Any:
        """Return vLLM's client of the server's routes, which sends by our own connection."""
        from vllm.distributed.weight_transfer import HTTPVLLMWeightSyncClient as Client

        owner = self

        class Named(Client):  # type: ignore[misc]  # untyped base
            def _post(self, path: str, json: Any = None) -> None:
                owner._call(f"/{path}", json)

            def finish_weight_update(self, weight_version: str | None = None) -> None:
                super().finish_weight_update(owner._label)

        return Named(self._replica.url)

    def _source(self) -> Any:
        from vllm.distributed.weight_transfer import ParamMeta, WeightSource

        owner = self

        class Source(WeightSource):  # type: ignore[misc]  # untyped base
            def _held(self) -> list[Any]:
                held = owner._weights.items()
                return [ParamMeta(name, value.dtype, tuple(value.shape)) for name, value in held]

            def __iter__(self) -> Iterator[tuple[str, Tensor]]:
                for name, value in owner._weights.items():
                    yield name, value.to(owner._device)

            # From vLLM 0.33 on a property, and another name for all pairs.
            metadata = _Current(_held) if hasattr(WeightSource, "iter_full") else _held
            iter_full = __iter__

        return Source()

    def _call(self, path: str, body: Mapping[str, Any] | None) -> None:
        """Send a request from a thread of vLLM's, and wait for the answer."""
        if self._is_closed:
            raise ReplicaError(f"{self._replica.url}{path}: its connection was closed")
        asked = asyncio.run_coroutine_threadsafe(self._replica.post(path, body), self._loop)
        try:
            asked.result(_CALL_S)
        except Exception as error:
            self._loop.call_soon_threadsafe(self._note, error)
            raise

    def _note(self, error: Exception) -> None:
        if not self._failed.done():
            self._failed.set_result(error)

    async def _watched(self, work: Callable[[], object]) -> None:
        """Do ``work`` in a thread until it is done or the server failed."""
        device = self._device

        def on_device() -> None:
            if device.type == "cuda":
                import torch

                torch.cuda.set_device(device)  # of this thread
            work()

        done = _in_thread(on_device)
        ends: set[asyncio.Future[Any]] = {done, self._failed}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        error = self._failed.result() if self._failed.done() else done.exception()
        if isinstance(error, ReplicaError):
            raise error
        if error is not None:
            what = " ".join(f"{type(error).__name__}: {error}".split())
            raise ReplicaError(f"{self._replica.url}: no transfer of weights: {what}") from error


class _Current(cached_property[Any]):
    """What vLLM wants to be cached, and reads once before there are weights."""

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self.func(instance)


def _in_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    """Begin ``work`` in a thread that keeps nothing from its end, not even this process."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    future.add_done_callback(lambda one: one.cancelled() or one.exception())  # seen, if by no one

    def settle(result: T | None, error: Exception | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # there is one, without an error

    def run() -> None:
        try:
            outcome = partial(settle, work(), None)
        except Exception as error:  # noqa: BLE001 - foreign code; it is raised where it is waited for
            outcome = partial(settle, None, error)
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(outcome)

    threading.Thread(target=run, name="weights", daemon=True).start()
    return future


def _reachable(url: str) -> tuple[str, int]:
    """Return this machine's address on the way to a server, and a port that is free there."""
    parts = urlsplit(url)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((parts.hostname or "", parts.port or 80))
        address = str(probe.getsockname()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as free:
        free.bind((address, 0))
        return address, int(free.getsockname()[1])
