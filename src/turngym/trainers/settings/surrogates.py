"""Settings of surrogates: what is minimised for one token, from its log-ratio and its advantage."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from turngym.config import StrictModel
from turngym.custom import CustomPart


class SurrogateSettings(StrictModel):
    """Base of the settings of a surrogate, with what other settings depend on."""

    builder: ClassVar[str]
    """``module:function``, called as ``function(inputs, settings)``."""
    has_ratio: ClassVar[bool] = True
    """Whether it reads an importance ratio."""
    has_trust_region: ClassVar[bool] = True
    """Whether it bounds by itself how far several steps on one batch lead."""
    fits_log_ratios: ClassVar[bool] = False
    """Whether advantages are replaced by what a log-ratio lacks of its target."""
    is_of_episodes: ClassVar[bool] = False
    """Whether what it fits is one number per attempt, the sum over its tokens."""
    joins_groups: ClassVar[bool] = False
    """Whether the attempts of a group must be in one optimizer step."""

    @property
    def compares_attempts(self) -> bool:
        """Whether what it says of an attempt depends on the others of its group."""
        return self.joins_groups

    reads_reference: ClassVar[bool] = False
    """Whether it reads the policy that reinforcement started from."""

    @property
    def reads_means(self) -> bool:
        """Whether it reads the mean log-probs over the vocabulary."""
        return False

    @property
    def is_adaptive(self) -> bool:
        """Whether it looks at a whole mini-batch before any gradient."""
        return self.fits_log_ratios


class Balance(SurrogateSettings):
    """Trajectory balance: the squared gap between an attempt's log-ratio and its reward.

    With g the log-ratio of the attempt to the reference and V the value of its task, both in units
    of reward over beta, the loss is ``(g + V - A / beta)²``. No ratio to who sampled the tokens is
    needed. The policy that reinforcement started from is the reference.
    """

    builder: ClassVar[str] = "turngym.trainers.losses.surrogates:balance"
    has_ratio: ClassVar[bool] = False
    has_trust_region: ClassVar[bool] = False
    fits_log_ratios: ClassVar[bool] = True
    is_of_episodes: ClassVar[bool] = True
    reads_reference: ClassVar[bool] = True

    type: Literal["balance"]
    beta: float = Field(default=0.1, gt=0)
    """How much a unit of log-ratio to the reference costs, in units of reward."""
    value: Literal["group_mean", "none", "logits"] = "group_mean"
    """V: what makes the gaps of a group 0 on average (TBA); nothing, where the advantage already is
    a reward less a value (A*-PO); or the log of the sum of the exponentiated logits before the
    attempt's first token, which gets a gradient as well (TBRM)."""
    in_rewards: bool = False
    """The gap is in units of reward, so that the gradient shrinks with beta (A*-PO), and not in
    units of log-ratio."""

    @property
    def compares_attempts(self) -> bool:
        """Whether V is a mean of the group."""
        return self.value == "group_mean"


class Classify(SurrogateSettings):
    """Let the log-ratio of an attempt predict whether it succeeded: cross-entropy (PACS).

    The score of an attempt is beta times its log-ratio to the policy that the update began with,
    less the mean of the others of its group. The advantage is its label, 1 for a success and 0.
    """

    builder: ClassVar[str] = "turngym.trainers.losses.surrogates:policy_gradient"
    fits_log_ratios: ClassVar[bool] = True
    is_of_episodes: ClassVar[bool] = True
    joins_groups: ClassVar[bool] = True
    tau: ClassVar[float] = 0.0
    """As of ``PolicyGradient``, whose gradient it has."""

    type: Literal["classify"]
    beta: float = Field(default=1.0, gt=0)
    """Scale of the score."""
    balanced: bool = True
    """Successes and failures of a group that has both weigh the same together."""


class Prefer(SurrogateSettings):
    """Make the better attempts of a group more likely than the worse: preference pairs (DPO).

    Every two attempts of a group of which one has more reward are a pair, and what is compared is
    their log-ratios to the policy that reinforcement started from, which is the reference.
    """

    builder: ClassVar[str] = "turngym.trainers.losses.surrogates:policy_gradient"
    has_ratio: ClassVar[bool] = False
    fits_log_ratios: ClassVar[bool] = True
    is_of_episodes: ClassVar[bool] = True
    joins_groups: ClassVar[bool] = True
    reads_reference: ClassVar[bool] = True
    tau: ClassVar[float] = 0.0
    """As of ``PolicyGradient``, whose gradient it has."""

    type: Literal["prefer"]
    beta: float = Field(default=0.1, gt=0)
    """The larger, the nearer the policy stays to the reference."""
    link: Literal["logistic", "square", "hinge"] = "logistic"
    """The loss of a pair: DPO's, IPO's or SLiC's."""
    turn_discount: float | None = Field(default=None, gt=0, le=1)
    """Log-ratios of later turns count less, by this discount and the number of turns of the attempt
    (DMPO); None: all count 1."""


