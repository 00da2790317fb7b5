"""Generalised advantage estimation with a learned value: over tokens, over turns, or over both.

Axis letters: L token, M sampled token of one episode, T turn of one episode, N turn of any episode,
S step (turn or sampled token).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from turngym.seeding import derive_seed
from turngym.trainers.credit.base import (
    Credit,
    CreditContext,
    RewardComponent,
    TurnBatch,
    below,
    joined,
    trained_turns,
    unused_groups,
)
from turngym.trainers.credit.critics.values import Mask, ValueModel, final_prompt
from turngym.trainers.credit.group.normalize import scale_batch, spread_groups
from turngym.trainers.credit.sources.reward_sources import RewardSources
from turngym.trainers.samples import FloatArray, IntArray, per_token, to_samples
from turngym.trainers.settings.algo import AlgoConfig
from turngym.trainers.settings.group import BatchScale, Gae
from turngym.types import TrajectoryGroup


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Text:
    """One segment of an episode, and where its values are."""

    episode: int
    token_ids: IntArray
    steps_L: Mask
    """Tokens whose state has a value that counts: sampled tokens, or the first of each turn."""
    is_cut: bool
    """The last token is no part of the text: the value before it is that of the last state."""

    @property
    def read_L(self) -> Mask:
        """Tokens whose state has a value at all."""
        read_L = self.steps_L.copy()
        read_L[-1] |= self.is_cut
        return read_L


class GaeCredit:
    """Judges a batch with the critic as it is, then trains the critic on the batch.

    Args:
        config: Level, discounts and critic.
        algo: Reward sources and gate.
        context: What may be used.
    """

    def __init__(self, config: Gae, algo: AlgoConfig, context: CreditContext) -> None:
        self._config = config
        self._context = context
        self._sources = RewardSources(algo.rewards, algo.gate, context)
        self._values = ValueModel(
            context.model,
            self._config.critic,
            seed=derive_seed(context.seed, "gae"),
            max_tokens=context.max_tokens,
        )
        self._updates = 0
        """Updates in which the critic has learned."""

    async def assign(self, groups: Sequence[TrajectoryGroup]) -> Credit:
        """Return what ``groups`` teach; no samples while the critic warms up."""
        is_ready = self._sources.is_ready
        turns, filtered = self._turns(trained_turns(groups))
        rewards_N = total_reward(self._sources.read(turns), self._config.rewards, turns)
        # A source that still learns says what it thinks so far, and the critic learns beside it.
        is_warm = is_ready and self._updates >= self._config.critic.warmup_updates
        dropped = unused_groups(len(groups), turns, is_warm=is_warm, filtered=filtered)
        if not turns.episodes:
            return Credit(samples=(), dropped=dropped, metrics=self._sources.metrics())
        # Judged before it learns: a critic that knows the outcomes of its own batch would explain
        # the advantages away.
        estimates, metrics = self._judge_and_learn(turns, rewards_N)
        if self._config.level == "turn":
            pairs = zip(turns.episodes, estimates, strict=True)
            estimates = [per_token(episode, values_T) for episode, values_T in pairs]
        self._updates += 1
        advantages = scale_tokens(estimates, turns, self._config.batch)
        rows = enumerate(zip(turns.episodes, advantages, strict=True))
        samples = [s for b, (t, a) in rows for s in to_samples(t, a, index=b)]
        return Credit(
            samples=tuple(samples) if is_warm else (),
            trajectories=turns.episodes,
            advantages=tuple(turn_means(turns, advantages)),
            dropped=dropped,
            metrics=metrics | self._sources.metrics(),
        )

    def _turns(self, groups: Sequence[TrajectoryGroup]) -> tuple[TurnBatch, int]:
        """Return the turns of the groups that the filter keeps, and how many it dropped."""
        turns = TurnBatch.of(groups)
        if not self._config.filter.is_active or not turns.episodes:
            return turns, 0
        kept = sorted(spread_groups(turns.outcome_B, turns, self._config.filter))
        dropped = len(set(turns.group_B.tolist())) - len(kept)
        return TurnBatch.of([groups[number] for number in kept]), dropped

    def _judge_and_learn(
        self, turns: TurnBatch, rewards_N: FloatArray
    ) -> tuple[list[FloatArray], dict[str, float]]:
        """Return advantages of turns or sampled tokens, [S] for each episode; fit the critic."""
        texts = [text for b in range(len(turns.episodes)) for text in self._texts(turns, b)]
        ids = [text.token_ids for text in texts]
        values = self._values.read(ids, [text.read_L for text in texts])
        before: list[FloatArray] = []
        estimates: list[FloatArray] = []
        for b, rewards_T in enumerate(turns.split(rewards_N)):
            own = [(t, v) for t, v in zip(texts, values, strict=True) if t.episode == b]
            values_S = np.concatenate([v[: v.size - t.is_cut] for t, v in own])
            drops = turns.is_open_B[b] and self._config.time_limit == "drop"
            last = None if drops else 0.0
            last = float(own[-1][1][-1]) if own[-1][0].is_cut else last
            before.append(values_S)
            estimates.append(self._advantages(rewards_T, values_S, turns, b, last))
        targets = np.concatenate(estimates) + np.concatenate(before)  # lambda-returns
        cuts = np.cumsum([int(text.steps_L.sum()) for text in texts])[:-1]
        steps = [text.steps_L for text in texts]
        loss = self._values.fit(ids, steps, np.split(targets, cuts))
        return estimates, {"credit/critic_loss": loss} | _fit_metrics(
            np.concatenate(before), targets
        )

    def _texts(self, turns: TurnBatch, b: int) -> list[_Text]:
        """Return the segments of episode ``b``; a cut-off one is closed by the last state."""
        episode = turns.episodes[b]
        zeros = np.zeros(episode.num_sampled_tokens)
        samples = to_samples(episode, zeros, index=b)
        bootstraps = episode.is_partial or self._config.time_limit == "bootstrap"
        keeps_value = bool(turns.is_open_B[b]) and bootstraps
        texts = []
        for sample in samples:
            is_cut = keeps_value and sample is samples[-1]
            steps_L = sample.loss_mask
            if self._config.level == "turn":
                found, places = np.unique(sample.turn_ids, return_index=True)
                steps_L = np.zeros_like(steps_L)
                steps_L[places[found >= 0]] = True
            token_ids = sample.token_ids
            if is_cut:
                more = final_prompt(
                    episode, self._context.renderer, context=self._context.engine.context
                )
                token_ids = np.concatenate([token_ids, np.array([*more, 0], dtype=np.int64)])
                steps_L = np.pad(steps_L, (0, len(more) + 1))
            texts.append(_Text(episode=b, token_ids=token_ids, steps_L=steps_L, is_cut=is_cut))
        return texts

    def _advantages(
        self,
        rewards_T: FloatArray,
        values_S: FloatArray,
        turns: TurnBatch,
        b: int,
        last: float | None,
    ) -> FloatArray:
        config = self._config
        lengths_T = turns.tokens_N[turns.episode_N == b]
        if config.level == "bilevel":
            return bilevel_gae(
                rewards_T,
                values_S,
                lengths_T,
                last,
                gamma=config.gamma,
                lam=config.lam,
                turn_gamma=config.turn_gamma,
            )
        token_wise = config.level == "token"
        rewards_S = on_last_token(rewards_T, lengths_T) if token_wise else rewards_T
        return gae(rewards_S, values_S, last, gamma=config.gamma, lam=config.lam)

    def state(self) -> dict[str, Tensor]:
        """Return the critic, what the reward sources learned, and the number of updates."""
        tensors = joined({"values": self._values.state(), "rewards": self._sources.state()})
        return tensors | {"updates": torch.tensor([self._updates])}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what ``state`` returned."""
        self._values.load_state(below(tensors, "values"))
        self._sources.load_state(below(tensors, "rewards"))
        self._updates = int(tensors["updates"].item())


