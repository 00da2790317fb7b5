"""What is minimised for one token, given its log-ratio and its advantage.

A log-ratio is of a token, its turn or its episode, in a form that leaves each token its gradient.
With s the log-ratio of a whole (stop-gradient) and d the token's own, a token gets
``x = s + d - sg(d)``: the value of the whole, the gradient of the token. So tokens of one episode
may have different advantages, and the sum over the whole has the gradient of the whole's ratio.

Every surrogate returns losses [N], and a boolean mask [N] of the tokens whose gradient it bounds or
removes. Where the ratio is 1 the gradient with respect to the log-prob is ``-A`` for all of them;
for those that fit log-ratios (``regressions.py``) up to a factor.

Axis letters: L position in a sample, N sampled tokens laid out flat.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pkgutil import resolve_name

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turngym.errors import ConfigError
from turngym.trainers.samples import TrainingSample
from turngym.trainers.settings.loss import RatioLevel
from turngym.trainers.settings.surrogates import (
    Balance,
    Classify,
    ClippedWeight,
    CustomSurrogate,
    DivergenceMask,
    Fit,
    LogClipGeo,
    PolicyGradient,
    PpoClip,
    SoftGate,
    Squared,
    SurrogateSettings,
    TaperedWeight,
    ZeroedWeight,
)

_TURN_BITS = 20
"""Of a token's place are its turn, those above its episode."""


def with_token_gradients(log_ratios_N: Tensor, sequence_N: Tensor) -> Tensor:
    """Return the log-ratios of sequences with the gradients of tokens, [N].

    Args:
        log_ratios_N: Of the tokens, with gradient.
        sequence_N: Of the turn or episode that each token belongs to, from ``level_log_ratios``.

    Source:
        GSPO-token, arXiv:2507.18071.
    """
    return sequence_N.to(log_ratios_N.dtype) + (log_ratios_N - log_ratios_N.detach())


def level_log_ratios(log_ratios_N: Tensor, sequences_N: Tensor, level: RatioLevel) -> Tensor:
    """Return the log-ratio of the whole that each token belongs to, [N], without gradient.

    Args:
        log_ratios_N: Of the tokens; every token of a whole must be there.
        sequences_N: Which turn of which episode a token belongs to, from ``sequence_ids``.
        level: ``sequence_prod`` sums, ``turn`` and ``sequence_geo`` average. ``prefix_prod`` sums
            up to the token, ``prefix_min`` adds the least of those before it. ``token`` changes
            nothing.

    Source:
        ``prefix_min``: MinPRO, without a cap on the least ratio.
    """
    values_N = log_ratios_N.detach()
    if level == "token":
        return values_N
    if level in ("prefix_prod", "prefix_min"):
        return _prefixed(values_N, sequences_N, level)
    keys_N = sequences_N if level == "turn" else episodes_of(sequences_N)
    _, places_N = torch.unique(keys_N, return_inverse=True)
    count = int(places_N.max()) + 1 if len(places_N) else 0
    sums = values_N.new_zeros(count).index_add_(0, places_N, values_N)
    if level != "sequence_prod":
        sums = sums / torch.bincount(places_N, minlength=count)
    return sums[places_N]


def _prefixed(values_N: Tensor, sequences_N: Tensor, level: RatioLevel) -> Tensor:
    """Return what comes of each token's log-ratio and those before it in its episode, [N]."""
    result_N = values_N.clone()
    order_N = torch.argsort(sequences_N, stable=True)  # a turn's tokens are in order already
    _, sizes = torch.unique_consecutive(episodes_of(sequences_N[order_N]), return_counts=True)
    for places in torch.split(order_N, sizes.tolist()):
        own_L = values_N[places]
        if level == "prefix_prod":
            result_N[places] = own_L.cumsum(0)
        else:
            result_N[places[1:]] = own_L[1:] + own_L.cummin(0).values[:-1]
    return result_N


