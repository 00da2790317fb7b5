"""The one place where trajectories become token arrays with a loss mask and advantages.

And where these are dealt to the optimizer steps of a batch.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turngym.errors import TrainingError
from turngym.types import TokenSpan, Trajectory, Turn

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
TokenIds = NDArray[np.int32] | NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingSample:
    """Tokens that the policy saw in one piece, and what is learned from them.

    An episode is one sample, or one for each segment when its history was rewritten. All arrays
    have one length [L]; where ``loss_mask`` is False the other numbers are 0 (or -1).
    """

    token_ids: NDArray[np.int64]
    loss_mask: NDArray[np.bool_]
    """True on the tokens that the policy sampled."""
    turn_ids: NDArray[np.int64]
    """0-based turn of a sampled token, -1 elsewhere."""
    behaviour_logprobs: NDArray[np.float32]
    """Log-prob each token was sampled with."""
    advantages: NDArray[np.float32]
    policy_versions: NDArray[np.int64]
    """Weights that sampled each token, -1 elsewhere."""
    trajectory: int
    """Which episode of the batch this is a part of; segments of one episode share it."""
    group: int = -1
    """Which group of attempts at one task the episode belongs to; -1 for none."""
    weight: float = 1.0
    """Multiplies the sample's loss; 0 leaves it out of every count as well."""
    replayed: bool = False
    """An attempt of the past that is trained on beside the new ones: its loss is averaged apart."""
    routing: NDArray[np.uint16] | None = None
    """Experts that the engine chose on the way to each token, [L, layers, top_k], where it reported
    them of all; see ``Routing``."""

    def __post_init__(self) -> None:
        arrays = (
            *(self.token_ids, self.loss_mask, self.turn_ids),
            *(self.behaviour_logprobs, self.advantages, self.policy_versions),
        )
        shapes = {array.shape for array in arrays}
        if len(shapes) != 1 or self.token_ids.ndim != 1:
            raise ValueError(f"TrainingSample arrays must share one shape [L], got {shapes}")
        if self.loss_mask.size and self.loss_mask[0]:
            raise ValueError("TrainingSample: the first token cannot be sampled from nothing")
        if not np.array_equal(self.loss_mask, self.turn_ids >= 0):
            raise ValueError("TrainingSample: loss_mask and turn_ids disagree")
        if not np.isfinite(self.advantages).all():
            raise ValueError("TrainingSample: advantages must be finite")
        if self.routing is not None and len(self.routing) != self.token_ids.size:
            raise ValueError(
                f"TrainingSample: experts of {len(self.routing)} tokens, not {self.token_ids.size}"
            )

    @property
    def num_action_tokens(self) -> int:
        """Number of tokens that are trained on."""
        return int(self.loss_mask.sum())


def to_samples(
    trajectory: Trajectory, advantages_M: FloatArray, *, index: int, group: int = -1
) -> list[TrainingSample]:
    """Return the samples of one episode, one for each segment.

    Token ids are taken from the spans as they are; text is never encoded again. The loss mask is
    True exactly on sampled spans. Segments in which nothing was sampled are left out, and a turn
    without sampled tokens (a prefix that was given, a part that is too old) is context.

    Args:
        trajectory: An episode of a policy that keeps its tokens.
        advantages_M: One number per sampled token, in the order they were sampled, shape [M];
            ``per_token`` makes it from one number per turn.
        index: Place of the episode in the batch.
        group: Place of its group in the batch, -1 for none.

    Raises:
        TrainingError: A turn has no tokens at all.
        ValueError: ``advantages_M`` has another length than there are sampled tokens.
    """
    for number, turn in enumerate(trajectory.turns):
        if not turn.spans:
            raise TrainingError(
                f"{trajectory.task_id}, turn {number}: has no tokens; only a policy that "
                "returns token ids and log-probs can be trained"
            )
    if advantages_M.shape != (trajectory.num_sampled_tokens,):
        raise ValueError(
            f"{trajectory.task_id}: {trajectory.num_sampled_tokens} sampled tokens but advantages "
            f"of shape {advantages_M.shape}"
        )
    samples, start = [], 0
    for segment in _segments(trajectory.turns):
        end = start + sum(turn.num_sampled_tokens for _, turn in segment)
        if end > start:
            samples.append(_sample(segment, advantages_M[start:end], index=index, group=group))
        start = end
    return samples


