"""Our functions on the stored inputs, each as one flat array per case.

Axis letters: L position in a sample, M sampled token of one episode, N turn of any episode or
sampled token, T turn of one episode, K replayed turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from turngym.config import load_config
from turngym.trainers.credit.base import RewardComponent, TurnBatch
from turngym.trainers.credit.critics.gae import (
    bilevel_gae,
    gae,
    on_last_token,
    scale_tokens,
)
from turngym.trainers.credit.critics.off_policy import choose_best
from turngym.trainers.credit.critics.utterance_critic import (
    CriticValues,
    critic_loss,
    expectile_loss,
    polyak,
    q_targets,
)
from turngym.trainers.credit.group.group_relative import turn_advantages
from turngym.trainers.credit.sources.learned import Row
from turngym.trainers.credit.sources.privileged import (
    pair_example,
    pair_weights,
    ranking_loss,
)
from turngym.trainers.credit.sources.progress import last_tokens, squared_error
from turngym.trainers.credit.sources.reward_sources import EXPERT_MATCH, RewardSources
from turngym.trainers.losses.corrections import (
    PolicyLogprobs,
    correction_weights,
    without_rejected,
)
from turngym.trainers.losses.policy_loss import (
    TokenTerms,
    aggregation_coefficients,
    covariant_tokens,
    kl_estimate,
    policy_loss,
)
from turngym.trainers.losses.regressions import with_preferences
from turngym.trainers.losses.surrogates import SurrogateInputs, flat, sequence_ids, unflat
from turngym.trainers.samples import FloatArray, TrainingSample
from turngym.trainers.settings.algo import AlgoConfig
from turngym.trainers.settings.group import Archer, BestOfN, Gae, GroupRelative
from turngym.trainers.settings.loss import KlEstimator, LossConfig, RegularizerConfig
from turngym.trainers.settings.rewards import Privileged
from turngym.trainers.settings.surrogates import Prefer
from turngym.trainers.settings.train import TrainConfig
from turngym.types import Message, StopReason, TokenSpan, Trajectory, TrajectoryGroup, Turn

# Any: cases are JSON, as the files hold them.
Case = Any
Ours = Callable[[Case], FloatArray]


@lru_cache
def preset(name: str, *overrides: str) -> AlgoConfig:
    """Return a preset; overrides such as ``advantage.terms.0.gamma=0.5`` stand below ``algo``."""
    below = [f"algo.{text}" for text in overrides]
    return load_config(TrainConfig, ["env.id=text/maze", f"algo={name}", *below]).algo


Gains = Callable[[Case], Sequence[float | None]]


def fine(episode: Case) -> Sequence[float | None]:
    """Return an episode's gains; of a last turn none is known."""
    return [*episode["gains"], None]


def coarse(episode: Case) -> Sequence[float | None]:
    """Return gains of which some are exactly 0."""
    return [*episode["coarse"], None]


def coarse_without_zeros(episode: Case) -> Sequence[float | None]:
    """Return the same with no value in the place of 0."""
    return [gain or None for gain in coarse(episode)]


def group_credit(
    name: str,
    *overrides: str,
    rewards: str = "rewards",
    gains: Gains = fine,
    equal: bool = False,
) -> Ours:
    """Return what the preset makes of each turn of a batch of groups.

    Args:
        name: The preset.
        overrides: As of ``preset``.
        rewards: Which column of the inputs is the environment's reward.
        gains: Gives the gains of information of an episode.
        equal: Cut every group to the size of the smallest.
    """

    def advantages(case: Case) -> FloatArray:
        size = min(map(len, case)) if equal else None
        groups = [_group(number, made[:size], rewards) for number, made in enumerate(case)]
        episodes = [episode for made in case for episode in made[:size]]
        algo = preset(name, *overrides)
        assert isinstance(algo.advantage, GroupRelative)
        turns = TurnBatch.of(groups)
        read = tuple(reward for reward in algo.rewards if not reward.asks_model)
        components = RewardSources(read, algo.gate, None).read(turns)
        # What a model would be asked for stands in the inputs.
        components |= {"info_gain": _component([gains(e) for e in episodes])}
        components |= {"feedback_gain": _component([e["feedback"] for e in episodes])}
        return turn_advantages(turns, components, algo.advantage)

    return advantages