def sequence_ids(samples: Sequence[TrainingSample]) -> list[NDArray[np.int64]]:
    """Return which turn of which episode each token belongs to, one array [L] per sample.

    One number holds both, the episode above the turn. Segments of one episode share its number;
    a turn never crosses segments.
    """
    return [(s.trajectory << _TURN_BITS) + np.maximum(s.turn_ids, 0) for s in samples]


def episodes_of(sequences_N: Tensor) -> Tensor:
    """Return the number of the episode of each token, [N]."""
    return sequences_N >> _TURN_BITS


def flat(arrays: Sequence[NDArray[np.generic]], samples: Sequence[TrainingSample]) -> Tensor:
    """Return what ``arrays`` [L] hold at the sampled tokens of ``samples``, one after the other."""
    picked = [array[s.loss_mask] for array, s in zip(arrays, samples, strict=True)]
    return torch.from_numpy(np.concatenate(picked))


def unflat(values_N: Tensor, samples: Sequence[TrainingSample]) -> list[NDArray[np.float64]]:
    """Return the arrays [L] that ``flat`` lays out as ``values_N``, 0 where nothing was sampled."""
    results = [np.zeros(s.loss_mask.shape) for s in samples]
    ends = np.cumsum([s.num_action_tokens for s in samples])[:-1]
    parts = np.split(values_N.numpy(), ends)
    for result, sample, part in zip(results, samples, parts, strict=True):
        result[sample.loss_mask] = part
    return results


MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to this before ``exp``; a clamped one has no gradient."""
MAX_WEIGHT = 20.0
"""Largest ratio that ``div_mask`` weighs a token with."""
_ROUNDING = 1e-4
"""By which the ratio of an attempt to the very weights that sampled it may differ from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SurrogateInputs:
    """Inputs of a surrogate for N sampled tokens. Every tensor has shape [N]."""

    log_ratios: Tensor
    """Of the token or of its whole, with the token's gradient."""
    policy_logprobs: Tensor
    """Of the policy that is trained; carries the gradient."""
    old_logprobs: Tensor
    """Denominator of the ratio; no gradient."""
    advantages: Tensor
    start_values: Tensor | None = None
    """At the first token of an attempt the value of its task, with gradient; 0 at the others."""

    @classmethod
    def of(
        cls,
        samples: Sequence[TrainingSample],
        current: Sequence[NDArray[np.floating]],
        old: Sequence[NDArray[np.floating]],
    ) -> SurrogateInputs:
        """Return all tokens of ``samples``, without gradient; log-probs are one array [L] each."""
        current_N, old_N = flat(current, samples), flat(old, samples)
        return cls(
            log_ratios=current_N - old_N,
            policy_logprobs=current_N,
            old_logprobs=old_N,
            advantages=flat([s.advantages for s in samples], samples),
        )

    @property
    def ratios(self) -> Tensor:
        """``exp`` of the log-ratios, finite. Shape [N]."""
        return self.log_ratios.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def ppo_clip(inputs: SurrogateInputs, config: PpoClip) -> tuple[Tensor, Tensor]:
    """``l = -min(r·A, clip(r, 1-lo, 1+hi)·A)``, and at most ``-c·A`` for ``A < 0``. Shape [N].

    c is the dual clip. The gradient with respect to the log-prob is ``-r·A`` where it is not
    clipped.

    Source:
        Schulman et al. 2017, arXiv:1707.06347, equation 7; separate bounds: DAPO,
        arXiv:2503.14476; dual clip: Ye et al. 2020, arXiv:1912.09729.
    """
    ratios_N, advantages_N = inputs.ratios, inputs.advantages
    banded_N = ratios_N.clamp(1 - config.clip_low, 1 + config.clip_high)
    losses_N = -torch.minimum(ratios_N * advantages_N, banded_N * advantages_N)
    high_N = (advantages_N > 0) & (ratios_N > 1 + config.clip_high)
    low_N = (advantages_N < 0) & (ratios_N < 1 - config.clip_low)
    clipped_N = high_N | low_N
    if config.dual_clip is not None:
        bounded_N = torch.minimum(losses_N, -config.dual_clip * advantages_N)
        losses_N = torch.where(advantages_N < 0, bounded_N, losses_N)
        clipped_N = clipped_N | ((advantages_N < 0) & (ratios_N > config.dual_clip))
    return losses_N, clipped_N


