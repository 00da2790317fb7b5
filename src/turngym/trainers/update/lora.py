"""Low-rank adapters: what the engine and other programs need is the model with them merged in."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from turngym.agents.engine.models import save_model_dir
from turngym.errors import CheckpointError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

ADAPTER = "adapter/adapter_model"
"""Name of the adapters' tensors in a checkpoint: a folder that ``peft`` reads."""


def is_adapted(model: nn.Module) -> bool:
    """Say whether ``model`` carries adapters."""
    return hasattr(model, "peft_config")


def full_state(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return the state dict of the plain model, with adapters merged into the weights they adapt.

    The model itself is left alone: merging and unmerging in place would drift by rounding.
    """
    if not is_adapted(model):
        return dict(model.state_dict())
    adapted: Any = model
    plain: Any = adapted.get_base_model()
    state: dict[str, Tensor] = {}
    with torch.no_grad():
        deltas = {
            f"{name}.weight": module.get_delta_weight(adapted.active_adapter)
            for name, module in plain.named_modules()
            if hasattr(module, "get_delta_weight")
        }
        for key, tensor in plain.state_dict().items():
            if ".lora_" in key:
                continue
            name = key.replace(".base_layer.", ".")
            state[name] = tensor + deltas[name] if name in deltas else tensor
    return state


def save_merged(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, path: Path) -> None:
    """Write a folder that ``load_model_dir`` and other programs read, adapters merged in."""
    if not is_adapted(model):
        save_model_dir(model, tokenizer, path)
        return
    adapted: Any = model
    save_model_dir(adapted.get_base_model(), tokenizer, path, state=full_state(model))


def own_state(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return the weights that training may change, by name: the adapters, or all without them."""
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    if not is_adapted(model):
        return weights
    return {name: weight for name, weight in weights.items() if ".lora_" in name}


def load_own_state(model: PreTrainedModel, tensors: Mapping[str, Tensor]) -> None:
    """Take over the ``tensors`` that ``own_state`` of an equal model returned.

    Raises:
        CheckpointError: It belongs to another model.
    """
    wanted = own_state(model)
    if {k: v.shape for k, v in wanted.items()} != {k: v.shape for k, v in tensors.items()}:
        raise CheckpointError("the weights belong to a model of another shape")
    for name, weight in wanted.items():
        weight.copy_(tensors[name])


def adapter_state(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return the adapters under the names that ``peft`` gives them on the disk."""
    return {_on_disk(model, name): weight for name, weight in own_state(model).items()}


def load_adapter_state(model: PreTrainedModel, tensors: Mapping[str, Tensor]) -> None:
    """Take over the ``tensors`` of ``adapter_state``; names of earlier versions are read, too.

    Raises:
        CheckpointError: It belongs to another model.
    """
    names = {_on_disk(model, name): name for name in own_state(model)}
    load_own_state(model, {names.get(name, name): weight for name, weight in tensors.items()})


def write_adapter_config(model: PreTrainedModel, folder: Path) -> None:
    """Write ``adapter_config.json``, which makes a folder of adapters one that ``peft`` reads."""
    adapted: Any = model
    config = copy.copy(adapted.peft_config[adapted.active_adapter])
    config.inference_mode = True
    config.save_pretrained(str(folder))


def _on_disk(model: PreTrainedModel, name: str) -> str:
    adapted: Any = model
    return name.replace(f".{adapted.active_adapter}.", ".")
