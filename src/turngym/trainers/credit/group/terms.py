"""One comparison: from reward components, over returns and baseline groups, to advantages.

Axis letters: C components, N turns of any episode (in episode order, then turn order), R values
that are compared (C·N in a row).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turngym.trainers.credit.base import Components, TurnBatch
from turngym.trainers.credit.group.normalize import normalize
from turngym.trainers.credit.sources.environment import EXPERT_MATCH, part_rewards
from turngym.trainers.samples import FloatArray, IntArray
from turngym.trainers.settings.group import Term

_NOTHING = 1e-9
"""A relative return up to this counts as 0 where several baseline groups are averaged."""


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
    return [
        name
        for wanted in term.rewards
        for name in ([n for n in components if n.startswith("parts/")] or [wanted])
        if wanted == "parts" or name == wanted
    ]


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
    counts_R = np.tile(turn_counts(turns, term), len(values_CN))
    found = []
    for groups in baseline_groups(turns, term):
        baseline_R = np.where(valid_CN, groups.baseline_N, -1).ravel()
        relative_R = normalize(values_CN.ravel(), baseline_R, term, counts_N=counts_R)
        found.append((groups.weight, relative_R.reshape(values_CN.shape)))
    if term.group_by != "history":
        return found[0][1]
    # HGPO: the weighted mean over the depths at which a turn differs from its baseline; a depth
    # where it is alone, or equal to all others, has no say.
    total_CN, weights_CN = np.zeros(values_CN.shape), np.zeros(values_CN.shape)
    for weight, relative_CN in found:
        differs_CN = np.abs(relative_CN) > _NOTHING
        total_CN += weight * np.where(differs_CN, relative_CN, 0.0)
        weights_CN += weight * differs_CN
    return total_CN / np.where(weights_CN > 0, weights_CN, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BaselineGroups:
    """One way to put turns into baseline groups."""

    baseline_N: IntArray
    """Number of the baseline group of each turn, -1 for none."""
    weight: float = 1.0
    """Of what comes of it, where a turn is in several groups."""


def baseline_groups(turns: TurnBatch, term: Term) -> list[BaselineGroups]:
    """Return the baseline groups of a term; for ``history`` once for each number of states.

    A turn whose state has no key is in no group of states.

    Args:
        turns: The batch.
        term: Says by what turns are grouped.

    Source:
        ``state``: GiGPO, arXiv:2505.10978. ``history``: HGPO, arXiv:2602.22817.
    """
    if term.group_by == "task":
        return [BaselineGroups(baseline_N=turns.group_N)]
    if term.group_by == "task_turn":
        keys = zip(turns.group_N.tolist(), turns.turn_N.tolist(), strict=True)
        return [BaselineGroups(baseline_N=_numbered(keys))]
    if term.group_by == "state":
        return [BaselineGroups(baseline_N=_same_states(turns, 1))]
    return [
        BaselineGroups(
            baseline_N=_same_states(turns, states),
            weight=float((states + term.history_offset) ** term.history_power),
        )
        for states in range(1, term.history + 2)
    ]


def turn_counts(turns: TurnBatch, term: Term) -> FloatArray:
    """Return how often each turn counts in the statistics of its baseline group, shape [N]."""
    if term.group_by == "task" and term.unit == "episode":
        return np.where(turns.turn_N == 0, 1.0, 0.0)
    if term.unit == "token":
        return turns.tokens_N.astype(np.float64)
    return np.ones(len(turns.turn_N))


def _same_states(turns: TurnBatch, states: int) -> IntArray:
    """Put turns together whose last ``states`` states are the same, the present one included."""
    keys: list[Hashable | None] = []
    for group, episode in zip(turns.group_B.tolist(), turns.episodes, strict=True):
        anchors = [turn.anchor for turn in episode.turns]
        keys += [_key(group, anchors, number, states) for number in range(len(anchors))]
    return _numbered(keys)


def _key(group: int, anchors: Sequence[str | None], number: int, states: int) -> Hashable | None:
    first = number + 1 - states
    last = tuple(anchors[max(first, 0) : number + 1])
    return None if first < 0 or None in last else (group, last)


def _numbered(keys: Iterable[Hashable | None]) -> IntArray:
    """Return a number for each different key, -1 for None."""
    numbers: dict[Hashable, int] = {}
    found = [-1 if key is None else numbers.setdefault(key, len(numbers)) for key in keys]
    return np.array(found, dtype=np.int64)
