"""Copies of the policy's body for critics and estimators. Axis letters: N chosen token, H width."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from turngym.trainers.update.compute import compute_of
from turngym.trainers.update.forward import MicroBatch, hidden_states

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def body_of(model: PreTrainedModel) -> tuple[nn.Module, int]:
    """Return a copy of a model's body in fp32, adapters merged, to be trained; and its width.

    It is where models are trained, which need not be where ``model`` is.
    """
    plain: Any = model
    if hasattr(plain, "merge_and_unload"):
        plain = copy.deepcopy(plain).merge_and_unload()
    body: nn.Module = copy.deepcopy(plain.base_model).float().requires_grad_(True).eval()
    body.to(compute_of(body).device)
    return body, int(plain.config.get_text_config().hidden_size)


class BodyWithHead(nn.Module):
    """A copy of a model's body, adapters merged, and one number read off its hidden states.

    In fp32 and in evaluation mode, so that dropout adds no noise. The head starts at 0, and uses
    no random numbers.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.body, width = body_of(model)
        self.compute = compute_of(self.body)
        self.device: torch.device = self.compute.device
        self.weight = nn.Parameter(torch.zeros(1, width))
        self.bias = nn.Parameter(torch.zeros(1))
        self.to(self.device).eval()

    def forward(self, batch: MicroBatch, *, is_behind: bool) -> Tensor:
        """Return one number [N] per chosen token, read behind it or just before it."""
        hidden = hidden_states(self.body, batch)
        chosen_NH = hidden[batch.rows_N, batch.columns_N + is_behind].float()
        return functional.linear(chosen_NH, self.weight, self.bias)[:, 0]
