"""Baseline groups: which turns are compared with each other. Axis letter: N turns."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from turngym.trainers.credit.base import TurnBatch
from turngym.trainers.samples import FloatArray, IntArray
from turngym.trainers.settings.group import Term


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BaselineGroups:
    """One way to put turns into baseline groups."""

    baseline_N: IntArray
    """Number of the baseline group of each turn, -1 for none."""
    weight: float = 1.0
    """Of what comes of it, where a turn is in several groups."""


def baseline_groups(turns: TurnBatch, term: Term) -> list[BaselineGroups]:
    """Return the baseline groups of a term; for ``history`` once for each number of states.

    A turn whose state has no key is in no group of states.

    Args:
        turns: The batch.
        term: Says by what turns are grouped.

    Source:
        ``state``: GiGPO, arXiv:2505.10978. ``history``: HGPO, arXiv:2602.22817.
    """
    if term.group_by == "task":
        return [BaselineGroups(baseline_N=turns.group_N)]
    if term.group_by == "task_turn":
        keys = zip(turns.group_N.tolist(), turns.turn_N.tolist(), strict=True)
        return [BaselineGroups(baseline_N=_numbered(keys))]
    if term.group_by == "state":
        return [BaselineGroups(baseline_N=_same_states(turns, 1))]
    return [
        BaselineGroups(
            baseline_N=_same_states(turns, states),
            weight=float((states + term.history_offset) ** term.history_power),
        )
        for states in range(1, term.history + 2)
    ]


def turn_counts(turns: TurnBatch, term: Term) -> FloatArray:
    """Return how often each turn counts in the statistics of its baseline group, shape [N]."""
    if term.group_by == "task" and term.unit == "episode":
        return np.where(turns.turn_N == 0, 1.0, 0.0)
    if term.unit == "token":
        return turns.tokens_N.astype(np.float64)
    return np.ones(len(turns.turn_N))


def _same_states(turns: TurnBatch, states: int) -> IntArray:
    """Put turns together whose last ``states`` states are the same, the present one included."""
    keys: list[Hashable | None] = []
    for group, episode in zip(turns.group_B.tolist(), turns.episodes, strict=True):
        anchors = [turn.anchor for turn in episode.turns]
        keys += [_key(group, anchors, number, states) for number in range(len(anchors))]
    return _numbered(keys)


def _key(group: int, anchors: Sequence[str | None], number: int, states: int) -> Hashable | None:
    first = number + 1 - states
    last = tuple(anchors[max(first, 0) : number + 1])
    return None if first < 0 or None in last else (group, last)


def _numbered(keys: Iterable[Hashable | None]) -> IntArray:
    """Return a number for each different key, -1 for None."""
    numbers: dict[Hashable, int] = {}
    found = [-1 if key is None else numbers.setdefault(key, len(numbers)) for key in keys]
    return np.array(found, dtype=np.int64)
