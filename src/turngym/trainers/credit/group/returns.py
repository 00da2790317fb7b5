"""Returns: for which rewards a turn is held responsible. Pure, over episodes laid out flat.

Axis letter: N turns of any episode, in episode order, then turn order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from turngym.trainers.credit.turns import IntArray
from turngym.trainers.samples import FloatArray


def outcomes(rewards_N: FloatArray, episode_N: IntArray) -> FloatArray:
    """Return the sum of the whole episode for each of its turns, shape [N].

    Args:
        rewards_N: Shape [N].
        episode_N: 0-based number of the episode of each turn.
    """
    sums_B = np.bincount(episode_N, rewards_N).astype(np.float64)
    return sums_B[episode_N]


def rewards_to_go(
    rewards_N: FloatArray,
    is_last_N: NDArray[np.bool_],
    *,
    gamma: float = 1.0,
    passes_N: NDArray[np.bool_] | None = None,
) -> FloatArray:
    """Return ``G_t = r_t + gamma * G_{t+1}`` within each episode, shape [N].

    Args:
        rewards_N: Shape [N].
        is_last_N: True on the last turn of each episode.
        gamma: Discount per turn, in [0, 1].
        passes_N: False on a turn over which nothing passes back: it is worth its own reward, and
            the turns before it hear neither of it nor of what follows. None passes everywhere.

    Source:
        TRLOO, arXiv:2602.05885. With ``passes_N``: UI-S1, arXiv:2509.11543.
    """
    open_N = np.ones(is_last_N.shape, dtype=np.bool_) if passes_N is None else passes_N
    returns: list[float] = []
    following = 0.0
    turns = zip(rewards_N.tolist(), is_last_N.tolist(), open_N.tolist(), strict=True)
    for reward, is_last, passes in reversed(list(turns)):
        returns.append(reward + gamma * following if passes and not is_last else reward)
        following = returns[-1] if passes else 0.0
    return np.array(returns[::-1], dtype=np.float64)
