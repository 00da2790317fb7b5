"""How weights get to servers: one folder for each publication, and what they should score there."""

from __future__ import annotations

import fcntl
import secrets
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np
import torch
from numpy.typing import NDArray

from turngym.agents.engine.config import VllmEngineConfig
from turngym.agents.engine.models import save_model_dir
from turngym.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_KEPT = 2
"""Newest publications that stay: a server may still be reading the one before."""
_PROBE_TOKENS = 48
_SHARED_MEMORY = Path("/dev/shm")
_PREFIX, _LOCK = "turngym-weights-", "lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """Weights that servers are to sample with."""

    label: str
    """What servers call them; unlike that of any other publication of any run."""
    version: int
    file: str
    """Below the folder."""
    probe: tuple[int, ...]
    expected: NDArray[np.float32]
    """Log-probs of the probe's tokens under these weights, from the second on."""


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
        self._lock: TextIO | None = None
        if config.folder:
            self.folder = Path(config.folder)
        else:
            self.folder, self._lock = _temporary_folder()
        self._run = secrets.token_hex(4)
        self._count = 0
        self._files: list[Path] = []
        self.bytes_written = 0
        with torch.device("meta"):
            self._shape: Any = type(model)(model.config)
        # Weights that share their memory have several names in a state dict, and one here.
        own = [name for name, _ in self._shape.named_parameters()]
        kept = self._shape.state_dict().keys()
        self._names = [*own, *(n for n, _ in self._shape.named_buffers() if n in kept)]
        self._buffers = {name: value.clone() for name, value in model.named_buffers()}
        rng = np.random.default_rng(len(tokenizer))
        count = min(_PROBE_TOKENS, model.config.max_position_embeddings - 1)
        self._probe = tuple(rng.integers(0, len(tokenizer), count).tolist())
        self.model_folder = self.folder / f"model-{self._run}"
        try:
            save_model_dir(model, tokenizer, self.model_folder)
        except OSError as error:
            raise ConfigError(f"engine.folder={str(self.folder)!r}: {error}") from error

    def token(self) -> tuple[str, str]:
        """Return name and content of a file in the folder, by which a server shows that it sees it.

        Raises:
            OSError: It could not be written.
        """
        file = self.folder / f"seen-{self._run}"
        file.write_text(self._run, encoding="utf-8")
        return file.name, self._run

    def prepare(self, weights: Mapping[str, Tensor], version: int) -> Publication:
        """Write ``weights`` and return them as a publication.

        Raises:
            OSError: They could not be written.
        """
        from safetensors.torch import save_file

        self._count += 1
        label = f"{self._run}.{self._count}"
        file = self.folder / f"weights-{label}.safetensors"
        weights = {name: weights[name].detach() for name in self._names}
        written = {n: value.to("cpu", self._dtype).contiguous() for n, value in weights.items()}
        save_file(written, str(file))
        self._files.append(file)
        self.bytes_written += file.stat().st_size
        for old in self._files[:-_KEPT]:
            old.unlink(missing_ok=True)
        del self._files[:-_KEPT]
        return Publication(
            label=label,
            version=version,
            file=file.name,
            probe=self._probe,
            expected=self._score(weights, self._probe),
        )

    def _score(self, weights: Mapping[str, Tensor], ids: Sequence[int]) -> NDArray[np.float32]:
        """Return the log-probs of ``ids`` [L - 1] under ``weights``, without a copy of them."""
        device = next(iter(weights.values())).device
        state = {**{n: b.to(device) for n, b in self._buffers.items()}, **weights}
        tokens = torch.tensor([ids], device=device)
        with torch.inference_mode():
            found = torch.func.functional_call(self._shape, state, (tokens,))
            logprobs = found.logits[0, :-1].float().log_softmax(-1)
            chosen: Tensor = logprobs.gather(-1, tokens[0, 1:, None])[:, 0]
        return chosen.cpu().numpy()

    def close(self) -> None:
        """Remove what was written."""
        with suppress(OSError):
            for file in (*self._files, self.folder / f"seen-{self._run}"):
                file.unlink(missing_ok=True)
            shutil.rmtree(self.folder if self._lock else self.model_folder, ignore_errors=True)
        if self._lock is not None:
            self._lock.close()


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