def per_token(trajectory: Trajectory, values_T: FloatArray) -> FloatArray:
    """Return each turn's value on each of its sampled tokens, shape [M].

    Raises:
        ValueError: ``values_T`` has another length than the episode.
    """
    if values_T.shape != (len(trajectory.turns),):
        raise ValueError(
            f"{trajectory.task_id}: {len(trajectory.turns)} turns but values of shape "
            f"{values_T.shape}"
        )
    return np.repeat(values_T, [turn.num_sampled_tokens for turn in trajectory.turns])


def _segments(turns: Sequence[Turn]) -> Iterator[list[tuple[int, Turn]]]:
    segment: list[tuple[int, Turn]] = []
    for number, turn in enumerate(turns):
        if turn.starts_segment and segment:
            yield segment
            segment = []
        segment.append((number, turn))
    if segment:
        yield segment


def _sample(
    segment: Sequence[tuple[int, Turn]], advantages_M: FloatArray, *, index: int, group: int
) -> TrainingSample:
    token_ids: list[int] = []
    turn_ids: list[int] = []
    logprobs: list[float] = []
    versions: list[int] = []
    spans = [span for _, turn in segment for span in turn.spans]
    for number, turn in segment:
        for span in turn.spans:
            length = len(span.token_ids)
            token_ids += span.token_ids
            turn_ids += [number if span.sampled else -1] * length
            logprobs += span.logprobs if span.sampled else [0.0] * length
            versions += [-1 if span.policy_version is None else span.policy_version] * length
    turns_L = np.array(turn_ids, dtype=np.int64)
    mask_L = turns_L >= 0
    advantages_L = np.zeros(mask_L.shape, dtype=np.float32)
    advantages_L[mask_L] = advantages_M
    return TrainingSample(
        token_ids=np.array(token_ids, dtype=np.int64),
        loss_mask=mask_L,
        turn_ids=turns_L,
        behaviour_logprobs=np.array(logprobs, dtype=np.float32),
        advantages=advantages_L,
        policy_versions=np.array(versions, dtype=np.int64),
        trajectory=index,
        group=group,
        routing=_experts(spans) if all(span.routing for span in spans) else None,
    )


def dealt(
    samples: Sequence[TrainingSample],
    rng: Callable[[int], np.random.Generator],
    *,
    epochs: int = 1,
    steps: int,
    by_group: bool = False,
) -> Iterator[list[int]]:
    """Yield sample numbers for each optimizer step; the samples of an episode stay together.

    Args:
        samples: A batch.
        rng: Of an epoch, by its number.
        epochs: How often all samples are dealt.
        steps: Of each epoch, where there are as many episodes.
        by_group: So do those of a group, for a loss that compares attempts.
    """
    # By episode and not by sample: an aggregation over episodes must see all of their tokens.
    numbers = [one.group if by_group else one.trajectory for one in samples]
    units = sorted(set(numbers))
    parts = min(steps, len(units))
    for epoch in range(epochs):
        order = units
        if parts > 1:  # dealing needs no random numbers where all go into one step
            order = [units[i] for i in rng(epoch).permutation(len(units))]
        for part in range(parts):
            chosen = set(order[part::parts])
            yield [i for i, number in enumerate(numbers) if number in chosen]


def _experts(spans: Sequence[TokenSpan]) -> NDArray[np.uint16]:
    """Return the routing of all spans, one after the other, [L, layers, top_k].

    Raises:
        TrainingError: They are of different models.
    """
    found: list[NDArray[np.uint16]] = []
    for span in spans:
        assert span.routing is not None
        shape = len(span.token_ids), span.routing.layers, span.routing.top_k
        kind = "u1" if span.routing.num_bytes == math.prod(shape) else "<u2"
        experts = np.frombuffer(base64.b64decode(span.routing.experts), dtype=kind)
        found.append(experts.astype(np.uint16).reshape(shape))
    shapes = {experts.shape[1:] for experts in found}
    if len(shapes) > 1:
        raise TrainingError(f"routing: layers x experts of one episode are {sorted(shapes)}")
    return np.concatenate(found)
