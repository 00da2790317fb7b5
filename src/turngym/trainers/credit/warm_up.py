"""When a policy may learn from a model that learns beside it.

Axis letters: M judgement.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from turngym.trainers.samples import FloatArray
from turngym.trainers.settings.rewards import WarmUpSettings

logger = logging.getLogger(__name__)


class WarmUp:
    """Counts the updates of a model and says when it is good enough for the policy.

    Args:
        config: How long, or how good.
        name: Of the model, in metrics and warnings.
        measure: How good predictions [M] of outcomes [M] are, at most 1; and what it is called.
    """

    def __init__(
        self,
        config: WarmUpSettings,
        name: str,
        measure: tuple[str, Callable[[FloatArray, FloatArray], float]],
    ) -> None:
        self.updates = 0
        """Batches that were read."""
        self._config = config
        self._name = name
        self._measure = measure
        self._judged = np.zeros((0, 2))
        """Prediction and outcome of the newest judgements, shape [M, 2]."""
        self._num_judged = 0
        self.waits = config.warmup_until is not None
        """Whether ``end_update`` has a use for judgements."""

    @property
    def is_over(self) -> bool:
        """Whether the policy may learn."""
        return not self.waits and self.updates >= self._config.warmup_updates

    @property
    def learns(self) -> bool:
        """Whether the model learns from the next batch."""
        return not self.is_over or self._config.after_warmup == "learn"

    def steps(self, per_update: int) -> int:
        """Return the optimizer steps of the next batch, ``per_update`` where no other is set."""
        if not self.learns:
            return 0
        return per_update if self.is_over else self._config.warmup_steps or per_update

    def end_update(self, predicted_M: FloatArray, outcome_M: FloatArray) -> dict[str, float]:
        """Count an update; where the model is good enough the warm-up is over.

        Args:
            predicted_M: What the model said of the batch before it learned from it.
            outcome_M: What it should have said.

        Returns:
            Metrics, none after the warm-up or where nothing was judged.
        """
        is_over = self.is_over
        self.updates += 1
        if is_over:
            return {}
        judged = np.concatenate([self._judged, np.stack([predicted_M, outcome_M], axis=1)])
        self._judged = judged[-self._config.warmup_window :]
        self._num_judged += len(outcome_M)
        label, measure = self._measure
        found = measure(*self._judged.T)
        if self.waits:
            self._stop_waiting(found)
        if not self._num_judged:
            return {}
        return {
            f"credit/{self._name}_explored": float(self._num_judged),
            f"credit/{self._name}_explored_{label}": found,
        }

    def _stop_waiting(self, found: float) -> None:
        """Wait no longer if the model is good enough, or it took too long."""
        config, wanted = self._config, self._config.warmup_until or 0.0
        is_good = len(self._judged) == config.warmup_window and found >= wanted
        is_late = self.updates >= config.most_warmup_updates
        if is_late and not is_good:
            logger.warning(
                "%s: %s %.2f with the outcomes of what is new after %d updates, wanted %.2f; the "
                "policy learns from it all the same",
                *(self._name, self._measure[0].replace("_", " "), found, self.updates, wanted),
            )
        self.waits = not (is_good or is_late)

    def state(self) -> dict[str, Tensor]:
        """Return how far it is."""
        return {
            "judged": torch.from_numpy(self._judged.copy()),
            "explored": torch.tensor([self._num_judged, self.waits]),
            "updates": torch.tensor(self.updates),
        }

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what ``state`` returned."""
        self._judged = tensors["judged"].numpy()
        explored, waits = tensors["explored"].tolist()
        self._num_judged, self.waits = explored, bool(waits)
        self.updates = int(tensors["updates"].item())


def correlation(predicted_M: FloatArray, outcome_M: FloatArray) -> float:
    """Return Pearson's correlation, 0 where one of them does not vary.

    Args:
        predicted_M: What a model said of each judgement.
        outcome_M: What it should have said.
    """
    if predicted_M.size < 2 or min(predicted_M.std(), outcome_M.std()) < 1e-9:
        return 0.0
    return float(np.corrcoef(predicted_M, outcome_M)[0, 1])


def ranked_right(better_M: FloatArray, worse_M: FloatArray) -> float:
    """Return the share of pairs whose better side is ahead; a tie is half right.

    Args:
        better_M: Score of each pair's better side.
        worse_M: Score of its other side.
    """
    if not better_M.size:
        return 0.0
    return float(np.mean((np.sign(better_M - worse_M) + 1) / 2))
