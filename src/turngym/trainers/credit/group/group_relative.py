"""Credit from comparing attempts at the same task. Learns nothing of its own.

Axis letters: B episodes, G groups, C reward components, N turns of any episode (in episode order,
then turn order), T turns of one episode, M sampled tokens of one episode, R values that are
compared (C·N in a row).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from turngym.trainers.credit.base import (
    Components,
    Credit,
    CreditContext,
    TurnBatch,
    advantage_metrics,
    credit_of_turns,
)
from turngym.trainers.credit.group.normalize import (
    ZERO_SPREAD,
    combine_terms,
    lower_medians,
    normalize,
    scale_batch,
    spread_groups,
)
from turngym.trainers.credit.sources.reward_sources import EXPERT_MATCH, RewardSources, part_rewards
from turngym.trainers.samples import FloatArray, IntArray
from turngym.trainers.settings.algo import AlgoConfig
from turngym.trainers.settings.group import GatedSum, GroupRelative, Term
from turngym.types import TrajectoryGroup

if TYPE_CHECKING:
    from torch import Tensor


NO_ADVANTAGE = 1e-9
"""Advantages up to this are 0, as relative returns are: sums of floats leave such crumbs."""


def term_advantages(turns: TurnBatch, components: Components, term: Term) -> FloatArray:
    """Return what a comparison makes of each turn, without ``term.weight``, shape [N].

    ``accumulate_first``: rewards become returns, which are normalised. ``normalize_first``: rewards
    are normalised, and what comes of it is accumulated like rewards.

    Args:
        turns: The batch.
        components: Its rewards.
        term: The comparison.

    Raises:
        TrainingError: See ``normalize``.
    """
    names = _component_names(components, term)
    weights_C = np.array([term.reward_weights.get(name, 1.0) for name in names])
    values_CN = np.stack([components[name].values_N for name in names])
    valid_CN = np.stack([components[name].has_value_N for name in names])
    if term.order == "accumulate_first":
        if term.normalization == "joint":
            values_CN, weights_C = weights_C[None] @ values_CN, np.ones(1)
        returns_CN = np.stack([_returns(row, turns, components, term) for row in values_CN])
        # A return exists on every turn, also where the reward itself has no value.
        everywhere_CN = np.ones(returns_CN.shape, dtype=np.bool_)
        found_N: FloatArray = weights_C @ _each_normalized(returns_CN, everywhere_CN, turns, term)
        return found_N
    if term.normalization == "joint":
        values_CN = weights_C[:, None] * values_CN
        rewards_N = _normalized(values_CN, valid_CN, turns, term).sum(axis=0)
    else:
        rewards_N = weights_C @ _each_normalized(values_CN, valid_CN, turns, term)
    return _accumulated(rewards_N, turns, term)


def term_returns(turns: TurnBatch, components: Components, term: Term) -> FloatArray:
    """Return what each turn is held responsible for before anything is compared, shape [N].

    Args:
        turns: The batch.
        components: Its rewards.
        term: Which of them, and how they accumulate.
    """
    names = _component_names(components, term)
    values = [term.reward_weights.get(name, 1.0) * components[name].values_N for name in names]
    return _returns(np.sum(values, axis=0), turns, components, term)


def _component_names(components: Components, term: Term) -> list[str]:
    """Return the components that a term reads; ``parts`` stands for all parts, in order."""
    parts = [name for name in components if name.startswith("parts/")]
    return [name for wanted in term.rewards for name in (parts if wanted == "parts" else [wanted])]


def _returns(
    rewards_N: FloatArray, turns: TurnBatch, components: Components, term: Term
) -> FloatArray:
    """Return accumulated rewards, plus those that count for their own turn alone."""
    returns_N = _accumulated(rewards_N, turns, term)
    for name in term.immediate:
        returns_N = returns_N + components[name].values_N
    return returns_N


def _accumulated(rewards_N: FloatArray, turns: TurnBatch, term: Term) -> FloatArray:
    if term.returns == "outcome":
        return outcomes(rewards_N, turns.episode_N)
    passes_N = None
    if term.returns == "segmented":
        passes_N = part_rewards(turns, EXPERT_MATCH) >= 1.0
    return rewards_to_go(rewards_N, turns.is_last_N, gamma=term.gamma, passes_N=passes_N)


def outcomes(rewards_N: FloatArray, episode_N: IntArray) -> FloatArray:
    """Return the sum of the whole episode for each of its turns, shape [N].

    Args:
        rewards_N: Shape [N].
        episode_N: 0-based number of the episode of each turn.
    """
    sums_B = np.bincount(episode_N, rewards_N).astype(np.float64)
    return sums_B[episode_N]


def rewards_to_go(
    rewards_N: FloatArray,
    is_last_N: NDArray[np.bool_],
    *,
    gamma: float = 1.0,
    passes_N: NDArray[np.bool_] | None = None,
) -> FloatArray:
    """Return ``G_t = r_t + gamma * G_{t+1}`` within each episode, shape [N].

    Args:
        rewards_N: Shape [N].
        is_last_N: True on the last turn of each episode.
        gamma: Discount per turn, in [0, 1].
        passes_N: False on a turn over which nothing passes back: it is worth its own reward, and
            the turns before it hear neither of it nor of what follows. None passes everywhere.

    Source:
        TRLOO, arXiv:2602.05885. With ``passes_N``: UI-S1, arXiv:2509.11543.
    """
    open_N = np.ones(is_last_N.shape, dtype=np.bool_) if passes_N is None else passes_N
    returns: list[float] = []
    following = 0.0
    turns = zip(rewards_N.tolist(), is_last_N.tolist(), open_N.tolist(), strict=True)
    for reward, is_last, passes in reversed(list(turns)):
        returns.append(reward + gamma * following if passes and not is_last else reward)
        following = returns[-1] if passes else 0.0
    return np.array(returns[::-1], dtype=np.float64)


def _each_normalized(
    values_CN: FloatArray, valid_CN: NDArray[np.bool_], turns: TurnBatch, term: Term
) -> FloatArray:
    """Return each component normalised in baseline groups of its own, shape [C, N]."""
    rows = zip(values_CN, valid_CN, strict=True)
    return np.concatenate([_normalized(v[None], ok[None], turns, term) for v, ok in rows])


def _normalized(
    values_CN: FloatArray, valid_CN: NDArray[np.bool_], turns: TurnBatch, term: Term
) -> FloatArray:
    """Return all components normalised in the same baseline groups, 0 where there is no value."""
    if term.above is not None:
        values_CN = (values_CN > term.above).astype(np.float64)
    if term.unit == "token":
        values_CN = values_CN / np.maximum(turns.tokens_N, 1)
        valid_CN = valid_CN & (values_CN != 0) & (turns.tokens_N > 0)
    # An episode counts once only where all its turns are compared with those of others.
    by_turn = term.unit == "episode" and term.group_by != "task"
    counts_R = np.tile(turns.counts("turn" if by_turn else term.unit), len(values_CN))
    found = []
    for baseline_N, weight in baseline_groups(turns, term):
        baseline_R = np.where(valid_CN, baseline_N, -1).ravel()
        relative_R = normalize(values_CN.ravel(), baseline_R, term, counts_N=counts_R)
        found.append((weight, relative_R.reshape(values_CN.shape)))
    if term.group_by != "history":
        return found[0][1]
    # HGPO: the weighted mean over the depths at which a turn differs from its baseline; a depth
    # where it is alone, or equal to all others, has no say.
    total_CN, weights_CN = np.zeros(values_CN.shape), np.zeros(values_CN.shape)
    for weight, relative_CN in found:
        differs_CN = np.abs(relative_CN) > NO_ADVANTAGE
        total_CN += weight * np.where(differs_CN, relative_CN, 0.0)
        weights_CN += weight * differs_CN
    return total_CN / np.where(weights_CN > 0, weights_CN, 1.0)


def baseline_groups(turns: TurnBatch, term: Term) -> list[tuple[IntArray, float]]:
    """Return the number of each turn's baseline group, -1 for none, shape [N]; and its weight.

    For ``history`` once for each number of states. A turn whose state has no key is in no group of
    states.

    Args:
        turns: The batch.
        term: Says by what turns are grouped.

    Source:
        ``state``: GiGPO, arXiv:2505.10978. ``history``: HGPO, arXiv:2602.22817.
    """
    if term.group_by == "task":
        return [(turns.group_N, 1.0)]
    if term.group_by == "task_turn":
        keys = zip(turns.group_N.tolist(), turns.turn_N.tolist(), strict=True)
        return [(_numbered(keys), 1.0)]
    if term.group_by == "state":
        return [(_same_states(turns, 1), 1.0)]
    return [
        (_same_states(turns, states), float((states + term.history_offset) ** term.history_power))
        for states in range(1, term.history + 2)
    ]


def _same_states(turns: TurnBatch, states: int) -> IntArray:
    """Put turns together whose last ``states`` states are the same, the present one included."""
    keys: list[Hashable | None] = []
    for group, episode in zip(turns.group_B.tolist(), turns.episodes, strict=True):
        state_keys = [turn.state_key for turn in episode.turns]
        keys += [_key(group, state_keys, number, states) for number in range(len(state_keys))]
    return _numbered(keys)


def _key(group: int, state_keys: Sequence[str | None], number: int, states: int) -> Hashable | None:
    first = number + 1 - states
    last = tuple(state_keys[max(first, 0) : number + 1])
    return None if first < 0 or None in last else (group, last)


def _numbered(keys: Iterable[Hashable | None]) -> IntArray:
    """Return a number for each different key, -1 for None."""
    numbers: dict[Hashable, int] = {}
    found = [-1 if key is None else numbers.setdefault(key, len(numbers)) for key in keys]
    return np.array(found, dtype=np.int64)


_UPDATE = "update"
"""Key of the number of updates in a checkpoint."""


class GroupRelativeCredit:
    """A ``CreditMethod`` without a critic.

    Args:
        config: The comparison.
        algo: Reward sources and gate.
        context: What reward sources that ask a model may use; None when none of them does.
    """

    def __init__(
        self, config: GroupRelative, algo: AlgoConfig, context: CreditContext | None
    ) -> None:
        self._config = config
        self._least = 2 if config.compares_attempts else 1
        self._sources = RewardSources(algo.rewards, algo.gate, context)
        # A teacher teaches where no attempt did better than another, too.
        self._drops = config.signal_free == "drop" and algo.teacher is None
        self._update = 0

    async def assign(self, groups: Sequence[TrajectoryGroup]) -> Credit:
        """Return what ``groups`` teach. Called once per update, in order.

        Raises:
            TrainingError: A reward is not finite; the message names the episode.
        """
        update, is_ready = self._update, self._sources.is_ready
        self._update += 1
        kept = [g for g in groups if sum(bool(t.turns) for t in g.usable) >= self._least]
        turns = TurnBatch.of(kept)
        if not turns.episodes:
            return Credit(samples=(), dropped=_dropped(too_small=len(groups)))
        components = self._sources.read(turns)
        too_small = len(groups) - len(kept)
        if not is_ready:
            dropped = _dropped(too_small=too_small, warmup=len(kept))
            return Credit(samples=(), dropped=dropped, metrics=self._sources.metrics())
        values_N = turn_advantages(turns, components, self._config, update=update)
        judged_B = turns.outcome_B
        if self._config.filter.of == "first_return":
            judged_B = _first_returns(turns, components, self._config)
        informative = spread_groups(judged_B, turns, self._config.filter)
        signal = set(turns.group_N[np.abs(values_N) > NO_ADVANTAGE].tolist())
        trained = informative & signal if self._drops else informative
        dropped = _dropped(
            too_small=too_small,
            filtered=len(kept) - len(informative),
            zero_spread=len(informative - trained),
        )
        metrics = signal_metrics(turns, components, self._config, values_N)
        metrics["credit/groups_with_signal"] = len(signal) / len(groups)
        keep_B = np.isin(turns.group_B, list(trained))
        if self._config.drop_pivot:
            keep_B &= ~pivots(turns, components, self._config)
        metrics = self._sources.metrics() | metrics
        return credit_of_turns(turns, values_N, keep_B=keep_B, dropped=dropped, metrics=metrics)

    def state(self) -> dict[str, Tensor]:
        """Return what the reward sources learned, and the update where it matters."""
        state = self._sources.state()
        if isinstance(self._config.combine, GatedSum):
            import torch

            state[_UPDATE] = torch.tensor([self._update])
        return state

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what ``state`` returned."""
        self._sources.load_state(tensors)
        if _UPDATE in tensors:
            self._update = int(tensors[_UPDATE].item())


