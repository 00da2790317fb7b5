"""How weights get to servers: one folder for each publication, and what they should score there."""

from __future__ import annotations

import fcntl
import json
import secrets
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import save_file

from turngym.agents.engine.config import VllmEngineConfig
from turngym.agents.engine.models import LORA_SCALE, positions, save_model_dir
from turngym.agents.engine.protocol import vision_of
from turngym.agents.engine.vllm.replica import Publication
from turngym.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_KEPT = 2
"""Newest publications that stay: a server may still be reading the one before."""
_PROBE_HW3 = (64, 96, 3)
_PROBE_TOKENS, _BEGINNINGS = 48, 8
_SHARED_MEMORY = Path("/dev/shm")
_PREFIX, _LOCK = "turngym-weights-", "lock"
_ADAPTED, _A, _B = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
"""How ``peft`` names adapters on the disk."""


class Handover:
    """Writes publications into the folder that the servers read.

    Args:
        config: Says where, and in which precision.
        model: Has the shape of all weights to come.
        tokenizer: Of the model.

    Raises:
        ConfigError: The folder cannot be written.
    """

    def __init__(
        self, config: VllmEngineConfig, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
    ) -> None:
        self._dtype = getattr(torch, config.dtype)
        self._is_in_flight = config.weights != "files"
        self._lock: TextIO | None = None
        if config.folder:
            self.folder = Path(config.folder)
        else:
            self.folder, self._lock = _temporary_folder()
        self.run = secrets.token_hex(4)
        """What the labels of its publications begin with."""
        self._count = 0
        self._files: list[Path] = []
        self.bytes_published = 0
        with torch.device("meta"):
            self._shape: Any = type(model)(model.config)
        # Weights that share their memory have several names in a state dict, and one here.
        own = [name for name, _ in self._shape.named_parameters()]
        kept = self._shape.state_dict().keys()
        self._names = [*own, *(n for n, _ in self._shape.named_buffers() if n in kept)]
        state = model.state_dict()
        self._base = {n: state[n] for n in self._names} if config.adapter_rank else None
        self._buffers = {name: value.clone() for name, value in model.named_buffers()}
        rng = np.random.default_rng(len(tokenizer))
        longest = positions(model) or 2048
        count = min(_PROBE_TOKENS, longest - 1)
        self._vision = vision_of(tokenizer)
        probe = rng.integers(0, len(tokenizer), count).tolist()
        if self._vision is not None:  # weights that see are to be measured, too
            number = self._vision.pictures.keep(rng.integers(0, 256, _PROBE_HW3, dtype=np.uint8))
            probe, picture = self._vision.as_read(probe), self._vision.tokens(number)
            if count + len(picture) < longest:
                probe[count // 2 : count // 2] = picture
        self._probe = tuple(probe)
        self._expected = self._score({n: state[n] for n in self._names}, self._probe)
        self.model_folder = self.folder / f"model-{self.run}"
        try:
            save_model_dir(model, tokenizer, self.model_folder)
            self._check_room()
        except (OSError, SafetensorError) as error:
            self.close()
            raise ConfigError(
                f"engine.folder: the model cannot be written to {self.folder} ({error}); name a "
                f"folder with room for it and {_KEPT + 1} publications"
            ) from error

    def _check_room(self) -> None:
        """Raise an OSError where no whole publications will fit; adapters are small."""
        if self._is_in_flight or self._base is not None:
            return
        size = sum(weights.numel() for weights in self._shape.parameters()) * self._dtype.itemsize
        wanted, free = (_KEPT + 1) * size, shutil.disk_usage(self.folder).free
        if free < wanted:
            raise OSError(f"{wanted / 2**20:.0f} MiB more are wanted, {free / 2**20:.0f} are free")

    def token(self) -> tuple[str, str]:
        """Return name and content of a file in the folder, by which a server shows that it sees it.

        Raises:
            OSError: It could not be written.
        """
        file = self.folder / f"seen-{self.run}"
        file.write_text(self.run, encoding="utf-8")
        return file.name, self.run

    def prepare(self, weights: Mapping[str, Tensor], version: int) -> Publication:
        """Write ``weights``, or copy them, and return them as a publication.

        Raises:
            OSError, SafetensorError: They could not be written.
        """
        self._count += 1
        label = f"{self.run}.{self._count}.{version}"
        if self._is_in_flight:
            return self._copied(weights, label)
        if self._base is None:
            weights = {name: weights[name].detach() for name in self._names}
            file, scored, adapters = self.folder / f"weights-{label}.safetensors", weights, ""
        else:
            folder = self.folder / f"adapters-{label}"
            _describe_adapters(weights, folder)
            file, adapters = folder / "adapter_model.safetensors", str(folder.resolve())
            scored = _merged(self._base, weights)
        written = {n: value.to("cpu", self._dtype).contiguous() for n, value in weights.items()}
        self._files.append(file)  # first: half of one is removed, too
        save_file(written, str(file))
        self.bytes_published += file.stat().st_size
        for old in self._files[:-_KEPT]:
            _remove(old)
        del self._files[:-_KEPT]
        return Publication(
            label=label, file=file.name, adapters=adapters, **self._expectations(scored)
        )

    def _copied(self, weights: Mapping[str, Tensor], label: str) -> Publication:
        """Return a publication of what ``weights`` are now, on the device where they are."""
        own = {name: weights[name].detach() for name in self._names}
        copied = {n: value.to(self._dtype, copy=True).contiguous() for n, value in own.items()}
        self.bytes_published += sum(value.nbytes for value in copied.values())
        return Publication(label=label, weights=copied, **self._expectations(own))

    def _expectations(self, weights: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return what servers are measured by that have ``weights``."""
        before, self._expected = self._expected, self._score(weights, self._probe)
        return {
            "probe": self._probe,
            "expected": self._expected,
            "before": before,
            "vision": self._vision,
        }

    def _score(self, weights: Mapping[str, Tensor], ids: Sequence[int]) -> NDArray[np.float32]:
        """Return what is expected of ``ids`` under ``weights``, without a copy of them."""
        device = next(iter(weights.values())).device
        state = {**{n: b.to(device) for n, b in self._buffers.items()}, **weights}
        inputs = {"input_ids": torch.tensor([ids], device=device)}
        if self._vision is not None:
            inputs = self._vision.inputs(inputs["input_ids"], self._shape.base_model)
        with torch.inference_mode():
            found = torch.func.functional_call(self._shape, state, (), inputs)
            logprobs: Tensor = found.logits[0].float().log_softmax(-1)
            if self._base is not None:
                return logprobs[-_BEGINNINGS:].cpu().numpy()
            chosen: Tensor = logprobs[:-1].gather(-1, inputs["input_ids"][0, 1:, None])[:, 0]
        return chosen.cpu().numpy()

    def close(self) -> None:
        """Remove what was written."""
        with suppress(OSError):
            for file in (*self._files, self.folder / f"seen-{self.run}"):
                _remove(file)
            shutil.rmtree(self.folder if self._lock else self.model_folder, ignore_errors=True)
        if self._lock is not None:
            self._lock.close()


def zero_adapters(model: PreTrainedModel, rank: int) -> dict[str, Tensor]:
    """Return adapters that change nothing."""
    found: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and not name.endswith("lm_head"):
            found[f"{_ADAPTED}{name}{_A}"] = torch.zeros(rank, module.in_features)
            found[f"{_ADAPTED}{name}{_B}"] = torch.zeros(module.out_features, rank)
    return found


def _describe_adapters(weights: Mapping[str, Tensor], folder: Path) -> None:
    """Make the folder of adapters that are not written yet."""
    ranks = [value.shape[0] for name, value in weights.items() if name.endswith(_A)]
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": ranks[0],
        "lora_alpha": LORA_SCALE * ranks[0],
        "target_modules": sorted({name.split(".")[-3] for name in weights}),
        "base_model_name_or_path": "",
        "bias": "none",
    }
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")


def _merged(base: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a model that has these adapters, where the adapters are."""
    device = next(iter(weights.values())).device
    merged = {name: value.to(device) for name, value in base.items()}
    for name, down in weights.items():
        if name.endswith(_A):
            module = name.removeprefix(_ADAPTED).removesuffix(_A)
            delta = LORA_SCALE * weights[name.removesuffix(_A) + _B] @ down
            merged[f"{module}.weight"] = merged[f"{module}.weight"] + delta.detach()
    return merged


def _remove(file: Path) -> None:
    """Remove a file, and the folder of adapters that it is in."""
    file.unlink(missing_ok=True)
    if file.parent.name.startswith("adapters-"):
        shutil.rmtree(file.parent, ignore_errors=True)


def _temporary_folder() -> tuple[Path, TextIO]:
    """Return a new folder in memory and the lock that keeps it; remove those that nothing keeps.

    A run that was killed cannot remove its own, which may be as large as its model.
    """
    base = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir())
    for old in base.glob(f"{_PREFIX}*"):
        with suppress(OSError), (old / _LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(old)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
    lock = (folder / _LOCK).open("w")
    fcntl.flock(lock, fcntl.LOCK_SH)
    return folder, lock