class Fit(SurrogateSettings):
    """Fit each token's log-ratio to its advantage plus the value of what follows (ROVER).

    The loss of a token is ``(x - sg(A + v))²``, with x its log-ratio and v the mean over the
    vocabulary of the log-ratios of the token that was sampled next, 0 behind the last one.
    """

    builder: ClassVar[str] = "turngym.trainers.losses.surrogates:fit"
    fits_log_ratios: ClassVar[bool] = True

    type: Literal["fit"]
    next_value: bool = True
    """False leaves v out."""

    @property
    def reads_means(self) -> bool:
        """Whether v is there."""
        return self.next_value


class FixedBounds(StrictModel):
    """The bounds of the clip are ``clip_low`` and ``clip_high``."""

    type: Literal["fixed"] = "fixed"


class SecondMoment(StrictModel):
    """Clip log-ratios only as much as brings their second moment down to a budget (M2PO).

    The moment is that of the tokens that are pushed further away from the old policy. Where it is
    within the budget nothing is clipped.
    """

    type: Literal["second_moment"]
    budget: float = Field(default=0.04, gt=0)
    """Largest mean square of the log-ratios."""
    least_low: float = Field(default=0.0, ge=0, lt=1)
    """``clip_low`` is never less."""
    least_high: float = Field(default=0.0, ge=0)
    """``clip_high`` is never less."""


class Balanced(StrictModel):
    """Move the bounds of the ratio until tokens that are pushed up have their share (BAPO).

    First the lower bound rises from its start to its end, then the upper one. What counts is the
    size of the gradient that the bounds leave.
    """

    type: Literal["balanced"]
    low_start: float = Field(default=0.6, gt=0, lt=1)
    """Lower bound of the ratio to begin with."""
    low_end: float = Field(default=0.9, gt=0, lt=1)
    """Highest lower bound."""
    high_start: float = Field(default=1.2, gt=1)
    """Upper bound of the ratio to begin with."""
    high_end: float = Field(default=3.0, gt=1)
    """Highest upper bound."""
    step: float = Field(default=0.05, gt=0)
    """By how much a bound moves at a time."""
    share: float = Field(default=0.5, gt=0, lt=1)
    """Part of the whole gradient that tokens with a positive advantage shall have."""

    @model_validator(mode="after")
    def _ends_come_after_starts(self) -> Self:
        if self.low_end < self.low_start or self.high_end < self.high_start:
            raise ValueError("bounds: low_end and high_end must not be less than their starts")
        return self


Bounds = Annotated[FixedBounds | SecondMoment | Balanced, Field(discriminator="type")]


class PpoClip(SurrogateSettings):
    """Stop pushing a token once its ratio leaves a band in the direction it is pushed."""

    builder: ClassVar[str] = "turngym.trainers.losses.surrogates:ppo_clip"

    type: Literal["ppo_clip"] = "ppo_clip"
    clip_low: float = Field(default=0.2, gt=0, le=1)
    """Ratios below ``1 - clip_low`` get no gradient when the advantage is negative."""
    clip_high: float = Field(default=0.2, gt=0)
    """Ratios above ``1 + clip_high`` get no gradient when the advantage is positive."""
    dual_clip: float | None = Field(default=None, gt=1)
    """With a negative advantage, ratios above this get no gradient; None for no such bound."""
    bounds: Bounds = FixedBounds()
    """Other than ``fixed``, both bounds are found anew for each optimizer step, from the whole
    mini-batch; ``clip_low`` and ``clip_high`` then mean nothing."""

    @model_validator(mode="after")
    def _dual_clip_outside_the_band(self) -> Self:
        adaptive = isinstance(self.bounds, Balanced)
        widest = self.bounds.high_end if isinstance(self.bounds, Balanced) else 1 + self.clip_high
        if self.dual_clip is not None and self.dual_clip < widest:
            raise ValueError(
                f"dual_clip={self.dual_clip:g} must be at least "
                f"{'bounds.high_end' if adaptive else '1 + clip_high'} = {widest:g}"
            )
        return self

    @property
    def is_adaptive(self) -> bool:
        """Whether its bounds follow the mini-batch."""
        return self.bounds.type != "fixed"


class PolicyGradient(SurrogateSettings):
    """REINFORCE: log-prob times advantage, without a ratio and without a trust region."""

    builder: ClassVar[str] = "turngym.trainers.losses.surrogates:policy_gradient"
    has_ratio: ClassVar[bool] = False
    has_trust_region: ClassVar[bool] = False

    type: Literal["pg"]
    tau: float = Field(default=0.0, ge=0)
    """The loss is divided by ``1 + tau`` (OPMD)."""


