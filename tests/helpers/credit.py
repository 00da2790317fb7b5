"""Credit of episodes made by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from turngym.config import load_config
from turngym.trainers.credit.base import Credit
from turngym.trainers.credit.channels import Channel, Channels
from turngym.trainers.credit.group.group_relative import GroupRelativeCredit, turn_advantages
from turngym.trainers.credit.turns import Turns
from turngym.trainers.settings.group import GroupRelative, Term
from turngym.trainers.settings.train import AlgoConfig, TrainConfig
from turngym.types import TrajectoryGroup

Rows = list[list[float]]


def algo(name: str, *overrides: str) -> AlgoConfig:
    """Return a preset, with overrides such as ``terms.0.gamma=0.5`` below ``algo.advantage``."""
    below = [f"algo.advantage.{text}" for text in overrides]
    return load_config(TrainConfig, ["env.id=text/maze", f"algo={name}", *below]).algo


def rows_of(method: AlgoConfig, *groups: TrajectoryGroup) -> Rows:
    """Return the advantages of all usable episodes, one row of turns each."""
    turns = Turns.of(groups)
    channels = Channels(method.rewards, method.gate, None).read(turns)
    assert isinstance(method.advantage, GroupRelative)
    return as_rows(turns, turn_advantages(turns, channels, method.advantage))


def compared(term: Term, groups: Sequence[TrajectoryGroup], **stubs: Rows) -> Rows:
    """Return what one term makes of channels given by hand; None means no value."""
    turns = Turns.of(groups)
    config = GroupRelative(terms=(term,))
    return as_rows(turns, turn_advantages(turns, channels_of(stubs), config))


def channels_of(stubs: Mapping[str, Sequence[Sequence[float | None]]]) -> dict[str, Channel]:
    """Return channels from one row of values per episode; None means no value."""
    found = {}
    for name, rows in stubs.items():
        flat = [value for row in rows for value in row]
        values = np.array([value or 0.0 for value in flat])
        valid = np.array([value is not None for value in flat])
        found[name] = Channel(values_N=values, has_value_N=valid)
    return found


def as_rows(turns: Turns, values: Any) -> Rows:
    """Return one list per episode."""
    return [row.tolist() for row in turns.split(values)]


def credit_of(method: AlgoConfig, *groups: TrajectoryGroup) -> Credit:
    """Return what a fresh credit method makes of a batch."""
    return asyncio.run(GroupRelativeCredit(method, None).assign(groups))


def assert_rows(found: Rows, wanted: Rows, *, atol: float = 1e-4) -> None:
    """Compare row by row."""
    assert [len(row) for row in found] == [len(row) for row in wanted]
    for row, expected in zip(found, wanted, strict=True):
        np.testing.assert_allclose(row, expected, atol=atol)
