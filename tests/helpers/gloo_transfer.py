"""vLLM's transfer of weights over gloo, both ends, and what may go wrong at the server's.

NCCL and CUDA IPC need GPUs; this goes the same way without one. ``serve`` starts servers whose
plug-in is a copy of this file: there it may import nothing of turngym. What goes wrong is said in a
file beside the server's log:

    empty         the next update receives all weights and loads none
    stale head    the next update leaves a head that shares the embeddings as it was
    stall         the next update stops after the first weight, and says so in the file
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import torch
import turngym_vllm
from vllm.distributed.utils import stateless_init_torch_distributed_process_group as join
from vllm.distributed.weight_transfer.base import (
    TrainerInitInfo,
    TrainerWeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import (
    WeightTransferEngineFactory,
    WeightTransferTrainerFactory,
)

FAULT = "TURNGYM_FAULT"
"""Environment variable of a server: the file that says what goes wrong."""
STALLED = "stalled"
_JOIN_S = timedelta(seconds=60)


@dataclass
class Meeting(WeightTransferInitInfo):
    address: str
    port: int
    size: int


@dataclass
class Coming(WeightTransferUpdateInfo):
    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]


def fault() -> str:
    """Return what is to go wrong now, once."""
    file = Path(os.environ[FAULT])
    if not file.is_file():
        return ""
    found = file.read_text()
    file.unlink()
    return found


class FaultyFiles(turngym_vllm.FilesEngine):
    """The back end of files, with what may go wrong."""

    fault = ""

    def start_weight_update(self) -> None:
        self.fault = fault()
        super().start_weight_update()

    def receive_weights(self, update_info: Any) -> None:
        if self.fault != "empty":
            super().receive_weights(update_info)

    def finish_weight_update(self) -> None:
        repack = turngym_vllm._repack_tied_head
        if self.fault == "stale head":
            turngym_vllm._repack_tied_head = lambda model: None
        try:
            super().finish_weight_update()
        finally:
            turngym_vllm._repack_tied_head = repack


class GlooEngine(FaultyFiles):
    init_info_cls = Meeting
    update_info_cls = Coming
    group: Any = None

    def init_transfer_engine(self, init_info: Meeting) -> None:
        where, rank = (init_info.address, init_info.port), 1 + self.parallel_config.rank
        self.group = join(*where, rank, init_info.size, "gloo", timeout=_JOIN_S)

    def receive_weights(self, update_info: Coming) -> None:
        rows = zip(update_info.names, update_info.dtypes, update_info.shapes, strict=True)
        for name, dtype, shape in rows:
            weight = torch.empty(shape, dtype=getattr(torch, dtype))
            self.group.broadcast(weight, 0).wait()
            if self.fault == "stall":
                Path(os.environ[FAULT]).write_text(STALLED)
                time.sleep(3600)
            if self.fault != "empty":
                self.model.load_weights([(name, weight)])

    def shutdown(self) -> None:
        """Keep the group: a thread may still be in it, and gloo does not survive that."""


@dataclass
class GlooInitInfo(TrainerInitInfo):
    backend: ClassVar[str] = "gloo"
    address: str
    port: int
    size: int


class GlooTrainerEngine(TrainerWeightTransferEngine[GlooInitInfo]):
    init_info_cls = GlooInitInfo
    group: Any = None

    @classmethod
    def trainer_init(cls, init_info: GlooInitInfo, *, client: Any, source: Any = None) -> Any:
        from concurrent.futures import ThreadPoolExecutor

        engine = cls(client=client, source=source, is_sender=init_info.is_sender)
        at = Meeting(address=init_info.address, port=init_info.port, size=init_info.size)
        with ThreadPoolExecutor(max_workers=1) as beside:
            joined = beside.submit(client.init_weight_transfer_engine, asdict(at))
            engine.group = join(at.address, at.port, 0, at.size, "gloo", timeout=_JOIN_S)
            joined.result()
        return engine

    def send_weights(self) -> None:
        from concurrent.futures import ThreadPoolExecutor

        found = self.source.metadata
        found = found() if callable(found) else found  # a property from vLLM 0.33 on
        coming = Coming(
            names=[one.name for one in found],
            dtypes=[str(one.dtype).removeprefix("torch.") for one in found],
            shapes=[list(one.shape) for one in found],
        )
        self.client.start_weight_update()
        beside = ThreadPoolExecutor(max_workers=1)
        try:
            loaded = beside.submit(self.client.update_weights, asdict(coming))
            for _, weight in self.source:
                self.group.broadcast(weight, 0).wait()
            loaded.result()
        finally:
            beside.shutdown(wait=False)
        self.client.finish_weight_update()

    def shutdown(self) -> None:
        """Keep the group, as above."""


def register() -> None:
    """Make both ends known; vLLM calls this in each process of a server."""
    for name, engine in {"gloo": GlooEngine, "faulty_files": FaultyFiles}.items():
        if name not in WeightTransferEngineFactory._registry:
            WeightTransferEngineFactory.register_engine(name, engine)
    if "gloo" not in WeightTransferTrainerFactory._registry:
        WeightTransferTrainerFactory.register_engine("gloo", GlooTrainerEngine)
