"""New weights for vLLM from safetensors files below one folder.

Runs in vLLM's own environment and imports nothing of turngym. The folder that holds this file is a
distribution: on ``PYTHONPATH`` it is enough for vLLM to find it, and nothing is installed.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

BACKEND = "turngym_files"
FOLDER = "TURNGYM_WEIGHTS"
"""Environment variable with the folder that weights are read from, and nothing outside of it."""
RUN = "TURNGYM_RUN"
"""Environment variable with the process that started the server, and without which it ends."""
_LOOK_S, _END_S = 1.0, 10.0


@dataclass
class SeenFile(WeightTransferInitInfo):  # type: ignore[misc]  # untyped base
    """A file that the trainer wrote, and what is in it: both must mean the same folder."""

    name: str
    text: str


@dataclass
class NewWeights(WeightTransferUpdateInfo):  # type: ignore[misc]  # untyped base
    """Where new weights are, below the folder."""

    name: str


class FilesEngine(WeightTransferEngine[SeenFile, NewWeights]):  # type: ignore[misc]  # untyped base
    """Loads whole models; an update that is not one of all weights is an error."""

    init_info_cls = SeenFile
    update_info_cls = NewWeights

    def init_transfer_engine(self, init_info: SeenFile) -> None:
        """Make sure that the folder is the trainer's.

        Raises:
            ValueError: It is not.
        """
        file = _below(init_info.name)
        if not file.is_file() or file.read_text() != init_info.text:
            raise ValueError(f"{file.parent}: does not hold what the trainer wrote there")

    def start_weight_update(self) -> None:
        """Get ready to load weights as they are in checkpoints."""
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        self._wanted = {name for name, _ in self.model.named_parameters()}
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: NewWeights) -> None:
        """Load a file.

        Raises:
            ValueError: It lacks weights of the model. vLLM itself would answer 200.
        """
        loaded = self.model.load_weights(_tensors(_below(update_info.name)))
        if loaded is not None and (missing := sorted(self._wanted - set(loaded))):
            raise ValueError(f"{update_info.name}: lacks {len(missing)} weights: {missing[:3]}")

    def finish_weight_update(self) -> None:
        """Put what was loaded to use, heads that share the embeddings included."""
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)
        if self.device.type == "cpu":
            _repack_tied_head(self.model)

    def shutdown(self) -> None:
        """Nothing is held open."""


def register() -> None:
    """Make the back end known; vLLM calls this in each of its processes."""
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, __name__, "FilesEngine")
        if os.environ.get(RUN) == str(os.getppid()):
            threading.Thread(target=_end_with_run, args=(os.getppid(),), daemon=True).start()


def _end_with_run(run: int) -> None:
    """Kill the server and its helpers when ``run`` is gone and they have had time to end.

    vLLM waits for ever for a request that was under way when its engine ended.
    """
    while os.getppid() == run:
        time.sleep(_LOOK_S)
    time.sleep(_END_S)
    os.killpg(0, signal.SIGKILL)


def _below(name: str) -> Path:
    folder = Path(os.environ[FOLDER]).resolve()
    file = (folder / name).resolve()
    if not file.is_relative_to(folder):
        raise ValueError(f"{name!r} is not below {folder}")
    return file


def _tensors(file: Path) -> Iterator[tuple[str, Any]]:
    with safe_open(str(file), framework="pt") as opened:
        for name in opened.keys():  # noqa: SIM118  (it is no mapping)
            yield name, opened.get_tensor(name)


def _repack_tied_head(model: Any) -> None:
    """Pack a head that shares the embeddings anew: on CPUs it is a copy, which would stay stale."""
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

    inner = getattr(model, "model", None)
    for layer in (getattr(model, "lm_head", None), getattr(inner, "embed_tokens", None)):
        if hasattr(layer, "cpu_linear"):
            dispatch_cpu_unquantized_gemm(layer, remove_weight=False)