def policy_gradient(
    inputs: SurrogateInputs, config: PolicyGradient | Classify
) -> tuple[Tensor, Tensor]:
    """``l = -A·logp / (1 + τ)``; nothing is bounded. Shape [N].

    Source:
        REINFORCE; with τ > 0 OPMD in the form of Trinity-RFT. The gradient of a cross-entropy, with
        A from ``with_classified_advantages``: PACS, arXiv:2509.02522.
    """
    return -inputs.advantages * inputs.policy_logprobs / (1 + config.tau), _nowhere(inputs)


def tapered_weight(inputs: SurrogateInputs, config: TaperedWeight) -> tuple[Tensor, Tensor]:
    """``l = -c·A·logp`` with c = 1 for ``A >= 0`` and c = ``sg(clip(r, low, high))`` elsewhere.

    Source:
        TOPR, arXiv:2503.14286; the branch is on what is multiplied with, the advantage.
    """
    ratios_N = inputs.ratios.detach()
    negative_N = inputs.advantages < 0
    weights_N = torch.where(negative_N, ratios_N.clamp(config.low, config.high), 1.0)
    # A ratio of 1 is a bound itself, and rounding alone would pass it at every other token.
    bounded_N = negative_N & ((ratios_N - weights_N).abs() > _ROUNDING)
    return -weights_N * inputs.advantages * inputs.policy_logprobs, bounded_N


def balance(inputs: SurrogateInputs, config: Balance) -> tuple[Tensor, Tensor]:
    """``l = -(2/β)·A·(logp + v)``, the gradient of trajectory balance. Shape [N].

    A holds the reference already, from ``with_balanced_advantages``, and v is the value that the
    logits give the attempt's start, where they do. In units of reward it is ``2β`` times as much.
    The value is that of the policy gradient, not of the square.

    Source:
        TBA, arXiv:2503.18929, section 3; A*-PO, arXiv:2505.20686; TBRM, arXiv:2505.15311.
    """
    factor = 2 * config.beta if config.in_rewards else 2 / config.beta
    fitted_N = inputs.policy_logprobs
    if inputs.start_values is not None:
        fitted_N = fitted_N + inputs.start_values
    return -factor * inputs.advantages * fitted_N, _nowhere(inputs)


def fit(inputs: SurrogateInputs, config: Fit) -> tuple[Tensor, Tensor]:
    """``l = (x - A)²`` with x the log-ratio; A holds the next value. Shape [N].

    Source:
        ROVER, arXiv:2509.24981.
    """
    return (inputs.log_ratios - inputs.advantages).square(), _nowhere(inputs)


def banded_weight(
    inputs: SurrogateInputs, config: ClippedWeight | ZeroedWeight
) -> tuple[Tensor, Tensor]:
    """``l = -sg(clip(r, low, high))·A·logp``; or with r itself inside the band, else 0. Shape [N].

    Source:
        CISPO: MiniMax-M1, arXiv:2506.13585; with the behaviour policy as old policy AIPO: LlamaRL,
        arXiv:2505.24034.
    """
    ratios_N = inputs.ratios.detach()
    outside_N = (ratios_N < config.low) | (ratios_N > config.high)
    weights_N = ratios_N.clamp(config.low, config.high)
    if isinstance(config, ZeroedWeight):
        weights_N = weights_N.masked_fill(outside_N, 0.0)
    return -weights_N * inputs.advantages * inputs.policy_logprobs, outside_N


def soft_gate(inputs: SurrogateInputs, config: SoftGate) -> tuple[Tensor, Tensor]:
    """``l = -(4/τ)·sigmoid(τ·(r - 1))·A`` with a τ for each sign of A; no boundary is crossed.

    Source:
        SAPO, arXiv:2511.20347.
    """
    advantages_N = inputs.advantages
    temperatures_N = torch.where(
        advantages_N > 0, config.temperature_positive, config.temperature_negative
    ).to(advantages_N.dtype)
    gates_N = (temperatures_N * (inputs.ratios - 1)).sigmoid()
    return -4 / temperatures_N * gates_N * advantages_N, _nowhere(inputs)


