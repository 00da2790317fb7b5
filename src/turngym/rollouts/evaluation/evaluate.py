"""Play held-out tasks with a policy, make a row of each episode, and say how well it did."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np

from turngym.agents.policy import Policy
from turngym.environments.gym.hosts import Isolation
from turngym.rollouts.collect import MakeEnv, collect
from turngym.rollouts.episode import EpisodeSpec, group_specs
from turngym.rollouts.evaluation.folder import EvalFolder
from turngym.rollouts.evaluation.intervals import Interval, mean_interval, wilson_interval
from turngym.rollouts.evaluation.rows import EpisodeRow, row_of
from turngym.rollouts.scheduler.config import DeadlineConfig, FailureConfig
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
    deadlines: DeadlineConfig | None = None,
    isolation: Isolation = "inline",
    calls: int | None = None,
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
        deadlines: Seconds that one call may take; None for no limits.
        isolation: Where environments run, as for ``EnvPool``.
        calls: Calls to environments that wait for something outside, at a time; as for ``collect``.

    Returns:
        The trajectories in the order of ``tasks``, attempts of one task together.
    """
    specs = [
        spec for task in tasks for spec in group_specs(env_id, task, seed=seed, group_size=attempts)
    ]
    return await collect(
        make_env,
        policy,
        specs,
        concurrency=concurrency,
        timeout_s=timeout_s,
        failures=failures,
        deadlines=deadlines,
        isolation=isolation,
        calls=calls,
    )


OnRow = Callable[[EpisodeRow, Trajectory], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalJob:
    """The episodes of one environment: every task, some attempts at each."""

    env: str
    """Short name."""
    env_id: str
    make_env: MakeEnv
    tasks: Sequence[Task]
    seed: int
    """Root of the evaluation's place in the seed tree."""
    attempts: int = 1
    """Attempts at one task share the environment seed and differ in the policy seed."""
    concurrency: int = 1
    """Episodes alive at once. No result depends on it."""
    timeout_s: float | None = None
    """Wall-clock limit of one episode in seconds."""

    def specs(self) -> list[EpisodeSpec]:
        """Return the episodes in order, attempts at one task together."""
        return [
            spec
            for task in self.tasks
            for spec in group_specs(self.env_id, task, seed=self.seed, group_size=self.attempts)
        ]


async def play_job(
    job: EvalJob, policy: Policy, *, folder: EvalFolder | None = None, on_row: OnRow | None = None
) -> list[EpisodeRow]:
    """Play what ``folder`` does not hold yet, keep it there, and return all rows in order.

    Args:
        job: The episodes.
        policy: Who acts.
        folder: Where episodes are kept; None keeps rows only.
        on_row: Called after each episode that is played, for progress.

    Raises:
        ConfigError: Environment or policy refuse their settings, or the folder holds episodes of
            other tasks.
        OSError: An episode could not be kept.
    """
    if folder is not None:
        folder.check_tasks(job.env, job.tasks)
    rows = {} if folder is None else dict(folder.rows)

    def keep(trajectory: Trajectory, seconds: float) -> None:
        row = row_of(trajectory, env=job.env, seconds=seconds)
        rows[row.key] = row
        if folder is not None:
            folder.add(row, trajectory)
        if on_row is not None:
            on_row(row, trajectory)

    keys = {(job.env, spec.task.id, spec.attempt): spec for spec in job.specs()}
    todo = [spec for key, spec in keys.items() if key not in rows]
    await collect(
        job.make_env,
        policy,
        todo,
        concurrency=job.concurrency,
        timeout_s=job.timeout_s,
        on_episode=keep,
        keep_picture=None if folder is None else folder.pictures,
    )
    return [rows[key] for key in keys]
