"""VinePPO: the value of a state is what the policy earns when it plays on from there.

Axis letters: B episode, N turn of any episode, H half of the continuations, S state, T turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from turngym.coroutines import at_home
from turngym.errors import TrainingError
from turngym.seeding import derive_seed
from turngym.trainers.credit.base import (
    Credit,
    CreditContext,
    TurnBatch,
    credit_of_turns,
    trained_episodes,
    unused_groups,
)
from turngym.trainers.credit.group.normalize import scale_batch
from turngym.trainers.settings.algo import AlgoConfig
from turngym.trainers.settings.group import MonteCarlo
from turngym.types import TrajectoryGroup


class MonteCarloCredit:
    """Plays every episode on from each of its states, with the newest policy.

    Args:
        config: How often, and on which scale advantages are.
        algo: Not used: what continuations earn is the environment's reward alone.
        context: What may be used.
    """

    def __init__(self, config: MonteCarlo, algo: AlgoConfig, context: CreditContext) -> None:
        self._config = config
        self._context = context
        self._updates = 0

    async def assign(self, groups: Sequence[TrajectoryGroup]) -> Credit:
        """Return what ``groups`` teach.

        Raises:
            TrainingError: There is no environment to play on in.
            EpisodeError: A continuation broke.
        """
        if self._context.play_on is None:
            raise TrainingError(
                "advantage 'monte_carlo' plays on, and there is no environment here"
            )
        turns = TurnBatch.of(trained_episodes(groups))
        seed = derive_seed(self._context.seed, "monte_carlo", self._updates)
        self._updates += 1
        dropped = unused_groups(len(groups), turns)
        if not turns.episodes:
            return Credit(samples=(), dropped=dropped)
        found = await at_home(
            self._context.play_on(turns.episodes, self._config.continuations, seed)
        )
        halves_HN = np.concatenate(found.advantages(turns.episodes), axis=1)
        values_N = halves_HN.mean(axis=0)
        metrics = {
            "credit/episodes": float(found.episodes),
            "credit/value_mean": float(np.mean([v_HS[:, 0].mean() for v_HS in found.values])),
            "credit/advantage_std": float(values_N.std()),
            "credit/advantage_noise": float(np.abs(halves_HN[0] - halves_HN[1]).mean() / 2),
        }
        if self._config.batch is not None:
            unit = self._config.batch.unit
            counts_N = 1 / turns.length_B[turns.episode_N]  # the turns of an episode count once
            if unit != "episode":
                counts_N = turns.counts(unit)
            values_N = scale_batch(values_N, counts_N, self._config.batch)
        return credit_of_turns(turns, values_N, dropped=dropped, metrics=metrics)

    def state(self) -> dict[str, Tensor]:
        """Return the number of updates, which seeds the next continuations."""
        return {"updates": torch.tensor([self._updates])}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what ``state`` returned."""
        self._updates = int(tensors["updates"].item())
