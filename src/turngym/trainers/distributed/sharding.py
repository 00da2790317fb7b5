"""How a model reaches the other ranks, is spread over them, and comes back.

Moments of its optimizer go to the disk as a distributed checkpoint of torch, without pickles of
values: each rank writes its own, and any number of them reads.
"""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllocMixin

from turngym.agents.engine.protocol import vision_of
from turngym.errors import CheckpointError, ConfigError
from turngym.trainers.update.compute import compute_of, layers_of, plain_model
from turngym.trainers.update.forward import add_measure
from turngym.trainers.update.optimizer import Optimizer, whole

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from transformers import PreTrainedModel


_RECORDS = "_output_capturing_hooks_installed"


def check_shards(model: PreTrainedModel) -> None:
    """Make sure that a model can be spread.

    Raises:
        ConfigError: It has no layers that ``transformers`` marks as such.
    """
    if not layers_of(plain_model(model)):
        name = type(plain_model(model)).__name__
        raise ConfigError(f"learner.ranks: {name} has no layers to spread; set learner.ranks=1")


def shard(model: PreTrainedModel, mesh: DeviceMesh, *, offload: bool = False) -> None:
    """Spread the weights over ``mesh``, in place: each layer is whole only while it computes.

    Embedding, norm and head stay float32 where layers compute in another precision.

    Args:
        model: Whole, in main memory.
        mesh: The ranks.
        offload: Keep this rank's share in main memory.
    """
    is_cpu = mesh.device_type == "cpu"
    home = CPUOffloadPolicy(pin_memory=not is_cpu) if offload else OffloadPolicy()
    spread = partial(fully_shard, mesh=mesh, offload_policy=home, reshard_after_forward=True)
    compute, plain = compute_of(model), plain_model(model)
    precision = MixedPrecisionPolicy()
    if compute.dtype != torch.float32:
        precision = MixedPrecisionPolicy(
            param_dtype=compute.dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
        )
    # What sees is no layer: only ranks whose episodes have pictures compute it.
    layers = layers_of(plain if vision_of(plain) is None else plain.get_decoder())
    for layer in layers:
        spread(layer, mp_policy=precision)
    # Else weights that were whole in a pass without gradient would be read again after a step.
    spread(plain)
    taken: set[nn.Parameter] = set()
    for module in (*layers, plain):  # the rest is the last one's own
        weights = [w for w in module.parameters() if w.requires_grad and w not in taken]
        taken.update(weights)
        module.set_gradient_divide_factor(1.0)  # losses are sums
        module.set_force_sum_reduction_for_comms(True)
        if weights and is_cpu:
            module.set_custom_reduce_scatter(_InOrder(weights))
    register_fsdp_forward_method(plain, add_measure(model))


class _InOrder(DefaultAllocMixin, ReduceScatter):
    """Adds up gradients in the order of the micro-batches: to the bit what one process does.

    Ranks read the micro-batches of a batch in turn. For a CPU, where equality is tested.

    Args:
        weights: This rank's shares of what is reduced together.
    """

    def __init__(self, weights: Sequence[nn.Parameter]) -> None:
        self._weights = weights
        self._sum: Tensor | None = None

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """Put the sum so far, with the gradients of all ranks, into ``output_tensor``."""
        received = torch.empty_like(input_tensor)
        dist.all_to_all_single(received, input_tensor, group=group)
        if self._weights[0].grad is not None:
            assert self._sum is not None
            output_tensor.copy_(self._sum)
        else:
            output_tensor.zero_()
        for part in received.view(dist.get_world_size(group), -1):
            output_tensor += part
        self._sum = output_tensor
        for weight in self._weights:  # else the caller would add the sum to itself
            weight.grad = None


def gathered(model: PreTrainedModel, *, keep: bool) -> dict[str, Tensor]:
    """Return the whole weights that are trained, by name, on the CPU; all ranks call it.

    Args:
        model: From ``shard``.
        keep: Else nothing is returned, and of each weight no more than one is held at once.
    """
    found: dict[str, Tensor] = {}
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            value = whole(weight.detach())
            if keep:
                found[name] = value.cpu()
    return found