def _component(rows: Sequence[Sequence[float | None]]) -> RewardComponent:
    values = [value for row in rows for value in row]
    return RewardComponent(
        values_N=np.array([value or 0.0 for value in values]),
        has_value_N=np.array([value is not None for value in values]),
    )


def _group(number: int, episodes: Sequence[Case], rewards: str) -> TrajectoryGroup:
    made = (_trajectory(episode, member, rewards) for member, episode in enumerate(episodes))
    return TrajectoryGroup(group_id=str(number), trajectories=tuple(made))


def _trajectory(episode: Case, member: int = 0, rewards: str = "rewards") -> Trajectory:
    turns = [_turn(episode, t, episode[rewards][t]) for t in range(len(episode["tokens"]))]
    return Trajectory(
        env_id="made", task_id="made/train/0", env_seed=0, policy_seed=member, member=member,
        turns=tuple(turns), stop_reason=StopReason.TERMINATED,
    )  # fmt: skip


def _turn(episode: Case, t: int, reward: float | list[float]) -> Turn:
    parts = {}
    if isinstance(reward, list):
        parts, reward = {f"part{n}": value for n, value in enumerate(reward)}, sum(reward)
    elif "match" in episode and reward == episode["match"][t]:
        parts = {EXPERT_MATCH: reward}
    count = episode["tokens"][t]
    sampled = TokenSpan(
        token_ids=(1,) * count, sampled=True, logprobs=(-1.0,) * count, policy_version=0
    )
    return Turn(
        observation=(Message(role="user", content=""),),
        action=Message(role="assistant", content=""),
        reward=reward,
        reward_parts=parts,
        invalid_action="no" if episode.get("invalid", [0] * (t + 1))[t] else None,
        state_key=str(episode["states"][t]) if "states" in episode else None,
        spans=(TokenSpan(token_ids=(0, 0), sampled=False), sampled),
    )


def token_credit(name: str, *, joins_unpaid: bool = False) -> Ours:
    """Return the preset's advantage of every sampled token, GAE over tokens or over both levels.

    Args:
        name: The preset.
        joins_unpaid: Take turns that earned nothing and the one after them for one turn.
    """

    def advantages(case: Case) -> FloatArray:
        config = preset(name).advantage
        assert isinstance(config, Gae)
        episodes = [_joined(episode) if joins_unpaid else episode for episode in case]
        raw = []
        for e in episodes:
            rewards_T, lengths_T = np.array(e["rewards"]), np.array(e["tokens"])
            values_M, rates = np.array(e["values"]), {"gamma": config.gamma, "lam": config.lam}
            if config.level == "bilevel":
                turn_gamma = config.turn_gamma
                found = bilevel_gae(
                    rewards_T, values_M, lengths_T, 0.0, **rates, turn_gamma=turn_gamma
                )
            else:
                found = gae(on_last_token(rewards_T, lengths_T), values_M, 0.0, **rates)
            raw.append(found)
        turns = TurnBatch.of([_group(0, episodes, "rewards")])
        return np.concatenate(scale_tokens(raw, turns, config.batch))

    return advantages


def _joined(episode: Case) -> Case:
    tokens, rewards, waiting = [], [], 0
    for count, reward in zip(episode["tokens"], episode["rewards"], strict=True):
        waiting += count
        if reward:
            tokens.append(waiting)
            rewards.append(reward)
            waiting = 0
    return {**episode, "tokens": tokens, "rewards": rewards}


