"""Settings of group-relative credit: returns, baseline groups, scales, combination."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from turngym.config import StrictModel
from turngym.trainers.settings.credit_parts import AdvantageSettings, Need


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
    median absolute deviation (MC-GRPO)."""
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
        found: frozenset[Need] = frozenset({"anchor"}) if by_state else frozenset()
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
