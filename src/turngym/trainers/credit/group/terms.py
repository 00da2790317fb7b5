"""One comparison: from reward channels to one advantage per turn.

Axis letters: C channels, N turns, R returns that are compared (C·N in a row).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from turngym.trainers.credit.channels import EXPERT_MATCH, Channel, part_rewards
from turngym.trainers.credit.group.baseline_groups import Pooling, counts, poolings
from turngym.trainers.credit.group.normalize import normalize
from turngym.trainers.credit.group.returns import outcomes, rewards_to_go
from turngym.trainers.credit.turns import Turns
from turngym.trainers.samples import FloatArray
from turngym.trainers.settings.group import Term

_NOTHING = 1e-9
"""A relative return up to this counts as 0 where several pools are averaged."""


def term_advantages(turns: Turns, channels: Mapping[str, Channel], term: Term) -> FloatArray:
    """Return what a comparison makes of each turn, without ``term.weight``, shape [N].

    Args:
        turns: The batch.
        channels: Its rewards by channel.
        term: The comparison.

    Raises:
        TrainingError: See ``normalize``.
    """
    names = _channel_names(channels, term)
    weights_C = np.array([term.reward_weights.get(name, 1.0) for name in names])
    values_CN = np.stack([channels[name].values_N for name in names])
    valid_CN = np.stack([channels[name].has_value_N for name in names])
    if term.order == "accumulate_first":
        if term.normalization == "joint":
            values_CN, weights_C = weights_C[None] @ values_CN, np.ones(1)
        returns_CN = np.stack([_accumulated(row, turns, channels, term) for row in values_CN])
        everywhere_CN = np.ones(returns_CN.shape, dtype=np.bool_)
        compared_CN = _compared_apart(returns_CN, everywhere_CN, turns, term)
        found_N: FloatArray = weights_C @ compared_CN
        return found_N
    if term.normalization == "joint":
        values_CN = weights_C[:, None] * values_CN
        return _sums(_compared(values_CN, valid_CN, turns, term).sum(axis=0), turns, term)
    return _sums(weights_C @ _compared_apart(values_CN, valid_CN, turns, term), turns, term)


def term_returns(turns: Turns, channels: Mapping[str, Channel], term: Term) -> FloatArray:
    """Return what each turn is held responsible for before anything is compared, shape [N]."""
    names = _channel_names(channels, term)
    values = [term.reward_weights.get(name, 1.0) * channels[name].values_N for name in names]
    return _accumulated(np.sum(values, axis=0), turns, channels, term)


def _channel_names(channels: Mapping[str, Channel], term: Term) -> list[str]:
    """Return the channels that a term reads; ``parts`` stands for all parts, in order."""
    return [
        name
        for wanted in term.rewards
        for name in ([n for n in channels if n.startswith("parts/")] or [wanted])
        if wanted == "parts" or name == wanted
    ]


def _accumulated(
    rewards_N: FloatArray, turns: Turns, channels: Mapping[str, Channel], term: Term
) -> FloatArray:
    returns_N = _sums(rewards_N, turns, term)
    for name in term.immediate:
        returns_N = returns_N + channels[name].values_N
    return returns_N


def _sums(rewards_N: FloatArray, turns: Turns, term: Term) -> FloatArray:
    if term.returns == "outcome":
        return outcomes(rewards_N, turns.episode_N)
    passes_N = None
    if term.returns == "segmented":
        passes_N = part_rewards(turns, EXPERT_MATCH) >= 1.0
    return rewards_to_go(rewards_N, turns.is_last_N, gamma=term.gamma, passes_N=passes_N)


def _compared_apart(
    values_CN: FloatArray, valid_CN: NDArray[np.bool_], turns: Turns, term: Term
) -> FloatArray:
    """Compare each channel in pools of its own."""
    rows = zip(values_CN, valid_CN, strict=True)
    return np.concatenate([_compared(v[None], ok[None], turns, term) for v, ok in rows])


def _compared(
    values_CN: FloatArray, valid_CN: NDArray[np.bool_], turns: Turns, term: Term
) -> FloatArray:
    """Compare the values of all channels in the same pools; 0 where there is no value."""
    if term.above is not None:
        values_CN = (values_CN > term.above).astype(np.float64)
    if term.unit == "token":
        values_CN = values_CN / np.maximum(turns.tokens_N, 1)
        valid_CN = valid_CN & (values_CN != 0) & (turns.tokens_N > 0)
    found = [
        (pooling.weight, _within(values_CN, valid_CN, pooling, turns, term))
        for pooling in poolings(turns, term)
    ]
    if term.group_by != "history":
        return found[0][1]
    total_CN, weights_CN = np.zeros(values_CN.shape), np.zeros(values_CN.shape)
    for weight, relative_CN in found:
        says_something_CN = np.abs(relative_CN) > _NOTHING
        total_CN += weight * np.where(says_something_CN, relative_CN, 0.0)
        weights_CN += weight * says_something_CN
    return total_CN / np.where(weights_CN > 0, weights_CN, 1.0)


def _within(
    values_CN: FloatArray,
    valid_CN: NDArray[np.bool_],
    pooling: Pooling,
    turns: Turns,
    term: Term,
) -> FloatArray:
    pools_R = np.where(valid_CN, pooling.pools_N, -1).ravel()
    counts_R = np.tile(counts(turns, term), len(values_CN))
    return normalize(values_CN.ravel(), pools_R, term, counts_N=counts_R).reshape(values_CN.shape)
