"""Between credit and loss: what becomes of advantages once log-probs and entropies are known.

Credit is assigned before the learner reads a batch. What depends on what the policy says of the
tokens, as the update begins, is done here, for a whole batch before its first optimizer step.

Axis letters: L position in a sample, N sampled tokens of a batch laid out flat, U tokens or turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from turngym.trainers.losses.surrogates import flat, unflat
from turngym.trainers.samples import TrainingSample
from turngym.trainers.settings.corrections import EntropyShaping, TokenSelection
from turngym.trainers.settings.loss import LossConfig

_MOST_CONFIDENT = 5.0
"""Mean log-ratios are clamped to this, so that one token of a reference gone to 0 is not all."""


def with_confidence_penalty(
    samples: Sequence[TrainingSample],
    current: Sequence[NDArray[np.floating]],
    references: Sequence[NDArray[np.floating]],
    *,
    alpha: float,
) -> list[TrainingSample]:
    """Return the samples with ``A * (1 + alpha * softplus(c))`` where A is below 0.

    Args:
        samples: A batch.
        current: Log-probs under the policy in training, one array [L] per sample.
        references: The same under the reference.
        alpha: Size of the penalty.

    Source:
        ACE, arXiv:2602.21420, whose c is the log-ratio of the whole attempt; ours is its mean over
        tokens, which does not grow with length.
    """
    gaps: dict[int, list[float]] = {}
    for sample, own, other in zip(samples, current, references, strict=True):
        gaps.setdefault(sample.trajectory, []).extend((own - other)[sample.loss_mask].tolist())
    factors = {
        episode: 1
        + alpha * np.logaddexp(0, np.clip(np.mean(found), -_MOST_CONFIDENT, _MOST_CONFIDENT))
        for episode, found in gaps.items()
    }
    return [
        replace(s, advantages=np.where(s.advantages < 0, factors[s.trajectory], 1) * s.advantages)
        for s in samples
    ]


def with_entropies(
    samples: Sequence[TrainingSample], entropies: Sequence[NDArray[np.floating]], loss: LossConfig
) -> list[TrainingSample]:
    """Return the samples as the parts of a loss that read ``entropies`` want them.

    Args:
        samples: A batch.
        entropies: Of the distributions the tokens were sampled from, one array [L] per sample.
        loss: Holds those parts, ``entropy_shaping`` first.
    """
    shaped = list(samples)
    if loss.entropy_shaping.is_active:
        shaped = with_entropy_shaping(shaped, entropies, loss.entropy_shaping)
    if loss.token_selection.is_active:
        shaped = with_selected_tokens(shaped, entropies, loss.token_selection)
    return shaped


def with_entropy_shaping(
    samples: Sequence[TrainingSample],
    entropies: Sequence[NDArray[np.floating]],
    config: EntropyShaping,
) -> list[TrainingSample]:
    """Return the samples with ``A + min(weight * H, |A| / kappa)`` for A.

    Args:
        samples: A batch.
        entropies: H, of the distributions the tokens were sampled from, one array [L] per sample.
        config: Weight and kappa.
    """
    return [
        replace(
            s,
            advantages=(
                s.advantages + np.minimum(config.weight * h, np.abs(s.advantages) / config.kappa)
            ).astype(np.float32),
        )
        for s, h in zip(samples, entropies, strict=True)
    ]


def with_selected_tokens(
    samples: Sequence[TrainingSample],
    entropies: Sequence[NDArray[np.floating]],
    config: TokenSelection,
) -> list[TrainingSample]:
    """Return the samples with advantage 0 on every token that is not selected.

    Args:
        samples: A batch.
        entropies: Of the distributions the tokens were sampled from, one array [L] per sample.
        config: What is selected.
    """
    chosen = selected_tokens(samples, entropies, config)
    return [
        replace(s, advantages=np.where(mask, s.advantages, 0).astype(np.float32))
        for s, mask in zip(samples, chosen, strict=True)
    ]


def selected_tokens(
    samples: Sequence[TrainingSample],
    entropies: Sequence[NDArray[np.floating]],
    config: TokenSelection,
) -> list[NDArray[np.bool_]]:
    """Return which tokens are trained on, one array [L] per sample.

    A token or turn is when its score is at least the quantile ``1 - share`` of the scores it is
    compared with, so one of them is always, and equals are all or none.

    Args:
        samples: A batch.
        entropies: Of the distributions the tokens were sampled from, one array [L] per sample.
        config: What is selected.
    """
    score_N = flat(entropies, samples).double().numpy()
    if config.score == "advantage_entropy":
        score_N *= flat([s.advantages for s in samples], samples).abs().numpy()
    episode_N = np.repeat([s.trajectory for s in samples], [s.num_action_tokens for s in samples])
    turn_N = flat([s.turn_ids for s in samples], samples).numpy()
    unit_N = np.arange(len(score_N))
    if config.unit == "turn":
        unit_N = _numbered(episode_N, turn_N)
    score_U = np.bincount(unit_N, score_N) / np.bincount(unit_N)
    among_N = {
        "batch": np.zeros_like(episode_N),
        "episode": episode_N,
        "turn": _numbered(episode_N, turn_N),
    }[config.within]
    kept_U = np.zeros(len(score_U), dtype=np.bool_)
    for among in np.unique(among_N):
        rivals_U = np.unique(unit_N[among_N == among])
        kept_U[rivals_U] = score_U[rivals_U] >= np.quantile(score_U[rivals_U], 1 - config.share)
    return [kept > 0 for kept in unflat(torch.from_numpy(kept_U[unit_N]), samples)]


def _numbered(*keys_N: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return one number for each different combination of keys, [N]."""
    number_N: NDArray[np.int64] = np.unique(np.stack(keys_N), axis=1, return_inverse=True)[1]
    return number_N.reshape(-1)
