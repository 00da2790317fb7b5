"""Settings of advantages: group-relative credit, and credit that learns a critic."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from turngym.config import StrictModel
from turngym.trainers.settings.rewards import AdvantageSettings, Need, WarmUpSettings


class Term(StrictModel):
    """One comparison: of which rewards, accumulated how, among whom, on which scale."""

    rewards: tuple[str, ...] = Field(default=("env",), min_length=1)
    """Reward sources, by ``type``; several are added up. ``parts`` stands for every named part."""
    immediate: tuple[str, ...] = ()
    """Rewards that count for their own turn alone: added to its return as they are (GiGPO's
    penalty for an invalid action)."""
    reward_weights: dict[str, float] = Field(default_factory=dict)
    """Weights in the sum of ``rewards``, 1 where none is given; ``parts/NAME`` is a part. With
    ``normalization="separate"`` they multiply what the comparison made of a reward."""
    order: Literal["accumulate_first", "normalize_first"] = "accumulate_first"
    """Compare returns, or compare rewards and add up what comes of it (IGPO)."""
    normalization: Literal["joint", "separate"] = "joint"
    """Compare the rewards together, or each in baseline groups of its own and add up what comes of
    it (GDPO). Together means their sum, or with ``normalize_first`` the values of all in one
    baseline group."""
    returns: Literal["outcome", "reward_to_go", "segmented"] = "outcome"
    """``outcome``: the sum over the episode, for every turn. ``reward_to_go``: discounted rewards
    from the turn on. ``segmented``: the same, but nothing passes back over a turn whose reward
    part ``expert_match`` is less than 1 (UI-S1)."""
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount per turn."""
    group_by: Literal["task", "task_turn", "state", "history"] = "task"
    """Who is compared within a group: all, turns with one index, turns in one state, or turns with
    the same last states (HGPO)."""
    history: int = Field(default=2, ge=1)
    """``history``: most earlier states that must agree; shallower groups count less."""
    history_power: float = Field(default=1.0, ge=0)
    """``history``: the group of the last k states, k >= 1, weighs
    ``(k + history_offset) ** history_power``."""
    history_offset: int = Field(default=0, ge=0)
    """0 as in the paper; the authors' code has 1."""
    unit: Literal["episode", "turn", "token", "length"] = "episode"
    """What counts once in a baseline group of ``group_by="task"``: an episode, or each of its
    turns. ``token``: a turn's value is spread over its sampled tokens and each of them counts, in
    any baseline group; a value of 0 takes no part (InfoPO). ``length``: an episode counts as often
    as it has sampled tokens (OPO)."""
    centre: Literal["none", "constant", "mean", "leave_one_out", "median", "log_mean_exp"] = "mean"
    """What is subtracted: nothing, ``offset`` alone, the mean of the baseline group, the mean of
    the others, the median (the lower one of two in the middle), or ``tau · log mean exp(x / tau)``
    (OPMD)."""
    tau: float = Field(default=1.0, gt=0)
    """``log_mean_exp``: less of it comes closer to the largest value, more to the mean."""
    offset: float = 0.0
    """Added to what is subtracted; below 0 it praises all attempts a little (AsymRE). Then a pool
    of equal values has an advantage too."""
    scale: Literal["none", "std", "population_std", "batch_std", "mean", "mad"] = "std"
    """What is divided by: nothing, the sample or the population standard deviation, the sample
    deviation of the whole batch before anything is subtracted (Lite PPO), the mean (MaxRL), the
    median absolute deviation (MC-GRPO), which is 0 where more than half of a pool agree: give it a
    ``least_scale``."""
    eps: float = Field(default=1e-6, gt=0)
    """Added to the scale."""
    variance_eps: float = Field(default=0.0, ge=0)
    """Added to the variance before its root is taken, so that a spread far below
    ``sqrt(variance_eps)`` is not blown up to unit size (IGPO's code)."""
    least_scale: float = Field(default=0.0, ge=0)
    """The scale is never less than this."""
    group_of_one: Literal["zero", "raw"] = "zero"
    """What a baseline group of one becomes: 0, or the value itself."""
    above: float | None = None
    """Count a value as 1 when it is more than this, else as 0, before anything is compared."""
    weight: float = 1.0
    """Of this term in the sum."""

    @model_validator(mode="after")
    def _comparable(self) -> Self:
        sources = (name.partition("/")[0] for name in self.reward_weights)
        if idle := sorted(set(sources) - set(self.rewards)):
            raise ValueError(
                f"reward_weights weighs {idle[0]!r}, which is none of this term's rewards: "
                f"{', '.join(self.rewards)}"
            )
        if self.offset and self.centre == "none":
            raise ValueError("offset is added to what centre subtracts: wanted another centre")
        if self.order == "normalize_first":
            if self.group_by == "task" and self.unit == "episode":
                raise ValueError(
                    "order='normalize_first' compares turns: wanted unit='turn' or 'token'"
                )
            if self.immediate:
                raise ValueError("immediate belongs to order='accumulate_first'")
            return self
        if self.unit == "token":
            raise ValueError("unit='token' needs order='normalize_first'")
        one_each = self.group_by == "task" and self.unit == "episode"
        if one_each and (self.returns != "outcome" or self.immediate):
            what = "immediate rewards" if self.immediate else f"returns={self.returns!r}"
            raise ValueError(
                f"{what} differ from turn to turn: wanted group_by='task_turn', "
                "'state' or 'history', or unit='turn'"
            )
        return self

    @property
    def is_constant(self) -> bool:
        """True when all turns of an episode get the same value."""
        return (
            self.returns == "outcome"
            and not self.immediate
            and (self.group_by == "task" or self.order == "normalize_first")
        )


