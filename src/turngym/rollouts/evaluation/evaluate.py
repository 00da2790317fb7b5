"""Play held-out tasks with a policy and say how well it did, with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np

from turngym.agents.policy import Policy
from turngym.rollouts.collect import MakeEnv, collect
from turngym.rollouts.episode import group_specs
from turngym.rollouts.evaluation.intervals import Interval, mean_interval, wilson_interval
from turngym.rollouts.scheduler.config import FailureConfig
from turngym.tasks.base import Task
from turngym.types import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What a set of episodes says about a policy.

    Episodes that broke (``faults``) and episodes that could not be judged (``unscored``) are not
    failures: they are left out of ``success``, and the first also out of the means.
    """

    episodes: int
    """Episodes played, whatever became of them."""
    faults: int
    """Episodes that ended by an error of the environment, the policy or the reward."""
    unscored: int
    """Episodes without a fault whose success could not be judged."""
    solved: int
    success: float | None
    """Solved share of the judged episodes, in [0, 1]; None when none was judged."""
    success_ci95: Interval | None
    """95 % Wilson score interval of ``success``."""
    mean_score: float | None
    """Mean partial success in [0, 1] of the judged episodes."""
    mean_return: float | None
    mean_return_ci95: Interval | None
    """95 % bootstrap interval; None with fewer than two episodes."""
    mean_turns: float | None
    truncated: int
    """Episodes that a limit cut off."""
    invalid_actions: int
    """Actions that could not be carried out, over all episodes."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values; an interval is a list of two numbers."""
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in asdict(self).items()
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Return what ``to_json`` described."""
        fields: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in content.items()
        }
        return cls(**fields)


def summarize(trajectories: Sequence[Trajectory]) -> Evaluation:
    """Return what ``trajectories`` say about the policy that played them."""
    usable = [t for t in trajectories if not t.stop_reason.is_error]
    scores = [t.score for t in usable if t.score is not None]
    returns = [t.episode_return for t in usable]
    solved = sum(t.is_success for t in usable)
    return Evaluation(
        episodes=len(trajectories),
        faults=len(trajectories) - len(usable),
        unscored=len(usable) - len(scores),
        solved=solved,
        success=solved / len(scores) if scores else None,
        success_ci95=wilson_interval(solved, len(scores)) if scores else None,
        mean_score=float(np.mean(scores)) if scores else None,
        mean_return=float(np.mean(returns)) if returns else None,
        mean_return_ci95=mean_interval(returns),
        mean_turns=float(np.mean([len(t.turns) for t in usable])) if usable else None,
        truncated=sum(t.stop_reason.is_truncated for t in usable),
        invalid_actions=sum(turn.invalid_action is not None for t in usable for turn in t.turns),
    )


async def evaluate(
    make_env: MakeEnv | Mapping[str, MakeEnv],
    policy: Policy,
    tasks: Sequence[Task],
    *,
    env_id: str,
    seed: int,
    concurrency: int = 1,
    attempts: int = 1,
    timeout_s: float | None = None,
    failures: FailureConfig | None = None,
) -> list[Trajectory]:
    """Play every task ``attempts`` times; ``summarize`` turns the result into numbers.

    Args:
        make_env: Makes one environment; several by id where the tasks name theirs.
        policy: Who acts.
        tasks: What is asked; attempts at one task share the environment seed.
        env_id: Name of the environment, kept in the trajectories.
        seed: Root of this evaluation's place in the seed tree.
        concurrency: Episodes alive at once, 1 or more. No result depends on it.
        attempts: Episodes per task, 1 or more.
        timeout_s: Wall-clock limit of one episode in seconds.
        failures: When there are too many faults to go on; None for never.

    Returns:
        The trajectories in the order of ``tasks``, attempts of one task together.
    """
    specs = [
        spec for task in tasks for spec in group_specs(env_id, task, seed=seed, group_size=attempts)
    ]
    return await collect(
        make_env, policy, specs, concurrency=concurrency, timeout_s=timeout_s, failures=failures
    )
