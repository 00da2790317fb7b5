"""Settings of policy losses. No torch here, so that settings can be read without it."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from turngym.config import StrictModel

Aggregation = Literal[
    "token_mean",
    "seq_mean_token_mean",
    "seq_mean_token_sum",
    "seq_mean_token_sum_const",
    "turn_mean",
]
KlEstimator = Literal["k1", "k2", "k3"]


class PpoClip(StrictModel):
    """Stop pushing a token once its ratio leaves a band in the direction it is pushed."""

    type: Literal["ppo_clip"] = "ppo_clip"
    clip_low: float = Field(default=0.2, gt=0, le=1)
    """Ratios below ``1 - clip_low`` get no gradient when the advantage is negative."""
    clip_high: float = Field(default=0.2, gt=0)
    """Ratios above ``1 + clip_high`` get no gradient when the advantage is positive."""
    dual_clip: float | None = Field(default=None, gt=1)
    """With a negative advantage, ratios above this get no gradient; None for no such bound."""

    @model_validator(mode="after")
    def _dual_clip_outside_the_band(self) -> Self:
        if self.dual_clip is not None and self.dual_clip <= 1 + self.clip_high:
            raise ValueError(
                f"dual_clip={self.dual_clip:g} must be more than 1 + clip_high = "
                f"{1 + self.clip_high:g}"
            )
        return self


class PolicyGradient(StrictModel):
    """REINFORCE: log-prob times advantage, without a ratio and without a trust region."""

    type: Literal["pg"]


Surrogate = Annotated[PpoClip | PolicyGradient, Field(discriminator="type")]


class LossConfig(StrictModel):
    """What is minimised."""

    surrogate: Surrogate = PpoClip()
    ratio_anchor: Literal["prox", "behaviour"] = "prox"
    """Denominator of the ratio: the policy at the start of the update, or the log-probs that the
    engine reported when it drew the tokens."""
    aggregation: Aggregation = "token_mean"
    """How tokens weigh: all alike; each sequence alike (by its mean, its sum, or its sum over a
    constant length); each turn alike."""
    constant_length: int | None = Field(default=None, ge=1)
    """Length in tokens that ``seq_mean_token_sum_const`` divides by; fixed for a whole run."""

    @model_validator(mode="after")
    def _length_belongs_to_const(self) -> Self:
        const = self.aggregation == "seq_mean_token_sum_const"
        if const != (self.constant_length is not None):
            raise ValueError(
                "constant_length belongs to aggregation='seq_mean_token_sum_const', which needs it"
            )
        return self


class RegularizerConfig(StrictModel):
    """What is added to any policy loss, with the same aggregation."""

    kl_coefficient: float = Field(default=0.0, ge=0)
    """Weight of the divergence from the policy that reinforcement started from."""
    kl_estimator: KlEstimator = "k3"
    """k1 ``d``, k2 ``d²/2``, k3 ``exp(-d) + d - 1`` with ``d = logp - logp_ref``. As a loss k1
    has no gradient in expectation: it only serves to watch."""
    entropy_coefficient: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus."""
