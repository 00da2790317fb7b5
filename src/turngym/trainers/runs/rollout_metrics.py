"""What a step's episodes look like, before anything is learned from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from turngym.rollouts.evaluation.evaluate import Evaluation, summarize
from turngym.trainers.credit.base import Credit
from turngym.types import Trajectory, TrajectoryGroup


def rollout_metrics(
    groups: Sequence[TrajectoryGroup], credit: Credit, *, chosen: int | None = None
) -> dict[str, float]:
    """Return ``rollout/*`` and ``credit/*`` of one step.

    Args:
        groups: What was played.
        credit: What became of them.
        chosen: How many groups credit was assigned to; None for all that were played.
    """
    trajectories = [t for group in groups for t in group.trajectories]
    usable = [t for group in groups for t in group.usable]
    found = summarize(trajectories)
    dropped = credit.dropped
    flat = np.concatenate(credit.advantages) if credit.advantages else np.zeros(0)
    turns = max(1, sum(len(t.turns) for t in usable))
    metrics = {
        "rollout/episodes": float(found.episodes),
        "rollout/faults": float(found.faults),
        "rollout/unscored": float(found.unscored),
        "rollout/truncated_fraction": found.truncated / max(1, len(usable)),
        "rollout/invalid_action_fraction": found.invalid_actions / turns,
        "rollout/tokens": float(sum(t.num_sampled_tokens for t in usable)),
        "rollout/groups_used": float(
            (len(groups) if chosen is None else chosen) - sum(dropped.values())
        ),
        "rollout/groups_zero_spread": float(dropped.get("zero_spread", 0)),
        "rollout/groups_too_small": float(dropped.get("too_small", 0)),
        "rollout/groups_filtered": float(dropped.get("filtered", 0)),
        "rollout/advantage_abs_mean": float(np.abs(flat).mean()) if flat.size else 0.0,
    }
    metrics |= credit.metrics
    stops = Counter(t.stop_reason for t in trajectories if t.stop_reason.is_error)
    metrics |= {f"rollout/dropped_{reason.value}": float(n) for reason, n in stops.items()}
    means = {
        "rollout/return_mean": found.mean_return,
        "rollout/success": found.success,
        "rollout/turns_mean": found.mean_turns,
    }
    metrics |= success_by_env("rollout", trajectories)
    return metrics | {name: value for name, value in means.items() if value is not None}


def success_by_env(prefix: str, trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return ``<prefix>/success/<environment>`` where several environments were played."""
    by_env: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        by_env.setdefault(trajectory.env_id, []).append(trajectory)
    if len(by_env) < 2:
        return {}
    found = {f"{prefix}/success/{env_id}": summarize(ts).success for env_id, ts in by_env.items()}
    return {name: value for name, value in found.items() if value is not None}


def evaluation_metrics(prefix: str, found: Evaluation) -> dict[str, float]:
    """Return an evaluation as ``<prefix>/success`` with its interval, return, turns and faults."""
    low, high = found.success_ci95 or (None, None)
    values = {
        "success": found.success,
        "success_low": low,
        "success_high": high,
        "return_mean": found.mean_return,
        "turns_mean": found.mean_turns,
        "faults": float(found.faults),
    }
    return {f"{prefix}/{name}": value for name, value in values.items() if value is not None}
