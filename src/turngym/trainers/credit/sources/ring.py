"""The newest episodes that a learned channel is trained on, as tensors that a checkpoint can hold.

Axis letters: L token of a row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turngym.trainers.credit.turns import IntArray
from turngym.trainers.samples import to_samples
from turngym.trainers.update.forward import MicroBatch, micro_batches
from turngym.types import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row:
    """Tokens that the policy saw in one piece."""

    token_ids_L: IntArray
    turn_ids_L: IntArray
    """0-based turn of a drawn token, -1 elsewhere."""
    reference_L: NDArray[np.float32]
    """Log-probs of a model that never changes, so they are scored once; 0 where none is needed."""
    sign: int = 1
    """-1 on the worse side of a pair."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lesson:
    """An episode, or a pair of them."""

    rows: tuple[Row, ...]
    outcome: float = 0.0

    @property
    def width(self) -> int:
        """Tokens of the longest row."""
        return max(row.token_ids_L.size for row in self.rows)


def episode_rows(trajectory: Trajectory, *, prefix: Sequence[int] = ()) -> tuple[Row, ...]:
    """Return an episode as one row for each segment of its history.

    Args:
        trajectory: Its tokens are taken as they were drawn.
        prefix: Tokens to put before each row.

    Raises:
        TrainingError: A turn has no sampled tokens.
    """
    before = np.array(prefix, dtype=np.int64)
    samples = to_samples(trajectory, np.zeros(trajectory.num_sampled_tokens), index=0)
    return tuple(
        Row(
            token_ids_L=np.concatenate([before, sample.token_ids]),
            turn_ids_L=np.concatenate([np.full(before.shape, -1), sample.turn_ids]),
            reference_L=np.zeros(before.size + sample.token_ids.size, dtype=np.float32),
        )
        for sample in samples
    )


def packed(lessons: Sequence[Lesson], *, max_tokens: int) -> Iterator[list[int]]:
    """Yield numbers of lessons whose rows together stay within ``max_tokens``, padding included.

    A lesson is never torn apart, because its loss couples all its rows; one that is too large
    comes alone.
    """
    order = sorted(range(len(lessons)), key=lambda i: (-lessons[i].width, i))
    chosen: list[int] = []
    rows = 0
    for i in order:  # longest first, so the first of a pack gives its width
        rows += len(lessons[i].rows)
        if chosen and rows * lessons[chosen[0]].width > max_tokens:
            yield chosen
            chosen, rows = [], len(lessons[i].rows)
        chosen.append(i)
    if chosen:
        yield chosen


def rectangle(
    rows: Sequence[Row], masks: Sequence[NDArray[np.bool_]], device: torch.device
) -> MicroBatch:
    """Return all ``rows`` in one rectangle, with the tokens that ``masks`` choose."""
    area = len(rows) * max(row.token_ids_L.size for row in rows)
    token_ids = [row.token_ids_L for row in rows]
    [batch] = micro_batches(token_ids, masks, max_tokens=area, device=device)
    return batch


class Ring:
    """Holds the newest lessons.

    Args:
        size: Most of them.
    """

    def __init__(self, size: int) -> None:
        self._lessons: deque[Lesson] = deque(maxlen=size)

    def __len__(self) -> int:
        return len(self._lessons)

    def add(self, lessons: Sequence[Lesson]) -> None:
        """Add the newest; the oldest give way."""
        self._lessons.extend(lessons)

    def draw(self, count: int, rng: np.random.Generator) -> list[Lesson]:
        """Return ``count`` different lessons, or all there are when those are fewer."""
        size = min(count, len(self._lessons))
        return [self._lessons[i] for i in rng.choice(len(self._lessons), size, replace=False)]

    def state(self) -> dict[str, Tensor]:
        """Return all lessons, their rows one after another."""
        rows = [row for lesson in self._lessons for row in lesson.rows]
        return {
            "tokens": _joined([row.token_ids_L for row in rows], np.int64),
            "turns": _joined([row.turn_ids_L for row in rows], np.int64),
            "reference": _joined([row.reference_L for row in rows], np.float32),
            "lengths": torch.tensor([r.token_ids_L.size for r in rows], dtype=torch.int64),
            "signs": torch.tensor([r.sign for r in rows], dtype=torch.int64),
            "rows": torch.tensor([len(x.rows) for x in self._lessons], dtype=torch.int64),
            "outcomes": torch.tensor([x.outcome for x in self._lessons], dtype=torch.float64),
        }

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what ``state`` returned."""
        self._lessons.clear()
        signs = tensors["signs"].tolist()
        if not signs:
            return
        cuts = list(accumulate(tensors["lengths"].tolist()))[:-1]
        names = ("tokens", "turns", "reference")
        columns = [np.split(tensors[name].numpy(), cuts) for name in names]
        rows = iter(
            Row(token_ids_L=ids, turn_ids_L=turns, reference_L=reference, sign=sign)
            for ids, turns, reference, sign in zip(*columns, signs, strict=True)
        )
        counts, outcomes = tensors["rows"].tolist(), tensors["outcomes"].tolist()
        self._lessons.extend(
            Lesson(rows=tuple(next(rows) for _ in range(count)), outcome=outcome)
            for count, outcome in zip(counts, outcomes, strict=True)
        )


def _joined(arrays: Sequence[NDArray[Any]], dtype: type[np.generic]) -> Tensor:
    return torch.from_numpy(np.concatenate([np.zeros(0, dtype), *arrays]))
