"""AdamW with gradient clipping, a learning rate that follows the step number, and plain state.

Of low-rank adapters the engine and other programs need the model with them merged in.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from turngym.agents.engine.models import save_model_dir
from turngym.errors import CheckpointError, TrainingError
from turngym.trainers.settings.optimizer import OptimizerConfig
from turngym.trainers.update.compute import plain_name

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_NAMES = "names"
"""Key of the weights' names, as bytes: a state is tensors only."""


class Optimizer:
    """Steps the trainable weights of one model. Its state is tensors and a step count.

    Args:
        model: Weights with ``requires_grad`` are trained.
        config: How.
        total_steps: Planned last step, for the cosine schedule.
    """

    def __init__(self, model: nn.Module, config: OptimizerConfig, *, total_steps: int) -> None:
        self.config = config
        self.steps = 0
        self._total_steps = total_steps
        named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._names, self._weights = list(named), list(named.values())
        self._adamw = torch.optim.AdamW(
            self._weights,
            lr=config.lr,
            betas=(config.beta1, config.beta2),
            weight_decay=config.weight_decay,
            fused=self._weights[0].is_cuda,  # on a CPU it gives other last bits
        )

    @property
    def lr(self) -> float:
        """Learning rate of the next step."""
        config = self.config
        if self.steps < config.lr_warmup_steps:
            return config.lr * (self.steps + 1) / config.lr_warmup_steps
        if config.lr_schedule == "constant":
            return config.lr
        planned = max(1, self._total_steps - config.lr_warmup_steps)
        done = min(1.0, (self.steps - config.lr_warmup_steps) / planned)
        return config.lr * (1 + math.cos(math.pi * done)) / 2

    def zero_grad(self) -> None:
        """Forget the gradients."""
        self._adamw.zero_grad(set_to_none=True)

    def descend(self, losses: Iterable[Tensor], *, where: str) -> float:
        """Step on a sum of losses, whose parts are backpropagated as they come, and return it.

        Args:
            losses: The parts; without any no step is taken.
            where: As of ``step``.

        Raises:
            TrainingError: As of ``step``.
        """
        self.zero_grad()
        total, parts = 0.0, 0
        for loss in losses:
            loss.backward()  # type: ignore[no-untyped-call]
            total, parts = total + loss.item(), parts + 1
        if parts:
            self.step(total, where=where)
        return total

    def step(self, loss: float, *, where: str, scale: float = 1.0) -> float:
        """Clip the gradients, step, and return their norm before clipping.

        Args:
            loss: Of the whole batch; checked, not used.
            where: Names the step in errors, for example ``"step 7"``.
            scale: Multiplies the learning rate of this step alone. A factor on the gradient would
                be cancelled by Adam.

        Raises:
            TrainingError: The loss or a gradient is not finite; no weight has changed.
        """
        found = self._norm()
        norm = float(found)
        if not math.isfinite(loss) or not math.isfinite(norm):
            raise TrainingError(
                f"{where}: loss is {loss}, gradient norm is {norm}; weights were not changed. "
                "Try a lower learning rate"
            )
        nn.utils.clip_grads_with_norm_(self._weights, self.config.grad_clip, found)
        for group in self._adamw.param_groups:
            group["lr"] = self.lr * scale
        self._adamw.step()
        self.steps += 1
        return norm

    def _norm(self) -> Tensor:
        """Return the norm of the gradients over all ranks; on CPUs the sum of one process."""
        grads = [weight.grad for weight in self._weights if weight.grad is not None]
        mesh: DeviceMesh | None = getattr(self._weights[0], "device_mesh", None)
        if mesh is not None and mesh.device_type == "cpu":
            grads = [whole(grad) for grad in grads]
        return whole(nn.utils.get_total_norm(grads))

    def state(self) -> dict[str, Tensor]:
        """Return moments by weight number, and the weights' names; empty before the first step."""
        held = self._adamw.state_dict()["state"]
        if not held:
            return {}
        moments = {
            f"{number}.{name}": torch.as_tensor(value)
            for number, values in held.items()
            for name, value in values.items()
        }
        # What no loss has reached: of a model that sees, where there were no pictures.
        untouched = self._blank(set(range(len(self._weights))) - held.keys())
        return {**moments, **untouched, _NAMES: self._names_as_tensor()}

    def blank_state(self) -> dict[str, Tensor]:
        """Return what ``state`` has after a step, with zeros for moments: to be filled."""
        return {**self._blank(range(len(self._weights))), _NAMES: self._names_as_tensor()}

    def _blank(self, numbers: Iterable[int]) -> dict[str, Tensor]:
        blank: dict[str, Tensor] = {}
        for number in numbers:
            blank[f"{number}.step"] = torch.tensor(0.0)
            for name in ("exp_avg", "exp_avg_sq"):
                blank[f"{number}.{name}"] = torch.zeros_like(self._weights[number].detach())
        return blank

    def _names_as_tensor(self) -> Tensor:
        return torch.tensor(list("\n".join(self._names).encode()), dtype=torch.uint8)

    def load_state(self, tensors: Mapping[str, Tensor], *, steps: int) -> None:
        """Take over the ``tensors`` that ``state`` returned.

        Raises:
            CheckpointError: It belongs to another model: a weight has another name or shape.
        """
        if _NAMES in tensors:  # state of older versions has none, and goes by number
            self._check_names(bytes(tensors[_NAMES].tolist()).decode().split("\n"))
        moments: dict[int, dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            number, _, name = key.partition(".")
            if key == _NAMES:
                continue
            moments.setdefault(int(number), {})[name] = tensor
        shapes = {number: values["exp_avg"].shape for number, values in moments.items()}
        if shapes and shapes != {i: weight.shape for i, weight in enumerate(self._weights)}:
            raise CheckpointError("the optimizer state belongs to a model of another shape")
        groups = self._adamw.state_dict()["param_groups"]
        self._adamw.load_state_dict({"state": moments, "param_groups": groups})
        self.steps = steps

    def _check_names(self, found: list[str]) -> None:
        """Refuse moments of other weights: equal shapes do not make them the same."""
        if found != self._names:
            pairs = zip_longest(found, self._names, fillvalue="none")
            number, (old, new) = next((i, p) for i, p in enumerate(pairs) if p[0] != p[1])
            raise CheckpointError(
                f"the optimizer state belongs to another model: its weight {number} is {old!r}, "
                f"and here it is {new!r}"
            )


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor of which this rank may have a share only; all ranks call it."""
    gather: Callable[[], Tensor] | None = getattr(tensor, "full_tensor", None)
    return tensor if gather is None else gather()


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
            # Of experts peft adapts parameters that have other names, with a wrapper for each.
            plain_name(f"{name}.{getattr(module, 'parameter_name', 'weight')}"): (
                module.get_delta_weight(adapted.active_adapter)
            )
            for name, module in plain.named_modules()
            if hasattr(module, "get_delta_weight")
        }
        for key, tensor in plain.state_dict().items():
            if ".lora_" in key:
                continue
            name = plain_name(key)
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
