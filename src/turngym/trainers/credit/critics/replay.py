"""Turns that were played, kept for learning from again.

A turn holds its place in the text of its episode, not a copy, so a long history costs no more than
a short one. Axis letters: L token of a text, A token of an action, K row of the buffer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turngym.agents.rendering import Renderer
from turngym.errors import CheckpointError, TrainingError
from turngym.trainers.credit.base import TurnBatch
from turngym.trainers.credit.critics.values import final_prompt
from turngym.trainers.samples import FloatArray, to_samples

Ids = NDArray[np.int32]
_NUMBERS = ("reward", "mc_return")
_FLAGS = ("is_terminated", "is_truncated", "is_invalid")
_PLACES = ("state_end", "action_end", "next_end")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Transition:
    """One transition: what the policy saw, what it said, what it got and what it saw next."""

    text_L: Ids
    """All tokens of the segment that the turn belongs to."""
    state_end: int
    """Tokens before this are what the policy saw before the action."""
    action_end: int
    """Tokens from ``state_end`` to this are the action, the end token included."""
    next_text_L: Ids
    """The segment of the next state; ``text_L`` itself unless the history was rewritten."""
    next_end: int
    """Tokens of ``next_text_L`` before this are the next state; 0 where the episode terminated."""
    reward: float
    mc_return: float
    """Discounted rewards from this turn to the last one that was played."""
    is_terminated: bool
    is_truncated: bool
    """A limit ended the episode after this turn."""
    is_invalid: bool
    """The action could not be carried out."""
    logprobs_A: NDArray[np.float32]
    versions_A: NDArray[np.int32]

    def is_end(self, *, bootstrap_truncated: bool) -> bool:
        """Return whether nothing comes after the turn; a bootstrapped limit is no end."""
        return self.is_terminated or (self.is_truncated and not bootstrap_truncated)

    @property
    def state(self) -> Ids:
        """Tokens that the policy saw."""
        return self.text_L[: self.state_end]

    @property
    def action(self) -> Ids:
        """Tokens that it sampled."""
        return self.text_L[self.state_end : self.action_end]

    @property
    def next_state(self) -> Ids:
        """Tokens that it saw next, none where the episode terminated."""
        return self.next_text_L[: self.next_end]


def transitions(
    turns: TurnBatch, reward_N: FloatArray, renderer: Renderer, *, gamma: float, context: int
) -> list[Transition]:
    """Return the transitions of a batch, in episode order, then turn order.

    The last state of an episode that a limit cut off is what the policy would have been shown next,
    or the text just after its last action where that is unknown; see ``final_prompt``.

    Args:
        turns: The batch.
        reward_N: Reward of each turn.
        renderer: Of the policy that played.
        gamma: Discount per turn of ``mc_return``.
        context: Longest text in tokens.

    Raises:
        TrainingError: A turn has no sampled tokens.
    """
    found: list[Transition] = []
    rewards = turns.split(reward_N) if turns.episodes else []
    for b, rewards_T in enumerate(rewards):
        more = final_prompt(turns.episodes[b], renderer, context=context)
        found += _episode(turns, b, rewards_T, more, gamma)
    return found


def _episode(
    turns: TurnBatch, b: int, rewards_T: FloatArray, more: tuple[int, ...], gamma: float
) -> list[Transition]:
    episode, is_cut = turns.episodes[b], bool(turns.is_open_B[b])
    samples = to_samples(episode, np.zeros(episode.num_sampled_tokens), index=b)
    texts = [sample.token_ids.astype(np.int32) for sample in samples]
    texts[-1] = np.concatenate([texts[-1], np.array(more, dtype=np.int32)])
    places = [  # of each turn: which segment, where its action begins and ends
        (segment, int(at[0]), int(at[-1]) + 1)
        for segment, sample in enumerate(samples)
        for turn in np.unique(sample.turn_ids[sample.loss_mask])
        if (at := np.flatnonzero(sample.turn_ids == turn)).size
    ]
    if len(places) != rewards_T.size:
        raise TrainingError(
            f"{episode.task_id}, attempt {episode.member}: {rewards_T.size} turns, of which only "
            f"{len(places)} have sampled tokens; every turn of a critic's episode needs some"
        )
    after = [(segment, start) for segment, start, _ in places[1:]]
    after.append((len(texts) - 1, texts[-1].size if is_cut else 0))
    found: list[Transition] = []
    to_go = 0.0
    for t in range(len(places) - 1, -1, -1):
        (segment, start, end), (next_segment, next_end) = places[t], after[t]
        to_go = float(rewards_T[t]) + gamma * to_go
        is_last = t == len(places) - 1
        found.append(
            Transition(
                text_L=texts[segment],
                state_end=start,
                action_end=end,
                next_text_L=texts[next_segment],
                next_end=next_end,
                # Rounded as a checkpoint rounds, so that a resumed run computes the same.
                reward=float(np.float32(rewards_T[t])),
                mc_return=float(np.float32(to_go)),
                is_terminated=is_last and not is_cut,
                is_truncated=is_last and is_cut,
                is_invalid=episode.turns[t].invalid_action is not None,
                logprobs_A=samples[segment].behaviour_logprobs[start:end],
                versions_A=samples[segment].policy_versions[start:end].astype(np.int32),
            )
        )
    return found[::-1]


class ReplayBuffer:
    """The newest turns, up to a capacity; older ones are overwritten.

    Args:
        capacity: Most turns.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._rows: list[Transition] = []
        self._next = 0
        """Slot that is written next, once the buffer is full."""

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, slot: int) -> Transition:
        return self._rows[slot]

    def add(self, turns: Sequence[Transition]) -> None:
        """Append turns, over the oldest ones when the buffer is full."""
        for turn in turns:
            if len(self._rows) < self.capacity:
                self._rows.append(turn)
            else:
                self._rows[self._next] = turn
                self._next = (self._next + 1) % self.capacity

    def clear(self) -> None:
        """Forget all turns."""
        self._rows.clear()
        self._next = 0

    def sample(self, count: int, rng: np.random.Generator) -> list[Transition]:
        """Return ``count`` turns, sampled uniformly with replacement.

        Raises:
            ValueError: The buffer is empty.
        """
        if not self._rows:
            raise ValueError("replay: nothing was played yet")
        return [self._rows[int(slot)] for slot in rng.integers(0, len(self._rows), count)]

    def state(self) -> dict[str, Tensor]:
        """Return all turns as flat arrays and lengths; each text is there once."""
        texts: dict[int, Ids] = {}
        for row in self._rows:
            texts.setdefault(id(row.text_L), row.text_L)
            texts.setdefault(id(row.next_text_L), row.next_text_L)
        number = {key: n for n, key in enumerate(texts)}
        kinds = ((_PLACES, torch.int64), (_NUMBERS, torch.float32), (_FLAGS, torch.bool))
        tensors = {
            name: torch.tensor([getattr(row, name) for row in self._rows], dtype=dtype)
            for names, dtype in kinds
            for name in names
        }
        for name in ("text", "next_text"):
            places = [number[id(getattr(row, f"{name}_L"))] for row in self._rows]
            tensors[name] = torch.tensor(places, dtype=torch.int64)
        lengths = [text.size for text in texts.values()]
        return tensors | {
            "ids": torch.from_numpy(_flat(list(texts.values()), np.int32)),
            "lengths": torch.tensor(lengths, dtype=torch.int64),
            "logprobs": torch.from_numpy(_flat([r.logprobs_A for r in self._rows], np.float32)),
            "versions": torch.from_numpy(_flat([r.versions_A for r in self._rows], np.int32)),
            "next": torch.tensor([self._next]),
        }

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what ``state`` returned.

        Raises:
            CheckpointError: It holds more turns than this buffer.
        """
        size = len(tensors["text"])
        if size > self.capacity:
            raise CheckpointError(
                f"replay: {size} turns were saved, and buffer_turns is {self.capacity}; "
                f"make it at least {size}"
            )
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        texts = np.split(arrays["ids"], np.cumsum(arrays["lengths"])[:-1])
        cuts = np.cumsum(arrays["action_end"] - arrays["state_end"])[:-1]
        logprobs, versions = (np.split(arrays[name], cuts) for name in ("logprobs", "versions"))
        self._rows = [
            Transition(
                text_L=texts[int(arrays["text"][k])],
                next_text_L=texts[int(arrays["next_text"][k])],
                logprobs_A=logprobs[k],
                versions_A=versions[k],
                **{name: arrays[name][k].item() for name in (*_NUMBERS, *_FLAGS, *_PLACES)},
            )
            for k in range(size)
        ]
        self._next = int(tensors["next"].item())


def _flat(arrays: Sequence[NDArray[np.generic]], dtype: type[np.generic]) -> NDArray[np.generic]:
    return np.concatenate([np.zeros(0, dtype=dtype), *arrays]).astype(dtype)
