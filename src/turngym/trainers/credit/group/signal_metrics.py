"""Numbers that show whether credit has something to say."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from turngym.trainers.credit.channels import Channel
from turngym.trainers.credit.group.baseline_groups import poolings
from turngym.trainers.credit.group.normalize import ZERO_SPREAD
from turngym.trainers.credit.turns import IntArray, Turns
from turngym.trainers.samples import FloatArray
from turngym.trainers.settings.group import GroupRelative


def signal_metrics(
    turns: Turns,
    channels: Mapping[str, Channel],
    config: GroupRelative,
    advantages_N: FloatArray,
) -> dict[str, float]:
    """Return ``credit/*`` of one batch.

    ``advantage_mean`` and ``advantage_std`` are over turns. ``pool_size`` is the mean size of the
    pools of one state, ``pool_singletons`` the share of turns that are alone in theirs.
    ``NAME_outcome_correlation`` tells how a channel's rewards agree with the episode's return; it
    is left out where one of them never varies.

    Args:
        turns: The batch, at least one turn.
        channels: Its rewards by channel.
        config: The method.
        advantages_N: Shape [N].
    """
    metrics = {
        "credit/advantage_mean": float(advantages_N.mean()),
        "credit/advantage_std": float(advantages_N.std()),
    }
    for term in config.terms:
        if term.group_by in ("state", "history"):
            metrics |= _pool_metrics(poolings(turns, term)[0].pools_N)
    outcome_N = turns.outcome_B[turns.episode_N]
    for name, channel in channels.items():
        if name not in ("env", "outcome"):
            valid = channel.has_value_N
            found = _correlation(channel.values_N[valid], outcome_N[valid])
            metrics |= {} if found is None else {f"credit/{name}_outcome_correlation": found}
    return metrics


def _pool_metrics(pools_N: IntArray) -> dict[str, float]:
    sizes = np.unique(pools_N[pools_N >= 0], return_counts=True)[1]
    if not sizes.size:
        return {"credit/pool_size": 0.0, "credit/pool_singletons": 0.0}
    return {
        "credit/pool_size": float(sizes.mean()),
        "credit/pool_singletons": float((sizes == 1).sum() / sizes.sum()),
    }


def _correlation(rewards: FloatArray, outcomes: FloatArray) -> float | None:
    if rewards.size < 2 or min(np.ptp(rewards), np.ptp(outcomes)) < ZERO_SPREAD:
        return None
    return float(np.corrcoef(rewards, outcomes)[0, 1])
