"""Settings of credit and loss: which rewards, which advantage, which teacher, which loss."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from turngym.agents.config import EndpointConfig
from turngym.config import StrictModel
from turngym.trainers.settings.group import (
    Archer,
    BatchScale,
    BestOfN,
    Gae,
    GroupRelative,
    MonteCarlo,
)
from turngym.trainers.settings.loss import LossConfig
from turngym.trainers.settings.rewards import (
    AdvantageSettings,
    CustomAdvantage,
    EnvReward,
    Need,
    OutcomeGate,
    RewardConfig,
)


class BetaValue(StrictModel):
    """The chance of success at a task: the mean of a Beta distribution that forgets (SPO, MSSR).

    With a the successes and b the failures so far the value is ``a / (a + b)``. An attempt makes of
    them ``kept * a + r`` and ``kept * b + 1 - r``, with r 1 for a success and 0 for a failure. The
    reward of an attempt is r as well.
    """

    type: Literal["beta"] = "beta"
    kept: float = Field(default=0.875, gt=0, le=1)
    """rho: part of what is known that stays when an attempt is added."""
    prior: float = Field(default=0.5, ge=0, le=1)
    """Value of a task that was never tried."""
    prior_attempts: float = Field(default=8.0, gt=0)
    """a + b of a task that was never tried."""
    above: float = 0.5
    """An attempt whose return is more than this is a success."""


class OptimalValue(StrictModel):
    """``beta * log mean exp(r / beta)`` of the first attempts at a task, kept for good (A*-PO).

    Those attempts are not trained on. So all tasks are tried before the policy learns, and what is
    estimated is the best value under a KL term of weight beta from the policy as it began.
    """

    type: Literal["optimal"]
    beta: float = Field(default=0.5, gt=0)
    """More of it comes closer to the mean, less to the best attempt."""


class TaskValue(AdvantageSettings):
    """Compares each attempt with what earlier attempts at its task have shown, and not with others.

    Source:
        A*-PO: arXiv:2505.20686. SPO: arXiv:2509.13232. MSSR: arXiv:2512.18215.
    """

    builder: ClassVar[str] = "turngym.trainers.credit.group.task_value:TaskValueCredit"
    needs: ClassVar[frozenset[Need]] = frozenset()
    keeps_groups: ClassVar[bool] = True
    returns_to_tasks: ClassVar[bool] = True

    type: Literal["task_value"]
    rewards: tuple[str, ...] = Field(default=("env",), min_length=1)
    """Reward sources, by ``type``, that are added up over the episode."""
    value: Annotated[BetaValue | OptimalValue, Field(discriminator="type")] = BetaValue()
    batch: BatchScale | None = None

    @property
    def compares_attempts(self) -> bool:
        """Whether one attempt alone says nothing of a task."""
        return self.value.type == "optimal"

    @property
    def is_per_episode(self) -> bool:
        """Always."""
        return True


class TeacherConfig(StrictModel):
    """A model with the policy's tokenizer that scores every token which the policy samples.

    Each token's advantage grows by ``coefficient`` times the log-prob of the token under the
    teacher less the one that it was sampled with. In expectation that lowers the reverse KL
    divergence, of the policy from the teacher, where the policy itself leads.
    """

    builder: ClassVar[str] = "turngym.trainers.credit.teacher:TeacherCredit"
    bare_key: ClassVar[str | None] = "model"

    model: str = ""
    """A folder as transformers saves it, a name on the model hub, or ``package:NAME``. It
    is loaded beside the learner, in float32."""
    server: EndpointConfig | None = None
    """In place of ``model``: a server that has the teacher, for one that is large. vLLM, SGLang, or
    another one that echoes a prompt with its log-probs."""
    coefficient: float = Field(default=1.0, gt=0)
    """Weight beside the other advantages, in units of advantage per nat."""
    horizon: Literal["token", "turn", "episode"] = "token"
    """How far a token answers for what follows it: for itself alone, for the rest of its turn, or
    for the rest of the episode. Longer is closer to the gradient of the divergence of whole
    episodes, and noisier."""
    clip: float | None = Field(default=None, gt=0)
    """Most nats, up or down, that one token counts; None for no limit."""


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
