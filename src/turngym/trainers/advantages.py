"""Turn credit: from the attempts at one task to one advantage per turn.

    rewards -> return -> baseline within a pool -> scale -> advantages, one array [T] per attempt

A method is a choice of the four parts (``GroupRelative``); the shipped choices are the presets
``grpo``, ``dr_grpo``, ``rloo`` and ``turn_rtg``. A method that needs more than rewards gets a
config type of its own and an entry in ``ESTIMATORS``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from turngym.config import StrictModel
from turngym.types import Trajectory, TrajectoryGroup

FloatArray = NDArray[np.float64]

ZERO_SPREAD = 1e-6
"""Values of one pool that differ by less count as equal: float rewards are not exact."""


class GroupRelative(StrictModel):
    """Compares what each attempt, or each turn, earned with the other attempts at the same task."""

    type: Literal["group_relative"] = "group_relative"
    returns: Literal["outcome", "reward_to_go"] = "outcome"
    """``outcome``: the episode return, for every turn. ``reward_to_go``: discounted rewards from
    the turn on."""
    group_by: Literal["task", "task_turn"] = "task"
    """Who is compared: whole attempts, or turns with the same index. ``task`` needs ``outcome``."""
    baseline: Literal["none", "mean", "leave_one_out"] = "mean"
    """What is subtracted: nothing, the mean of the pool, or the mean of the others in it."""
    scale: Literal["none", "group_std"] = "group_std"
    """What is divided by: nothing, or the sample standard deviation of the pool plus ``eps``."""
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount per turn of ``reward_to_go``."""
    singleton: Literal["drop", "raw"] = "drop"
    """A pool of one has no baseline. ``drop``: advantage 0. ``raw``: the return itself, as the
    authors of TRLOO do."""
    eps: float = Field(default=1e-6, gt=0)
    """Added to the standard deviation."""

    @model_validator(mode="after")
    def _comparable(self) -> Self:
        if self.returns == "reward_to_go" and self.group_by == "task":
            raise ValueError("returns='reward_to_go' needs group_by='task_turn'")
        return self


AdvantageConfig = GroupRelative
"""Settings of a credit method; becomes a union on ``type`` with the second method."""

Estimator = Callable[[Sequence[Trajectory], AdvantageConfig], list[FloatArray]]
"""(attempts without errors, settings) -> one array [T] per attempt. Pure; sees one group only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCredit:
    """Advantages of one group, and why it is left out of training when it is."""

    trajectories: tuple[Trajectory, ...]
    """Attempts that can be trained on; empty when the group is dropped."""
    advantages: tuple[FloatArray, ...]
    """One array [T] per trajectory, in their order."""
    dropped: Literal["too_small", "zero_spread"] | None = None


def assign_credit(group: TrajectoryGroup, config: AdvantageConfig) -> GroupCredit:
    """Return the advantages of a group, or that it teaches nothing.

    Attempts that ended by an error are left out before anything is compared. A group with fewer
    than two others, or without any difference, is dropped as a whole.

    Args:
        group: Attempts at one task.
        config: The method.
    """
    usable = group.usable
    if len(usable) < (1 if config.baseline == "none" else 2):
        return GroupCredit(trajectories=(), advantages=(), dropped="too_small")
    advantages = ESTIMATORS[config.type](usable, config)
    if not any(array.any() for array in advantages):
        return GroupCredit(trajectories=(), advantages=(), dropped="zero_spread")
    return GroupCredit(trajectories=usable, advantages=tuple(advantages))


def group_relative(trajectories: Sequence[Trajectory], config: GroupRelative) -> list[FloatArray]:
    """Return ``(return - baseline) / scale`` for every turn.

    The pool is all attempts (``task``), or the turns with one index (``task_turn``), to which only
    attempts belong that lived so long. ``mean`` and ``leave_one_out`` sum to 0 over each pool of
    two or more; ``leave_one_out`` is ``n/(n-1)`` times ``mean``.

    Args:
        trajectories: Attempts at one task, none of them an error.
        config: The parts.

    Returns:
        One array [T] per attempt. Unit: reward for ``scale="none"``, else none.

    Source:
        GRPO: Shao et al. 2024, arXiv:2402.03300. Dr. GRPO: Liu et al. 2025, arXiv:2503.20783.
        RLOO: Ahmadian et al. 2024, arXiv:2402.14740. TRLOO: arXiv:2602.05885, section 4; with
        ``singleton="drop"`` we differ from its code, which lets the last survivor keep its return.
    """
    rewards = [np.array([turn.reward for turn in t.turns], dtype=np.float64) for t in trajectories]
    if config.group_by == "task":
        values = relative_to_pool(np.array([float(r.sum()) for r in rewards]), config)
        return [np.full(r.shape, value) for r, value in zip(rewards, values, strict=True)]
    if config.returns == "reward_to_go":
        returns = [reward_to_go(r, gamma=config.gamma) for r in rewards]
    else:
        returns = [np.full(r.shape, r.sum()) for r in rewards]
    advantages = [np.zeros_like(r) for r in returns]
    for turn in range(max((r.size for r in returns), default=0)):
        alive = [i for i, r in enumerate(returns) if r.size > turn]
        pool = np.array([returns[i][turn] for i in alive])
        for i, value in zip(alive, relative_to_pool(pool, config), strict=True):
            advantages[i][turn] = value
    return advantages


def reward_to_go(rewards_T: FloatArray, *, gamma: float = 1.0) -> FloatArray:
    """Return ``G_t = r_t + gamma * G_{t+1}``, shape [T].

    Args:
        rewards_T: Turn rewards of one attempt, shape [T], T >= 0.
        gamma: Discount per turn, in [0, 1].
    """
    returns_T = np.zeros_like(rewards_T)
    following = 0.0
    for turn in reversed(range(rewards_T.size)):
        following = float(rewards_T[turn]) + gamma * following
        returns_T[turn] = following
    return returns_T


def relative_to_pool(values_N: FloatArray, config: GroupRelative) -> FloatArray:
    """Return ``(x - baseline) / scale`` within one pool, shape [N].

    Args:
        values_N: Returns that are compared, shape [N], N >= 1.
        config: Baseline, scale, eps and what a pool of one becomes.

    Returns:
        Shape [N]. All 0 when the values differ by less than ``ZERO_SPREAD`` and have a baseline.

    Raises:
        ValueError: A value is NaN or infinite.
    """
    if not np.isfinite(values_N).all():
        raise ValueError(f"returns must be finite, got {values_N.tolist()}")
    size = values_N.size
    if config.baseline == "none":
        centred_N = values_N.copy()
    elif size == 1:
        return values_N.copy() if config.singleton == "raw" else np.zeros(1)
    elif np.ptp(values_N) < ZERO_SPREAD:
        return np.zeros(size)
    else:
        centred_N = values_N - values_N.mean()
        if config.baseline == "leave_one_out":
            centred_N *= size / (size - 1)
    if config.scale == "none" or size == 1:
        return centred_N
    scaled_N: FloatArray = centred_N / (values_N.std(ddof=1) + config.eps)
    return scaled_N


ESTIMATORS: dict[str, Estimator] = {"group_relative": group_relative}
"""Credit methods by the ``type`` of their settings."""
