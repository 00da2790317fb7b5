"""Actions that the policy samples now, at states that were seen before."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from turngym.coroutines import at_home
from turngym.seeding import derive_seed
from turngym.trainers.samples import TokenIds, TrainingSample

if TYPE_CHECKING:
    from turngym.agents.engine.protocol import Generation
    from turngym.trainers.credit.base import CreditContext


async def sample_actions(
    context: CreditContext, states: Sequence[TokenIds], *, seed: int
) -> list[Generation]:
    """Return one action per state, sampled with the newest published weights.

    As many sessions as the method may have run at once, states of like length together. An action
    depends on its state, ``seed`` and its number alone.

    Args:
        context: Gives the engine and how actions are sampled.
        states: Everything the policy saw, as tokens; it acted there before, so there is room.
        seed: Root of the samples.

    Raises:
        ConfigError: The engine has no free session.
        PolicyFault: The engine broke.
    """
    return await at_home(_sample_all(context, states, seed))


async def _sample_all(
    context: CreditContext, states: Sequence[TokenIds], seed: int
) -> list[Generation]:
    ordered = sorted(range(len(states)), key=lambda k: (states[k].size, k))
    size = max(1, min(context.engine.free_sessions, context.max_sessions))
    found: dict[int, Generation] = {}
    for start in range(0, len(ordered), size):
        chunk = ordered[start : start + size]
        sampled = await asyncio.gather(
            *(_sample(context, states[k], derive_seed(seed, "action", k)) for k in chunk)
        )
        found |= dict(zip(chunk, sampled, strict=True))
    return [found[k] for k in range(len(states))]


async def _sample(context: CreditContext, state: TokenIds, seed: int) -> Generation:
    session = context.engine.open(seed)
    try:
        return await session.generate(state.tolist(), context.sampling)
    finally:
        if (closing := session.close()) is not None:
            await closing


def action_sample(
    state: TokenIds,
    action: Sequence[int] | TokenIds,
    logprobs: Sequence[float] | np.ndarray[tuple[int], np.dtype[np.float32]],
    versions: Sequence[int] | TokenIds,
    advantage: float,
    *,
    index: int,
) -> TrainingSample:
    """Return a sample [L] that trains on one action alone, one advantage on all its tokens.

    Args:
        state: Tokens the policy saw.
        action: Tokens of the action.
        logprobs: Log-prob each was sampled with.
        versions: Weights that sampled each; tokens with -1 were not sampled and are not trained on.
        advantage: Of the action.
        index: Number of the sample.
    """
    sampled_A = np.asarray(versions, dtype=np.int64) >= 0
    before = state.size

    def behind(values: np.ndarray, fill: float, dtype: type) -> np.ndarray:
        return np.concatenate([np.full(before, fill), values]).astype(dtype)

    return TrainingSample(
        token_ids=np.concatenate([state, np.asarray(action)]).astype(np.int64),
        loss_mask=behind(sampled_A, 0, np.bool_),
        turn_ids=behind(np.where(sampled_A, 0, -1), -1, np.int64),
        behaviour_logprobs=behind(np.asarray(logprobs), 0, np.float32),
        advantages=behind(np.where(sampled_A, advantage, 0), 0, np.float32),
        policy_versions=behind(np.asarray(versions), -1, np.int64),
        trajectory=index,
    )
