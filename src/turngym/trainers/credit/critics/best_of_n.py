"""Digi-Q's policy extraction: imitate the best of several actions under an off-policy critic.

Axis letters: K replayed state, N candidate, 0 the action that was played.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from turngym.seeding import derive_seed
from turngym.trainers.credit.base import Credit, CreditContext
from turngym.trainers.credit.critics.on_policy_actions import action_sample, sample_actions
from turngym.trainers.credit.critics.replay import Transition
from turngym.trainers.credit.critics.utterance_critic import ReplayedCritic
from turngym.trainers.samples import FloatArray, TokenIds, TrainingSample
from turngym.trainers.settings.group import BestOfN

if TYPE_CHECKING:
    from torch import Tensor

    from turngym.agents.engine.protocol import Generation
    from turngym.trainers.settings.algo import AlgoConfig
    from turngym.types import TrajectoryGroup


def choose_best(
    advantages_KN: FloatArray, is_valid_KN: NDArray[np.bool_], threshold: float
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return which candidate is best at each state, and whether it is good enough to imitate.

    Args:
        advantages_KN: Of each candidate.
        is_valid_KN: An invalid candidate counts as advantage 0.
        threshold: The best advantage, cut to [0, 1], must be more than this.

    Returns:
        Number of the best candidate [K], the lowest among equals, and True where it is imitated.
    """
    counted_KN = np.where(is_valid_KN, advantages_KN, 0.0)
    best_K = counted_KN.argmax(axis=1)
    top_K = np.take_along_axis(counted_KN, best_K[:, None], axis=1)[:, 0].clip(0.0, 1.0)
    is_valid_K = np.take_along_axis(is_valid_KN, best_K[:, None], axis=1)[:, 0]
    return best_K, (top_K > threshold) & is_valid_K


class BestOfNCredit:
    """Trains the critic on replayed turns, samples candidates and returns the winners as samples.

    Args:
        config: Candidates and critic.
        algo: Reward sources and gate.
        context: What may be used.
    """

    def __init__(self, config: BestOfN, algo: AlgoConfig, context: CreditContext) -> None:
        self._config = config
        self._context = context
        self._critic = ReplayedCritic(self._config.critic, algo, context)

    async def assign(self, groups: Sequence[TrajectoryGroup]) -> Credit:
        """Train the critic, then return samples for the policy; none while the critic warms up."""
        critic, config = self._critic, self._config
        turns, is_warm = critic.add(groups), critic.is_warm
        rows = critic.sample("actor_states", config.actor_turns)
        fresh_per_state = config.candidates - 1 if is_warm else 0
        if config.critic.value_actions == "on_policy":
            fresh_per_state = max(1, fresh_per_state)
        states: list[TokenIds] = [row.state for row in rows for _ in range(fresh_per_state)]
        seed = derive_seed(self._context.seed, "candidates", critic.updates)
        sampled = await sample_actions(self._context, states, seed=seed)
        critic.train(states, [np.array(g.token_ids, dtype=np.int32) for g in sampled])
        samples: list[TrainingSample] = []
        metrics: dict[str, float] = {}
        if is_warm and rows:
            samples, metrics = self._winners(rows, sampled)
        return critic.report(turns, samples, metrics)

    def _winners(
        self, rows: Sequence[Transition], sampled: Sequence[Generation]
    ) -> tuple[list[TrainingSample], dict[str, float]]:
        """Return samples of the best candidates that are good enough, and numbers about them."""
        count = self._config.candidates
        fresh = [sampled[k * (count - 1) : (k + 1) * (count - 1)] for k in range(len(rows))]
        states, actions, valid = [], [], []
        for row, generations in zip(rows, fresh, strict=True):
            state = row.state
            states += [state] * count
            actions += [row.action, *(np.array(g.token_ids, dtype=np.int32) for g in generations)]
            valid += [
                not row.is_invalid,
                *(g.finish != "length" and len(g.token_ids) > 1 for g in generations),
            ]
        values = self._critic.values(states, actions).advantage(self._config.twins)
        shape = (len(rows), count)
        advantages_KN = values.reshape(shape)
        best_K, is_good_K = choose_best(
            advantages_KN, np.array(valid, dtype=np.bool_).reshape(shape), self._config.threshold
        )
        samples = [
            _imitation(rows[k], fresh[k], int(best_K[k]), index=k)
            for k in np.flatnonzero(is_good_K).tolist()
        ]
        return samples, {
            "credit/imitated_fraction": float(is_good_K.mean()),
            "credit/played_best_fraction": float((best_K == 0).mean()),
            "credit/advantage_mean": float(advantages_KN.mean()),
            "credit/advantage_std": float(advantages_KN.std()),
        }

    def state(self) -> dict[str, Tensor]:
        """Return the buffer, the critic and the number of updates."""
        return self._critic.state()

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what ``state`` returned."""
        self._critic.load_state(tensors)


def _imitation(
    row: Transition, fresh: Sequence[Generation], best: int, *, index: int
) -> TrainingSample:
    """Return a sample that makes candidate ``best`` more likely."""
    if best == 0:
        return action_sample(
            row.state, row.action, row.logprobs_A, row.versions_A, 1.0, index=index
        )
    won = fresh[best - 1]
    return action_sample(row.state, won.token_ids, won.logprobs, won.versions, 1.0, index=index)
