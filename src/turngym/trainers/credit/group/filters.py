"""Which groups of a batch are trained on, and which episodes are left out.

Axis letters: B episodes, G groups that are left, N turns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from turngym.trainers.credit.channels import Channel
from turngym.trainers.credit.group.combine import group_deviations
from turngym.trainers.credit.group.normalize import lower_medians
from turngym.trainers.credit.group.terms import term_returns
from turngym.trainers.credit.turns import Turns
from turngym.trainers.samples import FloatArray
from turngym.trainers.settings.group import GroupRelative

NO_ADVANTAGE = 1e-9
"""Advantages up to this are 0: sums of floats leave such crumbs."""


def informative_groups(
    turns: Turns, channels: Mapping[str, Channel], config: GroupRelative
) -> set[int]:
    """Return the numbers of the groups that the filter keeps.

    Groups with the same spread are kept in their order; of any batch at least one group is kept.

    Args:
        turns: The batch.
        channels: Its rewards.
        config: The filter, and the first term for ``of="first_return"``.

    Source:
        ``keep_top``: StarPO-S, arXiv:2504.20073. ``min_std``: UI-S1, arXiv:2509.11543.
    """
    values_B = turns.outcome_B
    if config.filter.of == "first_return":
        values_B = term_returns(turns, channels, config.terms[0])[turns.turn_N == 0]
    groups_G, first_G = np.unique(turns.group_B, return_index=True)
    spread_G = group_deviations(values_B, turns)[first_G]
    count = max(1, math.floor(config.filter.keep_top * groups_G.size + 1e-9))
    chosen = np.argsort(-spread_G, kind="stable")[:count]
    if config.filter.min_std is not None:
        chosen = chosen[spread_G[chosen] > config.filter.min_std]
    return set(groups_G[chosen].tolist())


def groups_with_signal(turns: Turns, advantages_N: FloatArray) -> set[int]:
    """Return the numbers of the groups in which any turn has an advantage."""
    return set(turns.group_N[np.abs(advantages_N) > NO_ADVANTAGE].tolist())


def pivots(
    turns: Turns, channels: Mapping[str, Channel], config: GroupRelative
) -> NDArray[np.bool_]:
    """Return which episode of each group is its median, the first of several, shape [B].

    Source:
        MC-GRPO; see ``docs/methods.md``.
    """
    values_B = term_returns(turns, channels, config.terms[0])[turns.turn_N == 0]
    middles_B = lower_medians(values_B, turns.group_B, np.ones(values_B.shape))
    candidates = np.flatnonzero(values_B == middles_B)
    first = np.unique(turns.group_B[candidates], return_index=True)[1]
    found_B = np.zeros(values_B.shape, dtype=np.bool_)
    found_B[candidates[first]] = True
    return found_B