def total_reward(
    components: Mapping[str, RewardComponent], names: Sequence[str], turns: TurnBatch
) -> FloatArray:
    """Return the sum of the named rewards per turn, shape [N].

    Args:
        components: By name.
        names: Of their sources; ``"parts"`` names all parts.
        turns: The batch.
    """
    total_N = np.zeros(turns.reward_N.shape)
    for name, component in components.items():
        if name.partition("/")[0] in names:
            total_N = total_N + component.values_N
    return total_N


def scale_tokens(
    advantages: Sequence[FloatArray], turns: TurnBatch, config: BatchScale | None
) -> list[FloatArray]:
    """Return advantages of sampled tokens on the scale of the batch, one array [M] per episode.

    A token of a turn of n tokens counts ``1 / n`` where turns are counted, and likewise where
    episodes are.

    Args:
        advantages: One array [M] per episode.
        turns: The batch.
        config: What counts once; None leaves them as they are.
    """
    if config is None or not advantages:
        return list(advantages)
    sizes = np.array([values.size for values in advantages])
    flat = np.concatenate(advantages)
    counts: FloatArray = np.ones(flat.shape)
    if config.unit != "token":
        lengths = turns.tokens_N if config.unit == "turn" else sizes
        counts = np.repeat(1.0 / lengths, lengths)
    return list(np.split(scale_batch(flat, counts, config), np.cumsum(sizes)[:-1]))


