"""Credit from what is known of a task: an attempt is compared with earlier ones at the same task.

Axis letters: B episodes, K tasks, N turns of any episode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from turngym.trainers.credit.base import (
    Credit,
    CreditContext,
    TurnBatch,
    advantage_metrics,
    below,
    credit_of_turns,
    joined,
    trained_episodes,
    unused_groups,
)
from turngym.trainers.credit.group.group_relative import term_returns
from turngym.trainers.credit.group.normalize import scale_batch
from turngym.trainers.credit.sources.reward_sources import RewardSources
from turngym.trainers.samples import FloatArray
from turngym.trainers.settings.algo import AlgoConfig, BetaValue, OptimalValue, TaskValue
from turngym.trainers.settings.group import Term
from turngym.types import TrajectoryGroup

if TYPE_CHECKING:
    from torch import Tensor


def optimal_value(returns_B: FloatArray, beta: float) -> float:
    """Return ``beta * log mean exp(r / beta)``.

    Args:
        returns_B: Of attempts by the policy as it began.
        beta: Weight of the KL term under which the value is the best.

    Source:
        A*-PO, arXiv:2505.20686: its first stage.
    """
    most = returns_B.max()
    return float(most + beta * np.log(np.exp((returns_B - most) / beta).mean()))


class BetaValues:
    """How often attempts at each task succeed, and how sure that is.

    Args:
        config: What is forgotten, and what is believed of a new task.
    """

    trains_on_new = True
    """Attempts at a task that nothing is known of are trained on."""

    def __init__(self, config: BetaValue) -> None:
        self.known: dict[str, tuple[float, float]] = {}
        """Successes and failures of each task, as far as they are not forgotten."""
        self._config = config

    def rewards(self, returns_B: FloatArray) -> FloatArray:
        """Return what attempts are compared by, shape [B]: 1 for a success and 0 for a failure."""
        return (returns_B > self._config.above).astype(np.float64)

    def value(self, task: str) -> float:
        """Return the chance of success."""
        successes, failures = self._counts(task)
        return successes / (successes + failures)

    def learn(self, task: str, rewards_B: FloatArray) -> None:
        """Add the rewards of attempts at a task, shape [B], one after the other."""
        successes, failures = self._counts(task)
        for reward in rewards_B.tolist():
            successes = self._config.kept * successes + reward
            failures = self._config.kept * failures + 1 - reward
        self.known[task] = successes, failures

    def _counts(self, task: str) -> tuple[float, float]:
        prior, size = self._config.prior, self._config.prior_attempts
        return self.known.get(task, (size * prior, size * (1 - prior)))


class OptimalValues:
    """What the first attempts at each task say of its best value.

    Args:
        config: beta.
    """

    trains_on_new = False
    """Attempts at a task that nothing is known of are not trained on."""

    def __init__(self, config: OptimalValue) -> None:
        self.known: dict[str, tuple[float, float]] = {}
        """Value of each task, and of how many attempts."""
        self._config = config

    def rewards(self, returns_B: FloatArray) -> FloatArray:
        """Return what attempts are compared by, shape [B]: their returns."""
        return returns_B

    def value(self, task: str) -> float:
        """Return the best value; 0 while nothing is known of the task."""
        return self.known.get(task, (0.0, 0.0))[0]

    def learn(self, task: str, rewards_B: FloatArray) -> None:
        """Keep the value that the rewards of the first attempts at a task give, shape [B]."""
        if task not in self.known:
            found = optimal_value(rewards_B, self._config.beta)
            self.known[task] = found, float(rewards_B.size)


class TaskValueCredit:
    """A ``CreditMethod`` that subtracts the value of the task as it was before the batch.

    Args:
        config: Rewards, and what is known of a task.
        algo: Reward sources and gate.
        context: What reward sources that ask a model may use; None when none of them does.
    """

    def __init__(self, config: TaskValue, algo: AlgoConfig, context: CreditContext | None) -> None:
        self._config = config
        self._sources = RewardSources(algo.rewards, algo.gate, context)
        self._values: BetaValues | OptimalValues = (
            BetaValues(config.value)
            if isinstance(config.value, BetaValue)
            else OptimalValues(config.value)
        )

    async def assign(self, groups: Sequence[TrajectoryGroup]) -> Credit:
        """Return what ``groups`` teach. Called once per update, in order.

        Raises:
            TrainingError: A reward is not finite; the message names the episode.
        """
        is_ready = self._sources.is_ready
        turns = TurnBatch.of(trained_episodes(groups))
        dropped = unused_groups(len(groups), turns, is_warm=is_ready)
        if not turns.episodes:
            return Credit(samples=(), dropped=dropped)
        components = self._sources.read(turns)
        if not is_ready:
            return Credit(samples=(), dropped=dropped, metrics=self._sources.metrics())
        wanted = Term(rewards=self._config.rewards)
        rewards_B = self._values.rewards(term_returns(turns, components, wanted)[turns.start_B])
        # What one player can expect of a game says nothing of another's chances.
        tasks = [f"{t.env_id} {t.task_id} {t.player or ''}".rstrip() for t in turns.episodes]
        is_known_B: NDArray[np.bool_] = np.array([task in self._values.known for task in tasks])
        advantages_B = rewards_B - np.array([self._values.value(task) for task in tasks])
        for task in dict.fromkeys(tasks):
            self._values.learn(task, rewards_B[[name == task for name in tasks]])
        keep_B = is_known_B | self._values.trains_on_new
        values_N = (advantages_B * keep_B)[turns.episode_N]
        if self._config.batch is not None:
            counts_N = turns.counts(self._config.batch.unit) * keep_B[turns.episode_N]
            values_N = scale_batch(values_N, counts_N, self._config.batch)
        known = [self._values.value(task) for task in self._values.known]
        own = {
            "credit/known_tasks": float(is_known_B.mean()),
            "credit/task_value": float(np.mean(known)),
        }
        if waiting := len(np.setdiff1d(turns.group_B, turns.group_B[keep_B])):
            dropped["warmup"] = waiting
        return credit_of_turns(
            turns,
            values_N,
            keep_B=keep_B,
            dropped=dropped,
            metrics=self._sources.metrics() | advantage_metrics(values_N) | own,
        )

    def state(self) -> dict[str, Tensor]:
        """Return what is known of tasks, and what the reward sources learned."""
        import torch

        known = self._values.known
        names = bytearray("\n".join(known).encode())
        own = {
            "tasks": torch.tensor(list(names), dtype=torch.uint8),
            "values": torch.tensor(list(known.values()), dtype=torch.float64).reshape(-1, 2),
        }
        return joined({"tasks": own, "sources": self._sources.state()})

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what ``state`` returned."""
        own = below(tensors, "tasks")
        names = bytes(own["tasks"].tolist()).decode().split("\n")
        pairs = ((a, b) for a, b in own["values"].tolist())
        self._values.known = dict(zip(names, pairs, strict=False))
        self._sources.load_state(below(tensors, "sources"))
