"""Reward channels: what each turn earned, by source.

A channel knows on which turns it has a value: a turn without one takes part in no comparison, while
a turn whose value is 0 does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from turngym.trainers.credit.base import CreditContext
from turngym.trainers.credit.turns import Turns
from turngym.trainers.samples import FloatArray
from turngym.trainers.settings.rewards import (
    EnvReward,
    InvalidPenalty,
    OutcomeGate,
    OutcomeReward,
    PotentialShaping,
    RewardConfig,
    RewardParts,
)

if TYPE_CHECKING:
    from torch import Tensor

EXPERT_MATCH = "expert_match"
"""Reward part that says how well an action agrees with the expert's, in [0, 1]."""

PURE = (EnvReward, OutcomeReward, RewardParts, InvalidPenalty, PotentialShaping)
"""Channels that need no model."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Channel:
    """One source's rewards for N turns."""

    values_N: FloatArray
    has_value_N: NDArray[np.bool_]
    """False where the source says nothing; the value is 0 there."""


class ChannelSource(Protocol):
    """Reads one channel off a batch, or several. May learn from it."""

    @property
    def is_ready(self) -> bool:
        """False while it still has to learn before its rewards may be used."""
        ...

    def read(self, turns: Turns) -> Mapping[str, Channel]:
        """Return channels by name. Called once per update.

        Raises:
            TrainingError: A value is not finite.
        """
        ...

    def metrics(self) -> Mapping[str, float]:
        """Return ``credit/*`` about the last batch."""
        ...

    def state(self) -> Mapping[str, Tensor]:
        """Return what was learned and collected."""
        ...

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what ``state`` returned."""
        ...


class StatelessSource:
    """What sources share that learn nothing; a subclass writes ``read``."""

    def __init__(self) -> None:
        self._metrics: dict[str, float] = {}

    @property
    def is_ready(self) -> bool:
        """Always True."""
        return True

    def metrics(self) -> Mapping[str, float]:
        """Return what the last ``read`` noted."""
        return self._metrics

    def state(self) -> Mapping[str, Tensor]:
        """Return nothing."""
        return {}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Do nothing."""


class PureSource(StatelessSource):
    """A channel that is a function of the episodes alone."""

    def __init__(self, config: RewardConfig) -> None:
        super().__init__()
        self._config = config

    def read(self, turns: Turns) -> Mapping[str, Channel]:
        """Return the channel, or one for each reward part."""
        return pure_channels(self._config, turns)


def pure_channels(config: RewardConfig, turns: Turns) -> dict[str, Channel]:
    """Return what a channel that needs no model says, by name.

    Args:
        config: Settings of the channel.
        turns: The batch.
    """
    if isinstance(config, EnvReward):
        values = turns.reward_N if config.part is None else part_rewards(turns, config.part)
        return {"env": _everywhere(values)}
    if isinstance(config, OutcomeReward):
        return {"outcome": _on_last(turns, turns.outcome_B)}
    if isinstance(config, RewardParts):
        return _parts(turns)
    if isinstance(config, InvalidPenalty):
        return {"invalid": _everywhere(-config.penalty * turns.invalid_N.astype(np.float64))}
    if isinstance(config, PotentialShaping):
        return {"potential": _everywhere(shaping_rewards(turns, config.gamma))}
    raise TypeError(f"{config.type}: not a pure channel")


def part_rewards(turns: Turns, name: str) -> FloatArray:
    """Return the named part of each turn's reward, 0 where there is none, shape [N]."""
    parts = [turn.reward_parts.get(name, 0.0) for t in turns.episodes for turn in t.turns]
    return np.array(parts, dtype=np.float64)


def shaping_rewards(turns: Turns, gamma: float) -> FloatArray:
    """Return ``gamma * potential(next) - potential(now)`` of every turn, shape [N].

    The potential after the last turn is 0 where the episode terminated, and the recorded one where
    a limit cut it off. Summed with ``gamma=1`` it is minus the first potential (plus the last).

    Source:
        Ng, Harada and Russell 1999.
    """
    rewards: list[float] = []
    for episode in turns.episodes:
        here = [turn.potential or 0.0 for turn in episode.turns]
        last = episode.final_potential if episode.stop_reason.is_truncated else 0.0
        there = [*here[1:], last or 0.0]
        rewards += [gamma * b - a for a, b in zip(here, there, strict=True)]
    return np.array(rewards, dtype=np.float64)


