"""What sources of credit share that learn a model of their own while they judge.

Axis letters: N chosen token, H width.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from turngym.trainers.credit.sources.ring import Ring
from turngym.trainers.update.forward import MicroBatch

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Learner(Protocol):
    """A model and its optimizer."""

    def state(self) -> dict[str, Tensor]:
        """Return both."""
        ...

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what ``state`` returned."""
        ...


L = TypeVar("L", bound=Learner)


class LearnedSource(ABC, Generic[L]):
    """Has a learner, made when first needed, and the newest lessons that it learns from.

    Args:
        capacity: Most lessons.
        warmup_updates: Batches that it only learns from.
    """

    def __init__(self, capacity: int, *, warmup_updates: int) -> None:
        self._ring = Ring(capacity)
        self._warmup_updates = warmup_updates
        self._made: L | None = None
        self._reads = 0
        self._metrics: Mapping[str, float] = {}

    @abstractmethod
    def _new_learner(self) -> L: ...

    @property
    def _learner(self) -> L:
        if self._made is None:
            self._made = self._new_learner()
        return self._made

    @property
    def is_ready(self) -> bool:
        """False in the first ``warmup_updates``."""
        return self._reads >= self._warmup_updates

    def metrics(self) -> Mapping[str, float]:
        """Return what the last batch said of the learner."""
        return self._metrics

    def state(self) -> dict[str, Tensor]:
        """Return the learner, its optimizer, and the lessons that it learns from."""
        tensors = {f"ring/{name}": tensor for name, tensor in self._ring.state().items()}
        if self._made is not None:
            tensors |= {f"learner/{name}": tensor for name, tensor in self._made.state().items()}
        return tensors | {"reads": torch.tensor(self._reads)}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what ``state`` returned."""
        if not tensors:
            return
        self._ring.load_state(below(tensors, "ring"))
        self._reads = int(tensors["reads"].item())
        if learned := below(tensors, "learner"):
            self._made = self._new_learner()
            self._made.load_state(learned)


def body_of(model: PreTrainedModel) -> tuple[nn.Module, int]:
    """Return a copy of a model's body in fp32, adapters merged, to be trained; and its width."""
    plain: Any = model
    if hasattr(plain, "merge_and_unload"):
        plain = copy.deepcopy(plain).merge_and_unload()
    body: nn.Module = copy.deepcopy(plain.base_model).float().requires_grad_(True).eval()
    return body, int(plain.config.get_text_config().hidden_size)


class BodyWithHead(nn.Module):
    """A copy of a model's body, adapters merged, and one number read off its hidden states.

    In fp32 and in evaluation mode, so that dropout adds no noise. The head starts at 0, and draws
    no random numbers.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.body, width = body_of(model)
        self.device: torch.device = next(self.body.parameters()).device
        self.weight = nn.Parameter(torch.zeros(1, width))
        self.bias = nn.Parameter(torch.zeros(1))
        self.to(self.device).eval()

    def forward(self, batch: MicroBatch, *, is_behind: bool) -> Tensor:
        """Return one number [N] per chosen token, read behind it or just before it."""
        hidden = self.body(input_ids=batch.token_ids_BT, use_cache=False).last_hidden_state
        chosen_NH = hidden[batch.rows_N, batch.columns_N + is_behind]
        return functional.linear(chosen_NH, self.weight, self.bias)[:, 0]


def below(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """Return the entries under ``name/``, without it."""
    prefix = f"{name}/"
    return {key[len(prefix) :]: value for key, value in tensors.items() if key.startswith(prefix)}
