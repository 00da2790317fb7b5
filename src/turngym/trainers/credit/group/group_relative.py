"""Credit from comparing attempts at the same task. Learns nothing of its own.

Axis letters: N turns, T turns of one episode, M drawn tokens of one episode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from turngym.trainers.credit.base import Credit, CreditContext
from turngym.trainers.credit.channels import Channel, Channels
from turngym.trainers.credit.group.combine import batch_counts, combine_terms, scale_batch
from turngym.trainers.credit.group.filters import groups_with_signal, informative_groups, pivots
from turngym.trainers.credit.group.signal_metrics import signal_metrics
from turngym.trainers.credit.group.terms import term_advantages
from turngym.trainers.credit.turns import Turns
from turngym.trainers.samples import FloatArray, per_token, to_samples
from turngym.trainers.settings.group import GatedSum, GroupRelative
from turngym.types import TrajectoryGroup

if TYPE_CHECKING:
    from torch import Tensor

    from turngym.trainers.settings.train import AlgoConfig

_UPDATE = "update"
"""Key of the number of updates in a checkpoint."""


def group_advantages(
    turns: Turns, channels: Mapping[str, Channel], config: GroupRelative, *, update: int = 0
) -> list[FloatArray]:
    """Return the advantage of every drawn token, one array [M] per episode.

    Every drawn token of a turn has the turn's advantage. Pure. An episode's advantages depend on
    its own group alone, but for ``batch`` and for the common scale of a gated sum.

    Args:
        turns: The batch.
        channels: Its rewards by channel.
        config: The method.
        update: Number of the update, from 0; a gated sum may fade with it.

    Raises:
        TrainingError: ``scale="mean"`` meets a group whose mean is negative.
    """
    values_N = turn_advantages(turns, channels, config, update=update)
    pairs = zip(turns.episodes, turns.split(values_N), strict=True)
    return [per_token(episode, values_T) for episode, values_T in pairs]


def turn_advantages(
    turns: Turns, channels: Mapping[str, Channel], config: GroupRelative, *, update: int = 0
) -> FloatArray:
    """Return the advantage of every turn, shape [N]; otherwise as ``group_advantages``."""
    terms = [t.weight * term_advantages(turns, channels, t) for t in config.terms]
    values_N = combine_terms(terms, turns, config.combine, update=update)
    if config.drop_pivot:
        values_N = values_N * _pivot_factors(values_N, turns)
    if config.batch is not None:
        values_N = scale_batch(values_N, batch_counts(turns, config.batch), config.batch)
    return values_N


class GroupRelativeCredit:
    """A ``CreditMethod`` without a critic.

    Args:
        algo: Reward channels, gate and the comparison.
        context: What reward channels that ask a model may use; None when none of them does.
    """

    in_thread = True

    def __init__(self, algo: AlgoConfig, context: CreditContext | None) -> None:
        if not isinstance(algo.advantage, GroupRelative):
            raise TypeError(f"wanted advantage.type='group_relative', got {algo.advantage.type!r}")
        self._config = algo.advantage
        self._channels = Channels(algo.rewards, algo.gate, context)
        self._update = 0

    async def assign(self, groups: Sequence[TrajectoryGroup]) -> Credit:
        """Return what ``groups`` teach. Called once per update, in order.

        Raises:
            TrainingError: A reward is not finite; the message names the episode.
        """
        update, is_ready = self._update, self._channels.is_ready
        self._update += 1
        least = 2 if any(term.centre != "none" for term in self._config.terms) else 1
        kept = [g for g in groups if sum(bool(t.turns) for t in g.usable) >= least]
        turns = Turns.of(kept)
        if not turns.episodes:
            return Credit(samples=(), dropped=_dropped(too_small=len(groups)))
        channels = self._channels.read(turns)
        too_small = len(groups) - len(kept)
        if not is_ready:
            dropped = _dropped(too_small=too_small, warmup=len(kept))
            return Credit(samples=(), dropped=dropped, metrics=self._channels.metrics())
        values_N = turn_advantages(turns, channels, self._config, update=update)
        informative = informative_groups(turns, channels, self._config)
        signal = groups_with_signal(turns, values_N)
        dropped = _dropped(
            too_small=too_small,
            filtered=len(kept) - len(informative),
            zero_spread=len(informative - signal),
        )
        metrics = signal_metrics(turns, channels, self._config, values_N)
        metrics["credit/groups_with_signal"] = len(signal) / len(groups)
        return self._credit(turns, channels, values_N, informative & signal, dropped, metrics)

    def _credit(
        self,
        turns: Turns,
        channels: Mapping[str, Channel],
        values_N: FloatArray,
        chosen: set[int],
        dropped: Mapping[str, int],
        metrics: Mapping[str, float],
    ) -> Credit:
        """Return samples of the chosen groups, without their pivots."""
        keep_B = np.isin(turns.group_B, list(chosen))
        if self._config.drop_pivot:
            keep_B &= ~pivots(turns, channels, self._config)
        places = np.flatnonzero(keep_B).tolist()
        rows = turns.split(values_N)
        samples = [
            sample
            for index, b in enumerate(places)
            for sample in to_samples(
                turns.episodes[b],
                per_token(turns.episodes[b], rows[b]),
                index=index,
                group=int(turns.group_B[b]),
            )
        ]
        return Credit(
            samples=tuple(samples),
            trajectories=tuple(turns.episodes[b] for b in places),
            advantages=tuple(rows[b] for b in places),
            dropped=dropped,
            metrics={**self._channels.metrics(), **metrics},
        )

    def state(self) -> dict[str, Tensor]:
        """Return what the reward channels learned, and the update where it matters."""
        state = self._channels.state()
        if isinstance(self._config.combine, GatedSum):
            import torch

            state[_UPDATE] = torch.tensor([self._update])
        return state

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what ``state`` returned."""
        self._channels.load_state(tensors)
        if _UPDATE in tensors:
            self._update = int(tensors[_UPDATE].item())


def _dropped(**counts: int) -> dict[str, int]:
    return {reason: count for reason, count in counts.items() if count}


def _pivot_factors(values_N: FloatArray, turns: Turns) -> FloatArray:
    """Return group size over the number of attempts that differ from the median, shape [N]."""
    differs_B = values_N[turns.turn_N == 0] != 0
    size = np.bincount(turns.group_B)
    others = np.bincount(turns.group_B, differs_B)
    factors_N: FloatArray = (size / np.maximum(others, 1))[turns.group_N]
    return factors_N
