"""Training samples of random tokens, with the log-probs that a model gives them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from turngym.trainers.samples import TrainingSample
from turngym.trainers.update.forward import score


def random_samples(
    model: Any, *, count: int, seed: int = 0, longest: int = 24, vocabulary: int = 280
) -> list[TrainingSample]:
    """Return ``count`` episodes of two turns whose behaviour log-probs are the model's own.

    Two episodes make a group.
    """
    rng = np.random.default_rng(seed)
    samples = []
    for index in range(count):
        length = int(rng.integers(longest // 2, longest + 1))
        turn_ids = np.full(length, -1)
        turn_ids[2 : length // 2] = 0
        turn_ids[length // 2 + 2 :] = 1
        mask = turn_ids >= 0
        samples.append(
            TrainingSample(
                token_ids=rng.integers(0, vocabulary, length),
                loss_mask=mask,
                turn_ids=turn_ids,
                behaviour_logprobs=np.zeros(length, dtype=np.float32),
                advantages=np.where(mask, rng.normal(), 0).astype(np.float32),
                policy_versions=np.where(mask, 0, -1),
                trajectory=index,
                group=index // 2,
            )
        )
    logprobs = score(
        model, [s.token_ids for s in samples], [s.loss_mask for s in samples], max_tokens=4096
    )
    return [
        replace(s, behaviour_logprobs=values) for s, values in zip(samples, logprobs, strict=True)
    ]
