"""Weights and masks for tokens that other weights sampled; the old policy of importance ratios.

Nothing here has a gradient.

Axis letters: N sampled tokens laid out flat, B episodes, G groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turngym.trainers.losses.surrogates import (
    MAX_LOG_RATIO,
    SurrogateInputs,
    episodes_of,
    flat,
    level_log_ratios,
)
from turngym.trainers.samples import TrainingSample
from turngym.trainers.settings.corrections import CorrectionConfig, Rejection, StepScale
from turngym.trainers.settings.loss import RatioLevel
from turngym.trainers.update.forward import MicroBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLogprobs:
    """Log-probs of N sampled tokens under three policies. Every tensor has shape [N]."""

    behaviour: Tensor
    """Log-probs that the tokens were sampled with."""
    proximal: Tensor
    """Log-probs under the policy that the update began with."""
    current: Tensor
    """Log-probs under the policy that is trained."""
    advantages: Tensor
    sequences: Tensor | None = None
    """From ``sequence_ids``; not read where everything is judged token by token."""

    @classmethod
    def of(
        cls, samples: Sequence[TrainingSample], inputs: SurrogateInputs, sequences_N: Tensor
    ) -> PolicyLogprobs:
        """Return those of all tokens of ``samples``; ``sequences_N`` as in the class."""
        return cls(
            behaviour=flat([s.behaviour_logprobs for s in samples], samples),
            proximal=inputs.old_logprobs,
            current=inputs.policy_logprobs,
            advantages=inputs.advantages,
            sequences=sequences_N,
        )

    def log_ratios(self, pair: str) -> Tensor:
        """Return the log-ratios of a pair, [N], bounded; NaN where one is not a number."""
        first, second = pair.split("_")
        gaps_N: Tensor = getattr(self, first).detach() - getattr(self, second).detach()
        return gaps_N.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def estimated_old_logprobs(
    current_N: Tensor, behaviour_N: Tensor, versions_N: Tensor, version: int
) -> Tensor:
    """Return an estimate of the log-probs under the policy that the update began with, [N].

    ``behaviour + a·(current - behaviour)`` with ``a = (version - v) / (version + 1 - v)``: the
    update leads from ``version`` to ``version + 1``, and log-probs are taken as linear in between.

    Args:
        current_N: Log-probs under the policy that is trained.
        behaviour_N: Log-probs that the tokens were sampled with.
        versions_N: v, the weights that sampled them.
        version: Of the weights that the update began with.

    Source:
        A-3PO, arXiv:2512.06547.
    """
    lag_N = (version - versions_N).clamp(min=0).to(current_N.dtype)
    return behaviour_N + lag_N / (lag_N + 1) * (current_N.detach() - behaviour_N)


def correction_weights(logprobs: PolicyLogprobs, config: CorrectionConfig) -> Tensor:
    """Return by what the loss of each token is multiplied, [N]; 0 where it is left out.

    Args:
        logprobs: The tokens; all of a batch, unless ``config.is_local``.
        config: What to do about them.

    Source:
        Truncation: TIS (Yao et al. 2025); ``band``: IcePop; the order of weights, masks and mean
        is ours.
    """
    gaps_N = logprobs.log_ratios("proximal_behaviour")
    weights_N = torch.ones_like(gaps_N)
    if config.weight != "none":
        weights_N = _weights(logprobs, gaps_N, config)
    # A log-prob that is not finite is no basis for a weight: the token is left out.
    keep_N = torch.isfinite(gaps_N) & torch.isfinite(weights_N)
    # Rejected tokens count in the mean, or rejecting some would push the others harder.
    if config.normalize:
        weights_N = weights_N / weights_N[keep_N].mean().clamp(min=1e-12)
    for rejection in config.reject:
        keep_N = keep_N & _is_retained(logprobs, rejection)
    return torch.where(keep_N, weights_N, 0.0)


def _weights(logprobs: PolicyLogprobs, gaps_N: Tensor, config: CorrectionConfig) -> Tensor:
    logs_N = gaps_N
    if config.level != "token":
        logs_N = level_log_ratios(gaps_N, _sequences(logprobs), config.level)
    ratios_N = logs_N.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    if config.weight == "truncate":
        return ratios_N.clamp(max=config.high)
    if config.weight == "band":
        inside_N = (ratios_N >= config.low) & (ratios_N <= config.high)
        return torch.where(inside_N, ratios_N, 0.0)
    return ratios_N


def _is_retained(logprobs: PolicyLogprobs, rejection: Rejection) -> Tensor:
    """Say which tokens a rejection lets stay, [N]."""
    values_N = _level_statistic(logprobs, rejection)
    inside_N = ~values_N.isnan()
    if rejection.low is not None:
        inside_N &= values_N >= rejection.low
    if rejection.high is not None:
        inside_N &= values_N <= rejection.high
    if rejection.level == "any_token":
        episodes_N = episodes_of(_sequences(logprobs))
        outside = torch.unique(episodes_N[~inside_N])
        inside_N = ~torch.isin(episodes_N, outside)
    if rejection.only_negative:
        inside_N |= logprobs.advantages >= 0
    return inside_N


def _level_statistic(logprobs: PolicyLogprobs, rejection: Rejection) -> Tensor:
    """Return the statistic that the bounds are compared with, [N]."""
    values_N = _token_statistic(logprobs, rejection)
    if rejection.level == "sequence_max":
        values_N = _largest(values_N, episodes_of(_sequences(logprobs)))
    elif rejection.level in ("sequence_sum", "sequence_mean"):
        level: RatioLevel = "sequence_prod" if rejection.level == "sequence_sum" else "sequence_geo"
        values_N = level_log_ratios(values_N, _sequences(logprobs), level)
    return values_N.exp() if rejection.statistic == "ratio" else values_N


def _token_statistic(logprobs: PolicyLogprobs, rejection: Rejection) -> Tensor:
    """Return each token's statistic, [N]; the logarithm in place of a ratio."""
    gaps_N = logprobs.log_ratios(rejection.pair)
    match rejection.statistic:
        case "ratio":
            return gaps_N
        case "k1":
            return -gaps_N
        case "k2":
            return gaps_N.square() / 2
        case "k3":
            return gaps_N.exp() - 1 - gaps_N
        case "abs_dp":
            first, second = rejection.pair.split("_")
            one_N, other_N = getattr(logprobs, first).detach(), getattr(logprobs, second).detach()
            return torch.as_tensor((one_N.exp() - other_N.exp()).abs())


