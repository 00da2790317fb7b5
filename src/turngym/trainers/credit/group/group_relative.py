"""Credit from comparing attempts at the same task. Learns nothing of its own.

Axis letters: B episodes, G groups, N turns of any episode, T turns of one episode, M sampled tokens
of one episode.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from turngym.trainers.credit.base import (
    Components,
    Credit,
    CreditContext,
    TurnBatch,
    credit_of_turns,
)
from turngym.trainers.credit.group.normalize import (
    ZERO_SPREAD,
    batch_counts,
    combine_terms,
    group_deviations,
    lower_medians,
    scale_batch,
)
from turngym.trainers.credit.group.terms import baseline_groups, term_advantages, term_returns
from turngym.trainers.credit.sources.reward_sources import RewardSources
from turngym.trainers.samples import FloatArray, IntArray
from turngym.trainers.settings.group import GatedSum, GroupRelative
from turngym.types import TrajectoryGroup

if TYPE_CHECKING:
    from torch import Tensor

    from turngym.trainers.settings.algo import AlgoConfig

NO_ADVANTAGE = 1e-9
"""Advantages up to this are 0: sums of floats leave such crumbs."""
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
        self._sources = RewardSources(algo.rewards, algo.gate, context)
        self._update = 0

    async def assign(self, groups: Sequence[TrajectoryGroup]) -> Credit:
        """Return what ``groups`` teach. Called once per update, in order.

        Raises:
            TrainingError: A reward is not finite; the message names the episode.
        """
        update, is_ready = self._update, self._sources.is_ready
        self._update += 1
        least = 2 if self._config.compares_attempts else 1
        kept = [g for g in groups if sum(bool(t.turns) for t in g.usable) >= least]
        turns = TurnBatch.of(kept)
        if not turns.episodes:
            return Credit(samples=(), dropped=_dropped(too_small=len(groups)))
        components = self._sources.read(turns)
        too_small = len(groups) - len(kept)
        if not is_ready:
            dropped = _dropped(too_small=too_small, warmup=len(kept))
            return Credit(samples=(), dropped=dropped, metrics=self._sources.metrics())
        values_N = turn_advantages(turns, components, self._config, update=update)
        informative = informative_groups(turns, components, self._config)
        signal = set(turns.group_N[np.abs(values_N) > NO_ADVANTAGE].tolist())
        dropped = _dropped(
            too_small=too_small,
            filtered=len(kept) - len(informative),
            zero_spread=len(informative - signal),
        )
        metrics = signal_metrics(turns, components, self._config, values_N)
        metrics["credit/groups_with_signal"] = len(signal) / len(groups)
        keep_B = np.isin(turns.group_B, list(informative & signal))
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
        values_N = scale_batch(values_N, batch_counts(turns, config.batch), config.batch)
    return values_N


def informative_groups(turns: TurnBatch, components: Components, config: GroupRelative) -> set[int]:
    """Return the numbers of the groups that the filter keeps.

    Groups with the same spread are kept in their order; of any batch at least one group is kept.

    Args:
        turns: The batch.
        components: Its rewards.
        config: The filter, and the first term for ``of="first_return"``.

    Source:
        ``keep_top``: StarPO-S, arXiv:2504.20073. ``min_std``: UI-S1, arXiv:2509.11543.
    """
    values_B = turns.outcome_B
    if config.filter.of == "first_return":
        values_B = term_returns(turns, components, config.terms[0])[turns.turn_N == 0]
    groups_G, first_G = np.unique(turns.group_B, return_index=True)
    spread_G = group_deviations(values_B, turns)[first_G]
    count = max(1, math.floor(config.filter.keep_top * groups_G.size + 1e-9))
    chosen = np.argsort(-spread_G, kind="stable")[:count]
    if config.filter.min_std is not None:
        chosen = chosen[spread_G[chosen] > config.filter.min_std]
    return set(groups_G[chosen].tolist())


def pivots(turns: TurnBatch, components: Components, config: GroupRelative) -> NDArray[np.bool_]:
    """Return which episode of each group is its median, the first of several, shape [B].

    Args:
        turns: The batch.
        components: Its rewards.
        config: Its first term says of what.

    Source:
        MC-GRPO; see ``docs/methods.md``.
    """
    values_B = term_returns(turns, components, config.terms[0])[turns.turn_N == 0]
    middles_B = lower_medians(values_B, turns.group_B, np.ones(values_B.shape))
    candidates = np.flatnonzero(values_B == middles_B)
    first = np.unique(turns.group_B[candidates], return_index=True)[1]
    found_B = np.zeros(values_B.shape, dtype=np.bool_)
    found_B[candidates[first]] = True
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
    metrics = {
        "credit/advantage_mean": float(advantages_N.mean()),
        "credit/advantage_std": float(advantages_N.std()),
    }
    for term in config.terms:
        if term.group_by in ("state", "history"):
            metrics |= _state_group_metrics(baseline_groups(turns, term)[0].baseline_N)
    outcome_N = turns.outcome_B[turns.episode_N]
    for name, component in components.items():
        if name not in ("env", "outcome"):
            valid_N = component.has_value_N
            found = _correlation(component.values_N[valid_N], outcome_N[valid_N])
            metrics |= {} if found is None else {f"credit/{name}_outcome_correlation": found}
    return metrics


def _state_group_metrics(baseline_N: IntArray) -> dict[str, float]:
    sizes = np.unique(baseline_N[baseline_N >= 0], return_counts=True)[1]
    alone = float((sizes == 1).sum() / sizes.sum()) if sizes.size else 0.0
    return {
        "credit/state_group_size": float(sizes.mean()) if sizes.size else 0.0,
        "credit/state_groups_of_one": alone,
    }


def _correlation(rewards: FloatArray, outcomes: FloatArray) -> float | None:
    if rewards.size < 2 or min(np.ptp(rewards), np.ptp(outcomes)) < ZERO_SPREAD:
        return None
    return float(np.corrcoef(rewards, outcomes)[0, 1])
