"""Settings of policy losses. The three policies of a token are those of ``corrections.py``."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from turngym.config import StrictModel
from turngym.trainers.settings.corrections import (
    CorrectionConfig,
    CovarianceConfig,
    EntropyShaping,
    StepScale,
    TokenSelection,
)
from turngym.trainers.settings.surrogates import PpoClip, Surrogate

Aggregation = Literal[
    "token_mean",
    "seq_mean_token_mean",
    "seq_mean_token_sum",
    "seq_mean_token_sum_const",
    "prompt_mean",
    "turn_mean",
]
RatioLevel = Literal["token", "turn", "sequence_geo", "sequence_prod", "prefix_prod", "prefix_min"]
OldPolicyName = Literal["proximal", "estimated", "behaviour", "current"]
KlEstimator = Literal["k1", "k2", "k3", "k1_plus", "k3_plus", "k3_unbiased"]


_MEASURED = ("behaviour", "estimated")
"""Old policies that are not the policy at the start of the update."""


class ImitationTerm(StrictModel):
    """An auxiliary loss: the negative log-likelihood of an expert's actions, in every step.

    Its demonstrations are those of the warm start, so a method that reads them as well can be
    compared with one that only imitates them for longer.
    """

    weight: float = Field(default=0.0, ge=0)
    """Multiplies the mean over the tokens of the demonstrated actions."""
    demonstrations: int = Field(default=64, ge=1)
    """Episodes of the expert."""
    successes_only: bool = False
    """Imitate those of them that succeeded: what a player who often fails can teach by example,
    and as much of the outcomes as a critic of the same episodes reads."""
    episodes_per_step: int = Field(default=8, ge=1)
    """How many of them one optimizer step imitates, picked at random."""


class LossConfig(StrictModel):
    """What is minimised."""

    surrogate: Surrogate = PpoClip()
    old_policy: OldPolicyName = "proximal"
    """Denominator of the importance ratio: the policy at the start of the update (``proximal``); an
    estimate of it between the current and the behaviour policy, which spares a forward pass
    (A-3PO); the policy that sampled the token (``behaviour``); or the current policy, which makes
    every ratio 1 and allows one optimizer step per batch only."""
    ratio_level: RatioLevel = "token"
    """Whose ratio a token gets: its own; the geometric mean over its turn or its episode; the
    product over its episode, or over the episode up to the token; or its own times the smallest
    before it (MinPRO). Segments of one episode count as one."""
    aggregation: Aggregation = "token_mean"
    """How tokens weigh: all alike; each episode alike (by its mean, its sum, or its sum over a
    constant length); each group of attempts at one task alike; each turn alike."""
    constant_length: int | None = Field(default=None, ge=1)
    """Length in tokens that ``seq_mean_token_sum_const`` divides by; fixed for a whole run."""
    correction: CorrectionConfig = CorrectionConfig()
    """What is done about tokens that other weights sampled."""
    step_scale: StepScale = StepScale()
    """Whether steps shrink when few episodes carry the weight."""
    covariance: CovarianceConfig = CovarianceConfig()
    """Whether tokens are held back by which the entropy falls."""
    token_selection: TokenSelection = TokenSelection()
    """Whether tokens or turns are left out at which little was decided."""
    confidence_penalty: float = Field(default=0.0, ge=0)
    """alpha: an advantage below 0 is multiplied by ``1 + alpha * softplus(c)``, with c how much
    more likely the attempt is than under the policy that reinforcement started from: the mean
    log-ratio of its tokens as the update begins (ACE)."""
    entropy_shaping: EntropyShaping = EntropyShaping()
    """Whether advantages grow where the policy was undecided."""
    imitation: ImitationTerm = ImitationTerm()
    """Whether steps imitate demonstrations as well; a batch without a signal takes no step."""

    @model_validator(mode="after")
    def _level_fits_the_surrogate(self) -> Self:
        kind, level = self.surrogate.type, self.ratio_level
        const = self.aggregation == "seq_mean_token_sum_const"
        if const != (self.constant_length is not None):
            raise ValueError(
                "constant_length belongs to aggregation='seq_mean_token_sum_const', which needs it"
            )
        if not self.surrogate.has_ratio and (level != "token" or self.old_policy in _MEASURED):
            raise ValueError(
                f"surrogate.type={kind!r} has no ratio: leave ratio_level and old_policy out, "
                "or use 'is_clip'"
            )
        if (kind == "div_mask" or self.surrogate.fits_log_ratios) and level != "token":
            raise ValueError(
                f"surrogate.type={kind!r} judges single tokens: wanted ratio_level='token', got "
                f"{level!r}"
            )
        if kind == "log_clip_geo" and level not in ("sequence_geo", "turn"):
            raise ValueError(
                "surrogate.type='log_clip_geo' is a geometric mean: wanted "
                f"ratio_level='sequence_geo' or 'turn', got {level!r}"
            )
        return self

    @model_validator(mode="after")
    def _corrected_once(self) -> Self:
        old_policy, correction = self.old_policy, self.correction
        if old_policy == "behaviour" and correction.weight != "none":
            raise ValueError(
                "old_policy='behaviour' already weighs by who sampled the tokens, and "
                f"correction.weight={correction.weight!r} would do it again: use "
                "old_policy='proximal', or leave the weight out"
            )
        if old_policy == "behaviour" and any("proximal" in each.pair for each in correction.reject):
            raise ValueError(
                "old_policy='behaviour' knows no policy at the start of the update: wanted "
                "correction.reject with pair='current_behaviour'"
            )
        is_wide = self.needs_current_scores or self.ratio_level != "token"
        if old_policy == "estimated" and is_wide:
            raise ValueError(
                "old_policy='estimated' spares a forward pass that ratios, corrections or bounds "
                "over more than one token need again: use old_policy='proximal'"
            )
        return self

    @model_validator(mode="after")
    def _tokens_weigh_as_they_are_judged(self) -> Self:
        kind, level, mode = self.surrogate.type, self.ratio_level, self.aggregation
        if self.surrogate.is_of_episodes and mode != "seq_mean_token_sum":
            raise ValueError(
                f"surrogate.type={kind!r} fits whole episodes: wanted "
                f"aggregation='seq_mean_token_sum', got {mode!r}"
            )
        if self.covariance.rule != "none" and level != "token":
            raise ValueError(
                f"covariance.rule={self.covariance.rule!r} judges single tokens: wanted "
                f"ratio_level='token', got {level!r}"
            )
        changes = {
            "confidence_penalty": self.confidence_penalty > 0,
            "token_selection": self.token_selection.is_active,
            "entropy_shaping": self.entropy_shaping.is_active,
        }
        name = next((name for name, changed in changes.items() if changed), None)
        if self.surrogate.fits_log_ratios and name is not None:
            raise ValueError(
                f"{name} changes advantages, and surrogate.type={kind!r} makes its own: leave one "
                "of them out"
            )
        if level.startswith("sequence") and not mode.startswith("seq_mean"):
            raise ValueError(
                f"ratio_level={level!r} gives all tokens of an episode one ratio, and "
                f"aggregation={mode!r} would weigh it by length: use a 'seq_mean_*' aggregation"
            )
        return self

    @property
    def needs_current_scores(self) -> bool:
        """Whether a step looks at its whole mini-batch before it computes any gradient."""
        holds_back = self.covariance.rule != "none"
        return self.surrogate.is_adaptive or not self.correction.is_local or holds_back


class RegularizerConfig(StrictModel):
    """What is added to any policy loss, with the same aggregation."""

    kl_coefficient: float = Field(default=0.0, ge=0)
    """Weight of the divergence from the policy that reinforcement started from."""
    kl_estimator: KlEstimator = "k3"
    """k1 ``d``, k2 ``d²/2``, k3 ``exp(-d) + d - 1`` with ``d = logp - logp_ref``. As a loss k1
    has no gradient in expectation: it only serves to watch. ``k1_plus`` and ``k3_plus`` have the
    value of k1 and k3 and the gradient of k2; ``k3_unbiased`` is k3 times the token's ratio, so
    that its gradient is that of the divergence."""
    entropy_coefficient: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus."""


def needs_reference(loss: LossConfig, regularizer: RegularizerConfig) -> bool:
    """Say whether a learner reads the policy that reinforcement started from."""
    reads = loss.surrogate.reads_reference or loss.confidence_penalty > 0
    return reads or regularizer.kl_coefficient > 0
