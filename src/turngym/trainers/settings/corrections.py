"""Settings of what is done about tokens that other weights sampled, or that would go too far.

Three policies have log-probs for a sampled token: the one that sampled it (*behaviour*), the one
that the update began with (*proximal*), and the one that is being trained (*current*).
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from turngym.config import StrictModel

CorrectionLevel = Literal["token", "turn", "sequence_geo", "sequence_prod"]
RejectionLevel = Literal["token", "sequence_sum", "sequence_mean", "sequence_max", "any_token"]
Pair = Literal["proximal_behaviour", "current_behaviour", "current_proximal"]


class Rejection(StrictModel):
    """Leave out tokens on which two policies disagree too much.

    With d the log-ratio of the pair: ``ratio`` exp(d), ``k1`` -d, ``k2`` d²/2, ``k3`` exp(d)-1-d,
    ``abs_dp`` the gap between the two probabilities.
    """

    pair: Pair = "proximal_behaviour"
    """Which two: the first is compared with the second."""
    statistic: Literal["ratio", "k1", "k2", "k3", "abs_dp"] = "ratio"
    """How much they disagree, see above."""
    level: RejectionLevel = "token"
    """What is judged: each token; an episode by the sum, the mean or the largest of its tokens'
    statistics (a ratio's sum and mean are those of its logarithm: the product and the geometric
    mean); or an episode that is left out for any one token."""
    low: float | None = None
    """Smallest value that stays; None for no bound."""
    high: float | None = None
    """Largest value that stays; None for no bound."""
    only_negative: bool = False
    """Leave out only tokens that are pushed down."""

    @model_validator(mode="after")
    def _bounds_leave_something(self) -> Self:
        if self.low is None and self.high is None:
            raise ValueError("reject: wanted low, high or both, got neither")
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise ValueError(f"reject: low={self.low:g} must be less than high={self.high:g}")
        return self


class CorrectionConfig(StrictModel):
    """How tokens are weighed and left out because other weights sampled them.

    The weight is the ratio proximal / behaviour, without gradient; it multiplies the loss of the
    token after any clipping. Rejected tokens have the weight 0.
    """

    weight: Literal["none", "raw", "truncate", "band"] = "none"
    """None; the ratio; at most ``high`` of it (TIS); or the ratio where it lies between ``low`` and
    ``high`` and 0 elsewhere (IcePop)."""
    level: CorrectionLevel = "token"
    """Whose ratio: the token's, the geometric mean over its turn or episode, or the product over
    its episode."""
    low: float = Field(default=0.5, ge=0, lt=1)
    """Lower end of ``band``."""
    high: float = Field(default=2.0, ge=1)
    """Upper end of ``truncate`` and ``band``."""
    normalize: bool = False
    """Divide the weights by their mean over the batch, rejected tokens included."""
    reject: tuple[Rejection, ...] = ()
    """A token stays when every one of these lets it."""
    denominator: Literal["original", "kept"] = "original"
    """Whether ``aggregation`` counts all sampled tokens, so that rejecting some makes the step
    smaller, or those that are left."""

    @model_validator(mode="after")
    def _parts_do_something(self) -> Self:
        if self.weight == "none" and (self.normalize or self.level != "token"):
            raise ValueError("correction.level and correction.normalize need a correction.weight")
        if self.denominator == "kept" and not self.removes:
            raise ValueError(
                "correction.denominator='kept' needs something that leaves tokens out: "
                "correction.reject or weight='band'"
            )
        return self

    @property
    def is_active(self) -> bool:
        """Whether it changes any loss."""
        return self.weight != "none" or bool(self.reject)

    @property
    def removes(self) -> bool:
        """Whether tokens may get the weight 0."""
        return self.weight == "band" or bool(self.reject)

    @property
    def is_local(self) -> bool:
        """Whether a token's weight depends on that token alone."""
        return (
            self.level == "token"
            and not self.normalize
            and self.denominator == "original"
            and all(each.level == "token" for each in self.reject)
        )

    @property
    def bounds_the_policy(self) -> bool:
        """Whether tokens are left out once the policy in training has moved too far."""
        return any(each.pair != "proximal_behaviour" for each in self.reject)