def turn_means(turns: TurnBatch, advantages: Sequence[FloatArray]) -> list[FloatArray]:
    """Return the mean of ``advantages`` over each turn's tokens, one array [T] per episode."""
    if not advantages:
        return []
    starts = np.cumsum(turns.tokens_N) - turns.tokens_N
    sums_N = np.add.reduceat(np.concatenate(advantages), starts)
    return turns.split(sums_N / turns.tokens_N)


def _fit_metrics(values: FloatArray, targets: FloatArray) -> dict[str, float]:
    """Say how well the critic knew the batch before it learned from it."""
    spread = float(targets.var())
    explained = 1 - float((targets - values).var()) / spread if spread > 1e-12 else 0.0
    return {
        "credit/value_mean": float(values.mean()),
        "credit/value_explained_variance": explained,
        "credit/advantage_mean": float((targets - values).mean()),
        "credit/advantage_std": float((targets - values).std()),
    }


def gae(
    rewards_S: FloatArray,
    values_S: FloatArray,
    last_value: float | None,
    *,
    gamma: float,
    lam: float,
) -> FloatArray:
    """Return the advantages of S steps.

    ``delta[s] = r[s] + gamma V[s+1] - V[s]`` and ``A[s] = delta[s] + gamma lam A[s+1]``. What the
    critic is trained on, the lambda-return of a step, is its advantage plus its value.

    Args:
        rewards_S: Reward of each step.
        values_S: Value of the state before each step.
        last_value: Value of the state after the last step: 0 where the episode terminated, what
            the critic says where a limit cut it off. None where a limit did and the last step is
            not judged: its advantage is 0, and those before it hear of its value.
        gamma: Discount per step.
        lam: 0 trusts the critic after one step, 1 waits for the end.

    Raises:
        ValueError: The arrays have different lengths.

    Source:
        Schulman et al. 2016, arXiv:1506.02438, equation 16.
    """
    if rewards_S.shape != values_S.shape:
        raise ValueError(f"gae: rewards {rewards_S.shape}, values {values_S.shape}: wanted as many")
    advantages_S = np.zeros(rewards_S.shape, dtype=np.float64)
    judged, next_value, running = rewards_S.size, last_value, 0.0
    if next_value is None:
        judged, next_value = judged - 1, float(values_S[-1])
    for s in range(judged - 1, -1, -1):
        delta = rewards_S[s] + gamma * next_value - values_S[s]
        running = delta + gamma * lam * running
        advantages_S[s] = running
        next_value = values_S[s]
    return advantages_S


def bilevel_gae(
    rewards_T: FloatArray,
    values_M: FloatArray,
    lengths_T: IntArray,
    last_value: float | None,
    *,
    gamma: float,
    lam: float,
    turn_gamma: float,
) -> FloatArray:
    """Return token advantages that are estimated over turns first, then inside each turn.

    The value of a turn is the one before its last token. Estimation over turns gives ``A``; inside
    a turn, which counts as an end, the last token is paid ``A + V`` and the others nothing.

    Args:
        rewards_T: Reward of each turn. A turn without reward is a turn all the same.
        values_M: Value before each sampled token.
        lengths_T: Sampled tokens of each turn, at least 1; sums to M.
        last_value: Value of the state after the last turn, as in ``gae``.
        gamma: Discount per token inside a turn.
        lam: As in ``gae``, on both levels.
        turn_gamma: Discount per turn.

    Returns:
        Advantages, shape [M].

    Source:
        RAGEN, arXiv:2504.20073. Its code takes tokens with a reward for the ends of turns, which
        loses turns that earned nothing; we count them.
    """
    ends_T = np.cumsum(lengths_T)
    values_T = values_M[ends_T - 1]
    paid_T = values_T + gae(rewards_T, values_T, last_value, gamma=turn_gamma, lam=lam)
    parts = []
    for paid, end, length in zip(paid_T, ends_T, lengths_T, strict=True):
        rewards = np.zeros(int(length), dtype=np.float64)
        rewards[-1] = paid
        parts.append(gae(rewards, values_M[end - length : end], 0.0, gamma=gamma, lam=lam))
    return np.concatenate(parts) if parts else np.zeros(0)


def on_last_token(values_T: FloatArray, lengths_T: IntArray) -> FloatArray:
    """Put each turn's value on the last of its ``lengths_T`` tokens, 0 on others, shape [M]."""
    values_M = np.zeros(int(lengths_T.sum()), dtype=np.float64)
    values_M[np.cumsum(lengths_T) - 1] = values_T
    return values_M
