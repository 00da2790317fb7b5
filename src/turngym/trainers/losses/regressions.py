"""Losses that fit log-ratios to rewards: what is lacking, in place of the advantage.

The gradient of a square or a cross-entropy of log-ratios is a policy gradient whose advantage is
what they lack of their target. Targets are over whole attempts or over tokens that come later, and
micro-batches tear those apart. So they are found before any gradient, for all attempts of an
optimizer step, and the surrogates in ``surrogates.py`` read them as advantages.

Axis letters: L position in a sample, B episodes, G groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turngym.trainers.losses.corrections import OldPolicy, Scores
from turngym.trainers.samples import TrainingSample
from turngym.trainers.settings.surrogates import Balance, Classify, Prefer, SurrogateSettings
from turngym.trainers.update.forward import Score

Arrays = Sequence[NDArray[np.floating]]
"""One array [L] per sample."""


@dataclass(frozen=True, slots=True)
class StepScores:
    """What is known of the sampled tokens of one optimizer step."""

    current: Scores
    """Log-probs under the policy in training."""
    old: Scores
    """The same under the old policy."""
    references: Scores | None
    """The same under the reference, where the surrogate reads it."""
    old_means: OldPolicy
    """Has the mean log-probs over the vocabulary, as the update began."""
    read: Callable[[Score], Scores]
    """Scores the tokens once more with the policy in training."""


def with_targets(
    samples: Sequence[TrainingSample], surrogate: SurrogateSettings, scores: StepScores
) -> tuple[list[TrainingSample], list[NDArray[np.bool_]] | None]:
    """Return the samples with what is lacking in place of advantages, and where values are read.

    Args:
        samples: Of one optimizer step.
        surrogate: One that fits log-ratios.
        scores: Of the samples.

    Returns:
        The samples; and one mask [L] per sample of the tokens at which a value is read off the
        logits, None where none is.
    """
    if isinstance(surrogate, Classify):
        return with_classified_advantages(samples, scores.current, scores.old, surrogate), None
    if isinstance(surrogate, Prefer):
        assert scores.references is not None
        return with_preferences(samples, scores.current, scores.references, surrogate), None
    if isinstance(surrogate, Balance):
        assert scores.references is not None
        by_logits = surrogate.value == "logits"
        values = scores.read("log_normalizer") if by_logits else None
        found = with_balanced_advantages(
            samples, scores.current, scores.references, surrogate, values
        )
        return found, first_tokens(samples) if by_logits else None
    if not surrogate.reads_means:
        return list(samples), None
    means = scores.read("mean_logprob")
    return with_next_values(samples, means, scores.old_means.scores(means)), None


def with_balanced_advantages(
    samples: Sequence[TrainingSample],
    current: Arrays,
    references: Arrays,
    config: Balance,
    values: Arrays | None = None,
) -> list[TrainingSample]:
    """Return the samples with ``A - beta * (g + V)`` in place of their advantages.

    g is the attempt's log-ratio, policy over reference. Divided by ``-beta`` it is the residual
    whose mean square is minimised.

    Args:
        samples: Of one optimizer step; the samples of an attempt have one advantage.
        current: Log-probs under the policy in training.
        references: The same under the reference.
        config: Price of the log-ratio, and what V is.
        values: V at the first token of each attempt; needed where V is read off the logits.

    Source:
        TBA, arXiv:2503.18929, section 3; A*-PO, arXiv:2505.20686, and its code, without V; TBRM,
        arXiv:2505.15311, with V off the logits.
    """
    first, gaps_B = _attempts(samples, current, references)
    earned_B = torch.tensor(_advantages(first), dtype=torch.float64)
    if config.value == "group_mean":
        groups_B = torch.tensor([s.group for s in first.values()])
        found_B = balanced_advantages(earned_B, gaps_B, groups_B, beta=config.beta)
        return _with_values(samples, first, found_B)
    if values is not None:
        masks = first_tokens(samples)
        starts = {
            s.trajectory: float(v[mask].sum())
            for s, v, mask in zip(samples, values, masks, strict=True)
            if mask.any()
        }
        gaps_B = gaps_B + torch.tensor([starts[number] for number in first], dtype=torch.float64)
    return _with_values(samples, first, earned_B - config.beta * gaps_B)


def balanced_advantages(
    advantages_B: Tensor, gaps_B: Tensor, groups_B: Tensor, *, beta: float
) -> Tensor:
    """Return what each episode of a group earned beyond its likelihood, centred, shape [B].

    ``x - mean(x)`` over the group with ``x = A - beta·gap``. Divided by ``-beta`` it is the
    residual whose mean square trajectory balance minimises.

    Args:
        advantages_B: Rewards, or rewards from which something common to the group was subtracted.
        gaps_B: Log-ratio of the whole episode, policy over reference.
        groups_B: Group of each episode.
        beta: Price of the log-ratio.

    Source:
        TBA, arXiv:2503.18929: log Z is the mean over the group.
    """
    shaped_B = advantages_B - beta * gaps_B
    _, places_B = torch.unique(groups_B, return_inverse=True)
    return shaped_B - _sums(shaped_B, places_B) / torch.bincount(places_B)[places_B]


def with_classified_advantages(
    samples: Sequence[TrainingSample], current: Arrays, old: Arrays, config: Classify
) -> list[TrainingSample]:
    """Return the samples with ``classification_advantages`` in place of their labels.

    Args:
        samples: Of one optimizer step; advantages are the labels of attempts, 0 or 1.
        current: Log-probs under the policy in training.
        old: The same under the policy that the update began with.
        config: Scale of the scores, and how labels weigh.
    """
    first, gaps_B = _attempts(samples, current, old)
    groups_B = torch.tensor([s.group for s in first.values()])
    labels_B = torch.tensor(_advantages(first), dtype=torch.float64)
    return _with_values(
        samples, first, classification_advantages(labels_B, gaps_B, groups_B, config)
    )


def classification_advantages(
    labels_B: Tensor, gaps_B: Tensor, groups_B: Tensor, config: Classify
) -> Tensor:
    """Return minus the gradient of each attempt's cross-entropy with its log-ratio, shape [B].

    With R the label, g the log-ratio, ``p = sigmoid(beta * (g - mean g of the others))`` and
    weights w it is ``beta * (e - mean e of the others)`` of ``e = w * (R - p)``. Balanced weights
    are the group's size over twice the number with the same label. An attempt that is alone in its
    group has no others.

    Args:
        labels_B: 1 for a success, 0 for a failure.
        gaps_B: Log-ratio of the attempt to the policy that the update began with.
        groups_B: Group of each attempt.
        config: beta, and whether weights are balanced.

    Source:
        PACS, arXiv:2509.02522, and its code with ``adv_estimator=rloo``.
    """
    _, places_B = torch.unique(groups_B, return_inverse=True)
    size_B = torch.bincount(places_B)[places_B].to(gaps_B.dtype)
    errors_B = labels_B - (config.beta * _less_others(gaps_B, places_B)).sigmoid()
    if config.balanced:
        right_B = _sums(labels_B, places_B)
        alike_B = torch.where(labels_B > 0, right_B, size_B - right_B)
        errors_B = errors_B * torch.where(alike_B < size_B, size_B / (2 * alike_B), 1.0)
    return config.beta * _less_others(errors_B, places_B)


def with_preferences(
    samples: Sequence[TrainingSample], current: Arrays, references: Arrays, config: Prefer
) -> list[TrainingSample]:
    """Return the samples with ``preference_advantages``, by turn, in place of their rewards.

    Args:
        samples: Of one optimizer step; the samples of an attempt have one advantage.
        current: Log-probs under the policy in training.
        references: The same under the reference.
        config: The loss of a pair, and how turns weigh.
    """
    weights = turn_weights(samples, config.turn_discount)
    pairs = zip(current, references, weights, strict=True)
    scores = [(one - two) * weight_L for one, two, weight_L in pairs]
    first, gaps_B = _attempts(samples, scores, [np.zeros_like(score) for score in scores])
    groups_B = torch.tensor([s.group for s in first.values()])
    rewards_B = torch.tensor(_advantages(first), dtype=torch.float64)
    found_B = preference_advantages(rewards_B, gaps_B, groups_B, config)
    return [
        replace(s, advantages=s.advantages * weight_L.astype(np.float32))
        for s, weight_L in zip(_with_values(samples, first, found_B), weights, strict=True)
    ]


def preference_advantages(
    rewards_B: Tensor, gaps_B: Tensor, groups_B: Tensor, config: Prefer
) -> Tensor:
    """Return minus B times the gradient of the mean loss of all pairs with each log-ratio, [B].

    A pair is two attempts of a group of which one has more reward. With h the log-ratio of the
    better one less that of the other, its loss is ``-log sigmoid(beta·h)`` (logistic),
    ``(h - 1 / (2·beta))²`` (square) or ``max(0, 1 - beta·h)`` (hinge).

    Args:
        rewards_B: Of each attempt.
        gaps_B: Log-ratio of the attempt, policy over reference.
        groups_B: Group of each attempt.
        config: beta, and which loss.

    Source:
        DPO, arXiv:2305.18290, equation 7; IPO, arXiv:2310.12036, equation 17; SLiC,
        arXiv:2305.10425.
    """
    is_pair_BB = (groups_B[:, None] == groups_B) & (rewards_B[:, None] > rewards_B)
    gaps_BB = gaps_B[:, None] - gaps_B
    match config.link:
        case "logistic":
            pulls_BB = config.beta * (-config.beta * gaps_BB).sigmoid()
        case "square":
            pulls_BB = 1 / config.beta - 2 * gaps_BB
        case "hinge":
            pulls_BB = config.beta * (config.beta * gaps_BB < 1).to(gaps_BB.dtype)
    pulls_BB = torch.where(is_pair_BB, pulls_BB, 0.0)
    return (pulls_BB.sum(1) - pulls_BB.sum(0)) * len(gaps_B) / is_pair_BB.sum().clamp(min=1)


def turn_weights(
    samples: Sequence[TrainingSample], discount: float | None
) -> list[NDArray[np.float64]]:
    """Return how much each token's log-ratio counts, by its turn, one array [L] per sample.

    With gamma the discount, turn t of T counts ``gamma^t · (1 - gamma^(T-t)) / (1 - gamma^T)``, or
    ``(T - t) / T`` where gamma is 1. Turns that are context alone are turns all the same.

    Args:
        samples: Segments of an attempt in their order; all of an attempt.
        discount: gamma; None for 1 everywhere.

    Source:
        DMPO, arXiv:2406.14868, and its code.
    """
    if discount is None:
        return [np.ones(s.loss_mask.shape) for s in samples]
    last: dict[int, int] = {}
    for sample in samples:
        last[sample.trajectory] = max(last.get(sample.trajectory, 0), int(sample.turn_ids.max()))
    results = []
    for sample in samples:
        powers_T = discount ** np.arange(1.0 + last[sample.trajectory])
        # What is left of the sum of all powers from a turn on: the formula, for gamma 1 too.
        weights_T = np.cumsum(powers_T[::-1])[::-1] / powers_T.sum()
        weight_L = np.ones(sample.loss_mask.shape)
        weight_L[sample.loss_mask] = weights_T[sample.turn_ids[sample.loss_mask]]
        results.append(weight_L)
    return results


def with_next_values(
    samples: Sequence[TrainingSample], current: Arrays, old: Arrays
) -> list[TrainingSample]:
    """Return the samples with ``A + v`` for A: v is the value of the token that was sampled next.

    The value of a token is the mean over the vocabulary of the log-ratios where it was sampled. The
    last token of an attempt has no next one; what the environment said in between is skipped.

    Args:
        samples: Of one optimizer step.
        current: Mean log-prob over the vocabulary under the policy in training, of each token.
        old: The same under the policy that the update began with.

    Source:
        ROVER, arXiv:2509.24981, and its code. There an attempt is one answer.
    """
    results = [s.advantages.copy() for s in samples]
    following: dict[int, float] = {}
    for number in reversed(range(len(samples))):
        sample = samples[number]
        own_A = (current[number] - old[number])[sample.loss_mask]
        last = following.get(sample.trajectory, 0.0)
        results[number][sample.loss_mask] += np.append(own_A[1:], last).astype(np.float32)
        following[sample.trajectory] = float(own_A[0])
    pairs = zip(samples, results, strict=True)
    return [replace(sample, advantages=advantages_L) for sample, advantages_L in pairs]


def first_tokens(samples: Sequence[TrainingSample]) -> list[NDArray[np.bool_]]:
    """Return where each attempt's first sampled token is, one array [L] per sample.

    Args:
        samples: Of one optimizer step; segments of an attempt in their order.
    """
    masks = [np.zeros(s.loss_mask.shape, dtype=np.bool_) for s in samples]
    seen: set[int] = set()
    for sample, mask in zip(samples, masks, strict=True):
        if sample.trajectory not in seen:
            mask[int(np.argmax(sample.loss_mask))] = True
            seen.add(sample.trajectory)
    return masks


def _attempts(
    samples: Sequence[TrainingSample], current: Arrays, other: Arrays
) -> tuple[dict[int, TrainingSample], Tensor]:
    """Return the first sample of each attempt, and the attempts' log-ratios [B]."""
    first: dict[int, TrainingSample] = {}
    gaps: dict[int, float] = {}
    for sample, one, two in zip(samples, current, other, strict=True):
        first.setdefault(sample.trajectory, sample)
        gap = float((one - two)[sample.loss_mask].sum(dtype=np.float64))
        gaps[sample.trajectory] = gaps.get(sample.trajectory, 0.0) + gap
    return first, torch.tensor([gaps[number] for number in first], dtype=torch.float64)


def _advantages(first: Mapping[int, TrainingSample]) -> list[float]:
    return [float(s.advantages[s.loss_mask][0]) for s in first.values()]


def _with_values(
    samples: Sequence[TrainingSample], first: Mapping[int, TrainingSample], values_B: Tensor
) -> list[TrainingSample]:
    """Return the samples with one advantage for each attempt."""
    value = dict(zip(first, values_B.tolist(), strict=True))
    return [
        replace(s, advantages=np.where(s.loss_mask, value[s.trajectory], 0.0).astype(np.float32))
        for s in samples
    ]


def _sums(values_B: Tensor, places_B: Tensor) -> Tensor:
    """Return the sum over the group of each attempt, [B]."""
    sums_G = values_B.new_zeros(int(places_B.max()) + 1).index_add_(0, places_B, values_B)
    return sums_G[places_B]


def _less_others(values_B: Tensor, places_B: Tensor) -> Tensor:
    """Return values less the mean of the others of their group, [B]."""
    others_B = (torch.bincount(places_B)[places_B] - 1).clamp(min=1)
    return values_B - (_sums(values_B, places_B) - values_B) / others_B