class TaperedWeight(SurrogateSettings):
    """REINFORCE with weight 1 where the advantage is positive, and a bounded ratio elsewhere.

    A token with a positive advantage is imitated, whatever sampled it; one with a negative
    advantage counts less the less likely it has become (TOPR).
    """

    builder: ClassVar[str] = "turngym.trainers.losses.surrogates:tapered_weight"
    has_trust_region: ClassVar[bool] = False

    type: Literal["is_taper"]
    low: float = Field(default=0.0, ge=0, lt=1)
    """Smallest weight of what is pushed down."""
    high: float = Field(default=1.0, ge=1)
    """Largest weight of what is pushed down."""


class _Band(SurrogateSettings):
    has_trust_region: ClassVar[bool] = False

    low: float = Field(default=0.0, ge=0, lt=1)
    """Lower end of the band of ratios; the ratio itself, not its distance from 1."""
    high: float = Field(default=5.0, gt=1)
    """Upper end of the band of ratios; the ratio itself, not its distance from 1."""


class ClippedWeight(_Band):
    """REINFORCE with the ratio as a bounded weight: no token is ever left out.

    With ``old_policy="behaviour"`` this is AIPO.
    """

    builder: ClassVar[str] = "turngym.trainers.losses.surrogates:banded_weight"

    type: Literal["is_clip"]


class ZeroedWeight(_Band):
    """REINFORCE with the ratio as a weight, and no gradient where it leaves the band."""

    builder: ClassVar[str] = "turngym.trainers.losses.surrogates:banded_weight"

    type: Literal["is_zero"]


class SoftGate(SurrogateSettings):
    """Fade the push out smoothly as the ratio leaves 1, without a boundary."""

    builder: ClassVar[str] = "turngym.trainers.losses.surrogates:soft_gate"

    type: Literal["soft_gate"]
    temperature_positive: float = Field(default=1.0, gt=0)
    """How fast it fades where the advantage is positive; more is faster."""
    temperature_negative: float = Field(default=1.05, gt=0)
    """The same where the advantage is negative."""


class LogClipGeo(SurrogateSettings):
    """Clip each token's log-ratio in the direction it is pushed, then take the geometric mean.

    ``ratio_level`` says over what: ``sequence_geo`` or ``turn``.
    """

    builder: ClassVar[str] = "turngym.trainers.losses.surrogates:log_clip_geo"

    type: Literal["log_clip_geo"]
    clip_low: float = Field(default=0.4, gt=0)
    """Log-ratios below ``-clip_low`` get no gradient when the advantage is negative."""
    clip_high: float = Field(default=0.4, gt=0)
    """Log-ratios above ``clip_high`` get no gradient when the advantage is positive."""


class DivergenceMask(SurrogateSettings):
    """Weigh by the ratio, and leave out tokens whose probability has moved too far, in points."""

    builder: ClassVar[str] = "turngym.trainers.losses.surrogates:divergence_mask"

    type: Literal["div_mask"]
    low: float = Field(default=0.2, gt=0, le=1)
    """With a negative advantage: largest fall of the probability below the old policy's."""
    high: float = Field(default=0.2, gt=0, le=1)
    """With a positive advantage: largest rise of the probability above the old policy's."""


class Squared(SurrogateSettings):
    """REINFORCE with the squared log-ratio as a leash to the old policy."""

    builder: ClassVar[str] = "turngym.trainers.losses.surrogates:squared"

    type: Literal["squared"]
    tau: float = Field(default=0.1, gt=0)
    """Weight of the leash: the loss holds ``tau / 2`` times the square."""


class CustomSurrogate(CustomPart, SurrogateSettings):
    """A surrogate of your own, which answers for how far several steps on one batch lead."""

    part: ClassVar[str] = "custom loss"
    builder: ClassVar[str] = "turngym.trainers.losses.surrogates:custom"

    type: Literal["custom"]
    function: str
    """``module:function``, called as ``function(inputs, **settings)`` with the
    ``SurrogateInputs`` of N tokens; it returns losses [N], or with them a boolean mask [N] of the
    tokens whose gradient it bounds or removes, which is measured."""


Surrogate = Annotated[
    PpoClip
    | PolicyGradient
    | ClippedWeight
    | ZeroedWeight
    | SoftGate
    | LogClipGeo
    | DivergenceMask
    | Squared
    | TaperedWeight
    | Balance
    | Classify
    | Prefer
    | Fit
    | CustomSurrogate,
    Field(discriminator="type"),
]
