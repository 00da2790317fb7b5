"""The old policy: where the denominator of the importance ratio comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from turngym.trainers.losses.corrections import estimated_old_logprobs
from turngym.trainers.samples import TrainingSample
from turngym.trainers.update.forward import MicroBatch

Scores = list[NDArray[np.float32]]
"""Log-probs of a batch's sampled tokens, one array [L] per sample, 0 elsewhere."""


@dataclass(frozen=True)
class CurrentPolicy:
    """The policy in training, without gradient: every ratio is 1."""

    def of(self, places: Sequence[int]) -> OldPolicy:
        """Return the same for some samples of the batch."""
        return self

    def scores(self, current: Scores) -> Scores:
        """Return the log-probs of whole samples, whose current ones are ``current``."""
        return current

    def gather(
        self, batch: MicroBatch, samples: Sequence[TrainingSample], current_N: Tensor
    ) -> Tensor:
        """Return the log-probs of a micro-batch, whose current ones are ``current_N``, [N]."""
        return current_N


@dataclass(frozen=True)
class EstimatedPolicy(CurrentPolicy):
    """An estimate of the policy that the update began with, made token by token (A-3PO)."""

    version: int
    """Of the weights that the update began with."""

    def gather(
        self, batch: MicroBatch, samples: Sequence[TrainingSample], current_N: Tensor
    ) -> Tensor:
        """Return a point between behaviour and current policy, [N]."""
        behaviour_N = batch.gather([s.behaviour_logprobs for s in samples])
        versions_N = batch.gather([s.policy_versions for s in samples])
        return estimated_old_logprobs(current_N, behaviour_N, versions_N, self.version)


@dataclass(frozen=True)
class RecordedPolicy(CurrentPolicy):
    """Log-probs that are known before the step: of the behaviour policy, or computed once."""

    logprobs: Scores

    def of(self, places: Sequence[int]) -> OldPolicy:
        """Return those of some samples of the batch."""
        return RecordedPolicy([self.logprobs[place] for place in places])

    def scores(self, current: Scores) -> Scores:
        """Return the recorded log-probs."""
        return self.logprobs

    def gather(
        self, batch: MicroBatch, samples: Sequence[TrainingSample], current_N: Tensor
    ) -> Tensor:
        """Return the recorded log-probs, [N]."""
        return batch.gather(self.logprobs)


OldPolicy = CurrentPolicy | EstimatedPolicy | RecordedPolicy
