"""Log-ratios of a token, its turn or its episode, in a form that leaves each token its gradient.

With s the log-ratio of a whole (stop-gradient) and d the token's own, a token gets
``x = s + d - sg(d)``: the value of the whole, the gradient of the token. So tokens of one episode
may have different advantages, and the sum over the whole has the gradient of the whole's ratio.

Axis letters: L position in a sample, N drawn tokens laid out flat.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turngym.trainers.loss_config import LogClipGeo, LossConfig, RatioLevel
from turngym.trainers.samples import TrainingSample


def token_log_ratios(
    policy_logprobs_N: Tensor, anchor_logprobs_N: Tensor, advantages_N: Tensor, config: LossConfig
) -> Tensor:
    """Return the tokens' own log-ratios policy / anchor, [N], clipped where the surrogate clips.

    Only ``log_clip_geo`` clips before it averages: positive advantages from above, negative ones
    from below. A clipped log-ratio has no gradient.

    Source:
        GMPO, arXiv:2507.20673.
    """
    gaps_N = policy_logprobs_N - anchor_logprobs_N
    if not isinstance(config.surrogate, LogClipGeo):
        return gaps_N
    capped_N = gaps_N.clamp(max=config.surrogate.clip_high)
    raised_N = gaps_N.clamp(min=-config.surrogate.clip_low)
    return torch.where(advantages_N > 0, capped_N, raised_N)


def at_level(log_ratios_N: Tensor, whole_N: Tensor) -> Tensor:
    """Return the log-ratios of wholes with the gradients of tokens, [N].

    Args:
        log_ratios_N: Of the tokens, with gradient.
        whole_N: Of the turn or episode that each token belongs to, from ``pooled``.

    Source:
        GSPO-token, arXiv:2507.18071.
    """
    return whole_N.to(log_ratios_N.dtype) + (log_ratios_N - log_ratios_N.detach())


def pooled(log_ratios_N: Tensor, wholes_N: Tensor, level: RatioLevel) -> Tensor:
    """Return the log-ratio of the whole that each token belongs to, [N], without gradient.

    Args:
        log_ratios_N: Of the tokens; every token of a whole must be there.
        wholes_N: Which turn or episode a token belongs to, from ``whole_ids``.
        level: ``sequence_prod`` sums, ``turn`` and ``sequence_geo`` average.
    """
    _, places_N = torch.unique(wholes_N, return_inverse=True)
    values_N = log_ratios_N.detach()
    count = int(places_N.max()) + 1 if len(places_N) else 0
    sums = values_N.new_zeros(count).index_add_(0, places_N, values_N)
    if level != "sequence_prod":
        sums = sums / torch.bincount(places_N, minlength=count)
    return sums[places_N]


def whole_ids(samples: Sequence[TrainingSample], level: RatioLevel) -> list[NDArray[np.int64]]:
    """Return which turn or episode each token belongs to, one array [L] per sample.

    Segments of one episode share its number; a turn never crosses segments.
    """
    turns = 1 + max((int(s.turn_ids.max(initial=-1)) for s in samples), default=0)
    if level == "turn":
        return [s.trajectory * turns + s.turn_ids for s in samples]
    return [np.full(s.turn_ids.shape, s.trajectory, dtype=np.int64) for s in samples]


def has_split_episodes(samples: Sequence[TrainingSample]) -> bool:
    """Say whether an episode of the batch is there in several samples."""
    return len({sample.trajectory for sample in samples}) < len(samples)


def episode_log_ratios(
    samples: Sequence[TrainingSample],
    policy_logprobs: Sequence[NDArray[np.floating]],
    anchor_logprobs: Sequence[NDArray[np.floating]],
    config: LossConfig,
) -> list[NDArray[np.float64]]:
    """Return what ``pooled`` gives when it sees the whole batch at once.

    For episodes in several samples, which micro-batches may tear apart.

    Args:
        samples: Every sample of the episodes.
        policy_logprobs: Of the policy as it is now, one array [L] per sample.
        anchor_logprobs: Denominators, one array [L] per sample.
        config: Level and surrogate.

    Returns:
        One array [L] per sample, 0 where ``loss_mask`` is False.
    """
    masks = [sample.loss_mask for sample in samples]

    def flat(arrays: Sequence[NDArray[np.generic]]) -> Tensor:
        picked = [array[mask] for array, mask in zip(arrays, masks, strict=True)]
        return torch.from_numpy(np.concatenate(picked))

    own_N = token_log_ratios(
        flat(policy_logprobs), flat(anchor_logprobs), flat([s.advantages for s in samples]), config
    )
    values_N = pooled(own_N, flat(whole_ids(samples, config.ratio_level)), config.ratio_level)
    results = [np.zeros(mask.shape) for mask in masks]
    ends = np.cumsum([mask.sum() for mask in masks])[:-1]
    for result, mask, part in zip(results, masks, np.split(values_N.numpy(), ends), strict=True):
        result[mask] = part
    return results
