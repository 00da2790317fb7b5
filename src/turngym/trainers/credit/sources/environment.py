"""Reward sources that are functions of the episodes alone: what the environment said of a turn."""

from __future__ import annotations

import numpy as np

from turngym.trainers.credit.base import Components, RewardComponent, StatelessSource, TurnBatch
from turngym.trainers.samples import FloatArray
from turngym.trainers.settings.rewards import (
    EnvReward,
    InvalidPenalty,
    OutcomeReward,
    PotentialShaping,
    RewardParts,
)

EXPERT_MATCH = "expert_match"
"""Reward part that says how well an action agrees with the expert's, in [0, 1]."""


class EnvSource(StatelessSource[EnvReward]):
    """The component ``env``: the environment's reward of each turn, or one named part of it."""

    def read(self, turns: TurnBatch) -> Components:
        """Return the rewards."""
        part = self._config.part
        values_N = turns.reward_N if part is None else part_rewards(turns, part)
        return {"env": _on_every_turn(values_N)}


class OutcomeSource(StatelessSource[OutcomeReward]):
    """The component ``outcome``: the return of an episode, on its last turn."""

    def read(self, turns: TurnBatch) -> Components:
        """Return the outcomes."""
        return {"outcome": _on_last_turn(turns, turns.outcome_B)}


class PartsSource(StatelessSource[RewardParts]):
    """``parts/NAME`` for each named part of the reward: its sum per episode, on the last turn.

    The whole reward, as ``parts/all``, when no part is named.
    """

    def read(self, turns: TurnBatch) -> Components:
        """Return one component for each part."""
        names = sorted({n for t in turns.episodes for turn in t.turns for n in turn.reward_parts})
        if not names:
            return {"parts/all": _on_last_turn(turns, turns.outcome_B)}
        size = len(turns.episodes)
        found: dict[str, RewardComponent] = {}
        for name in names:
            sums_B = np.bincount(turns.episode_N, part_rewards(turns, name), minlength=size)
            found[f"parts/{name}"] = _on_last_turn(turns, sums_B.astype(np.float64))
        return found


class InvalidSource(StatelessSource[InvalidPenalty]):
    """The component ``invalid``: a penalty for an action that could not be carried out."""

    def read(self, turns: TurnBatch) -> Components:
        """Return the penalties."""
        values_N = -self._config.penalty * turns.invalid_N.astype(np.float64)
        return {"invalid": _on_every_turn(values_N)}


class PotentialSource(StatelessSource[PotentialShaping]):
    """The component ``potential``, from ``shaping_rewards``."""

    def read(self, turns: TurnBatch) -> Components:
        """Return the differences of potential."""
        return {"potential": _on_every_turn(shaping_rewards(turns, self._config.gamma))}


def part_rewards(turns: TurnBatch, name: str) -> FloatArray:
    """Return the named part of each turn's reward, 0 where there is none, shape [N]."""
    parts = [turn.reward_parts.get(name, 0.0) for t in turns.episodes for turn in t.turns]
    return np.array(parts, dtype=np.float64)


def shaping_rewards(turns: TurnBatch, gamma: float) -> FloatArray:
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


def _on_every_turn(values_N: FloatArray) -> RewardComponent:
    return RewardComponent(values_N=values_N, has_value_N=np.ones(values_N.shape, dtype=np.bool_))


def _on_last_turn(turns: TurnBatch, values_B: FloatArray) -> RewardComponent:
    last_N = turns.is_last_N
    values_N = np.where(last_N, values_B[turns.episode_N], 0.0)
    return RewardComponent(values_N=values_N, has_value_N=last_N)