def take(model: PreTrainedModel, weights: Mapping[str, Tensor]) -> None:
    """Copy weights into a model that is not spread."""
    own = dict(model.named_parameters())
    with torch.no_grad():
        for name, weight in weights.items():
            own[name].copy_(weight)


def without_weights(models: Mapping[str, PreTrainedModel]) -> bytes:
    """Return models as bytes, without their weights."""
    buffer = io.BytesIO()
    for model in models.values():
        _forget_hooks(model)
    _Pickler(buffer).dump(dict(models))
    return buffer.getvalue()


def empty_models(content: bytes) -> dict[str, PreTrainedModel]:
    """Return what ``without_weights`` was given, with weights that are still to come."""
    found: dict[str, PreTrainedModel] = _Unpickler(io.BytesIO(content)).load()
    for model in found.values():
        plain = plain_model(model)
        with torch.device("meta"):  # by which transformers knows what it can record
            type(plain)(plain.config)
    return found


def _forget_hooks(model: nn.Module) -> None:
    """Remove the hooks by which transformers records what layers say; it makes them when it needs.

    They cannot be sent to another process.
    """
    for module in model.modules():
        if getattr(module, _RECORDS, False):
            setattr(module, _RECORDS, False)
        for key, hook in [*module._forward_hooks.items()]:
            if hook.__qualname__.startswith("install_output_cap"):
                del module._forward_hooks[key]


def broadcast(
    models: Mapping[str, PreTrainedModel], sources: Mapping[str, PreTrainedModel] | None, group: Any
) -> None:
    """Fill the weights of ``models`` on all ranks from ``sources``, which the first rank has."""
    for key, model in models.items():
        given = None if sources is None else dict(sources[key].named_parameters())
        for name, weight in model.named_parameters():
            if given is not None:
                weight.data.copy_(given[name].data)
            dist.broadcast(weight.data, src=0, group=group)


class _Pickler(pickle.Pickler):
    """Leaves weights out; one that is used twice stays one."""

    def __init__(self, buffer: io.BytesIO) -> None:
        super().__init__(buffer)
        self._numbers: dict[int, int] = {}

    def persistent_id(self, value: Any) -> tuple[int, tuple[int, ...], torch.dtype, bool] | None:
        if not isinstance(value, nn.Parameter):
            return None
        number = self._numbers.setdefault(id(value), len(self._numbers))
        return number, tuple(value.shape), value.dtype, value.requires_grad


class _Unpickler(pickle.Unpickler):
    def __init__(self, buffer: io.BytesIO) -> None:
        super().__init__(buffer)
        self._made: dict[int, nn.Parameter] = {}

    def persistent_load(self, key: tuple[int, tuple[int, ...], torch.dtype, bool]) -> nn.Parameter:
        number, shape, dtype, is_trained = key
        if number not in self._made:
            empty = torch.empty(shape, dtype=dtype)
            self._made[number] = nn.Parameter(empty, requires_grad=is_trained)
        return self._made[number]


def write_shards(optimizer: Optimizer, folder: Path, control: Any) -> None:
    """Write the moments; all ranks call it.

    Args:
        optimizer: Of this rank.
        folder: Seen by all of them.
        control: Process group that messages go through.

    Raises:
        CheckpointError: A rank could not write.
    """
    with _as_ours(folder):
        save(optimizer.state(), checkpoint_id=folder, process_group=control)


def read_shards(optimizer: Optimizer, folder: Path, control: Any = None) -> dict[str, Tensor]:
    """Return what ``optimizer.state`` was, laid out as this rank has its weights.

    Args:
        optimizer: Of this rank.
        folder: Of ``write_shards``.
        control: Process group that messages go through; None for a process alone.

    Raises:
        CheckpointError: It cannot be read, or is of another model.
    """
    state = optimizer.blank_state()
    with _as_ours(folder), warnings.catch_warnings():
        # That a process alone reads what ranks wrote is meant.
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        load(state, checkpoint_id=folder, process_group=control, no_dist=control is None)
    return state


@contextmanager
def _as_ours(folder: Path) -> Iterator[None]:
    try:
        yield
    except CheckpointException as error:
        rank, (cause, _) = min(error.failures.items())
        raise CheckpointError(f"{folder}: rank {rank} failed: {cause}") from cause
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{folder}: {error}") from error
