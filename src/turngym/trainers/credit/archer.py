"""ArCHer: an off-policy critic of utterances tells a policy gradient what each is worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from turngym.seeding import derive_seed
from turngym.trainers.credit.base import Credit, CreditContext
from turngym.trainers.credit.critic_config import Archer
from turngym.trainers.credit.fresh_actions import action_sample, draw_actions
from turngym.trainers.credit.replay import PlayedTurn
from turngym.trainers.credit.replayed_critic import ReplayedCritic
from turngym.trainers.credit.utterance_encoder import Ids
from turngym.trainers.credit.values import ValueModel, below
from turngym.trainers.samples import FloatArray, TrainingSample

if TYPE_CHECKING:
    from torch import Tensor

    from turngym.trainers.config import AlgoConfig
    from turngym.types import TrajectoryGroup


class ArcherCredit:
    """Online: fresh actions at replayed states. Offline: the actions that were played, weighted.

    Args:
        algo: Settings whose ``advantage`` is ``Archer``.
        context: What may be used.
    """

    def __init__(self, algo: AlgoConfig, context: CreditContext) -> None:
        assert isinstance(algo.advantage, Archer)
        config = self._config = algo.advantage
        self._context = context
        self._critic = ReplayedCritic(
            config.critic,
            algo,
            context,
            expectile=config.expectile if config.mode == "offline" else None,
            replay=config.replay,
        )
        self._baseline: ValueModel | None = None
        if config.token_baseline is not None:
            seed = derive_seed(context.seed, "token_baseline")
            self._baseline = ValueModel(
                context.model, config.token_baseline, seed=seed, max_tokens=context.max_tokens
            )

    async def assign(self, groups: Sequence[TrajectoryGroup]) -> Credit:
        """Train the critic, then return samples for the policy; none while the critic warms up."""
        turns = await self._critic.learn(groups)
        samples: list[TrainingSample] = []
        metrics: dict[str, float] = {}
        if self._critic.is_warm and len(self._critic.ring):
            rows = self._critic.sample("actor_states", self._config.actor_turns)
            offline = self._config.mode == "offline"
            samples, advantages = self._played(rows) if offline else await self._fresh(rows)
            metrics = {
                "credit/advantage_mean": float(advantages.mean()),
                "credit/advantage_std": float(advantages.std()),
            }
            if self._baseline is not None:
                samples, metrics["credit/baseline_loss"] = self._less_baseline(samples)
        judged, _ = self._critic.judge_batch()
        return Credit(
            samples=tuple(samples),
            trajectories=turns.episodes,
            advantages=tuple(turns.split(judged.advantage()) if turns.episodes else ()),
            metrics=metrics | self._critic.metrics(judged),
        )

    async def _fresh(self, rows: Sequence[PlayedTurn]) -> tuple[list[TrainingSample], FloatArray]:
        """Return samples of fresh actions at the states of ``rows``, and their advantages."""
        states: list[Ids] = [row.state for row in rows]
        seed = derive_seed(self._context.seed, "actor_actions", self._critic.updates)
        drawn = await draw_actions(self._context, states, seed=seed)
        actions: list[Ids] = [np.array(g.token_ids, dtype=np.int32) for g in drawn]
        raw = self._critic.judge(states, actions).advantage()
        advantages = _normalized(raw) if self._config.normalize else raw
        samples = [
            action_sample(s, g.token_ids, g.logprobs, g.versions, float(a), index=k)
            for k, (s, g, a) in enumerate(zip(states, drawn, advantages, strict=True))
        ]
        return samples, raw

    def _played(self, rows: Sequence[PlayedTurn]) -> tuple[list[TrainingSample], FloatArray]:
        """Return samples of the actions that were played, weighted by their exponentiated worth."""
        config = self._config
        raw = self._critic.judge([r.state for r in rows], [r.action for r in rows]).advantage()
        exponents = config.awr_inverse_temperature * (_normalized(raw) if config.normalize else raw)
        weights = np.exp(np.minimum(exponents, np.log(config.awr_max_weight)))
        samples = [
            action_sample(r.state, r.action, r.logprobs_A, r.versions_A, float(w), index=k)
            for k, (r, w) in enumerate(zip(rows, weights, strict=True))
        ]
        return samples, raw

    def _less_baseline(
        self, samples: Sequence[TrainingSample]
    ) -> tuple[list[TrainingSample], float]:
        """Return ``samples`` less the baseline of each token, and the loss of the baseline.

        The baseline is read before it learns from these samples.
        """
        assert self._baseline is not None
        ids, masks = [s.token_ids for s in samples], [s.loss_mask for s in samples]
        targets = [s.advantages[s.loss_mask].astype(np.float64) for s in samples]
        values = self._baseline.read(ids, masks)
        loss = self._baseline.fit(ids, masks, targets)
        lowered = []
        for sample, values_A in zip(samples, values, strict=True):
            advantages_L = sample.advantages.copy()
            advantages_L[sample.loss_mask] -= values_A.astype(np.float32)
            lowered.append(replace(sample, advantages=advantages_L))
        return lowered, loss

    def state(self) -> dict[str, Tensor]:
        """Return the ring, the critic, the baseline and the number of updates."""
        tensors = self._critic.state()
        if self._baseline is not None:
            tensors |= {f"baseline/{name}": t for name, t in self._baseline.state().items()}
        return tensors

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what ``state`` returned."""
        self._critic.load_state(tensors)
        if self._baseline is not None:
            self._baseline.load_state(below(tensors, "baseline"))


def _normalized(advantages: FloatArray) -> FloatArray:
    centred: FloatArray = advantages - advantages.mean()
    return centred / (centred.std() + 1e-8)
