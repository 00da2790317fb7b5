"""Log-ratios of a token, its turn or its episode, in a form that leaves each token its gradient.

With s the log-ratio of a whole (stop-gradient) and d the token's own, a token gets
``x = s + d - sg(d)``: the value of the whole, the gradient of the token. So tokens of one episode
may have different advantages, and the sum over the whole has the gradient of the whole's ratio.

Axis letters: L position in a sample, N sampled tokens laid out flat.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turngym.trainers.samples import TrainingSample
from turngym.trainers.settings.loss import LogClipGeo, LossConfig, RatioLevel

_TURN_BITS = 20
"""Of a token's place are its turn, those above its episode."""


def token_log_ratios(
    policy_logprobs_N: Tensor, old_logprobs_N: Tensor, advantages_N: Tensor, config: LossConfig
) -> Tensor:
    """Return the tokens' own log-ratios to the old policy, [N], clipped where the surrogate clips.

    Only ``log_clip_geo`` clips before it averages: positive advantages from above, negative ones
    from below. A clipped log-ratio has no gradient.

    Args:
        policy_logprobs_N: Under the policy that is trained, with gradient.
        old_logprobs_N: Denominator of the ratio.
        advantages_N: Their signs say on which side a token is clipped.
        config: Holds the surrogate.

    Source:
        GMPO, arXiv:2507.20673.
    """
    gaps_N = policy_logprobs_N - old_logprobs_N
    if not isinstance(config.surrogate, LogClipGeo):
        return gaps_N
    capped_N = gaps_N.clamp(max=config.surrogate.clip_high)
    raised_N = gaps_N.clamp(min=-config.surrogate.clip_low)
    return torch.where(advantages_N > 0, capped_N, raised_N)


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


def has_split_episodes(samples: Sequence[TrainingSample]) -> bool:
    """Say whether an episode of the batch is there in several samples."""
    return len({sample.trajectory for sample in samples}) < len(samples)


def episode_log_ratios(
    samples: Sequence[TrainingSample],
    policy_logprobs: Sequence[NDArray[np.floating]],
    old_logprobs: Sequence[NDArray[np.floating]],
    config: LossConfig,
) -> list[NDArray[np.float64]]:
    """Return what ``level_log_ratios`` gives when it sees the whole batch at once.

    For episodes in several samples, which micro-batches may tear apart.

    Args:
        samples: Every sample of the episodes.
        policy_logprobs: Of the policy as it is now, one array [L] per sample.
        old_logprobs: Denominators, one array [L] per sample.
        config: Level and surrogate.

    Returns:
        One array [L] per sample, 0 where ``loss_mask`` is False.
    """
    own_N = token_log_ratios(
        flat(policy_logprobs, samples),
        flat(old_logprobs, samples),
        flat([s.advantages for s in samples], samples),
        config,
    )
    values_N = level_log_ratios(own_N, flat(sequence_ids(samples), samples), config.ratio_level)
    return unflat(values_N, samples)