def turn_credit(name: str) -> Ours:
    """Return the preset's advantage of every turn, GAE over turns, before the batch is scaled."""

    def advantages(case: Case) -> FloatArray:
        config = preset(name).advantage
        assert isinstance(config, Gae)
        assert config.time_limit == "drop"
        found = []
        for e in case:
            firsts_T = np.cumsum([0, *e["tokens"][:-1]])
            values_T, rewards_T = np.array(e["values"])[firsts_T], np.array(e["rewards"])
            last = None if e["truncated"] else 0.0
            found.append(gae(rewards_T, values_T, last, gamma=config.gamma, lam=config.lam))
        return np.concatenate(found)

    return advantages


def loss(name: str, *overrides: str, advantages: str = "advantages") -> Ours:
    """Return the preset's loss of a batch, then its gradient by the log-prob of every token.

    Args:
        name: The preset.
        overrides: As of ``preset``.
        advantages: Which column of the inputs holds them: by turn, or ``outcome`` by episode.
    """

    def value_and_gradient(case: Case) -> FloatArray:
        algo, samples = preset(name, *overrides), _samples(case, advantages)
        policy_N = _column(case, "policy").requires_grad_()
        terms = TokenTerms(
            policy_logprobs=policy_N,
            old_logprobs=_column(case, "old"),
            advantages=flat([s.advantages for s in samples], samples),
            coefficients=_coefficients(samples, algo.loss),
            sequences=flat(sequence_ids(samples), samples),
        )
        if algo.loss.correction.is_active:
            terms = _corrected(terms, _column(case, "behaviour"), samples, algo.loss)
        if algo.loss.covariance.rule != "none":
            terms = replace(terms, held_back=_held_back(terms, algo.loss))
        total = policy_loss(terms, algo.loss, RegularizerConfig()).total
        total.backward()  # type: ignore[no-untyped-call]
        return _with_gradients(total, policy_N)

    return value_and_gradient


def preferences(name: str, *overrides: str) -> Ours:
    """Return the gradient of the preset's loss by the log-prob of every token.

    All episodes of a case are attempts at one task. What the surrogate reports as its loss is not
    the loss of the pairs, only its gradient is the same.

    Args:
        name: The preset.
        overrides: As of ``preset``.
    """

    def gradient(case: Case) -> FloatArray:
        config = preset(name, *overrides).loss
        assert isinstance(config.surrogate, Prefer)
        samples = [replace(sample, group=0) for sample in _samples(case, "outcome")]
        current, reference = (
            [np.array([0.0, *e[name]]) for e in case] for name in ("policy", "reference")
        )
        found = with_preferences(samples, current, reference, config.surrogate)
        advantages_N = flat([s.advantages for s in found], found)
        return (-_coefficients(samples, config) * advantages_N).numpy()

    return gradient


def _with_gradients(total: Tensor, *leaves: Tensor) -> FloatArray:
    gradients = [leaf.grad.numpy().ravel() for leaf in leaves if leaf.grad is not None]
    return np.concatenate([[total.item()], *gradients])


def _column(case: Case, name: str) -> Tensor:
    return torch.tensor([x for e in case for x in e[name]], dtype=torch.float64)


def _samples(case: Case, advantages: str) -> list[TrainingSample]:
    made = []
    for number, e in enumerate(case):
        turn_ids_L = np.concatenate([[-1], np.repeat(np.arange(len(e["tokens"])), e["tokens"])])
        is_sampled_L = turn_ids_L >= 0
        by_turn_T = np.broadcast_to(np.array(e[advantages]), len(e["tokens"]))
        made.append(
            TrainingSample(
                token_ids=np.ones_like(turn_ids_L),
                loss_mask=is_sampled_L,
                turn_ids=turn_ids_L,
                behaviour_logprobs=np.zeros(turn_ids_L.shape, dtype=np.float32),
                # The class says float32; double shows differences that it would hide.
                advantages=np.where(is_sampled_L, by_turn_T[turn_ids_L], 0.0),
                policy_versions=np.where(is_sampled_L, 0, -1),
                trajectory=number,
                group=number,
            )
        )
    return made


