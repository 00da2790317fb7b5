"""Settings of credit that learns a critic."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from turngym.config import StrictModel
from turngym.trainers.settings.credit_parts import AdvantageSettings, Need
from turngym.trainers.settings.group import BatchScale


class TokenValues(StrictModel):
    """A value for every token: a copy of the policy's body with a linear head, trained apart."""

    lr: float = Field(default=1e-3, gt=0)
    epochs: int = Field(default=2, ge=1)
    """Passes over a batch after its advantages are known."""
    minibatches: int = Field(default=4, ge=1)
    """Optimizer steps per pass."""
    warmup_updates: int = Field(default=2, ge=0)
    """Updates in which only the critic learns."""
    grad_clip: float = Field(default=1.0, gt=0)


class Gae(AdvantageSettings):
    """Generalised advantage estimation over tokens, over turns, or over both.

    Observation tokens are skipped. A truncated episode bootstraps from the value of its last state
    (see ``time_limit``), a terminated one from 0.

    Source:
        Schulman et al. 2016, arXiv:1506.02438. ``turn``: VL-DAC, arXiv:2508.04280, and Turn-PPO,
        arXiv:2512.17008. ``bilevel``: RAGEN, arXiv:2504.20073.
    """

    builder: ClassVar[str] = "turngym.trainers.credit.critics.gae:GaeCredit"
    needs: ClassVar[frozenset[Need]] = frozenset()

    type: Literal["gae"]
    level: Literal["token", "turn", "bilevel"] = "turn"
    """``token``: each sampled token is a step. ``turn``: each turn is, its value is read before the
    action. ``bilevel``: over turns first, then over the tokens inside each turn."""
    rewards: tuple[str, ...] = ("env",)
    """Reward sources, by ``type``, that are added up."""
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount per step of the level; inside a turn for ``bilevel``."""
    lam: float = Field(default=0.95, ge=0, le=1)
    """lambda: 0 trusts the next value alone, 1 the rewards alone."""
    turn_gamma: float = Field(default=0.95, ge=0, le=1)
    """``bilevel``: discount per turn."""
    time_limit: Literal["bootstrap", "drop"] = "bootstrap"
    """What the last step is worth where a limit cut the episode off. ``bootstrap``: it hears of the
    value of the last state. ``drop``: its advantage is 0, its value learns nothing, and the steps
    before it hear of its value alone (VL-DAC's code)."""
    batch: BatchScale | None = BatchScale(unit="turn")
    critic: TokenValues = TokenValues()

    @property
    def judges_unfinished(self) -> bool:
        """A last state that is no end is worth what the critic says."""
        return True

    @property
    def components(self) -> frozenset[str]:
        """The rewards that are named."""
        return frozenset(self.rewards)


class UtteranceCritic(StrictModel):
    """Twin Q and twin V over (text so far, action), on an encoder that is trained with them."""

    encoder: str | None = None
    """``policy`` for a copy of the policy's body as it is when training begins, which like the
    paper's encoder has seen the language; else a ``transformers`` encoder by name or path; None for
    a small one of our own, from scratch."""
    hidden: int = Field(default=64, ge=8)
    """Width of our own encoder; a multiple of ``heads``."""
    layers: int = Field(default=1, ge=1)
    """One gathers what single tokens say and where they stand; from two on, tokens are also read
    in the light of each other, at several times the cost."""
    heads: int = Field(default=4, ge=1)
    interaction: bool = True
    """Q also reads the product of both vectors, so that it learns sooner which actions fit which
    states. False, as in the paper: only the two side by side."""
    max_tokens: int = Field(default=64, ge=8)
    """Newest tokens of the text so far that the critic reads."""
    lr: float = Field(default=1e-3, gt=0)
    grad_clip: float = Field(default=1.0, gt=0)
    tau: float = Field(default=0.1, gt=0, le=1)
    """Weight of the new weights in the Polyak average that targets are computed with."""
    gamma: float = Field(default=0.95, ge=0, le=1)
    """Discount per turn."""
    polyak_every: int = Field(default=1, ge=1)
    """Critic steps between two Polyak averages."""
    steps_per_update: int = Field(default=50, ge=0)
    """Critic steps per batch of episodes."""
    batch_turns: int = Field(default=128, ge=1)
    """Replayed turns per critic step."""
    value_actions: Literal["on_policy", "replayed"] = "on_policy"
    """V follows Q at actions that the policy samples now, or at the actions that were played. The
    on-policy ones are those of the actor: one sample per ``actor_turns`` state and update, because
    sampling is what costs time. The paper's code samples anew for every critic step."""
    buffer_turns: int = Field(default=100_000, ge=1)
    """Newest turns that are kept for replay."""
    warmup_updates: int = Field(default=5, ge=0)
    """Updates in which only the critic learns."""
    demonstrations: int = Field(default=0, ge=0)
    """Episodes of the expert that are in the buffer before the first update: the first of those
    that a warm start imitates (``warm_start.expert_noise`` says how good the expert is)."""
    pretrain_steps: int = Field(default=0, ge=0)
    """Critic steps on the demonstrations before the first update; V follows the actions played."""
    bootstrap_truncated: bool = True
    """A state that a limit cut off keeps its value. False: it counts as an end, as in the paper's
    code."""
    pessimistic_targets: bool = False
    """Bootstrap from the smaller twin. False, as in the paper: each head from its own twin."""

    @model_validator(mode="after")
    def _pretrains_on_something(self) -> Self:
        if self.pretrain_steps and not self.demonstrations:
            raise ValueError(
                f"pretrain_steps={self.pretrain_steps} needs something to learn from: wanted "
                "demonstrations, the number of the expert's episodes"
            )
        return self


class OffPolicySettings(AdvantageSettings):
    """What advantages share whose critic learns from a replay buffer."""

    needs: ClassVar[frozenset[Need]] = frozenset()

    critic: UtteranceCritic = UtteranceCritic()

    @property
    def judges_unfinished(self) -> bool:
        """Whether the critic knows that a state that is no end has a value."""
        return self.critic.bootstrap_truncated

    @property
    def demonstrations(self) -> int:
        """Episodes of the expert that are replayed."""
        return self.critic.demonstrations


class Archer(OffPolicySettings):
    """Hierarchical actor-critic: an off-policy critic of whole utterances says what each is worth.

    Source:
        ArCHer: Zhou et al. 2024, arXiv:2402.19446. ``offline``: OfflineArcher, expectile values and
        advantage-weighted regression on the actions that were played.
    """

    builder: ClassVar[str] = "turngym.trainers.credit.critics.archer:ArcherCredit"

    type: Literal["archer"]
    mode: Literal["online", "offline"] = "online"
    """``online``: policy gradient on on-policy actions. ``offline``: weighted imitation of replayed
    ones."""
    replay: bool = True
    """Ablation: False learns from the newest batch alone."""
    actor_turns: int = Field(default=256, ge=1)
    """Replayed states per update at which actions are sampled and judged; ``offline``: replayed
    turns whose actions are weighed."""
    token_baseline: TokenValues | None = None
    """Subtract a learned value per token that predicts the same advantage; None for none."""
    normalize: bool = False
    """Bring advantages to mean 0 and spread 1; the paper does not."""
    expectile: float = Field(default=0.9, gt=0, lt=1)
    """``offline``: asymmetry of the regression of V on Q."""
    awr_inverse_temperature: float = Field(default=1.0, gt=0)
    """``offline``: the weight of an action is ``exp(this * advantage)``."""
    awr_max_weight: float = Field(default=20.0, gt=0)
    """``offline``: no action weighs more."""

    @property
    def acts_anew(self) -> bool:
        """``actor_turns`` are shared out among the steps of ``learner.num_minibatches``."""
        return True


class BestOfN(OffPolicySettings):
    """Imitate the best of N actions under an off-policy critic: on-policy ones, and the one played.

    An action that was cut off before its end token, or that is empty, has advantage 0. Whether an
    environment would refuse an action that was never played cannot be known.

    Source:
        Digi-Q, arXiv:2502.15760: its policy extraction. Its critic stands on frozen features of a
        vision model, ours on an encoder that is trained with it.
    """

    builder: ClassVar[str] = "turngym.trainers.credit.critics.best_of_n:BestOfNCredit"

    type: Literal["best_of_n"]
    candidates: int = Field(default=8, ge=1)
    """N, the action that was played among them; 1 imitates played actions that did well."""
    actor_turns: int = Field(default=128, ge=1)
    """Replayed states per update at which actions are sampled and judged."""
    threshold: float = Field(default=0.05, ge=0)
    """Imitate only when the best advantage, cut to [0, 1], is more than this."""
    twins: Literal["max", "min"] = "max"
    """How the twins are joined when actions are ranked; ``max`` is optimistic on purpose."""
