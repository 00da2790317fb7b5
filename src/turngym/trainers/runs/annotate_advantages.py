"""Trajectories of training annotated with their advantages, for people to look at.

The numbers go into a trajectory's metadata, ``advantages`` with one for each turn and
``token_advantages`` with one for each sampled token of each turn.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from turngym.trainers.credit.base import Credit
from turngym.trainers.samples import FloatArray, TrainingSample
from turngym.types import Trajectory

_DIGITS = 6


def most_instructive(credit: Credit) -> list[Trajectory]:
    """Return the attempts at one task whose advantages are the largest in sum, each once.

    Returns:
        Empty when the batch teaches nothing.
    """
    groups: defaultdict[tuple[str, str, int], dict[object, int]] = defaultdict(dict)
    sizes: defaultdict[tuple[str, str, int], float] = defaultdict(float)
    for place, (trajectory, values_T) in enumerate(
        zip(credit.trajectories, credit.advantages, strict=True)
    ):
        key = (trajectory.env_id, trajectory.task_id, trajectory.env_seed)
        # Each late attempt of a group has the others beside it, which teach nothing again.
        is_context = trajectory.turns and not trajectory.num_sampled_tokens
        who = (trajectory.policy_seed, trajectory.player) if is_context else place
        if groups[key].setdefault(who, place) == place:
            sizes[key] += float(np.abs(values_T).sum())
    if not groups:
        return []
    samples: defaultdict[int, list[TrainingSample]] = defaultdict(list)
    for sample in credit.samples:
        samples[sample.trajectory].append(sample)
    best = max(groups, key=lambda key: sizes[key])
    return [
        with_advantages(credit.trajectories[place], credit.advantages[place], samples[place])
        for place in groups[best].values()
    ]


def with_advantages(
    trajectory: Trajectory, values_T: FloatArray, samples: Sequence[TrainingSample] = ()
) -> Trajectory:
    """Return a trajectory annotated with its advantages.

    Args:
        trajectory: An episode.
        values_T: One number for each turn, shape [T].
        samples: What is trained on of it; advantages of tokens are added when these are its tokens.
    """
    notes: dict[str, Any] = {"advantages": [round(float(value), _DIGITS) for value in values_T]}
    tokens = _of_tokens(trajectory, samples)
    if tokens is not None:
        notes["token_advantages"] = tokens
    return replace(trajectory, metadata={**trajectory.metadata, **notes})


def _of_tokens(
    trajectory: Trajectory, samples: Sequence[TrainingSample]
) -> list[list[float]] | None:
    """Return the advantages of each turn's sampled tokens; None when the samples are not of it."""
    sampled = [
        [t for s in turn.spans if s.sampled for t in s.token_ids] for turn in trajectory.turns
    ]
    values: list[list[float]] = [[] for _ in sampled]
    ids: list[list[int]] = [[] for _ in sampled]
    for sample in samples:
        for place in np.flatnonzero(sample.loss_mask):
            turn = int(sample.turn_ids[place])
            if turn >= len(sampled):
                return None
            ids[turn].append(int(sample.token_ids[place]))
            values[turn].append(round(float(sample.advantages[place]), _DIGITS))
    return values if ids == sampled else None
