"""Where the turns of an episode lie in its tokens, and where a text lies in the tokens of another.

Axis letters: L token of an episode, T turn, M token of a text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, takewhile
from typing import TYPE_CHECKING

import numpy as np

from turngym.errors import ConfigError
from turngym.trainers.samples import IntArray
from turngym.types import Trajectory, TrajectoryGroup

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layout:
    """The tokens of an episode whose history was never rewritten.

    Turn t reads ``[prompt_T[t], action_T[t])`` and samples ``[action_T[t], end_T[t])``.
    """

    token_ids_L: IntArray
    prompt_T: IntArray
    action_T: IntArray
    end_T: IntArray

    @classmethod
    def of(cls, trajectory: Trajectory) -> Layout | None:
        """Return the layout; None when a turn has no tokens or the history was rewritten."""
        turns = trajectory.turns
        if any(turn.starts_segment for turn in turns[1:]):
            return None
        sampled_T = np.array([turn.num_sampled_tokens for turn in turns], dtype=np.int64)
        all_T = np.array(
            [sum(len(span.token_ids) for span in turn.spans) for turn in turns], dtype=np.int64
        )
        if not sampled_T.size or not sampled_T.all() or sampled_T[0] == all_T[0]:
            return None
        end_T = np.cumsum(all_T)
        ids = chain.from_iterable(span.token_ids for span in trajectory.spans)
        return cls(
            token_ids_L=np.fromiter(ids, dtype=np.int64, count=int(end_T[-1])),
            prompt_T=end_T - all_T,
            action_T=end_T - sampled_T,
            end_T=end_T,
        )


def trained_turns(groups: Sequence[TrajectoryGroup]) -> list[TrajectoryGroup]:
    """Return the episodes from their first turn on that is trained on, for a critic.

    What a critic says of a turn depends on what follows. Turns before that, which are too old or
    were trained early, are what the first one reads; an episode of them alone has no turn left.
    """
    return [
        replace(group, trajectories=tuple(_without_head(t) for t in group.trajectories))
        for group in groups
    ]


def _without_head(trajectory: Trajectory) -> Trajectory:
    turns = trajectory.turns
    head = list(takewhile(lambda turn: not turn.num_sampled_tokens, turns))
    if not head:
        return trajectory
    rest = turns[len(head) :]
    if rest:
        starts = [n for n, turn in enumerate(turns[: len(head) + 1]) if turn.starts_segment]
        read = turns[max(starts, default=0) : len(head) + 1]
        first = replace(rest[0], spans=tuple(span for turn in read for span in turn.spans))
        rest = (first, *rest[1:])
    return replace(trajectory, turns=rest)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Encoded:
    """A text as tokens, with the characters that each token stands for."""

    token_ids_M: IntArray
    starts_M: IntArray
    """First character. A token begins where the one before it ended, so that a space which a
    tokenizer joins to the next word belongs to it."""
    ends_M: IntArray
    """Behind the last character."""


def encode_with_places(tokenizer: PreTrainedTokenizerBase, text: str) -> Encoded:
    """Return ``text`` as tokens with their places; special tokens are not added.

    Args:
        tokenizer: A fast one, see ``check_fast``.
        text: What to encode.
    """
    found = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    places = np.array(found["offset_mapping"], dtype=np.int64).reshape(-1, 2)
    starts, ends = places[:, 0], places[:, 1]
    previous = np.concatenate([np.zeros(1, np.int64), ends[:-1]])[: ends.size]
    return Encoded(
        token_ids_M=np.array(found["input_ids"], dtype=np.int64),
        starts_M=np.minimum(starts, previous),
        ends_M=ends,
    )


def room_of(model: PreTrainedModel) -> int | None:
    """Return the longest sequence that a model was made for, in tokens; None when it has none."""
    room = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return None if room is None else int(room)


def check_fast(tokenizer: PreTrainedTokenizerBase, reward: str) -> None:
    """Raise when the tokenizer of ``reward`` does not know which characters its tokens stand for.

    Raises:
        ConfigError: It is not backed by the ``tokenizers`` library.
    """
    if not tokenizer.is_fast:
        raise ConfigError(
            f"algo.rewards {reward!r}: tokenizer {tokenizer.name_or_path!r} gives no character "
            "offsets; use a model with a fast tokenizer"
        )
