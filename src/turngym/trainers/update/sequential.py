"""Updates turn by turn, from the last to the first: each turn sees how far the later ones moved.

Turns are compared by their number, as in the paper, where every episode has the same number of
them. An episode that ends earlier has no part in later turns and keeps the weight 1 until its own
last turn is reached, so within each episode the order is backward. The loss of a turn is divided by
all episodes of the batch, not by those that reach it: a turn that few reach moves the policy less.

Where success ends an episode early, the last turns are those of failures alone, and outcomes that
are centred over whole groups (``group_by="task"``) leave their passes nothing to push up. Compare
with the attempts that reached the turn (``"task_turn"``): with equal lengths it is the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from turngym.trainers.metrics import MetricSums
from turngym.trainers.samples import TrainingSample
from turngym.trainers.update.learner import TorchLearner

LEAST_WEIGHT, LARGEST_WEIGHT = 0.8, 1.2
"""Bounds of an episode's weight, and of the factor that one turn changes it by."""


class LastTurnFirstLearner(TorchLearner):
    """A learner whose update goes turn by turn, from the last to the first."""

    def update(self, samples: Sequence[TrainingSample]) -> dict[str, float]:
        """Change the weights once for a batch of episodes, in one pass per turn number.

        For each turn from the last to the first: the old policy is the one that the later turns
        left, advantages are multiplied with the episode's weight ``w``, ``steps_per_batch`` steps
        are taken, and ``w`` becomes ``clip(w · clip(exp(mean(new - old))))`` with the log-probs of
        the turn's tokens after and before the pass. All passes of an update are at one place of the
        learning-rate schedule, so that T turns move the policy about T times as far as one update
        of another method: the learning rate wants to be smaller by as much.

        Args:
            samples: The whole batch.

        Returns:
            Metrics ``train/*`` as of ``TorchLearner``, and ``train/turn_weight_mean`` and
            ``train/turn_passes``.

        Raises:
            TrainingError: The loss or a gradient is not finite; the message names the step.

        Source:
            SeeUPO, arXiv:2602.06554. Weights are kept by episode, not by row.
        """
        sums, optimizer = MetricSums(), self.optimizer
        lr, start = optimizer.lr, optimizer.steps
        counted = [s for s in samples if s.weight > 0 and s.num_action_tokens]
        weights = {sample.trajectory: 1.0 for sample in counted}
        # Attempts of the past are averaged apart, so they have shares of their own.
        sizes = Counter({s.trajectory: s.replayed for s in counted}.values())
        found = {int(turn) for s in counted for turn in s.turn_ids[s.loss_mask]}
        turns = sorted(found, reverse=True)
        before = turn_logprobs(self, counted, turns[:1])
        for turn, earlier in pairwise([*turns, None]):
            assert turn is not None
            here = [sample for sample in counted if (sample.turn_ids == turn).any()]
            reach = Counter(sample.replayed for sample in here)
            shares = {kind: count / sizes[kind] for kind, count in reach.items()}
            rows = [
                turn_row(s, turn, factor=weights[s.trajectory], share=shares[s.replayed])
                for s in here
            ]
            optimizer.steps = start
            self.fit(rows, sums, is_first=turn == turns[0])
            if earlier is not None:
                after = turn_logprobs(self, counted, (turn, earlier))
                for row in rows:
                    key = row.trajectory, turn
                    ratio = np.exp(after[key] - before[key]).clip(LEAST_WEIGHT, LARGEST_WEIGHT)
                    moved = np.clip(weights[row.trajectory] * ratio, LEAST_WEIGHT, LARGEST_WEIGHT)
                    weights[row.trajectory] = float(moved)
                before = after
        sums.add_mean("train/turn_weight_mean", sum(weights.values()), len(weights))
        sums.add_mean("train/turn_passes", len(turns), 1)
        return self.finish_update(samples, sums, lr=lr)


def turn_row(sample: TrainingSample, turn: int, *, factor: float, share: float) -> TrainingSample:
    """Return what teaches one turn: the sample up to the turn's end, with its tokens alone sampled.

    Args:
        sample: Holds the turn.
        turn: Its number.
        factor: Multiplies the advantages.
        share: Of the batch's episodes that reach the turn; multiplies the sample's weight.
    """
    row = _only(sample, (turn,))
    advantages = (row.advantages * factor).astype(np.float32)
    return replace(row, advantages=advantages, weight=row.weight * share)


def turn_logprobs(
    learner: TorchLearner, samples: Sequence[TrainingSample], turns: Collection[int]
) -> dict[tuple[int, int], float]:
    """Return the mean log-prob of the tokens of some turns, by episode and turn, as of now."""
    rows = [_only(s, turns) for s in samples if np.isin(s.turn_ids, list(turns)).any()]
    means = {}
    for row, values in zip(rows, learner.logprobs(rows), strict=True):
        for turn in np.unique(row.turn_ids[row.loss_mask]).tolist():
            mean = values[row.turn_ids == turn].mean(dtype=np.float64)
            means[row.trajectory, turn] = float(mean)
    return means


def _only(sample: TrainingSample, turns: Collection[int]) -> TrainingSample:
    """Return the sample up to the end of the last of ``turns``, with their tokens alone sampled."""
    mask = np.isin(sample.turn_ids, list(turns))
    kept = slice(0, int(np.flatnonzero(mask)[-1]) + 1)
    return replace(
        sample,
        token_ids=sample.token_ids[kept],
        loss_mask=mask[kept],
        turn_ids=np.where(mask, sample.turn_ids, -1)[kept],
        behaviour_logprobs=np.where(mask, sample.behaviour_logprobs, 0)[kept].astype(np.float32),
        advantages=np.where(mask, sample.advantages, 0)[kept].astype(np.float32),
        policy_versions=np.where(mask, sample.policy_versions, -1)[kept],
        routing=None if sample.routing is None else sample.routing[kept],
    )