class StepScale(StrictModel):
    """Make a step smaller when few episodes carry most of the importance weight (VCPO).

    With w the product ratio current / behaviour of an episode, the effective share of a mini-batch
    of B episodes is ``q = (sum w)² / (B · sum w²)``, and the learning rate is multiplied with
    ``min(1, q / base)`` or its square root.
    """

    rule: Literal["none", "sqrt", "linear"] = "none"
    """Not at all, with the square root of the share, or with the share."""
    base: float = Field(default=1.0, gt=0, le=1)
    """Effective share from which on the step is whole."""


class CovarianceConfig(StrictModel):
    """Hold back the few tokens by which the entropy falls most.

    A token's covariance is ``(A - mean A) * (log p - mean log p)``, means over the sampled tokens
    of a mini-batch: likely tokens that are praised, and unlikely ones that are blamed, stand first.

    Source:
        Clip-Cov and KL-Cov: Cui et al. 2025, arXiv:2505.22617. Their means are those of a
        micro-batch.
    """

    rule: Literal["none", "clip", "kl"] = "none"
    """``clip``: tokens picked at random among those between ``low`` and ``high`` get no gradient.
    ``kl``: those of the largest covariance pay for the size of their log-ratio."""
    share: float = Field(default=2e-4, gt=0, le=1)
    """Which part of the sampled tokens is held back, and one token at least."""
    low: float = 1.0
    """``clip``: smallest covariance. Like ``high`` it assumes advantages of unit size."""
    high: float = 5.0
    """``clip``: largest covariance."""
    coefficient: float = Field(default=1.0, gt=0)
    """``kl``: price of a unit of log-ratio."""

    @model_validator(mode="after")
    def _bounds_leave_something(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"covariance: low={self.low:g} must be less than high={self.high:g}")
        return self


class TokenSelection(StrictModel):
    """Train on the tokens or turns alone at which most was decided.

    The others have advantage 0 and still count in the means of the loss, so fewer tokens make a
    smaller step; KL and entropy terms see them. What the policy thinks of the tokens is asked as
    the update begins, in one more forward pass.
    """

    score: Literal["none", "entropy", "advantage_entropy"] = "none"
    """``none`` for all; the entropy of the distribution that a token was sampled from; or that
    times the size of its advantage (D3S)."""
    unit: Literal["token", "turn"] = "token"
    """``turn``: whole turns, by the mean over their tokens (DART-GUI)."""
    within: Literal["batch", "episode", "turn"] = "batch"
    """With what a token or turn is compared. In a whole batch the short arguments of tools may
    vanish beside long thoughts; ``turn`` keeps some tokens of each."""
    share: float = Field(default=0.2, gt=0, le=1)
    """Part of them that is trained on, those with the highest score, and one at least."""

    @model_validator(mode="after")
    def _turns_have_rivals(self) -> Self:
        if self.unit == "turn" and self.within == "turn":
            raise ValueError(
                "token_selection: a turn cannot be compared with itself: wanted within='batch' or "
                "'episode', or unit='token'"
            )
        return self

    @property
    def is_active(self) -> bool:
        """Whether it leaves anything out."""
        return self.score != "none" and self.share < 1


class EntropyShaping(StrictModel):
    """Raise the advantage of tokens at which the policy was undecided, and never turn its sign.

    A becomes ``A + min(weight * H, |A| / kappa)``, with H the entropy of the distribution that the
    token was sampled from, asked as the update begins in one more forward pass.

    Source:
        MSSR, arXiv:2512.18215, after arXiv:2506.14758. MSSR's code has ``-p log p`` of the sampled
        token for H.
    """

    weight: float = Field(default=0.0, ge=0)
    """Advantage per nat of entropy; 0 for none."""
    kappa: float = Field(default=2.0, gt=1)
    """What is added is at most the size of the advantage over this."""

    @property
    def is_active(self) -> bool:
        """Whether it changes any advantage."""
        return self.weight > 0