def gated(
    channels: Mapping[str, Channel], turns: Turns, gate: OutcomeGate | None
) -> dict[str, Channel]:
    """Return ``channels``, all but ``env`` and ``outcome`` 0 in episodes that did not pass.

    Source:
        G-RA, arXiv:2508.10548.
    """
    if gate is None:
        return dict(channels)
    passed_B = (turns.outcome_B > gate.above) & ~turns.truncated_B
    factor_N = passed_B[turns.episode_N].astype(np.float64)
    return {
        name: channel
        if name in ("env", "outcome")
        else Channel(values_N=channel.values_N * factor_N, has_value_N=channel.has_value_N)
        for name, channel in channels.items()
    }


class Channels:
    """All channels of a method.

    Args:
        rewards: Their settings.
        gate: What the outcome decides about them.
        context: What those that ask a model may use; None when none of them does.
    """

    def __init__(
        self,
        rewards: Sequence[RewardConfig],
        gate: OutcomeGate | None,
        context: CreditContext | None,
    ) -> None:
        self._sources = {config.type: _source(config, context) for config in rewards}
        self._gate = gate

    @property
    def is_ready(self) -> bool:
        """False while any channel still has to learn."""
        return all(source.is_ready for source in self._sources.values())

    def read(self, turns: Turns) -> dict[str, Channel]:
        """Return all channels of a batch by name.

        Raises:
            TrainingError: A value is not finite; the message names the episode.
        """
        found: dict[str, Channel] = {}
        for source in self._sources.values():
            found.update(source.read(turns))
        for name, channel in found.items():
            turns.check_finite(channel.values_N, f"reward {name!r}")
        return gated(found, turns, self._gate)

    def metrics(self) -> dict[str, float]:
        """Return ``credit/*`` about the last batch."""
        return {k: v for source in self._sources.values() for k, v in source.metrics().items()}

    def state(self) -> dict[str, Tensor]:
        """Return what was learned and collected, by channel."""
        return {
            f"{name}/{key}": tensor
            for name, source in self._sources.items()
            for key, tensor in source.state().items()
        }

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what ``state`` returned."""
        for name, source in self._sources.items():
            prefix = f"{name}/"
            source.load_state(
                {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}
            )


def _source(config: RewardConfig, context: CreditContext | None) -> ChannelSource:
    if isinstance(config, PURE):
        return PureSource(config)
    if context is None:
        raise ValueError(f"the reward channel {config.type!r} needs a CreditContext, got None")
    if config.type == "info_gain":
        from turngym.trainers.credit.sources.info_gain import InfoGainSource

        return InfoGainSource(config, context)
    if config.type == "feedback_gain":
        from turngym.trainers.credit.sources.feedback_gain import FeedbackGainSource

        return FeedbackGainSource(config, context)
    if config.type == "progress":
        from turngym.trainers.credit.sources.progress import ProgressSource

        return ProgressSource(config, context)
    if config.type == "privileged":
        from turngym.trainers.credit.sources.privileged import PrivilegedSource

        return PrivilegedSource(config, context)
    if config.type == "custom":
        from turngym.trainers.credit.custom import custom_source

        return custom_source(config, context)
    return PureSource(config)


def _everywhere(values_N: FloatArray) -> Channel:
    return Channel(values_N=values_N, has_value_N=np.ones(values_N.shape, dtype=np.bool_))


def _on_last(turns: Turns, values_B: FloatArray) -> Channel:
    last_N = turns.is_last_N
    return Channel(values_N=np.where(last_N, values_B[turns.episode_N], 0.0), has_value_N=last_N)


def _parts(turns: Turns) -> dict[str, Channel]:
    """Return each part's sum per episode, on the last turn; the whole reward when none is named."""
    names = sorted({n for t in turns.episodes for turn in t.turns for n in turn.reward_parts})
    if not names:
        return {"parts/all": _on_last(turns, turns.outcome_B)}
    size = len(turns.episodes)
    found: dict[str, Channel] = {}
    for name in names:
        sums_B = np.bincount(turns.episode_N, part_rewards(turns, name), minlength=size)
        found[f"parts/{name}"] = _on_last(turns, sums_B.astype(np.float64))
    return found
