"""The contract of learners: what changes the weights of a policy, whatever it runs on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from turngym.trainers.samples import TrainingSample

if TYPE_CHECKING:
    from torch import Tensor


class Learner(Protocol):
    """Changes the weights of a policy."""

    @property
    def updates(self) -> int:
        """Updates done; the version of the weights."""

    @property
    def steps(self) -> int:
        """Optimizer steps done."""

    def update(self, samples: Sequence[TrainingSample]) -> dict[str, float]:
        """Change the weights once for a batch of episodes.

        Args:
            samples: The whole batch. Without any sampled token the weights stay as they are.

        Returns:
            Metrics ``train/*``.

        Raises:
            TrainingError: The loss or a gradient is not finite; the message names the step.
        """

    def weights(self) -> Mapping[str, Tensor]:
        """Return the state dict of the plain model, adapters merged in, to publish."""

    def state(self) -> Mapping[str, Tensor]:
        """Return the optimizer's tensors."""

    def load_state(self, tensors: Mapping[str, Tensor], *, updates: int, steps: int) -> None:
        """Take over ``tensors``: ``state`` after ``updates`` updates and ``steps`` steps."""

    def read_shards(self, folder: Path, *, updates: int, steps: int) -> None:
        """Take over what the ranks of such a learner wrote, however many they were.

        Raises:
            CheckpointError: It cannot be read, or belongs to another model.
        """
