"""ArCHer: policy gradient with advantages from an off-policy critic of whole utterances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from turngym.seeding import derive_seed
from turngym.trainers.credit.base import Credit, CreditContext, below, joined
from turngym.trainers.credit.critics.on_policy_actions import action_sample, sample_actions
from turngym.trainers.credit.critics.replay import Transition
from turngym.trainers.credit.critics.utterance_critic import ReplayedCritic
from turngym.trainers.credit.critics.values import ValueModel
from turngym.trainers.samples import FloatArray, TokenIds, TrainingSample
from turngym.trainers.settings.group import Archer

if TYPE_CHECKING:
    from torch import Tensor

    from turngym.agents.engine.protocol import Generation
    from turngym.trainers.settings.algo import AlgoConfig
    from turngym.types import TrajectoryGroup


class ArcherCredit:
    """Online: on-policy actions at replayed states. Offline: weighted actions of the replay.

    Args:
        config: Mode, critic and replay.
        algo: Reward sources and gate.
        context: What may be used.
    """

    def __init__(self, config: Archer, algo: AlgoConfig, context: CreditContext) -> None:
        self._config = config
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
        critic, config = self._critic, self._config
        turns, is_warm = critic.add(groups), critic.is_warm
        rows = critic.sample("actor_states", config.actor_turns)
        states: list[TokenIds] = [row.state for row in rows]
        sampled: list[Generation] = []
        if config.critic.value_actions == "on_policy" or (is_warm and config.mode == "online"):
            seed = derive_seed(self._context.seed, "actor_actions", critic.updates)
            sampled = await sample_actions(self._context, states, seed=seed)
        fresh: list[TokenIds] = [np.array(g.token_ids, dtype=np.int32) for g in sampled]
        critic.train(states, fresh)
        samples: list[TrainingSample] = []
        metrics: dict[str, float] = {}
        if is_warm and rows:
            if config.mode == "online":
                advantages = critic.values(states, fresh).advantage()
                samples = self._fresh_samples(states, sampled, advantages)
            else:
                advantages = critic.replayed_values(rows).advantage()
                samples = self._played_samples(rows, advantages)
            metrics["credit/advantage_mean"] = float(advantages.mean())
            metrics["credit/advantage_std"] = float(advantages.std())
            if self._baseline is not None:
                samples, loss = self._with_baseline(self._baseline, samples)
                metrics["credit/baseline_loss"] = loss
        return critic.report(turns, samples, metrics)

    def _fresh_samples(
        self, states: Sequence[TokenIds], sampled: Sequence[Generation], advantages: FloatArray
    ) -> list[TrainingSample]:
        if self._config.normalize:
            advantages = _normalized(advantages)
        return [
            action_sample(s, g.token_ids, g.logprobs, g.versions, float(a), index=k)
            for k, (s, g, a) in enumerate(zip(states, sampled, advantages, strict=True))
        ]

    def _played_samples(
        self, rows: Sequence[Transition], advantages: FloatArray
    ) -> list[TrainingSample]:
        """Return samples weighted by ``exp(advantage * inverse temperature)``, at most the bound.

        Every weight is positive, so a plain policy gradient on it is a regression.
        """
        config = self._config
        if config.normalize:
            advantages = _normalized(advantages)
        exponents = config.awr_inverse_temperature * advantages
        weights = np.exp(np.minimum(exponents, np.log(config.awr_max_weight)))
        return [
            action_sample(r.state, r.action, r.logprobs_A, r.versions_A, float(w), index=k)
            for k, (r, w) in enumerate(zip(rows, weights, strict=True))
        ]

    def _with_baseline(
        self, baseline: ValueModel, samples: Sequence[TrainingSample]
    ) -> tuple[list[TrainingSample], float]:
        """Return ``samples`` less the baseline, read before it learns from them, and its loss."""
        ids, masks = [s.token_ids for s in samples], [s.loss_mask for s in samples]
        targets = [s.advantages[s.loss_mask].astype(np.float64) for s in samples]
        values = baseline.read(ids, masks)
        loss = baseline.fit(ids, masks, targets)
        return less_baseline(samples, values), loss

    def state(self) -> dict[str, Tensor]:
        """Return the buffer, the critic, the baseline and the number of updates."""
        baseline = {} if self._baseline is None else self._baseline.state()
        return self._critic.state() | joined({"baseline": baseline})

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what ``state`` returned."""
        self._critic.load_state(tensors)
        if self._baseline is not None:
            self._baseline.load_state(below(tensors, "baseline"))


def less_baseline(
    samples: Sequence[TrainingSample], values: Sequence[FloatArray]
) -> list[TrainingSample]:
    """Return ``samples`` with each sampled token's advantage less its value.

    Args:
        samples: What is trained on.
        values: One number per sampled token, one array [A] per sample.
    """
    lowered = []
    for sample, values_A in zip(samples, values, strict=True):
        advantages_L = sample.advantages.copy()
        advantages_L[sample.loss_mask] -= values_A.astype(np.float32)
        lowered.append(replace(sample, advantages=advantages_L))
    return lowered


def _normalized(advantages: FloatArray) -> FloatArray:
    centred: FloatArray = advantages - advantages.mean()
    scaled: FloatArray = centred / (centred.std() + 1e-8)
    return scaled