def turn_advantages(
    turns: TurnBatch, components: Components, config: GroupRelative, *, update: int = 0
) -> FloatArray:
    """Return the advantage of every turn, shape [N].

    Pure. An episode's advantages depend on its own group alone, but for ``batch`` and for the
    common scale of a gated sum.

    Args:
        turns: The batch.
        components: Its rewards.
        config: The method.
        update: Number of the update, from 0; a gated sum may fade with it.

    Raises:
        TrainingError: ``scale="mean"`` meets a group whose mean is negative.
    """
    terms = [t.weight * term_advantages(turns, components, t) for t in config.terms]
    values_N = combine_terms(terms, turns, config.combine, update=update)
    if config.drop_pivot:
        values_N = values_N * _pivot_factors(values_N, turns)
    if config.batch is not None:
        values_N = scale_batch(values_N, turns.counts(config.batch.unit), config.batch)
    signs_N = np.where(values_N > 0, config.positive_weight, config.negative_weight)
    weighted_N: FloatArray = signs_N * values_N
    return weighted_N


def pivots(turns: TurnBatch, components: Components, config: GroupRelative) -> NDArray[np.bool_]:
    """Return which episode of each group is its median, the first of several, shape [B].

    Args:
        turns: The batch.
        components: Its rewards.
        config: Its first term says of what.

    Source:
        MC-GRPO; see ``docs/methods.md``.
    """
    values_B = _first_returns(turns, components, config)
    middles_B = lower_medians(values_B, turns.group_B, np.ones(values_B.shape))
    candidates = np.flatnonzero(values_B == middles_B)
    first = np.unique(turns.group_B[candidates], return_index=True)[1]
    found_B = np.zeros(values_B.shape, dtype=np.bool_)
    found_B[candidates[first]] = True
    return found_B