def _coefficients(samples: Sequence[TrainingSample], config: LossConfig) -> Tensor:
    constant = config.constant_length
    arrays = aggregation_coefficients(samples, config.aggregation, constant_length=constant)
    return flat(arrays, samples).double()


def _corrected(
    terms: TokenTerms, behaviour_N: Tensor, samples: Sequence[TrainingSample], config: LossConfig
) -> TokenTerms:
    logprobs = PolicyLogprobs(
        behaviour=behaviour_N,
        proximal=terms.old_logprobs,
        current=terms.policy_logprobs,
        advantages=terms.advantages,
        sequences=terms.sequences,
    )
    weights_N = correction_weights(logprobs, config.correction)
    if config.correction.denominator == "original":
        return replace(terms, weights=weights_N)
    kept = without_rejected(samples, unflat(weights_N, samples))
    coefficients_N = torch.zeros_like(weights_N)
    coefficients_N[weights_N > 0] = _coefficients(kept, config)
    return replace(terms, weights=weights_N, coefficients=coefficients_N)


def _held_back(terms: TokenTerms, config: LossConfig) -> Tensor:
    policy_N = terms.policy_logprobs.detach()
    inputs = SurrogateInputs(
        log_ratios=policy_N - terms.old_logprobs,
        policy_logprobs=policy_N,
        old_logprobs=terms.old_logprobs,
        advantages=terms.advantages,
    )
    return covariant_tokens(inputs, config, np.random.default_rng(0))


def divergence(estimator: KlEstimator) -> Ours:
    """Return the sum of an estimate over the tokens, then its gradient by each log-prob."""

    def value_and_gradient(case: Case) -> FloatArray:
        policy_N = _column(case, "policy").requires_grad_()
        total = kl_estimate(policy_N, _column(case, "reference"), estimator).sum()
        total.backward()  # type: ignore[no-untyped-call]
        return _with_gradients(total, policy_N)

    return value_and_gradient


def _tensors(case: Mapping[str, Any], *names: str) -> Iterator[Tensor]:
    return (torch.tensor(case[name], dtype=torch.float64) for name in names)


def archer_critic(case: Case) -> FloatArray:
    """Return the critic's loss, then its gradients by Q and V of both twins."""
    config = preset("archer").advantage
    assert isinstance(config, Archer)
    critic = config.critic
    rewards_K, ends_K, next_v_2K = _tensors(case, "rewards", "ends", "next_v")
    targets_2K = q_targets(
        rewards_K, ends_K > 0, next_v_2K, gamma=critic.gamma, pessimistic=critic.pessimistic_targets
    )
    q_2K, v_2K, v_targets_2K = _tensors(case, "q", "v", "target_q")
    total = critic_loss(q_2K.requires_grad_(), targets_2K, v_2K.requires_grad_(), v_targets_2K)
    total.backward()  # type: ignore[no-untyped-call]
    return _with_gradients(total, q_2K, v_2K)


def archer_actor(case: Case) -> FloatArray:
    """Return the policy's loss, actions of one token, then its gradient by each log-prob."""
    tokens = [
        {"tokens": [1], "policy": [p], "old": [p], "behaviour": [p], "outcome": a}
        for p, a in zip(case["logprobs"], case["advantages"], strict=True)
    ]
    return loss("archer", advantages="outcome")(tokens)


def archer_polyak(case: Case) -> FloatArray:
    """Return weights ``target_q`` after they have moved towards weights ``q``."""
    config = preset("archer").advantage
    assert isinstance(config, Archer)
    critic = config.critic
    target, online = (torch.nn.ParameterList([x]) for x in _tensors(case, "target_q", "q"))
    polyak(target, online, critic.tau)
    return np.concatenate([weights.detach().numpy().ravel() for weights in target])


