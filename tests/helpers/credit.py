"""Credit of episodes made by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from turngym.config import load_config
from turngym.trainers.credit.base import (
    Components,
    Credit,
    RewardComponent,
    TurnBatch,
)
from turngym.trainers.credit.controls import build_credit
from turngym.trainers.credit.group.group_relative import turn_advantages
from turngym.trainers.credit.sources.reward_sources import RewardSources
from turngym.trainers.samples import FloatArray, per_token
from turngym.trainers.settings.algo import AlgoConfig
from turngym.trainers.settings.group import GroupRelative, Term
from turngym.trainers.settings.rewards import RewardConfig
from turngym.trainers.settings.train import TrainConfig
from turngym.types import TrajectoryGroup

Rows = list[list[float]]


def algo(name: str, *overrides: str) -> AlgoConfig:
    """Return a preset, with overrides such as ``terms.0.gamma=0.5`` below ``algo.advantage``."""
    below = [f"algo.advantage.{text}" for text in overrides]
    return load_config(TrainConfig, ["env.id=text/maze", f"algo={name}", *below]).algo


def rows_of(method: AlgoConfig, *groups: TrajectoryGroup) -> Rows:
    """Return the advantages of all usable episodes, one row of turns each."""
    turns = TurnBatch.of(groups)
    components = RewardSources(method.rewards, method.gate, None).read(turns)
    assert isinstance(method.advantage, GroupRelative)
    return as_rows(turns, turn_advantages(turns, components, method.advantage))


def compared(term: Term, groups: Sequence[TrajectoryGroup], **stubs: Rows) -> Rows:
    """Return what one term makes of rewards given by hand; None means no value."""
    turns = TurnBatch.of(groups)
    config = GroupRelative(terms=(term,))
    return as_rows(turns, turn_advantages(turns, components_by_hand(stubs), config))


def components_by_hand(
    stubs: Mapping[str, Sequence[Sequence[float | None]]],
) -> dict[str, RewardComponent]:
    """Return reward components from one row of values per episode; None means no value."""
    found = {}
    for name, rows in stubs.items():
        flat = [value for row in rows for value in row]
        values = np.array([value or 0.0 for value in flat])
        valid = np.array([value is not None for value in flat])
        found[name] = RewardComponent(values_N=values, has_value_N=valid)
    return found


def as_rows(turns: TurnBatch, values: Any) -> Rows:
    """Return one list per episode."""
    return [row.tolist() for row in turns.split(values)]


def credit_of(method: AlgoConfig, *groups: TrajectoryGroup) -> Credit:
    """Return what a fresh credit method makes of a batch."""
    return asyncio.run(build_credit(method, None).assign(groups))


def components_of(config: RewardConfig, turns: TurnBatch) -> Components:
    """Return what a reward source that asks no model reads off a batch."""
    return RewardSources((config,), None, None).read(turns)


def token_advantages(
    turns: TurnBatch, components: Components, config: GroupRelative
) -> list[FloatArray]:
    """Return the advantage of every sampled token, one array [M] per episode."""
    rows = turns.split(turn_advantages(turns, components, config))
    return [per_token(e, values_T) for e, values_T in zip(turns.episodes, rows, strict=True)]


def assert_rows(found: Rows, wanted: Rows, *, atol: float = 1e-4) -> None:
    """Compare row by row."""
    assert [len(row) for row in found] == [len(row) for row in wanted]
    for row, expected in zip(found, wanted, strict=True):
        np.testing.assert_allclose(row, expected, atol=atol)
