"""Settings of group-relative credit: returns, pools, scales, fusion. No torch here."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from turngym.config import StrictModel


class Term(StrictModel):
    """One comparison: of which rewards, accumulated how, among whom, on which scale."""

    rewards: tuple[str, ...] = ("env",)
    """Channels, by ``type``; several are added up."""
    order: Literal["accumulate_first", "normalize_first"] = "accumulate_first"
    """Compare returns, or compare rewards and add up what comes of it (IGPO)."""
    pool: Literal["joint", "separate"] = "joint"
    """``normalize_first``: compare all channels in one pool, or each in its own."""
    returns: Literal["outcome", "reward_to_go", "segmented"] = "outcome"
    """``outcome``: the sum over the episode, for every turn. ``reward_to_go``: discounted rewards
    from the turn on. ``segmented``: the same, but nothing passes back over a turn whose reward
    part ``expert_match`` is less than 1 (UI-S1)."""
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount per turn."""
    group_by: Literal["task", "task_turn", "anchor", "history"] = "task"
    """Who is compared within a group: all, turns with one index, turns in one state, or turns with
    the same last states (HGPO)."""
    history: int = Field(default=2, ge=1)
    """``history``: most earlier states that must agree; shallower pools count less."""
    history_power: float = Field(default=1.0, ge=0)
    """``history``: the pool of the last k states weighs ``(k + 1) ** history_power``."""
    unit: Literal["episode", "turn", "token"] = "episode"
    """What counts once in a pool of ``group_by="task"``: an episode, each of its turns, or each
    token that has a value other than 0 (InfoPO)."""
    centre: Literal["none", "mean", "leave_one_out", "median"] = "mean"
    """What is subtracted: nothing, the mean of the pool, the mean of the others, the median."""
    scale: Literal["none", "std", "population_std", "mean", "mad"] = "std"
    """What is divided by: nothing, the sample or the population standard deviation, the mean
    (MaxRL), the median absolute deviation (MC-GRPO)."""
    eps: float = Field(default=1e-6, gt=0)
    """Added to the scale."""
    least_scale: float = Field(default=0.0, ge=0)
    """The scale is never less than this."""
    singleton: Literal["zero", "raw"] = "zero"
    """What a pool of one becomes: 0, or the value itself."""
    above: float | None = None
    """Count a value as 1 when it is more than this, else as 0, before anything is compared."""
    weight: float = 1.0
    """Of this term in the sum."""

    @model_validator(mode="after")
    def _comparable(self) -> Self:
        if self.order == "accumulate_first" and self.unit == "token":
            raise ValueError("unit='token' needs order='normalize_first'")
        if (
            self.order == "accumulate_first"
            and self.returns != "outcome"
            and self.group_by == "task"
            and self.unit == "episode"
        ):
            raise ValueError(
                f"returns={self.returns!r} differ from turn to turn: wanted group_by='task_turn', "
                "'anchor' or 'history', or unit='turn'"
            )
        return self


class GatedFusion(StrictModel):
    """Add the later terms to the first with a weight that fades where outcomes already differ.

    Source:
        InfoPO, arXiv:2603.00656.
    """

    type: Literal["gated"]
    beta: float = Field(default=0.5, ge=0)
    temperature: float = Field(default=0.5, gt=0)
    """tau: the gate is ``sigmoid(-spread of the group's outcomes / temperature)``."""
    decay: float = Field(default=0.0, ge=0)
    """beta falls by ``exp(-decay * update)``."""


class SumFusion(StrictModel):
    """Add up the terms, each with its weight."""

    type: Literal["sum"] = "sum"


Fusion = Annotated[SumFusion | GatedFusion, Field(discriminator="type")]


class BatchScale(StrictModel):
    """Bring the advantages of a whole batch to mean 0 and spread 1."""

    unit: Literal["episode", "turn", "token"] = "turn"
    """What counts once. ``episode`` needs advantages that are constant over an episode."""
    eps: float = Field(default=1e-8, gt=0)
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


class GroupRelative(StrictModel):
    """Compares what attempts at the same task earned; learns nothing of its own."""

    type: Literal["group_relative"] = "group_relative"
    terms: tuple[Term, ...] = Field(default=(Term(),), min_length=1)
    fusion: Fusion = SumFusion()
    batch: BatchScale | None = None
    filter: GroupFilter = GroupFilter()
    drop_pivot: bool = False
    """Leave out the attempt at the median and scale the others up for it (MC-GRPO)."""
    turn_order: Literal["joint", "reverse"] = "joint"
    """``reverse``: update on the last turns first, and weigh earlier turns by how much the policy
    of the later ones has moved (SeeUPO)."""