class GatedSum(StrictModel):
    """Add the later terms to the first with a weight that fades where outcomes already differ.

    Source:
        InfoPO, arXiv:2603.00656.
    """

    type: Literal["gated"]
    beta: float = Field(default=0.5, ge=0)
    """Weight of the later terms before the gate, which is at most a half."""
    temperature: float = Field(default=0.5, gt=0)
    """tau: the gate is ``sigmoid(-spread of the group's outcomes / temperature)``."""
    decay: float = Field(default=0.0, ge=0)
    """beta falls by ``exp(-decay * update)``."""


class SumOfTerms(StrictModel):
    """Add up the terms, each with its weight."""

    type: Literal["sum"] = "sum"


Combination = Annotated[SumOfTerms | GatedSum, Field(discriminator="type")]


class BatchScale(StrictModel):
    """Bring the advantages of a whole batch to mean 0 and spread 1."""

    unit: Literal["episode", "turn", "token"] = "turn"
    """What counts once. ``episode`` needs advantages that are constant over an episode."""
    eps: float = Field(default=1e-8, gt=0)
    """Added to the standard deviation."""
    eps_inside: bool = False
    """Add ``eps`` to the variance instead of the standard deviation."""
    clamp: float | None = Field(default=None, gt=0)
    """Cut what lies further out."""


class GroupFilter(StrictModel):
    """Which groups are worth training on. Groups without any advantage never are."""

    min_std: float | None = Field(default=None, ge=0)
    """Drop a group when the standard deviation of ``of`` is at most this."""
    keep_top: float = Field(default=1.0, gt=0, le=1)
    """Keep this share of the groups, those with the largest standard deviation (StarPO-S)."""
    of: Literal["outcome", "first_return"] = "outcome"
    """Of the episodes' returns, or of the first turn's return of the first term (UI-S1)."""

    @property
    def is_active(self) -> bool:
        """Whether any group may be dropped."""
        return self.min_std is not None or self.keep_top < 1


