"""On what device, in what precision and on which ranks a model is trained.

Weights and moments are float32 whatever is computed in; so is the head. Of several ranks each has
the whole batch and computes everything that is not a forward or backward pass; of those it does its
share. So ranks change nothing but rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from turngym.agents.engine.devices import DTYPES, device_of
from turngym.errors import ConfigError
from turngym.trainers.settings.optimizer import ComputeConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel

T = TypeVar("T")
NEUTRAL_HEAD = {
    "final_logit_softcapping": None,
    "logits_soft_cap": None,
    "output_logit_soft_cap": None,
    "logits_scaling": 1.0,
    "logit_scale": 1.0,
    "lm_head_multiplier": 1.0,
    "logits_mup_width_multiplier": 1.0,
}
"""Settings by which some architectures change logits around the head, and what means no change:
all that transformers 5.24 has."""
_KEPT = "_turngym_compute"


@dataclass(frozen=True, slots=True)
class Compute:
    """How forward and backward passes of a model are done."""

    device: torch.device
    dtype: torch.dtype = torch.float32
    recompute: bool = False
    """Keep of each layer its input alone, and compute it again for the gradient."""
    packed: bool = False
    """Lay sequences end to end in one row; else pad them to rectangles."""


def place(model: PreTrainedModel, config: ComputeConfig, *, move: bool = True) -> PreTrainedModel:
    """Move a model to where it is trained, in place, and note how it is computed.

    Args:
        model: With adapters or without; its weights are float32.
        config: What is wanted.
        move: False leaves it where it is, for a model whose copies are trained.

    Raises:
        ConfigError: There is no such device, or the architecture does not allow it.
    """
    from transformers.utils import is_flash_attn_2_available

    device = device_of(config.device, setting="learner.device")
    flash = device.type == "cuda" and config.dtype == "bfloat16" and is_flash_attn_2_available()
    plain = plain_model(model)
    _check(plain, config)
    if flash:
        plain.set_attn_implementation("flash_attention_2")
    packed = flash if config.packing == "auto" else config.packing == "always"
    compute = Compute(device, DTYPES[config.dtype], config.recompute, packed)
    setattr(plain.base_model, _KEPT, compute)
    return model.to(device) if move else model


def place_like(model: PreTrainedModel, other: PreTrainedModel) -> PreTrainedModel:
    """Move a model, in place, to where ``other`` is trained, to be computed as that one is.

    Args:
        model: Its weights are float32.
        other: From ``place``.
    """
    compute, plain = compute_of(other), plain_model(model)
    plain.set_attn_implementation(plain_model(other).config._attn_implementation)
    setattr(plain.base_model, _KEPT, compute)
    return model.to(compute.device)


def compute_of(model: nn.Module) -> Compute:
    """Return what ``place`` noted of a model, of its body or of a copy; where it is, if nothing."""
    found: Compute | None = getattr(plain_model(model).base_model, _KEPT, None)
    return found or Compute(next(model.parameters()).device)


def plain_model(model: Any) -> Any:
    """Return the model without its adapters."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def plain_name(name: str) -> str:
    """Return the name of a module or weight without adapters, whose wrappers may be nested."""
    return ".".join(part for part in name.split(".") if part != "base_layer")


@contextmanager
def computing(body: nn.Module) -> Iterator[None]:
    """Compute the forward passes of a body inside the block as ``place`` noted."""
    compute = compute_of(body)
    layers = layers_of(body) if compute.recompute and torch.is_grad_enabled() else []
    for layer in layers:
        # Only a layer in training mode is computed again.
        layer._gradient_checkpointing_func = partial(
            checkpoint, _evaluating, layer, use_reentrant=False
        )
        layer.gradient_checkpointing = layer.training = True
    is_full = compute.dtype == torch.float32
    try:
        with nullcontext() if is_full else torch.autocast(compute.device.type, compute.dtype):
            yield
    finally:
        for layer in layers:
            layer.gradient_checkpointing = layer.training = False


def _evaluating(layer: nn.Module, forward: Callable[..., T], *args: Any) -> T:
    """Return what a layer does in evaluation mode: with dropout no ratio of a token would be 1."""
    before, layer.training = layer.training, False
    try:
        return forward(*args)
    finally:
        layer.training = before


def layers_of(body: nn.Module) -> list[Any]:
    """Return what ``transformers`` marks as the layers of a model."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [module for module in body.modules() if isinstance(module, GradientCheckpointingLayer)]


def _check(plain: Any, config: ComputeConfig) -> None:
    name = type(plain).__name__
    if config.recompute and not layers_of(plain):
        raise ConfigError(f"learner.recompute: {name} has no layers that can be computed again")
    text = plain.config.get_text_config()
    changed = [key for key, none in NEUTRAL_HEAD.items() if getattr(text, key, none) != none]
    if config.dtype != "float32" and changed:
        raise ConfigError(
            f"learner.dtype={config.dtype!r}: {name} changes its logits after the head "
            f"({changed[0]}), which would be rounded; set learner.dtype=float32"
        )


class Ranks:
    """The processes, and the place of this one among them; here it is the only one."""

    number: int = 0
    """Of this process, from 0."""
    size: int = 1

    def exchanged(self, value: T) -> Sequence[T]:
        """Return the values of all ranks in order. All of them call it at the same places."""
        return (value,)

    def agreed(self) -> AbstractContextManager[None]:
        """Raise after the block, on every rank, what it raised on any of them.

        Inside the block ranks do not wait for each other, so that none waits for one that failed.
        """
        return nullcontext()


ALONE = Ranks()
