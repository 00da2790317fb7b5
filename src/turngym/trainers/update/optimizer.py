"""AdamW with gradient clipping, a learning rate that follows the step number, and plain state."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import zip_longest
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from turngym.errors import CheckpointError, TrainingError
from turngym.trainers.settings.optimizer import OptimizerConfig

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

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
        moments = {
            f"{number}.{name}": torch.as_tensor(value)
            for number, values in self._adamw.state_dict()["state"].items()
            for name, value in values.items()
        }
        names = "\n".join(self._names).encode()
        return {**moments, _NAMES: torch.tensor(list(names), dtype=torch.uint8)} if moments else {}

    def blank_state(self) -> dict[str, Tensor]:
        """Return what ``state`` has after a step, with zeros for moments: to be filled."""
        blank: dict[str, Tensor] = {}
        for number, weight in enumerate(self._weights):
            blank[f"{number}.step"] = torch.tensor(0.0)
            for name in ("exp_avg", "exp_avg_sq"):
                blank[f"{number}.{name}"] = torch.zeros_like(weight.detach())
        names = "\n".join(self._names).encode()
        return {**blank, _NAMES: torch.tensor(list(names), dtype=torch.uint8)}

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
