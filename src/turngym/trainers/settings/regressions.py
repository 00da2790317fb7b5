"""Settings of surrogates that fit log-ratios to rewards, and what all surrogates say of themselves.

Their targets are found anew for each optimizer step, from a look at the whole mini-batch.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from turngym.config import StrictModel


class SurrogateSettings(StrictModel):
    """Base of the settings of a surrogate, with what other settings depend on."""

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


class Classify(SurrogateSettings):
    """Let the log-ratio of an attempt predict whether it succeeded: cross-entropy (PACS).

    The score of an attempt is beta times its log-ratio to the policy that the update began with,
    less the mean of the others of its group. The advantage is its label, 1 for a success and 0.
    """

    fits_log_ratios: ClassVar[bool] = True
    is_of_episodes: ClassVar[bool] = True
    joins_groups: ClassVar[bool] = True

    type: Literal["classify"]
    beta: float = Field(default=1.0, gt=0)
    """Scale of the score."""
    balanced: bool = True
    """Successes and failures of a group that has both weigh the same together."""


class Fit(SurrogateSettings):
    """Fit each token's log-ratio to its advantage plus the value of what follows (ROVER).

    The loss of a token is ``(x - sg(A + v))²``, with x its log-ratio and v the mean over the
    vocabulary of the log-ratios of the token that was sampled next, 0 behind the last one.
    """

    fits_log_ratios: ClassVar[bool] = True

    type: Literal["fit"]
    next_value: bool = True
    """False leaves v out."""

    @property
    def reads_means(self) -> bool:
        """Whether v is there."""
        return self.next_value
