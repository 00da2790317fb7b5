"""What a credit method is given and what it gives back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from turngym.trainers.samples import FloatArray, TrainingSample
from turngym.types import Trajectory, TrajectoryGroup

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from turngym.agents.engine.protocol import Sampling, TrainableEngine
    from turngym.agents.rendering import Renderer


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditContext:
    """What a method may use besides the episodes. Nothing of it is changed but by its owner."""

    model: PreTrainedModel
    """The policy that is trained, in evaluation mode; to score, never to step."""
    renderer: Renderer
    engine: TrainableEngine
    """Samples fresh actions with the newest published weights. It belongs to the event loop."""
    sampling: Sampling
    """How the episodes were drawn."""
    seed: int
    """Root of the method's place in the seed tree."""
    max_tokens: int = 16384
    """Tokens in memory at once when something is scored or trained, padding included."""
    total_updates: int = 1
    """Planned number of updates of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """What one batch of episodes teaches."""

    samples: tuple[TrainingSample, ...]
    """What the learner trains on; may hold more or other episodes than the batch (replay)."""
    trajectories: tuple[Trajectory, ...] = ()
    """Episodes of the batch that carry advantages, in batch order."""
    advantages: tuple[FloatArray, ...] = ()
    """One array [T] per trajectory: the mean advantage of the tokens of each turn."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Groups that are not trained on, by reason: ``too_small``, ``zero_spread``, ``filtered``,
    or ``warmup`` while a reward channel still has to learn."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """``credit/*``."""


class CreditMethod(Protocol):
    """Decides what every sampled token of a batch is worth. May learn from the batch itself.

    A class attribute ``in_thread = True`` says that ``assign`` may run in a thread, with an event
    loop of its own, while episodes go on; then it uses the engine through ``draw_actions`` alone.
    """

    async def assign(self, groups: Sequence[TrajectoryGroup]) -> Credit:
        """Return what ``groups`` teach. Called once per update, in order.

        Raises:
            TrainingError: A reward or a log-prob is not finite; the message names the episode.
        """
        ...

    def state(self) -> Mapping[str, Tensor]:
        """Return everything that was learned or collected so far, for a checkpoint."""
        ...

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what ``state`` returned; the next ``assign`` goes on to the bit."""
        ...
