"""What one optimizer step of a batch is made of.

Axis letters: L position in a sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turngym.trainers.losses.corrections import OldPolicy, Scores
from turngym.trainers.samples import TrainingSample
from turngym.trainers.settings.loss import LossConfig
from turngym.trainers.settings.optimizer import LearnerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniBatch:
    """One optimizer step's samples and what is known of them before any gradient.

    Lists hold one array [L] per sample, from which micro-batches gather their tokens.
    """

    samples: Sequence[TrainingSample]
    loss: LossConfig
    """What is minimised in this step: adaptive clip bounds are solved."""
    old: OldPolicy
    references: Scores | None
    """Log-probs of the frozen reference policy, where the loss reads them."""
    coefficients: Scores
    weights: list[NDArray[np.float64]] | None
    """Corrections that depend on more than their own token; the others are made on the way."""
    sequences: list[NDArray[np.int64]] | None
    """As in ``TokenTerms``."""
    sequence_log_ratios: list[NDArray[np.float64]] | None
    """As in ``TokenTerms``."""
    held_back: list[NDArray[np.bool_]] | None
    """As in ``TokenTerms``."""
    starts: list[NDArray[np.bool_]] | None
    """Tokens at which a value is read off the logits; None where none is."""


def dealt(
    samples: Sequence[TrainingSample],
    config: LearnerConfig,
    rng: Callable[[int], np.random.Generator],
    *,
    by_group: bool = False,
) -> Iterator[list[int]]:
    """Yield sample numbers for each optimizer step; the samples of an episode stay together.

    Args:
        samples: A batch.
        config: Epochs, and steps of each.
        rng: Of an epoch, by its number.
        by_group: So do those of a group, for a loss that compares attempts.
    """
    # By episode and not by sample: an aggregation over episodes must see all of their tokens.
    numbers = [one.group if by_group else one.trajectory for one in samples]
    units = sorted(set(numbers))
    parts = min(config.num_minibatches, len(units))
    for epoch in range(config.num_epochs):
        order = units
        if parts > 1:  # dealing needs no random numbers where all go into one step
            order = [units[i] for i in rng(epoch).permutation(len(units))]
        for part in range(parts):
            chosen = set(order[part::parts])
            yield [i for i, number in enumerate(numbers) if number in chosen]
