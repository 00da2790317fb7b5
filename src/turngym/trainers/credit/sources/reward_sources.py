"""All reward sources of a method as one, and those that are functions of the episodes alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pkgutil import resolve_name
from typing import TYPE_CHECKING

import numpy as np

from turngym.trainers.credit.base import (
    Components,
    CreditContext,
    RewardComponent,
    RewardSource,
    StatelessSource,
    TurnBatch,
    below,
    joined,
)
from turngym.trainers.samples import FloatArray
from turngym.trainers.settings.rewards import (
    EnvReward,
    FlawPenalty,
    InvalidPenalty,
    LengthPenalty,
    OutcomeGate,
    OutcomeReward,
    PotentialShaping,
    RewardConfig,
    RewardParts,
)

if TYPE_CHECKING:
    from torch import Tensor


class RewardSources:
    """The reward sources of a method, each built by the ``builder`` that its settings name.

    Args:
        rewards: Their settings.
        gate: What the outcome decides about them.
        context: What those that ask a model may use; None when none of them does.

    Raises:
        ValueError: A source asks a model and there is no context.
    """

    def __init__(
        self,
        rewards: Sequence[RewardConfig],
        gate: OutcomeGate | None,
        context: CreditContext | None,
    ) -> None:
        self._gate = gate
        self._sources: dict[str, RewardSource] = {}
        for config in rewards:
            if context is None and config.asks_model:
                raise ValueError(f"the reward {config.type!r} needs a CreditContext, got None")
            self._sources[config.type] = resolve_name(config.builder)(config, context)

    @property
    def is_ready(self) -> bool:
        """False while any source still has to learn."""
        return all(source.is_ready for source in self._sources.values())

    def read(self, turns: TurnBatch) -> dict[str, RewardComponent]:
        """Return all reward components of a batch by name.

        Raises:
            TrainingError: A value is not finite; the message names the episode.
        """
        found: dict[str, RewardComponent] = {}
        for source in self._sources.values():
            found.update(source.read(turns))
        for name, component in found.items():
            turns.check_finite(component.values_N, f"reward {name!r}")
        return found if self._gate is None else gated(found, turns, self._gate)

    def metrics(self) -> dict[str, float]:
        """Return ``credit/*`` about the last batch."""
        return {k: v for source in self._sources.values() for k, v in source.metrics().items()}

    def state(self) -> dict[str, Tensor]:
        """Return what was learned and collected, by source."""
        return joined({name: source.state() for name, source in self._sources.items()})

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what ``state`` returned."""
        for name, source in self._sources.items():
            source.load_state(below(tensors, name))


def gated(
    components: Mapping[str, RewardComponent], turns: TurnBatch, gate: OutcomeGate
) -> dict[str, RewardComponent]:
    """Return ``components``, all but ``env`` and ``outcome`` 0 in episodes that did not pass.

    Args:
        components: By name.
        turns: The batch.
        gate: Which episodes pass.

    Source:
        G-RA, arXiv:2508.10548.
    """
    passed_B = (turns.outcome_B > gate.above) & ~turns.is_open_B
    factor_N = passed_B[turns.episode_N].astype(np.float64)
    return {
        name: component
        if name in ("env", "outcome")
        else RewardComponent(
            values_N=component.values_N * factor_N, has_value_N=component.has_value_N
        )
        for name, component in components.items()
    }


EXPERT_MATCH = "expert_match"
"""Reward part that says how well an action agrees with the expert's, in [0, 1]."""


class EnvSource(StatelessSource[EnvReward]):
    """The component ``env``: the environment's reward of each turn, or one named part of it."""

    def read(self, turns: TurnBatch) -> Components:
        """Return the rewards."""
        part = self._config.part
        values_N = turns.reward_N if part is None else part_rewards(turns, part)
        return {"env": RewardComponent.everywhere(values_N)}


class OutcomeSource(StatelessSource[OutcomeReward]):
    """The component ``outcome``: the return of an episode, on its last turn."""

    def read(self, turns: TurnBatch) -> Components:
        """Return the outcomes."""
        return {"outcome": _on_last_turn(turns, turns.outcome_B)}


class PartsSource(StatelessSource[RewardParts]):
    """``parts/NAME`` for each named part of the reward: its sum per episode, on the last turn.

    ``parts/all`` for what turns without parts earned: of an environment that names none, alone or
    beside others that do, the whole reward.
    """

    def read(self, turns: TurnBatch) -> Components:
        """Return one component for each part."""
        names = sorted({n for t in turns.episodes for turn in t.turns for n in turn.reward_parts})
        found = {name: part_rewards(turns, name) for name in names}
        named = [bool(turn.reward_parts) for t in turns.episodes for turn in t.turns]
        rest_N = np.where(named, 0.0, turns.reward_N)
        if rest_N.any() or not names:
            found["all"] = found.get("all", 0.0) + rest_N
        return {
            f"parts/{name}": _on_last_turn(turns, turns.sums(values_N))
            for name, values_N in found.items()
        }


class InvalidSource(StatelessSource[InvalidPenalty]):
    """The component ``invalid``: a penalty for an action that could not be carried out."""

    def read(self, turns: TurnBatch) -> Components:
        """Return the penalties."""
        values_N = -self._config.penalty * turns.invalid_N.astype(np.float64)
        return {"invalid": RewardComponent.everywhere(values_N)}


class FlawSource(StatelessSource[FlawPenalty]):
    """The component ``flawed``: a success with an action that could not be carried out is less."""

    def read(self, turns: TurnBatch) -> Components:
        """Return the penalties."""
        flawed_B = (turns.outcome_B > self._config.above) & (turns.sums(turns.invalid_N) > 0)
        penalties_B = -self._config.penalty * flawed_B.astype(np.float64)
        return {"flawed": _on_last_turn(turns, penalties_B)}


class LengthSource(StatelessSource[LengthPenalty]):
    """The component ``length``: tokens cost more where attempts at the task succeed."""

    def read(self, turns: TurnBatch) -> Components:
        """Return the penalties."""
        size = np.maximum(np.bincount(turns.group_B), 1)
        solved = np.bincount(turns.group_B, turns.outcome_B > self._config.above) / size
        weight_B = np.maximum(solved, 1 / size)[turns.group_B]
        prices_B = -self._config.price * weight_B * turns.sums(turns.said_N)
        return {"length": _on_last_turn(turns, prices_B)}


class PotentialSource(StatelessSource[PotentialShaping]):
    """The component ``potential``, from ``shaping_rewards``."""

    def read(self, turns: TurnBatch) -> Components:
        """Return the differences of potential."""
        return {"potential": RewardComponent.everywhere(shaping_rewards(turns, self._config.gamma))}


def part_rewards(turns: TurnBatch, name: str) -> FloatArray:
    """Return the named part of each turn's reward, 0 where there is none, shape [N]."""
    parts = [turn.reward_parts.get(name, 0.0) for t in turns.episodes for turn in t.turns]
    return np.array(parts, dtype=np.float64)


def shaping_rewards(turns: TurnBatch, gamma: float) -> FloatArray:
    """Return ``gamma * potential(next) - potential(now)`` of every turn, shape [N].

    The potential after the last turn is 0 where the episode came to its end. Where a limit cut it
    off (``Trajectory.is_open``) it is the recorded one, or without one that before the turn.
    Summed with ``gamma=1`` it is minus the first potential (plus the last).

    Source:
        Ng, Harada and Russell 1999.
    """
    rewards: list[float] = []
    for episode in turns.episodes:
        here = [turn.potential or 0.0 for turn in episode.turns]
        last, known = 0.0, episode.final_potential
        if episode.is_open:
            last = here[-1] if known is None else known
        there = [*here[1:], last]
        rewards += [gamma * b - a for a, b in zip(here, there, strict=True)]
    return np.array(rewards, dtype=np.float64)


def _on_last_turn(turns: TurnBatch, values_B: FloatArray) -> RewardComponent:
    last_N = turns.is_last_N
    values_N = np.where(last_N, values_B[turns.episode_N], 0.0)
    return RewardComponent(values_N=values_N, has_value_N=last_N)