def _first_returns(turns: TurnBatch, components: Components, config: GroupRelative) -> FloatArray:
    """Return the return of each episode's first turn, as the first term has it, shape [B]."""
    found_B: FloatArray = term_returns(turns, components, config.terms[0])[turns.turn_N == 0]
    return found_B


def _pivot_factors(values_N: FloatArray, turns: TurnBatch) -> FloatArray:
    """Return group size over the number of attempts that differ from the median, shape [N]."""
    differs_B = values_N[turns.turn_N == 0] != 0
    size = np.bincount(turns.group_B)
    others = np.bincount(turns.group_B, differs_B)
    factors_N: FloatArray = (size / np.maximum(others, 1))[turns.group_N]
    return factors_N


def _dropped(**counts: int) -> dict[str, int]:
    return {reason: count for reason, count in counts.items() if count}


def signal_metrics(
    turns: TurnBatch, components: Components, config: GroupRelative, advantages_N: FloatArray
) -> dict[str, float]:
    """Return ``credit/*`` of one batch: whether credit has something to say.

    ``advantage_mean`` and ``advantage_std`` are over turns. ``state_group_size`` is the mean size
    of the baseline groups of one state, ``state_groups_of_one`` the share of turns that are alone
    in theirs. ``NAME_outcome_correlation`` says how a reward agrees with the episode's return; it
    is left out where one of them never varies.

    Args:
        turns: The batch, at least one turn.
        components: Its rewards.
        config: The method.
        advantages_N: Shape [N].
    """
    metrics = advantage_metrics(advantages_N)
    for term in config.terms:
        if term.group_by in ("state", "history"):
            metrics |= _state_group_metrics(baseline_groups(turns, term)[0][0])
    outcome_N = turns.outcome_B[turns.episode_N]
    for name, component in components.items():
        if name not in ("env", "outcome"):
            valid_N = component.has_value_N
            pair = component.values_N[valid_N], outcome_N[valid_N]
            if valid_N.sum() > 1 and min(map(np.ptp, pair)) >= ZERO_SPREAD:
                metrics[f"credit/{name}_outcome_correlation"] = float(np.corrcoef(*pair)[0, 1])
    return metrics


def _state_group_metrics(baseline_N: IntArray) -> dict[str, float]:
    sizes = np.unique(baseline_N[baseline_N >= 0], return_counts=True)[1]
    alone = float((sizes == 1).sum() / sizes.sum()) if sizes.size else 0.0
    return {
        "credit/state_group_size": float(sizes.mean()) if sizes.size else 0.0,
        "credit/state_groups_of_one": alone,
    }
