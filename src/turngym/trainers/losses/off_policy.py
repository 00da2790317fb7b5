"""Episode-level corrections for tokens that other weights sampled, around the loss per token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turngym.trainers.losses.corrections import balanced_advantages, effective_share
from turngym.trainers.samples import TrainingSample
from turngym.trainers.settings.correction import StepScale
from turngym.trainers.update.forward import MicroBatch


class EpisodeWeights:
    """The importance weights of a mini-batch's episodes, gathered micro-batch by micro-batch."""

    def __init__(self) -> None:
        self._logs: dict[int, float] = {}

    def add(
        self, batch: MicroBatch, samples: Sequence[TrainingSample], policy_logprobs_N: Tensor
    ) -> None:
        """Add the tokens of one micro-batch.

        Args:
            batch: The micro-batch.
            samples: The mini-batch that it was cut from.
            policy_logprobs_N: Of its sampled tokens, under the policy in training.
        """
        behaviour_N = batch.gather([s.behaviour_logprobs for s in samples])
        gaps_N = (policy_logprobs_N.detach() - behaviour_N).double().cpu()
        sizes = [int(mask.sum()) for mask in batch.masks]
        for i, part in zip(batch.members, torch.split(gaps_N, sizes), strict=True):
            episode = samples[i].trajectory
            self._logs[episode] = self._logs.get(episode, 0.0) + float(part.sum())

    def add_all(self, other: EpisodeWeights) -> None:
        """Add the tokens that ``other`` holds."""
        for episode, log in other._logs.items():
            self._logs[episode] = self._logs.get(episode, 0.0) + log

    def effective_share(self) -> float:
        """Return how many of the episodes count, as a share of all; NaN when one is not finite."""
        return effective_share(list(self._logs.values()))

    def step_scale(self, config: StepScale) -> float:
        """Return by what the learning rate of the step is multiplied.

        Source:
            VCPO (mit-han-lab/vcpo): square root by default, weights not truncated.
        """
        if config.rule == "none":
            return 1.0
        share = min(1.0, self.effective_share() / config.base)
        return math.sqrt(share) if config.rule == "sqrt" else share


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


def with_balanced_advantages(
    samples: Sequence[TrainingSample],
    current: Sequence[NDArray[np.floating]],
    references: Sequence[NDArray[np.floating]],
    *,
    beta: float,
) -> list[TrainingSample]:
    """Return the samples with ``balanced_advantages`` in place of their advantages.

    Args:
        samples: A batch; the attempts of one group share ``group`` and have one advantage each.
        current: Log-probs under the policy in training, one array [L] per sample.
        references: The same under the reference.
        beta: Price of the log-ratio.
    """
    gaps: dict[int, float] = {}
    first: dict[int, TrainingSample] = {}
    for sample, own, other in zip(samples, current, references, strict=True):
        first.setdefault(sample.trajectory, sample)
        gap = float((own - other)[sample.loss_mask].sum(dtype=np.float64))
        gaps[sample.trajectory] = gaps.get(sample.trajectory, 0.0) + gap
    earned = [float(s.advantages[s.loss_mask][0]) for s in first.values()]
    values_B = balanced_advantages(
        torch.tensor(earned, dtype=torch.float64),
        torch.tensor([gaps[number] for number in first], dtype=torch.float64),
        torch.tensor([s.group for s in first.values()]),
        beta=beta,
    )
    value = dict(zip(first, values_B.tolist(), strict=True))
    return [
        replace(s, advantages=np.where(s.loss_mask, value[s.trajectory], 0.0).astype(np.float32))
        for s in samples
    ]
