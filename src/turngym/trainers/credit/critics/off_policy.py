"""Policies from an off-policy critic of whole utterances: ArCHer, and Digi-Q's best of several.

The critic learns from replayed turns; the policy from actions that it samples now, at states that
were seen before, or from the replayed ones themselves. Axis letters: K replayed state, N candidate
(0 the action that was played), A token of an action.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from turngym.agents.engine.protocol import Generation
from turngym.coroutines import at_home
from turngym.seeding import derive_seed
from turngym.trainers.credit.base import Credit, CreditContext, advantage_metrics, below, joined
from turngym.trainers.credit.critics.replay import Transition
from turngym.trainers.credit.critics.utterance_critic import ReplayedCritic
from turngym.trainers.credit.critics.values import ValueModel
from turngym.trainers.samples import FloatArray, TokenIds, TrainingSample
from turngym.trainers.settings.algo import AlgoConfig
from turngym.trainers.settings.group import Archer, BestOfN
from turngym.types import TrajectoryGroup


class ArcherCredit:
    """Online: on-policy actions at replayed states. Offline: weighted actions of the replay.

    Args:
        config: Mode, critic and replay.
        algo: Reward sources and gate.
        context: What may be used.
    """

    def __init__(self, config: Archer, algo: AlgoConfig, context: CreditContext) -> None:
        expectile = config.expectile if config.mode == "offline" else None
        self._critic = ReplayedCritic(
            config.critic, algo, context, expectile=expectile, replay=config.replay
        )
        self._context, self._config = context, config
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
        fresh = _actions(sampled)
        critic.train(states, fresh)
        samples: list[TrainingSample] = []
        metrics: dict[str, float] = {}
        if is_warm and rows:
            is_online = config.mode == "online"
            values = critic.values(states, fresh) if is_online else critic.replayed_values(rows)
            advantages = values.advantage()
            centred = advantages - advantages.mean()
            scaled = centred / (centred.std() + 1e-8) if config.normalize else advantages
            if is_online:
                samples = [
                    action_sample(s, g.token_ids, g.logprobs, g.versions, float(a), index=k)
                    for k, (s, g, a) in enumerate(zip(states, sampled, scaled, strict=True))
                ]
            else:
                samples = self._played_samples(rows, scaled)
            metrics = advantage_metrics(advantages)
            if self._baseline is not None:
                samples, loss = self._with_baseline(self._baseline, samples)
                metrics["credit/baseline_loss"] = loss
        return critic.report(turns, samples, metrics)

    def _played_samples(
        self, rows: Sequence[Transition], advantages: FloatArray
    ) -> list[TrainingSample]:
        """Return samples weighted by ``exp(advantage * inverse temperature)``, at most the bound.

        Every weight is positive, so a plain policy gradient on it is a regression.
        """
        config = self._config
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
        self._critic = ReplayedCritic(config.critic, algo, context)
        self._context, self._config = context, config

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
        critic.train(states, _actions(sampled))
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
            actions += [row.action, *_actions(generations)]
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
        samples = []
        for k in np.flatnonzero(is_good_K).tolist():  # makes the best candidate more likely
            row = rows[k]
            said: list[Any] = [(row.action, row.logprobs_A, row.versions_A)]
            said += [(g.token_ids, g.logprobs, g.versions) for g in fresh[k]]
            ids, logprobs, versions = said[best_K[k]]
            samples.append(action_sample(row.state, ids, logprobs, versions, 1.0, index=k))
        return samples, {
            "credit/imitated_fraction": float(is_good_K.mean()),
            "credit/played_best_fraction": float((best_K == 0).mean()),
            **advantage_metrics(advantages_KN),
        }

    def state(self) -> dict[str, Tensor]:
        """Return the buffer, the critic and the number of updates."""
        return self._critic.state()

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what ``state`` returned."""
        self._critic.load_state(tensors)


def _actions(sampled: Sequence[Generation]) -> list[TokenIds]:
    return [np.array(found.token_ids, dtype=np.int32) for found in sampled]


async def sample_actions(
    context: CreditContext, states: Sequence[TokenIds], *, seed: int
) -> list[Generation]:
    """Return one action per state, sampled with the newest published weights.

    As many sessions as the method may have run at once, states of like length together. An action
    depends on its state, ``seed`` and its number alone.

    Args:
        context: Gives the engine and how actions are sampled.
        states: Everything the policy saw, as tokens; it acted there before, so there is room.
        seed: Root of the samples.

    Raises:
        ConfigError: The engine has no free session.
        PolicyFault: The engine broke.
    """
    return await at_home(_sample_all(context, states, seed))


async def _sample_all(
    context: CreditContext, states: Sequence[TokenIds], seed: int
) -> list[Generation]:
    ordered = sorted(range(len(states)), key=lambda k: (states[k].size, k))
    size = max(1, min(context.engine.free_sessions, context.max_sessions))
    found: dict[int, Generation] = {}
    for start in range(0, len(ordered), size):
        chunk = ordered[start : start + size]
        sampled = await asyncio.gather(
            *(_sample(context, states[k], derive_seed(seed, "action", k)) for k in chunk)
        )
        found |= dict(zip(chunk, sampled, strict=True))
    return [found[k] for k in range(len(states))]


async def _sample(context: CreditContext, state: TokenIds, seed: int) -> Generation:
    session = context.engine.open(seed)
    try:
        return await session.generate(state.tolist(), context.sampling)
    finally:
        if (closing := session.close()) is not None:
            await closing


def action_sample(
    state: TokenIds,
    action: Sequence[int] | TokenIds,
    logprobs: Sequence[float] | np.ndarray[tuple[int], np.dtype[np.float32]],
    versions: Sequence[int] | TokenIds,
    advantage: float,
    *,
    index: int,
) -> TrainingSample:
    """Return a sample [L] that trains on one action alone, one advantage on all its tokens.

    Args:
        state: Tokens the policy saw.
        action: Tokens of the action.
        logprobs: Log-prob each was sampled with.
        versions: Weights that sampled each; tokens with -1 were not sampled and are not trained on.
        advantage: Of the action.
        index: Number of the sample.
    """
    sampled_A = np.asarray(versions, dtype=np.int64) >= 0
    before = state.size

    def behind(values: np.ndarray, fill: float, dtype: type) -> np.ndarray:
        return np.concatenate([np.full(before, fill), values]).astype(dtype)

    return TrainingSample(
        token_ids=np.concatenate([state, np.asarray(action)]).astype(np.int64),
        loss_mask=behind(sampled_A, 0, np.bool_),
        turn_ids=behind(np.where(sampled_A, 0, -1), -1, np.int64),
        behaviour_logprobs=behind(np.asarray(logprobs), 0, np.float32),
        advantages=behind(np.where(sampled_A, advantage, 0), 0, np.float32),
        policy_versions=behind(np.asarray(versions), -1, np.int64),
        trajectory=index,
    )
