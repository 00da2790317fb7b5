"""From chosen groups to training samples.

What was compared is one thing, what is trained on another: context turns, attempts that are left
out, and attempts of the past that nothing new is compared with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from turngym.rollouts.scheduler.groups import Member, ReadyGroup
from turngym.trainers.credit.base import Credit
from turngym.trainers.samples import TrainingSample, to_samples
from turngym.trainers.selection.past import IMITATED
from turngym.trainers.selection.prefixes import as_context
from turngym.types import Trajectory, TrajectoryGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The groups of one update."""

    groups: tuple[TrajectoryGroup, ...]
    """What is compared, successes of the past among their groups."""
    imitated: tuple[Trajectory, ...] = ()
    """Attempts of the past that are trained on apart."""


def chosen(groups: Sequence[ReadyGroup], extra: Sequence[ReadyGroup] = ()) -> Chosen:
    """Return what an update is made of.

    Args:
        groups: New groups, with at least one member each.
        extra: What came from the hook ``replay``; it joins the new group of its number.
    """
    joining: dict[int, list[Member]] = {}
    imitated: list[Trajectory] = []
    for past in extra:
        if past.request.condition == IMITATED:
            imitated += past.trajectories
        else:
            joining.setdefault(past.index, []).extend(past.members)
    made = [_as_group(group, joining.get(group.index, [])) for group in groups]
    return Chosen(groups=tuple(made), imitated=tuple(imitated))


def _as_group(group: ReadyGroup, past: Sequence[Member]) -> TrajectoryGroup:
    members = [*group.members, *past]
    return TrajectoryGroup(
        group_id=group.group_id, trajectories=tuple(trained_part(member) for member in members)
    )


def trained_part(member: Member) -> Trajectory:
    """Return the episode with every turn but those that are trained on as context."""
    trajectory, first, end = member.trajectory, member.first_turn, member.end_turn
    if first == 0 and end == len(trajectory.turns):
        return trajectory
    turns = trajectory.turns
    return replace(
        trajectory, turns=(*as_context(turns[:first]), *turns[first:end], *as_context(turns[end:]))
    )


def imitation_samples(
    trajectories: Sequence[Trajectory], *, baseline: float, weight: float, first: int
) -> list[TrainingSample]:
    """Return the samples of attempts that are trained on apart.

    Args:
        trajectories: The attempts.
        baseline: Their advantage is what they earned beyond it; where that is not more than 0 they
            are left out.
        weight: Of their loss beside that of the new ones.
        first: Number of the first of them in the batch.
    """
    samples: list[TrainingSample] = []
    for number, trajectory in enumerate(trajectories):
        advantage = trajectory.episode_return - baseline
        if advantage > 0 and weight > 0:
            values_M = np.full(trajectory.num_sampled_tokens, advantage)
            samples += [
                replace(sample, weight=weight, replayed=True)
                for sample in to_samples(trajectory, values_M, index=first + number)
            ]
    return samples


def with_imitation(
    credit: Credit, trajectories: Sequence[Trajectory], *, baseline: float, weight: float
) -> Credit:
    """Return the credit with the samples of attempts that are trained on apart."""
    first = len(credit.trajectories)
    added = imitation_samples(trajectories, baseline=baseline, weight=weight, first=first)
    metrics: Mapping[str, float] = {
        **credit.metrics,
        "selection/imitated_attempts": float(len({s.trajectory for s in added})),
        "selection/imitation_weight": weight,
    }
    return replace(credit, samples=(*credit.samples, *added), metrics=metrics)
