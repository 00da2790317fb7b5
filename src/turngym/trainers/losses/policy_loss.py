"""Policy losses as sums over tokens, independent of how a batch is cut into pieces.

    loss = sum over sampled tokens of  coefficient * (weight * surrogate + kl_coefficient * kl
                                                    - entropy_coefficient * entropy)

The coefficients hold the aggregation (``aggregation.py``), the weights correct for who sampled the
tokens (``corrections.py``), the surrogate is a function of a log-ratio (``ratios.py``) and an
advantage (``surrogates.py``). Coefficients come from the whole batch before any backward pass, so
micro-batches simply add up.

Axis letter: N sampled tokens laid out flat.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from turngym.trainers.losses.ratios import level_log_ratios, token_log_ratios, with_token_gradients
from turngym.trainers.losses.surrogates import MAX_LOG_RATIO, SURROGATES, SurrogateInputs
from turngym.trainers.settings.loss import KlEstimator, LossConfig, RegularizerConfig

MAX_KL = 10.0
"""The k3 estimate is clamped to this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTerms:
    """What the loss needs to know of N sampled tokens. Every tensor has shape [N]."""

    policy_logprobs: Tensor
    """Of the policy that is trained; carries the gradient."""
    old_logprobs: Tensor
    """Denominator of the ratio; no gradient."""
    advantages: Tensor
    coefficients: Tensor
    weights: Tensor | None = None
    """Correction of each token's surrogate, 0 for a rejected one; None for 1 everywhere."""
    sequences: Tensor | None = None
    """From ``sequence_ids``; not used where ``ratio_level`` is ``token``."""
    sequence_log_ratios: Tensor | None = None
    """Log-ratios of ``sequences``; None when all their tokens are here to compute them from."""
    ref_logprobs: Tensor | None = None
    entropies: Tensor | None = None
    """Of the distributions the tokens were sampled from; with gradient when they are rewarded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossParts:
    """A loss and what it is made of; scalars, sums over the tokens."""

    total: Tensor
    """To be minimised."""
    policy: Tensor
    kl: Tensor
    """Sum of coefficient times the estimate, before ``kl_coefficient``."""
    clipped: Tensor
    """Number of tokens whose gradient the surrogate bounded or removed."""


def policy_loss(terms: TokenTerms, config: LossConfig, regularizer: RegularizerConfig) -> LossParts:
    """Return the loss of some tokens as a plain sum, so that parts of a batch add up.

    Args:
        terms: The tokens. No token at all gives 0.
        config: The policy's part of the loss.
        regularizer: What is added to it.

    Raises:
        ValueError: A term that ``config`` or ``regularizer`` reads is missing.
    """
    # Corrections weigh the surrogate alone: KL and entropy pull towards the reference wherever the
    # token came from, also where the token itself is rejected.
    weights_N = terms.coefficients
    weighted_coefficients_N = weights_N if terms.weights is None else weights_N * terms.weights
    inputs = SurrogateInputs(
        log_ratios=_log_ratios(terms, config),
        policy_logprobs=terms.policy_logprobs,
        old_logprobs=terms.old_logprobs,
        advantages=terms.advantages,
    )
    losses_N, clipped_N = SURROGATES[config.surrogate.type](inputs, config.surrogate)
    policy = (weighted_coefficients_N * losses_N).sum()
    total, kl = policy, weights_N.new_zeros(())
    if regularizer.kl_coefficient > 0:
        kl = (weights_N * _divergences(terms, regularizer.kl_estimator)).sum()
        total = total + regularizer.kl_coefficient * kl
    if regularizer.entropy_coefficient > 0:
        if terms.entropies is None:
            raise ValueError("entropy_coefficient > 0 needs entropies")
        total = total - regularizer.entropy_coefficient * (weights_N * terms.entropies).sum()
    return LossParts(total=total, policy=policy, kl=kl, clipped=clipped_N.sum())


def kl_estimate(
    policy_logprobs_N: Tensor, ref_logprobs_N: Tensor, estimator: KlEstimator
) -> Tensor:
    """Return an estimate of KL(policy, reference) from each sampled token, shape [N].

    ``k1_plus`` and ``k3_plus`` have the gradient of k2. ``k3_unbiased`` is k3 here; the loss
    multiplies it with the token's ratio.

    Args:
        policy_logprobs_N: Under the policy that is trained, with gradient.
        ref_logprobs_N: Under the reference.
        estimator: Which estimate.

    Source:
        Schulman 2020, "Approximating KL divergence"; the clamps are ours.
    """
    gaps_N = policy_logprobs_N - ref_logprobs_N
    if estimator == "k1":
        return gaps_N
    square_N = gaps_N.square() / 2
    if estimator == "k2":
        return square_N
    if estimator == "k1_plus":
        return gaps_N.detach() + square_N - square_N.detach()
    # exp of an unbounded gap overflows, and one such token would be the whole gradient.
    bounded_N = gaps_N.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    estimates_N = ((-bounded_N).exp() + bounded_N - 1).clamp(max=MAX_KL)
    if estimator == "k3_plus":
        return estimates_N.detach() + square_N - square_N.detach()
    return estimates_N


def _log_ratios(terms: TokenTerms, config: LossConfig) -> Tensor:
    own_N = token_log_ratios(terms.policy_logprobs, terms.old_logprobs, terms.advantages, config)
    if config.ratio_level == "token":
        return own_N
    if terms.sequence_log_ratios is not None:
        return with_token_gradients(own_N, terms.sequence_log_ratios)
    if terms.sequences is None:
        raise ValueError(f"ratio_level={config.ratio_level!r} needs sequences")
    return with_token_gradients(own_N, level_log_ratios(own_N, terms.sequences, config.ratio_level))


def _divergences(terms: TokenTerms, estimator: KlEstimator) -> Tensor:
    if terms.ref_logprobs is None:
        raise ValueError("kl_coefficient > 0 needs ref_logprobs")
    estimates_N = kl_estimate(terms.policy_logprobs, terms.ref_logprobs, estimator)
    if estimator != "k3_unbiased":
        return estimates_N
    gaps_N = terms.policy_logprobs - terms.old_logprobs
    return gaps_N.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp() * estimates_N
