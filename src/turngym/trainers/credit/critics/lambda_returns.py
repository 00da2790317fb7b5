"""Generalised advantage estimation over turns, over drawn tokens, and over both.

Axis letters: T turn of one episode, M drawn token of one episode, L token of any kind, S step of
whatever is counted.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from turngym.trainers.samples import FloatArray


def gae(
    rewards_S: FloatArray, values_S: FloatArray, last_value: float, *, gamma: float, lam: float
) -> FloatArray:
    """Return the advantages of S steps.

    ``delta[s] = r[s] + gamma V[s+1] - V[s]`` and ``A[s] = delta[s] + gamma lam A[s+1]``. What the
    critic is trained on, the lambda-return of a step, is its advantage plus its value.

    Args:
        rewards_S: Reward of each step.
        values_S: Value of the state before each step.
        last_value: Value of the state after the last step: 0 where the episode terminated, what
            the critic says where a limit cut it off.
        gamma: Discount per step.
        lam: 0 trusts the critic after one step, 1 waits for the end.

    Raises:
        ValueError: The arrays have different lengths.

    Source:
        Schulman et al. 2016, arXiv:1506.02438, equation 16.
    """
    if rewards_S.shape != values_S.shape:
        raise ValueError(f"gae: rewards {rewards_S.shape}, values {values_S.shape}: wanted as many")
    advantages_S = np.zeros(rewards_S.shape, dtype=np.float64)
    next_value, running = last_value, 0.0
    for s in range(rewards_S.size - 1, -1, -1):
        delta = rewards_S[s] + gamma * next_value - values_S[s]
        running = delta + gamma * lam * running
        advantages_S[s] = running
        next_value = values_S[s]
    return advantages_S


def token_gae(
    rewards_L: FloatArray,
    values_L: FloatArray,
    mask_L: NDArray[np.bool_],
    last_value: float,
    *,
    gamma: float,
    lam: float,
) -> FloatArray:
    """Return advantages of the drawn tokens of a sequence, 0 elsewhere.

    Tokens that were not drawn are no steps: the next value and the running advantage are carried
    across them, and they cost no discount.

    Args:
        rewards_L: Reward of each token; read where ``mask_L`` is True.
        values_L: Value of the state before each token; read where ``mask_L`` is True.
        mask_L: True on drawn tokens.
        last_value: Value of the state after the last drawn token.
        gamma: Discount per drawn token.
        lam: As in ``gae``.
    """
    advantages_L = np.zeros(mask_L.shape, dtype=np.float64)
    advantages_L[mask_L] = gae(
        rewards_L[mask_L], values_L[mask_L], last_value, gamma=gamma, lam=lam
    )
    return advantages_L


def bilevel_gae(
    rewards_T: FloatArray,
    values_M: FloatArray,
    lengths_T: NDArray[np.int64],
    last_value: float,
    *,
    gamma: float,
    lam: float,
    turn_gamma: float,
) -> FloatArray:
    """Return token advantages that are estimated over turns first, then inside each turn.

    The value of a turn is the one before its last token. Estimation over turns gives ``A``; inside
    a turn, which counts as an end, the last token is paid ``A + V`` and the others nothing.

    Args:
        rewards_T: Reward of each turn. A turn without reward is a turn all the same.
        values_M: Value before each drawn token.
        lengths_T: Drawn tokens of each turn, at least 1; sums to M.
        last_value: Value of the state after the last turn.
        gamma: Discount per token inside a turn.
        lam: As in ``gae``, on both levels.
        turn_gamma: Discount per turn.

    Returns:
        Advantages, shape [M].

    Source:
        RAGEN, arXiv:2504.20073. Its code takes tokens with a reward for the ends of turns, which
        loses turns that earned nothing; we count them.
    """
    ends_T = np.cumsum(lengths_T)
    values_T = values_M[ends_T - 1]
    paid_T = values_T + gae(rewards_T, values_T, last_value, gamma=turn_gamma, lam=lam)
    parts = []
    for paid, end, length in zip(paid_T, ends_T, lengths_T, strict=True):
        rewards = np.zeros(int(length), dtype=np.float64)
        rewards[-1] = paid
        parts.append(gae(rewards, values_M[end - length : end], 0.0, gamma=gamma, lam=lam))
    return np.concatenate(parts) if parts else np.zeros(0)


def on_last_token(values_T: FloatArray, lengths_T: NDArray[np.int64]) -> FloatArray:
    """Return each turn's value on the last of its drawn tokens, 0 on the others, shape [M]."""
    values_M = np.zeros(int(lengths_T.sum()), dtype=np.float64)
    values_M[np.cumsum(lengths_T) - 1] = values_T
    return values_M