def log_clip_geo(inputs: SurrogateInputs, config: LogClipGeo) -> tuple[Tensor, Tensor]:
    """``l = -g·A`` with g the geometric mean of ratios that ``token_log_ratios`` has clipped.

    Source:
        GMPO, arXiv:2507.20673.
    """
    gaps_N = (inputs.policy_logprobs - inputs.old_logprobs).detach()
    high_N = (inputs.advantages > 0) & (gaps_N > config.clip_high)
    low_N = (inputs.advantages < 0) & (gaps_N < -config.clip_low)
    return -inputs.ratios * inputs.advantages, high_N | low_N


def divergence_mask(inputs: SurrogateInputs, config: DivergenceMask) -> tuple[Tensor, Tensor]:
    """``l = -sg(r)·A·logp``, and 0 for a token that moved too far where A pushes it. Shape [N].

    Too far: p has risen by more than ``high`` and A > 0, or fallen by more than ``low`` and A < 0.

    Source:
        DPPO with total variation; as weight we take the ratio up to ``MAX_WEIGHT``.
    """
    moved_N = (inputs.policy_logprobs.exp() - inputs.old_logprobs.exp()).detach()
    high_N = (inputs.advantages > 0) & (moved_N > config.high)
    low_N = (inputs.advantages < 0) & (moved_N < -config.low)
    masked_N = high_N | low_N
    weights_N = inputs.ratios.detach().clamp(max=MAX_WEIGHT).masked_fill(masked_N, 0.0)
    return -weights_N * inputs.advantages * inputs.policy_logprobs, masked_N


def squared(inputs: SurrogateInputs, config: Squared) -> tuple[Tensor, Tensor]:
    """``l = -A·logp + τ/2·x²`` with x the log-ratio; the leash has no boundary. Shape [N].

    Source:
        Kimi k1.5, arXiv:2501.12599 (there over whole sequences: ``ratio_level="sequence_prod"``).
    """
    leash_N = config.tau / 2 * inputs.log_ratios.square()
    return leash_N - inputs.advantages * inputs.policy_logprobs, _nowhere(inputs)


def custom(inputs: SurrogateInputs, config: CustomSurrogate) -> tuple[Tensor, Tensor]:
    """Return what the user's function makes of ``inputs``, each [N].

    Raises:
        ConfigError: That is not one finite loss per token, or no gradient leads to the policy.
        TrainingError: It raised something.
    """
    function = config.imported()
    with config.running():
        found = function(inputs, **config.settings)
    losses_N, bounded_N = found if isinstance(found, tuple) else (found, _nowhere(inputs))
    for values_N in (losses_N, bounded_N):
        config.checked(values_N, Tensor, "the function")
        if values_N.shape != inputs.advantages.shape:
            raise ConfigError(
                f"{config.named}: returned shape {tuple(values_N.shape)}, wanted one value per "
                f"token, {tuple(inputs.advantages.shape)}"
            )
    if not bool(losses_N.isfinite().all()):
        raise ConfigError(f"{config.named}: returned a loss that is not finite")
    if inputs.policy_logprobs.requires_grad and not losses_N.requires_grad:
        raise ConfigError(
            f"{config.named}: its losses have no gradient: make them of inputs.policy_logprobs, "
            "inputs.log_ratios or inputs.ratios"
        )
    return losses_N, bounded_N.bool()


def surrogate_losses(inputs: SurrogateInputs, config: SurrogateSettings) -> tuple[Tensor, Tensor]:
    """Return losses [N], and the tokens [N] whose gradient is bounded or removed.

    Args:
        inputs: Of N tokens.
        config: Names the surrogate.
    """
    found: tuple[Tensor, Tensor] = resolve_name(config.builder)(inputs, config)
    return found


def _nowhere(inputs: SurrogateInputs) -> Tensor:
    return torch.zeros_like(inputs.advantages, dtype=torch.bool)
