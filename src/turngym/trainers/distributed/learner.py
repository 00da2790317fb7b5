"""Learner and imitator of a run whose policy is spread over the ranks of a group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor
from torch.distributed.tensor import distribute_tensor

from turngym.trainers.distributed.group import Group
from turngym.trainers.distributed.sharding import gathered, read_shards, take, write_shards
from turngym.trainers.samples import TrainingSample

if TYPE_CHECKING:
    from transformers import PreTrainedModel

T = TypeVar("T")


class SpreadTrainer:
    """What ``LearnerGroup`` and ``ImitatorGroup`` share. They live on rank 0.

    The ranks begin when something is first done, with the weights as they are then.

    Args:
        group: The ranks.
        make: Makes each rank's trainer of ``models``; see ``Group.begin``.
        models: ``model`` and perhaps ``reference``, whole. ``model`` follows what is trained.
    """

    def __init__(
        self, group: Group, make: Callable[..., Any], models: Mapping[str, PreTrainedModel]
    ) -> None:
        self._group = group
        self._make = make
        self._models = models
        self._has_begun = False
        self._is_behind = False

    @property
    def steps(self) -> int:
        """Optimizer steps done."""
        return int(self._group.trainer.steps) if self._has_begun else 0

    def catch_up(self) -> None:
        """Bring the whole model of rank 0 to the weights of the ranks."""
        if self._is_behind:
            take(self._models["model"], self._run(_gathered))
            self._is_behind = False

    def write_shards(self, folder: Path) -> None:
        """Write the moments, each rank its own.

        Raises:
            CheckpointError: A rank could not write.
        """
        if self._has_begun and self.steps:
            self._run(_write_shards, folder)

    def read_shards(self, folder: Path, **counters: int) -> None:
        """Take over what ``write_shards`` wrote, of any number of ranks.

        Args:
            folder: What it wrote to.
            counters: As of ``load_state``.

        Raises:
            CheckpointError: It cannot be read, or belongs to another model.
        """
        self._run(_read_shards, folder, counters)

    def load_state(self, tensors: Mapping[str, Tensor], **counters: int) -> None:
        """Take over what a learner in one process returned as its state."""
        self._run(_load_whole, dict(tensors), counters)

    def _run(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        if not self._has_begun:
            self._group.begin(self._make, self._models)
            self._has_begun = True
        return self._group.run(function, *args, **kwargs)


class LearnerGroup(SpreadTrainer):
    """A ``TorchLearner`` whose weights, gradients and moments are spread over ranks."""

    @property
    def updates(self) -> int:
        """Updates done; the version of the weights."""
        return int(self._group.trainer.updates) if self._has_begun else 0

    def update(self, samples: Sequence[TrainingSample]) -> dict[str, float]:
        """Change the weights once for a batch of episodes; see ``TorchLearner``."""
        self._is_behind = True
        metrics = self._run(_call, "update", samples)
        self.catch_up()
        return metrics

    def state(self) -> dict[str, Tensor]:
        """Return nothing: each rank writes its own. The whole model is brought up to date."""
        self.catch_up()
        return {}

    def score(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Return ``function(model, *args, ranks=..., **kwargs)``, as ``CreditContext`` does."""
        found: T = self._run(_score, function, args, kwargs)
        return found


class ImitatorGroup(SpreadTrainer):
    """An ``Imitator`` whose weights, gradients and moments are spread over ranks."""

    def step(self) -> dict[str, float]:
        """Take one optimizer step on the next episodes and return metrics ``warm_start/*``."""
        self._is_behind = True
        return self._run(_call, "step")

    def tensors(self) -> dict[str, Mapping[str, Tensor]]:
        """Return nothing: each rank writes its own. The whole model is brought up to date."""
        self.catch_up()
        return {}


# What every rank does.


def _call(group: Group, method: str, *args: Any) -> dict[str, float]:
    found: dict[str, float] = getattr(group.trainer, method)(*args)
    return found


def _score(
    group: Group, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    return function(group.trainer.model, *args, ranks=group, **kwargs)


def _gathered(group: Group) -> dict[str, Tensor]:
    return gathered(group.trainer.model, keep=group.number == 0)


def _load_whole(group: Group, tensors: Mapping[str, Tensor], counters: Mapping[str, int]) -> None:
    trainer = group.trainer
    spread = dict(tensors)
    for name, like in trainer.optimizer.blank_state().items() if tensors else ():
        if name in spread and hasattr(like, "device_mesh"):
            whole = spread[name].to(group.device)
            # Every rank has the whole: nothing is sent.
            spread[name] = distribute_tensor(
                whole, like.device_mesh, like.placements, src_data_rank=None
            )
    trainer.load_state(spread, **counters)


def _write_shards(group: Group, folder: Path) -> None:
    write_shards(group.trainer.optimizer, folder, group.control)


def _read_shards(group: Group, folder: Path, counters: Mapping[str, int]) -> None:
    state = read_shards(group.trainer.optimizer, folder, group.control)
    group.trainer.load_state(state, **counters)
