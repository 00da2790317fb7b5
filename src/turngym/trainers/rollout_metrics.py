"""What a step's episodes look like, before anything is learned from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from turngym.rollouts.evaluation import Evaluation, summarize
from turngym.trainers.advantages import GroupCredit
from turngym.types import TrajectoryGroup


def rollout_metrics(
    groups: Sequence[TrajectoryGroup], credits: Sequence[GroupCredit]
) -> dict[str, float]:
    """Return ``rollout/*`` of one step.

    Args:
        groups: What was played.
        credits: What became of each group.
    """
    trajectories = [t for group in groups for t in group.trajectories]
    usable = [t for group in groups for t in group.usable]
    found = summarize(trajectories)
    dropped = Counter(credit.dropped for credit in credits)
    advantages = [array for credit in credits for array in credit.advantages]
    flat = np.concatenate(advantages) if advantages else np.zeros(0)
    turns = max(1, sum(len(t.turns) for t in usable))
    metrics = {
        "rollout/episodes": float(found.episodes),
        "rollout/faults": float(found.faults),
        "rollout/unscored": float(found.unscored),
        "rollout/truncated_fraction": found.truncated / max(1, len(usable)),
        "rollout/invalid_action_fraction": found.invalid_actions / turns,
        "rollout/tokens": float(sum(t.num_sampled_tokens for t in usable)),
        "rollout/groups_used": float(dropped[None]),
        "rollout/groups_zero_spread": float(dropped["zero_spread"]),
        "rollout/groups_too_small": float(dropped["too_small"]),
        "rollout/advantage_abs_mean": float(np.abs(flat).mean()) if flat.size else 0.0,
    }
    stops = Counter(t.stop_reason for t in trajectories if t.stop_reason.is_error)
    metrics |= {f"rollout/dropped_{reason.value}": float(n) for reason, n in stops.items()}
    means = {
        "rollout/return_mean": found.mean_return,
        "rollout/success": found.success,
        "rollout/turns_mean": found.mean_turns,
    }
    return metrics | {name: value for name, value in means.items() if value is not None}


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
