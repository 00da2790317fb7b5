"""How hard each task is for the policy as it is now: a Beta distribution that forgets.

Axis letter: K tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from turngym.trainers.samples import FloatArray


@dataclass(slots=True)
class SuccessPosterior:
    """Posterior of success at one task: Beta(alpha, beta)."""

    alpha: float = 1.0
    beta: float = 1.0
    attempts: int = 0
    """Scored attempts so far."""
    step: int = 0
    """Step of the last observation."""

    def at(self, step: int, drift: float) -> tuple[float, float]:
        """Return alpha and beta at ``step``, after ``drift`` of them was forgotten each step."""
        left = (1 - drift) ** max(0, step - self.step)
        return 1 + left * (self.alpha - 1), 1 + left * (self.beta - 1)


class Difficulty:
    """Posteriors of success at all tasks of a pool.

    A group with s successes in n attempts makes ``alpha`` into ``(1 - decay)·alpha + decay + s``
    and ``beta`` likewise with the failures, so that a task that is played again and again is known
    by its last groups, and one that is not falls back to Beta(1, 1).

    Args:
        decay: Part that a new group replaces.
        drift: Part that is forgotten with every step.

    Source:
        The update for measured tasks of Trinity-RFT's difficulty estimator; forgetting over time:
        VADE, arXiv:2511.18902.
    """

    def __init__(self, *, decay: float, drift: float) -> None:
        self._decay = decay
        self._drift = drift
        self._posteriors: dict[int, SuccessPosterior] = {}

    def observe(self, task: int, scores: Sequence[float], *, step: int) -> None:
        """Learn from one group.

        Args:
            task: Number of the task in the pool.
            scores: Success of the attempts, each in [0, 1].
            step: When.
        """
        old = self._posteriors.get(task, SuccessPosterior(step=step))
        alpha, beta = old.at(step, self._drift)
        successes, attempts = float(sum(scores)), len(scores)
        self._posteriors[task] = SuccessPosterior(
            alpha=(1 - self._decay) * alpha + self._decay + successes,
            beta=(1 - self._decay) * beta + self._decay + attempts - successes,
            attempts=old.attempts + attempts,
            step=step,
        )

    def parameters(self, tasks: Sequence[int], *, step: int) -> tuple[FloatArray, FloatArray]:
        """Return alpha and beta of tasks, each [K]."""
        unknown = SuccessPosterior(step=step)
        pairs = [self._posteriors.get(task, unknown).at(step, self._drift) for task in tasks]
        values = np.array(pairs, dtype=np.float64).reshape(-1, 2)
        return values[:, 0], values[:, 1]

    def success(self, tasks: Sequence[int], *, step: int) -> FloatArray:
        """Return the estimated success at tasks, [K]; 0.5 for one that was never played."""
        alpha_K, beta_K = self.parameters(tasks, step=step)
        return alpha_K / (alpha_K + beta_K)

    def attempts(self, tasks: Sequence[int]) -> list[int]:
        """Return how many scored attempts at each task were seen."""
        return [b.attempts if (b := self._posteriors.get(t)) is not None else 0 for t in tasks]

    def state(self) -> dict[str, Any]:
        """Return the posteriors as JSON values."""
        return {str(t): [b.alpha, b.beta, b.attempts, b.step] for t, b in self._posteriors.items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state`` returned."""
        self._posteriors = {int(task): SuccessPosterior(*values) for task, values in state.items()}


def informative(success_K: FloatArray, attempts: int) -> FloatArray:
    """Return the chance that ``attempts`` attempts do not all end alike, ``1 - p^n - (1-p)^n``."""
    value_K: FloatArray = 1 - success_K**attempts - (1 - success_K) ** attempts
    return value_K