class GroupRelative(AdvantageSettings):
    """Compares what attempts at the same task earned; learns nothing of its own."""

    builder: ClassVar[str] = "turngym.trainers.credit.group.group_relative:GroupRelativeCredit"
    keeps_groups: ClassVar[bool] = True

    type: Literal["group_relative"] = "group_relative"
    terms: tuple[Term, ...] = Field(default=(Term(),), min_length=1)
    combine: Combination = SumOfTerms()
    batch: BatchScale | None = None
    filter: GroupFilter = GroupFilter()
    signal_free: Literal["drop", "count"] = "drop"
    """What becomes of a group in which every advantage is 0. ``drop``: it is left out, so that the
    loss is a mean over the groups that have something to say. ``count``: as in most authors' code
    its tokens count in the loss's means, and entropy and KL terms see them; a batch with few
    informative groups then makes a smaller step."""
    drop_pivot: bool = False
    """Leave out the attempt at the median, and multiply the others by the group's size over the
    number of those that differ from it (MC-GRPO)."""
    positive_weight: float = Field(default=1.0, ge=0)
    """Multiplies advantages above 0, after everything else."""
    negative_weight: float = Field(default=1.0, ge=0)
    """Multiplies advantages below 0, after everything else."""
    turn_order: Literal["joint", "reverse"] = "joint"
    """``reverse``: update on the last turns first, and weigh earlier turns by how much the policy
    of the later ones has moved (SeeUPO)."""

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        per_episode = self.batch is not None and self.batch.unit == "episode"
        if per_episode and not all(term.is_constant for term in self.terms):
            raise ValueError(
                "batch.unit='episode' needs terms with one value per episode: returns='outcome' "
                "and group_by='task'; wanted batch.unit='turn' or 'token'"
            )
        if self.drop_pivot and (
            len(self.terms) > 1
            or not self.terms[0].is_constant
            or self.terms[0].centre != "median"
            or self.terms[0].unit != "episode"
        ):
            raise ValueError(
                "drop_pivot needs a single term with centre='median', returns='outcome', "
                "group_by='task' and unit='episode'"
            )
        return self

    @property
    def needs(self) -> frozenset[Need]:
        """What the environment must give."""
        by_state = any(term.group_by in ("state", "history") for term in self.terms)
        segmented = any(term.returns == "segmented" for term in self.terms)
        found: frozenset[Need] = frozenset({"state_key"}) if by_state else frozenset()
        return found | {"expert_match"} if segmented else found

    @property
    def components(self) -> frozenset[str]:
        """The rewards of all terms."""
        return frozenset(name for t in self.terms for name in (*t.rewards, *t.immediate))

    @property
    def compares_attempts(self) -> bool:
        """Whether any term subtracts what other attempts earned."""
        return any(term.centre not in ("none", "constant") for term in self.terms)

    @property
    def is_per_episode(self) -> bool:
        """Whether all terms are constant over an episode."""
        return all(term.is_constant for term in self.terms)

    @property
    def updates_last_turn_first(self) -> bool:
        """Whether ``turn_order`` is ``reverse``."""
        return self.turn_order == "reverse"


class TokenBaseline(StrictModel):
    """A value for every token: a copy of the policy's body with a linear head, trained apart."""

    lr: float = Field(default=1e-3, gt=0)
    epochs: int = Field(default=2, ge=1)
    """Passes over a batch after its advantages are known."""
    minibatches: int = Field(default=4, ge=1)
    """Optimizer steps per pass."""
    grad_clip: float = Field(default=1.0, gt=0)


class TokenValues(TokenBaseline):
    """The values of a critic, which learns alone at first."""

    warmup_updates: int = Field(default=2, ge=0)
    """Updates in which only the critic learns."""


class Gae(AdvantageSettings):
    """Generalised advantage estimation over tokens, over turns, or over both.

    Observation tokens are skipped. After the last turn nothing comes (see ``time_limit``); where an
    episode goes on (``rollout.stale=train_partial``) it is worth the value of its last state.

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
    time_limit: Literal["end", "bootstrap", "drop"] = "end"
    """What the last step is worth where a limit cut the episode off, unsolved and unjudged.
    ``end``: what it was paid, for the limit is part of the task. ``bootstrap``: the value of the
    last state as well; with ``gamma=1`` and tasks that are paid at their end, any constant is then
    a value that agrees with itself, and failing by the limit costs nothing. ``drop``: its advantage
    is 0, its value learns nothing, and the steps before it hear of its value alone (VL-DAC's
    code)."""
    batch: BatchScale | None = BatchScale(unit="turn")
    filter: GroupFilter = GroupFilter()
    """Which groups are judged and learned from, by the critic too (StarPO-S)."""
    critic: TokenValues = TokenValues()

    @model_validator(mode="after")
    def _filters_by_outcome(self) -> Self:
        if self.filter.of != "outcome":
            raise ValueError("filter.of='first_return' needs terms: wanted 'outcome'")
        return self

    @property
    def compares_attempts(self) -> bool:
        """Whether groups are chosen by how much their attempts differ."""
        return self.filter.is_active

    @property
    def judges_unfinished(self) -> bool:
        """A last state that is no end is worth what the critic says."""
        return True


class MonteCarlo(AdvantageSettings):
    """``r_t + V(s_t+1) - V(s_t)``, with values that playing on from every state measures.

    What is played for it counts as episodes of the run (``credit/episodes``). The environment has
    to lead to the same state by the same actions.

    Source:
        VinePPO: Kazemnejad et al. 2024, arXiv:2410.01679.
    """

    builder: ClassVar[str] = "turngym.trainers.credit.critics.monte_carlo:MonteCarloCredit"
    needs: ClassVar[frozenset[Need]] = frozenset()

    type: Literal["monte_carlo"]
    continuations: int = Field(default=8, ge=2, multiple_of=2)
    """Episodes played on from each state."""
    batch: BatchScale | None = BatchScale(unit="turn")


class UtteranceCritic(WarmUpSettings):
    """Twin Q and twin V over (text so far, action), on an encoder that is trained with them.

    ``warmup_until`` is a correlation of Q and return, of ``warmup_window`` turns.
    """

    encoder: str | None = None
    """``policy`` for a copy of the policy's body as it is when training begins, which like the
    paper's encoder has seen the language; else a ``transformers`` encoder by name or path; None for
    a small one of our own, from scratch."""
    freeze_encoder: bool = False
    """Only the heads learn, on what a pretrained encoder says (Digi-Q, arXiv:2502.15760)."""
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
    """Updates in which only the critic learns. With ``warmup_until`` the fewest."""
    demonstrations: int = Field(default=0, ge=0)
    """Episodes of the expert that are in the buffer before the first update: the first of those
    that a warm start imitates (``warm_start.expert_noise`` says how good the expert is)."""
    pretrain_steps: int = Field(default=0, ge=0)
    """Critic steps on the demonstrations before the first update; V follows the actions played."""
    bootstrap_truncated: bool = True
    """A state that a limit cut off unsolved and unjudged keeps its value. False: it counts as an
    end, as in the paper's code."""
    pessimistic_targets: bool = False
    """Bootstrap from the smaller twin. False, as in the paper: each head from its own twin."""

    @model_validator(mode="after")
    def _learns_from_something(self) -> Self:
        if self.pretrain_steps and not self.demonstrations:
            raise ValueError(
                f"pretrain_steps={self.pretrain_steps} needs something to learn from: wanted "
                "demonstrations, the number of the expert's episodes"
            )
        if self.freeze_encoder and self.encoder is None:
            raise ValueError(
                "freeze_encoder=true needs an encoder that was trained before: wanted "
                "encoder='policy' or the name of one"
            )
        return self