def offline_archer_critic(case: Case) -> FloatArray:
    """Return the critic's loss, then its gradients by Q and V of both twins."""
    config = preset("offline_archer").advantage
    assert isinstance(config, Archer)
    rewards_K, ends_K, next_v_2K = _tensors(case, "rewards", "ends", "next_v")
    pessimistic, gamma = config.critic.pessimistic_targets, config.critic.gamma
    targets_2K = q_targets(rewards_K, ends_K > 0, next_v_2K, gamma=gamma, pessimistic=pessimistic)
    q_2K, v_2K, v_targets_2K = _tensors(case, "q", "v", "target_q")
    v_losses = expectile_loss(v_targets_2K - v_2K.requires_grad_(), config.expectile)
    q_losses = (q_2K.requires_grad_() - targets_2K).square().mean(dim=1)
    total = q_losses.sum() + v_losses.sum()
    total.backward()  # type: ignore[no-untyped-call]
    return _with_gradients(total, q_2K, v_2K)


def best_of_n(case: Case) -> FloatArray:
    """Return which candidate is imitated at each state, -1 for none."""
    config = preset("digi_q").advantage
    assert isinstance(config, BestOfN)
    q_2KN, v_2K = np.array(case["q"]), np.array(case["v"])
    v_2KN = np.broadcast_to(v_2K[:, :, None], q_2KN.shape)
    values = CriticValues(q_2K=q_2KN.reshape(2, -1), v_2K=v_2KN.reshape(2, -1))
    advantages_KN = values.advantage(config.twins).reshape(q_2KN.shape[1:])
    best_K, is_good_K = choose_best(advantages_KN, np.array(case["valid"]) > 0, config.threshold)
    return np.where(is_good_K, best_K, -1).astype(np.float64)


def sweet_critic(*overrides: str) -> Ours:
    """Return the critic's loss on pairs of episodes, then its gradient by each log-prob.

    Args:
        overrides: As of ``preset``.
    """

    def value_and_gradient(case: Case) -> FloatArray:
        config = preset("sweet", *overrides).rewards[1]
        assert isinstance(config, Privileged)
        policy_N = _column(case, "policy").requires_grad_()
        ratios = torch.split(
            policy_N - _column(case, "reference"), [sum(e["tokens"]) for e in case]
        )
        half, margins = len(case) // 2, []
        for better in range(half):
            worse = half + better
            pair = pair_example([_row(case[better])], [_row(case[worse])])
            signed = pair_weights(pair, config.objective)
            parts = zip((ratios[better], ratios[worse]), signed, strict=True)
            margins.append(torch.stack([r @ torch.from_numpy(w).double() for r, w in parts]).sum())
        total = ranking_loss(torch.stack(margins), beta=config.beta).mean()
        total.backward()  # type: ignore[no-untyped-call]
        return _with_gradients(total, policy_N)

    return value_and_gradient


def _row(episode: Case) -> Row:
    turn_ids_L = np.repeat(np.arange(len(episode["tokens"])), episode["tokens"])
    nothing_L = np.zeros(turn_ids_L.shape, dtype=np.float32)
    return Row(token_ids_L=turn_ids_L, turn_ids_L=turn_ids_L, reference_L=nothing_L)


def spa_estimator(case: Case) -> FloatArray:
    """Return the estimator's loss, then its gradient by what it says at every sampled token."""
    values_N = _column(case, "values").requires_grad_()
    places, owners, start = [], [], 0
    for number, e in enumerate(case):
        row = _row(e)
        ends = np.flatnonzero(last_tokens(row))
        places += (start + ends).tolist()
        owners += [number] * len(ends)
        start += row.turn_ids_L.size
    outcomes_B = torch.tensor([sum(e["rewards"]) for e in case], dtype=torch.float64)
    total = squared_error(values_N[places], torch.tensor(owners), outcomes_B) / len(case)
    total.backward()  # type: ignore[no-untyped-call]
    return _with_gradients(total, values_N)