def _largest(values_N: Tensor, keys_N: Tensor) -> Tensor:
    """Return the largest value among the tokens with the same key, [N]."""
    found, places_N = torch.unique(keys_N, return_inverse=True)
    most = [values_N[places_N == number].max() for number in range(len(found))]
    return torch.stack(most)[places_N]


def _sequences(logprobs: PolicyLogprobs) -> Tensor:
    if logprobs.sequences is None:
        raise ValueError("a correction over episodes or turns needs sequences")
    return logprobs.sequences


def effective_share(log_weights_B: Sequence[float]) -> float:
    """Return ``(sum w)² / (B · sum w²)``, in (0, 1]: how many episodes count, as a share of all.

    Args:
        log_weights_B: Logarithms of the episodes' weights; 1.0 for none at all, NaN when one is not
            finite.
    """
    if not len(log_weights_B):
        return 1.0
    logs_B = torch.tensor(log_weights_B, dtype=torch.float64)
    weights_B = (logs_B - logs_B.max()).exp()
    return float(weights_B.sum().square() / (len(weights_B) * weights_B.square().sum()))


def step_scale(share: float, config: StepScale) -> float:
    """Return by what the learning rate of a step is multiplied.

    Args:
        share: ``effective_share`` of its episodes.
        config: The rule.

    Source:
        VCPO (mit-han-lab/vcpo): square root by default, weights not truncated.
    """
    if config.rule == "none":
        return 1.0
    bounded = min(1.0, share / config.base)
    return math.sqrt(bounded) if config.rule == "sqrt" else bounded


def without_rejected(
    samples: Sequence[TrainingSample], weights: Sequence[NDArray[np.floating]]
) -> list[TrainingSample]:
    """Return the samples with the tokens alone whose weight is not 0.

    Args:
        samples: A mini-batch.
        weights: One array [L] per sample.
    """
    kept = []
    for sample, weight in zip(samples, weights, strict=True):
        mask = sample.loss_mask & (weight > 0)
        kept.append(replace(sample, loss_mask=mask, turn_ids=np.where(mask, sample.turn_ids, -1)))
    return kept


Scores = list[NDArray[np.float32]]
"""Log-probs of a batch's sampled tokens, one array [L] per sample, 0 elsewhere."""


@dataclass(frozen=True)
class CurrentPolicy:
    """The policy in training, without gradient: every ratio is 1."""

    def of(self, places: Sequence[int]) -> OldPolicy:
        """Return the same for some samples of the batch."""
        return self

    def scores(self, current: Scores) -> Scores:
        """Return the log-probs of whole samples, whose current ones are ``current``."""
        return current

    def gather(
        self, batch: MicroBatch, samples: Sequence[TrainingSample], current_N: Tensor
    ) -> Tensor:
        """Return the log-probs of a micro-batch, whose current ones are ``current_N``, [N]."""
        return current_N


@dataclass(frozen=True)
class EstimatedPolicy(CurrentPolicy):
    """An estimate of the policy that the update began with, made token by token (A-3PO)."""

    version: int
    """Of the weights that the update began with."""

    def gather(
        self, batch: MicroBatch, samples: Sequence[TrainingSample], current_N: Tensor
    ) -> Tensor:
        """Return a point between behaviour and current policy, [N]."""
        behaviour_N = batch.gather([s.behaviour_logprobs for s in samples])
        versions_N = batch.gather([s.policy_versions for s in samples])
        return estimated_old_logprobs(current_N, behaviour_N, versions_N, self.version)


@dataclass(frozen=True)
class RecordedPolicy(CurrentPolicy):
    """Log-probs that are known before the step: of the behaviour policy, or computed once."""

    logprobs: Scores

    def of(self, places: Sequence[int]) -> OldPolicy:
        """Return those of some samples of the batch."""
        return RecordedPolicy([self.logprobs[place] for place in places])

    def scores(self, current: Scores) -> Scores:
        """Return the recorded log-probs."""
        return self.logprobs

    def gather(
        self, batch: MicroBatch, samples: Sequence[TrainingSample], current_N: Tensor
    ) -> Tensor:
        """Return the recorded log-probs, [N]."""
        return batch.gather(self.logprobs)


OldPolicy = CurrentPolicy | EstimatedPolicy | RecordedPolicy
