"""Updates turn by turn, from the last to the first: each turn sees how far the later ones moved.

Turns are told apart by their number, as in the paper, where every episode has the same number of
them. An episode that ends earlier has no part in later turns and keeps the weight 1 until its own
last turn is reached, so within each episode the order is backward. The loss of a turn is divided by
all episodes of the batch, not by those that reach it: a turn that few reach moves the policy less.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from turngym.trainers.learner import Learner
from turngym.trainers.metrics import MetricSums
from turngym.trainers.samples import TrainingSample

LEAST_WEIGHT, LARGEST_WEIGHT = 0.8, 1.2
"""Bounds of an episode's weight, and of the factor that one turn changes it by."""


def update_last_turn_first(learner: Learner, samples: Sequence[TrainingSample]) -> dict[str, float]:
    """Change the weights once for a batch of episodes, in one pass per turn number.

    For each turn from the last to the first: the ratio's anchor is the policy as the later turns
    left it, advantages are multiplied with the episode's weight ``w``, the learner takes its
    ``steps_per_batch`` steps, and ``w`` becomes ``clip(w · clip(exp(mean(new - old))))`` with the
    log-probs of the turn's tokens after and before the pass. All passes of an update are at one
    place of the learning-rate schedule.

    Args:
        learner: Owns the policy.
        samples: The whole batch.

    Returns:
        Metrics ``train/*`` as from ``Learner.update``, and ``train/turn_weight_mean`` and
        ``train/turn_passes``.

    Raises:
        TrainingError: The loss or a gradient is not finite; the message names the step.

    Source:
        SeeUPO, arXiv:2602.06554. Weights are kept by episode, not by row.
    """
    sums, optimizer = MetricSums(), learner.optimizer
    lr, start = optimizer.lr, optimizer.steps
    counted = [s for s in samples if s.weight > 0 and s.num_action_tokens]
    episodes = {sample.trajectory for sample in counted}
    weights = dict.fromkeys(episodes, 1.0)
    turns = sorted({int(turn) for s in counted for turn in np.unique(s.turn_ids) if turn >= 0})
    for turn in reversed(turns):
        here = [sample for sample in counted if (sample.turn_ids == turn).any()]
        share = len(here) / len(episodes)
        rows = [turn_row(s, turn, factor=weights[s.trajectory], share=share) for s in here]
        optimizer.steps = start
        old = learner.logprobs(rows)
        learner.fit(rows, sums, is_first=turn == turns[-1])
        if turn != turns[0]:
            new = learner.logprobs(rows)
            weights |= moved_weights(weights, rows, old, new)
    sums.add_mean("train/turn_weight_mean", sum(weights.values()), len(weights))
    sums.add_mean("train/turn_passes", len(turns), 1)
    return learner.finish_update(samples, sums, lr=lr)


def turn_row(sample: TrainingSample, turn: int, *, factor: float, share: float) -> TrainingSample:
    """Return what teaches one turn: the sample up to the turn's end, with its tokens alone drawn.

    Args:
        sample: Holds the turn.
        turn: Its number.
        factor: Multiplies the advantages.
        share: Of the batch's episodes that reach the turn; multiplies the sample's weight.
    """
    mask = sample.turn_ids == turn
    kept = slice(0, int(np.flatnonzero(mask)[-1]) + 1)
    return replace(
        sample,
        token_ids=sample.token_ids[kept],
        loss_mask=mask[kept],
        turn_ids=np.where(mask, sample.turn_ids, -1)[kept],
        behaviour_logprobs=np.where(mask, sample.behaviour_logprobs, 0.0)[kept].astype(np.float32),
        advantages=np.where(mask, sample.advantages * factor, 0.0)[kept].astype(np.float32),
        policy_versions=np.where(mask, sample.policy_versions, -1)[kept],
        weight=sample.weight * share,
    )


def moved_weights(
    weights: Mapping[int, float],
    rows: Sequence[TrainingSample],
    old: Sequence[NDArray[np.float32]],
    new: Sequence[NDArray[np.float32]],
) -> dict[int, float]:
    """Return the weights of the rows' episodes after a pass, by episode.

    Args:
        weights: Before the pass, by episode.
        rows: What the pass taught, one row per episode.
        old: Log-probs before the pass, one array [L] per row.
        new: Log-probs after it.
    """
    moved = {}
    for row, before, after in zip(rows, old, new, strict=True):
        gap = float((after - before)[row.loss_mask].mean(dtype=np.float64))
        ratio = np.clip(np.exp(gap), LEAST_WEIGHT, LARGEST_WEIGHT)
        weight = np.clip(weights[row.trajectory] * ratio, LEAST_WEIGHT, LARGEST_WEIGHT)
        moved[row.trajectory] = float(weight)
    return moved