class OffPolicySettings(AdvantageSettings):
    """What advantages share whose critic learns from a replay buffer."""

    needs: ClassVar[frozenset[Need]] = frozenset()
    replays: ClassVar[bool] = True

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

    builder: ClassVar[str] = "turngym.trainers.credit.critics.off_policy:ArcherCredit"
    # ``actor_turns`` are shared out among the steps of ``learner.num_minibatches``.
    acts_anew: ClassVar[bool] = True

    type: Literal["archer"]
    mode: Literal["online", "offline"] = "online"
    """``online``: policy gradient on on-policy actions. ``offline``: weighted imitation of replayed
    ones."""
    replay: bool = True
    """Ablation: False learns from the newest batch alone."""
    actor_turns: int = Field(default=256, ge=1)
    """Replayed states per update at which actions are sampled and judged; ``offline``: replayed
    turns whose actions are weighed."""
    token_baseline: TokenBaseline | None = None
    """Subtract a learned value per token that predicts the same advantage; None for none."""
    normalize: bool = False
    """Bring advantages to mean 0 and spread 1; the paper does not."""
    expectile: float = Field(default=0.9, gt=0, lt=1)
    """``offline``: asymmetry of the regression of V on Q."""
    awr_inverse_temperature: float = Field(default=1.0, gt=0)
    """``offline``: the weight of an action is ``exp(this * advantage)``."""
    awr_max_weight: float = Field(default=20.0, gt=0)
    """``offline``: no action weighs more."""


class BestOfN(OffPolicySettings):
    """Imitate the best of N actions under an off-policy critic: on-policy ones, and the one played.

    An action that was cut off before its end token, or that is empty, has advantage 0. Whether an
    environment would refuse an action that was never played cannot be known.

    Source:
        Digi-Q, arXiv:2502.15760: its policy extraction. Its critic stands on frozen features of a
        vision model, ours on an encoder that is trained with it.
    """

    builder: ClassVar[str] = "turngym.trainers.credit.critics.off_policy:BestOfNCredit"

    type: Literal["best_of_n"]
    candidates: int = Field(default=8, ge=1)
    """N, the action that was played among them; 1 imitates played actions that did well."""
    actor_turns: int = Field(default=128, ge=1)
    """Replayed states per update at which actions are sampled and judged."""
    threshold: float = Field(default=0.05, ge=0)
    """Imitate only when the best advantage, cut to [0, 1], is more than this."""
    twins: Literal["max", "min"] = "max"
    """How the twins are joined when actions are ranked; ``max`` is optimistic on purpose."""
