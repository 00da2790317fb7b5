"""Settings of everything that changes weights."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from turngym.agents.engine.config import DeviceName, DtypeName
from turngym.config import StrictModel


class OptimizerConfig(StrictModel):
    """How weights are changed."""

    lr: float = Field(default=7e-4, ge=0)
    """Learning rate after the warm-up. 0 trains nothing, for control runs."""
    lr_warmup_steps: int = Field(default=0, ge=0)
    """Optimizer steps over which the rate rises linearly to ``lr``."""
    lr_schedule: Literal["constant", "cosine"] = "constant"
    """After the warm-up: stay, or fall to 0 along a half cosine at the planned last step."""
    weight_decay: float = Field(default=0.0, ge=0)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.999, ge=0, lt=1)
    grad_clip: float = Field(default=1.0, gt=0)
    """Largest norm of the gradient over all weights; a longer one is scaled down."""


class ComputeConfig(StrictModel):
    """On what device and in what precision models are trained; credit's own models, too."""

    device: DeviceName = "auto"
    """``auto`` takes a GPU where there is one."""
    dtype: DtypeName = "float32"
    """Of what the layers compute. Weights, their moments and the head are float32 always."""
    recompute: bool = False
    """Compute each layer again for its gradient: less memory, about a third more time."""
    packing: Literal["auto", "always", "never"] = "auto"
    """Lay sequences end to end, or pad them to rectangles; ``auto`` packs where flash attention is
    installed, on a GPU with ``dtype="bfloat16"``."""


class LearnerConfig(OptimizerConfig, ComputeConfig):
    """How a batch of episodes changes the weights."""

    ranks: int = Field(default=1, ge=1)
    """Processes that share the weights and each batch, each with a GPU of its own where there are
    GPUs. No result depends on it but by rounding."""
    offload: bool = False
    """The ranks keep weights, gradients and moments in main memory, and step there; on a GPU is
    only the layer that computes. For models that do not fit, at the price of time."""
    num_epochs: int = Field(default=1, ge=1)
    """Passes over each batch."""
    num_minibatches: int = Field(default=1, ge=1)
    """Optimizer steps per pass; episodes are dealt to them at random. A batch of fewer episodes
    has as many steps as episodes."""
    microbatch_tokens: int = Field(default=16384, ge=1)
    """Tokens in memory at once, padding included. No result depends on it."""

    routing: Literal["own", "replay"] = "own"
    """Of a mixture-of-experts model: choose experts anew, or ``replay`` those that the engine chose
    (``engine.routing``) with this model's weights for them."""

    @model_validator(mode="after")
    def _ranks_offload(self) -> Self:
        if self.offload and self.ranks == 1:
            raise ValueError("offload=true is for the ranks of a learner: wanted ranks above 1")
        return self

    @property
    def steps_per_batch(self) -> int:
        """Optimizer steps that one batch gives."""
        return self.num_epochs * self.num_minibatches


class WarmStartConfig(OptimizerConfig):
    """Imitation of the environment's expert, or of episodes that were recorded."""

    episodes: int = Field(default=500, ge=0)
    """Expert episodes to imitate, each on a task of its own; 0 for no warm start."""
    trajectories: tuple[str, ...] = ()
    """Folders of evaluations, runs or the gateway, or files of trajectories, of ours or in ATIF:
    their episodes are imitated and not the expert's. Those of tasks that this run measures on are
    left out."""
    min_score: float | None = Field(default=1.0, ge=0, le=1)
    """Least score of a recorded episode that is imitated; None for all that did not break."""
    expert_noise: float = Field(default=0.4, ge=0, le=1)
    """Share of the expert's actions that are replaced by random legal ones, so that the policy
    sees how to recover and keeps exploring."""
    noise_commands: tuple[str, ...] = ()
    """First words of the legal actions that the noise samples from; all where it is empty. With
    ``["ask"]`` the policy learns to answer, and is left to learn what to ask."""
    batch_episodes: int = Field(default=8, ge=1)
    """Episodes per optimizer step."""
    max_steps: int = Field(default=400, ge=0)
    """Optimizer steps after which the warm start ends, whatever it reached."""
    evaluate_every: int = Field(default=50, ge=1)
    """Optimizer steps between evaluations."""
    evaluate_from: int = Field(default=1, ge=1)
    """Optimizer steps before the first evaluation: a policy that knows nothing plays each of its
    episodes to the turn limit, which is slow."""
    target_success: float = Field(default=0.4, ge=0, le=1)
    """Sampled success on the validation tasks at which the warm start ends."""
    observation_weight: float = Field(default=0.2, ge=0)
    """Weight of the mean loss on observation tokens beside the mean loss on action tokens; a
    little of it makes every seed learn."""
    microbatch_tokens: int = Field(default=16384, ge=1)
    """Tokens in memory at once, padding included. No result depends on it."""

    @field_validator("trajectories", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        one = [value] if isinstance(value, str) else value
        return tuple(one) if isinstance(one, list) else one

    @property
    def imitates(self) -> bool:
        """Whether there is anything to imitate, and a step to do it in."""
        return self.episodes > 0 and self.max_steps > 0
