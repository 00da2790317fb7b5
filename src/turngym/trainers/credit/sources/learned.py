"""What reward sources share that learn a model of their own while they judge.

They learn from the newest episodes, kept as tensors that a checkpoint can hold.

Axis letters: L token of a row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turngym.trainers.credit.base import below, joined
from turngym.trainers.credit.warm_up import WarmUp
from turngym.trainers.samples import IntArray, to_samples
from turngym.trainers.update.forward import MicroBatch, micro_batches
from turngym.types import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row:
    """Tokens that the policy saw in one piece."""

    token_ids_L: IntArray
    turn_ids_L: IntArray
    """0-based turn of a sampled token, -1 elsewhere."""
    reference_L: NDArray[np.float32]
    """Log-probs of a model that never changes, so they are scored once; 0 where none is needed."""
    sign: int = 1
    """-1 on the worse side of a pair."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingExample:
    """An episode that a model learns from, or a pair of them."""

    rows: tuple[Row, ...]
    outcome: float = 0.0

    @property
    def width(self) -> int:
        """Tokens of the longest row."""
        return max(row.token_ids_L.size for row in self.rows)


def episode_rows(trajectory: Trajectory, *, prefix: Sequence[int] = ()) -> tuple[Row, ...]:
    """Return an episode as one row for each segment of its history.

    Args:
        trajectory: Its tokens are taken as they were sampled.
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


def packed(examples: Sequence[TrainingExample], *, max_tokens: int) -> Iterator[list[int]]:
    """Yield numbers of examples whose rows together stay within ``max_tokens``, padding included.

    A example is never torn apart, because its loss couples all its rows; one that is too large
    comes alone.

    Args:
        examples: What is packed.
        max_tokens: Rows times width of one pack.
    """
    order = sorted(range(len(examples)), key=lambda i: (-examples[i].width, i))
    chosen: list[int] = []
    rows = 0
    for i in order:  # longest first, so the first of a pack gives its width
        rows += len(examples[i].rows)
        if chosen and rows * examples[chosen[0]].width > max_tokens:
            yield chosen
            chosen, rows = [], len(examples[i].rows)
        chosen.append(i)
    if chosen:
        yield chosen


def rectangle(
    rows: Sequence[Row], masks: Sequence[NDArray[np.bool_]], device: torch.device
) -> MicroBatch:
    """Return ``rows`` in one [R, L] rectangle on ``device``, with the tokens ``masks`` choose."""
    area = len(rows) * max(row.token_ids_L.size for row in rows)
    token_ids = [row.token_ids_L for row in rows]
    [batch] = micro_batches(token_ids, masks, max_tokens=area, device=device)
    return batch


class ExampleBuffer:
    """A buffer of the newest training examples, as a checkpoint can hold it.

    Args:
        size: Most of them.
    """

    def __init__(self, size: int) -> None:
        self._examples: deque[TrainingExample] = deque(maxlen=size)

    def __len__(self) -> int:
        return len(self._examples)

    def add(self, examples: Sequence[TrainingExample]) -> None:
        """Add the newest; the oldest give way."""
        self._examples.extend(examples)

    def sample(self, count: int, rng: np.random.Generator) -> list[TrainingExample]:
        """Return ``count`` different examples, or all there are when those are fewer."""
        size = min(count, len(self._examples))
        return [self._examples[i] for i in rng.choice(len(self._examples), size, replace=False)]

    def state(self) -> dict[str, Tensor]:
        """Return all examples, their rows one after another."""
        rows = [row for example in self._examples for row in example.rows]
        return {
            "tokens": _joined([row.token_ids_L for row in rows], np.int64),
            "turns": _joined([row.turn_ids_L for row in rows], np.int64),
            "reference": _joined([row.reference_L for row in rows], np.float32),
            "lengths": torch.tensor([r.token_ids_L.size for r in rows], dtype=torch.int64),
            "signs": torch.tensor([r.sign for r in rows], dtype=torch.int64),
            "rows": torch.tensor([len(x.rows) for x in self._examples], dtype=torch.int64),
            "outcomes": torch.tensor([x.outcome for x in self._examples], dtype=torch.float64),
        }

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what ``state`` returned."""
        self._examples.clear()
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
        self._examples.extend(
            TrainingExample(rows=tuple(next(rows) for _ in range(count)), outcome=outcome)
            for count, outcome in zip(counts, outcomes, strict=True)
        )


def _joined(arrays: Sequence[NDArray[Any]], dtype: type[np.generic]) -> Tensor:
    return torch.from_numpy(np.concatenate([np.zeros(0, dtype), *arrays]))


class Learner(Protocol):
    """A model and its optimizer."""

    def state(self) -> dict[str, Tensor]:
        """Return both."""

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore both."""


L = TypeVar("L", bound=Learner)


class LearnedSource(ABC, Generic[L]):
    """A reward source with a learner, made when first needed, and a buffer of examples for it.

    Args:
        capacity: Most examples.
        warm_up: Says when the policy may learn.
    """

    def __init__(self, capacity: int, warm_up: WarmUp) -> None:
        self._buffer = ExampleBuffer(capacity)
        self._warm_up = warm_up
        self._made: L | None = None
        self._metrics: Mapping[str, float] = {}

    @abstractmethod
    def _new_learner(self) -> L: ...

    @property
    def _learner(self) -> L:
        if self._made is None:
            self._made = self._new_learner()
        return self._made

    @property
    def is_ready(self) -> bool:
        """False while the policy waits."""
        return self._warm_up.is_over

    def metrics(self) -> Mapping[str, float]:
        """Return what the last batch said of the learner."""
        return self._metrics

    def state(self) -> dict[str, Tensor]:
        """Return the learner, its optimizer, the examples, and how far the warm-up is."""
        parts = {"buffer": self._buffer.state()}
        if self._made is not None:
            parts["learner"] = self._made.state()
        return joined(parts) | self._warm_up.state()

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what ``state`` returned."""
        if not tensors:
            return
        self._buffer.load_state(below(tensors, "buffer"))
        self._warm_up.load_state(tensors)
        if learned := below(tensors, "learner"):
            self._made = self._new_learner()
            self._made.load_state(learned)
