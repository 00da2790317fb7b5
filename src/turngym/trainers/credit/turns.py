"""A batch of episodes with one row per turn. Turns are counted, never guessed from rewards.

Axis letters: B episode, N turn of any episode (in episode order, then turn order), T turn of one
episode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turngym.errors import TrainingError
from turngym.trainers.samples import FloatArray
from turngym.types import Trajectory, TrajectoryGroup

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Turns:
    """The turns of B usable episodes, N in all, laid out flat."""

    episodes: tuple[Trajectory, ...]
    """The B episodes; none of them is an error or has no turn."""
    group_B: IntArray
    """Number of the group of each episode; members of one group stand together."""
    episode_N: IntArray
    """Which episode a turn belongs to."""
    turn_N: IntArray
    """0-based place of a turn in its episode."""
    tokens_N: IntArray
    """Tokens that were drawn in a turn."""
    reward_N: FloatArray
    """Reward of the environment."""
    invalid_N: NDArray[np.bool_]
    """The action could not be carried out."""

    @classmethod
    def of(cls, groups: Sequence[TrajectoryGroup]) -> Turns:
        """Return the turns of all usable episodes of ``groups``; empty episodes are left out.

        Raises:
            TrainingError: A reward is not finite.
        """
        pairs = [(n, t) for n, group in enumerate(groups) for t in group.usable if t.turns]
        episodes = tuple(t for _, t in pairs)
        turns = [turn for t in episodes for turn in t.turns]
        lengths = [len(t.turns) for t in episodes]
        reward_N = np.array([turn.reward for turn in turns], dtype=np.float64)
        found = cls(
            episodes=episodes,
            group_B=np.array([n for n, _ in pairs], dtype=np.int64),
            episode_N=np.repeat(np.arange(len(episodes)), lengths),
            turn_N=np.concatenate([np.arange(n) for n in lengths] or [np.zeros(0, np.int64)]),
            tokens_N=np.array([turn.num_sampled_tokens for turn in turns], dtype=np.int64),
            reward_N=reward_N,
            invalid_N=np.array([turn.invalid_action is not None for turn in turns], dtype=np.bool_),
        )
        found.check_finite(reward_N, "reward")
        return found

    @property
    def group_N(self) -> IntArray:
        """Number of the group of each turn."""
        return self.group_B[self.episode_N]

    @property
    def length_B(self) -> IntArray:
        """Number of turns T of each episode."""
        return np.bincount(self.episode_N, minlength=len(self.episodes))

    @property
    def is_last_N(self) -> NDArray[np.bool_]:
        """True on the last turn of each episode."""
        return np.equal(self.turn_N, self.length_B[self.episode_N] - 1)

    @property
    def truncated_B(self) -> NDArray[np.bool_]:
        """True where a limit ended the episode, so that the last state still has a value."""
        return np.array([t.stop_reason.is_truncated for t in self.episodes], dtype=np.bool_)

    @property
    def outcome_B(self) -> FloatArray:
        """Undiscounted sum of the environment's rewards."""
        sums_B = np.bincount(self.episode_N, self.reward_N, minlength=len(self.episodes))
        return sums_B.astype(np.float64)

    def split(self, values_N: NDArray[np.generic]) -> list[FloatArray]:
        """Return ``values_N`` as one array [T] per episode."""
        cuts = np.cumsum(self.length_B)[:-1]
        return [np.asarray(part, dtype=np.float64) for part in np.split(values_N, cuts)]

    def check_finite(self, values_N: FloatArray, what: str) -> None:
        """Raise when a value is NaN or infinite.

        Raises:
            TrainingError: Names the task, the attempt and the turn.
        """
        bad = np.flatnonzero(~np.isfinite(values_N))
        if bad.size:
            episode = self.episodes[int(self.episode_N[bad[0]])]
            raise TrainingError(
                f"{episode.task_id}, attempt {episode.attempt}, turn {int(self.turn_N[bad[0]])}: "
                f"{what} is {values_N[bad[0]]}; nothing was trained on it. "
                "Look at the environment's rewards and the policy's log-probs"
            )
