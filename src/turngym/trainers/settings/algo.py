"""Settings of credit and loss: which rewards, which advantage, which loss."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from turngym.config import StrictModel
from turngym.trainers.settings.group import Archer, BestOfN, Gae, GroupRelative, MonteCarlo
from turngym.trainers.settings.loss import LossConfig
from turngym.trainers.settings.rewards import (
    CustomAdvantage,
    EnvReward,
    Need,
    OutcomeGate,
    RewardConfig,
)
from turngym.trainers.settings.task_value import TaskValue
from turngym.trainers.settings.teacher import TeacherConfig

AdvantageConfig = Annotated[
    GroupRelative | TaskValue | Gae | MonteCarlo | Archer | BestOfN | CustomAdvantage,
    Field(discriminator="type"),
]


def needs_of(rewards: Sequence[RewardConfig], advantage: AdvantageConfig) -> list[Need]:
    """Return what a method needs of its environment, sorted.

    Args:
        rewards: Its reward sources.
        advantage: Its advantage.
    """
    return sorted({need for part in (*rewards, advantage) for need in part.needs})


class AlgoConfig(StrictModel):
    """Turn credit and loss. ``algo=NAME`` takes a preset; ``docs/methods.md`` lists them."""

    preset_folder: ClassVar[Traversable | None] = files("turngym.trainers") / "presets"

    name: str = "custom"
    """For reports."""
    rewards: tuple[RewardConfig, ...] = Field(default=(EnvReward(),), min_length=1)
    """Reward sources: what turns earn. ``advantage`` says which of them count."""
    gate: OutcomeGate | None = None
    """Pay all rewards but the environment's own reward only where the outcome passed."""
    advantage: AdvantageConfig = GroupRelative()
    teacher: TeacherConfig | None = None
    """A model that says of every sampled token how likely it should have been, and so adds to its
    advantage (on-policy distillation)."""
    control: Literal["none", "shuffled", "constant"] = "none"
    """For comparisons: ``shuffled`` deals the advantages of an episode's turns anew among them,
    ``constant`` gives every turn their mean; with a replay buffer, those of the whole batch."""
    loss: LossConfig = LossConfig()

    @model_validator(mode="after")
    def _rewards_fit(self) -> Self:
        names = [source.type for source in self.rewards]
        if len(set(names)) != len(names):
            raise ValueError(f"rewards: a source is there twice: {', '.join(sorted(names))}")
        used = self.advantage.components
        if missing := sorted(used - set(names)):
            raise ValueError(
                f"advantage reads the reward {missing[0]!r}, which is not in rewards; "
                f"there are: {', '.join(names)}"
            )
        if idle := sorted(set(names) - used - {"env"}):
            raise ValueError(f"the reward {idle[0]!r} is computed but never read")
        return self

    @property
    def demonstrations(self) -> int:
        """Episodes of the expert that rewards, advantage or loss learn from."""
        imitation = self.loss.imitation
        return max(
            imitation.demonstrations if imitation.weight else 0,
            *(getattr(part, "demonstrations", 0) for part in (*self.rewards, self.advantage)),
        )

    @model_validator(mode="after")
    def _loss_fits_the_credit(self) -> Self:
        advantage, loss = self.advantage, self.loss
        reads_behaviour = loss.old_policy in ("behaviour", "estimated") or loss.correction.is_active
        if advantage.demonstrations and self.teacher is not None:
            raise ValueError(
                "advantage.critic.demonstrations replays actions of the expert, which have no "
                "log-probs that a teacher could be compared with: leave teacher out"
            )
        if advantage.demonstrations and reads_behaviour:
            raise ValueError(
                "advantage.critic.demonstrations replays actions of the expert, which have no "
                "log-probs: wanted loss.old_policy='proximal' and no loss.correction"
            )
        if loss.aggregation == "prompt_mean" and not advantage.keeps_groups:
            raise ValueError(
                "loss.aggregation='prompt_mean' needs advantage.type='group_relative', got "
                f"{advantage.type!r}; use 'seq_mean_token_mean'"
            )
        if advantage.updates_last_turn_first and loss.old_policy in ("behaviour", "estimated"):
            raise ValueError(
                "advantage.turn_order='reverse' measures each turn from the policy that the later "
                f"turns left: wanted loss.old_policy='proximal', got {loss.old_policy!r}"
            )
        if advantage.updates_last_turn_first and loss.correction.is_active:
            raise ValueError(
                "advantage.turn_order='reverse' takes a step for every turn, and loss.correction "
                "would weigh each by the steps before it: leave loss.correction out"
            )
        if loss.surrogate.is_of_episodes and not advantage.is_per_episode:
            raise ValueError(
                f"loss.surrogate.type={loss.surrogate.type!r} needs one number per attempt within "
                "a group: wanted advantage.type='group_relative' with returns='outcome' and "
                "group_by='task'"
            )
        return self
