"""Play held-out tasks with a policy, make a row of each episode, and say how well it did."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from turngym.agents.policy import Policy
from turngym.environments.gym.hosts import Isolation
from turngym.rollouts.collect import MakeEnv, collect
from turngym.rollouts.episode import EpisodeSpec, group_specs
from turngym.rollouts.evaluation.folder import EvalFolder
from turngym.rollouts.evaluation.rows import EpisodeRow, row_of
from turngym.rollouts.scheduler.config import DeadlineConfig, FailureConfig
from turngym.tasks.base import Task
from turngym.types import Trajectory


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
