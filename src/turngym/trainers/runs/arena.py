"""Where episodes come from: which tasks serve which purpose, and how they are played.

The train split is cut in three, so that no number is measured on what was trained on:

    0 .. V-1            validation: when to stop
    V .. V+E-1          the expert's episodes
    V+E ..              reinforcement, fresh tasks at every step

The test split is played before and after training and decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import gymnasium

from turngym.agents.policy import Policy
from turngym.environments.gym.registration import make
from turngym.environments.gym.wrappers import ExpertMatch
from turngym.errors import TrainingError
from turngym.registry import find
from turngym.rollouts.collect import collect, group_specs
from turngym.rollouts.episode import EpisodeSpec
from turngym.rollouts.evaluation.evaluate import evaluate
from turngym.rollouts.scheduler.groups import GroupRequest, ReadyGroup
from turngym.seeding import derive_seed
from turngym.tasks.base import Task
from turngym.trainers.selection.past import as_ready_group
from turngym.trainers.selection.policy import TaskPool
from turngym.trainers.settings.train import TrainConfig
from turngym.types import Trajectory


class Arena:
    """Plays the episodes of one run. Every call is a function of its arguments.

    Args:
        config: The run's settings.

    Raises:
        UnknownNameError: There is no such environment.
        MissingExtraError: It needs something that is not installed.
    """

    def __init__(self, config: TrainConfig) -> None:
        self._config = config
        self.env_id = find(config.env.id).id
        self._catalogue = self.make_env()
        self._task = self._catalogue.get_wrapper_attr("task")
        self.instructions = self._read_instructions()

    def close(self) -> None:
        """Release the environment that names the tasks. Safe to call twice."""
        self._catalogue.close()

    def make_env(self) -> gymnasium.Env[Any, Any]:
        """Return a new environment."""
        env = make(self.env_id, **self._config.env.options)
        return ExpertMatch(env) if self._config.env.expert_match else env

    async def expert_episodes(self, policy: Policy, *, count: int) -> list[Trajectory]:
        """Play ``count`` tasks once each, for imitation.

        Raises:
            TrainingError: Too many episodes ended by an error.
        """
        first = self._config.evaluation.validation_tasks
        tasks = [self._train_task(first + i) for i in range(count)]
        return self._checked(
            await self._play(policy, tasks, seed=self._seed("expert")), "expert episodes"
        )

    @property
    def pool(self) -> TaskPool:
        """The tasks of reinforcement."""
        size, reserved = self._config.env.num_train_tasks, self._config.evaluation.validation_tasks
        first = reserved + self._config.warm_start.episodes
        return TaskPool(
            task=lambda place: self._train_task(first + place),
            size=None if size is None else size - reserved,
        )

    async def groups(self, policy: Policy, orders: Mapping[int, GroupRequest]) -> list[ReadyGroup]:
        """Play groups, all of them at once.

        Args:
            policy: Who acts.
            orders: What to play, by the group's running number.

        Raises:
            TrainingError: Too many episodes ended by an error.
        """
        rollout = self._config.rollout
        specs = [self._group_specs(index, order) for index, order in orders.items()]
        trajectories = await collect(
            self.make_env,
            policy,
            [spec for group in specs for spec in group],
            concurrency=rollout.concurrency,
            timeout_s=rollout.timeout_s,
        )
        step = min(orders, default=0) // rollout.groups_per_step
        left = iter(self._checked(trajectories, f"step {step}"))
        return [
            as_ready_group(index, order, [next(left) for _ in range(order.size)])
            for index, order in orders.items()
        ]

    def _group_specs(self, index: int, order: GroupRequest) -> list[EpisodeSpec]:
        step, place = divmod(index, self._config.rollout.groups_per_step)
        specs = group_specs(
            self.env_id,
            order.task,
            seed=self._seed("train", step, place),
            group_size=order.size,
        )
        if order.env_seed is None:
            return specs
        return [replace(spec, env_seed=order.env_seed) for spec in specs]

    async def validation_episodes(self, policy: Policy, *purpose: str | int) -> list[Trajectory]:
        """Play the validation tasks once each; ``purpose`` seeds the draws."""
        count = self._config.evaluation.validation_tasks
        tasks = [self._task("train", i) for i in range(count)]
        return await self._play(policy, tasks, seed=self._seed("validation", *purpose))

    async def held_out_episodes(self, policy: Policy) -> list[Trajectory]:
        """Play the held-out tasks once each, with the same draws at every call."""
        count = self._config.evaluation.held_out_tasks
        tasks = [self._task("test", i) for i in range(count)]
        return await self._play(policy, tasks, seed=self._seed("held_out"))

    async def _play(self, policy: Policy, tasks: Sequence[Task], *, seed: int) -> list[Trajectory]:
        rollout = self._config.rollout
        return await evaluate(
            self.make_env,
            policy,
            tasks,
            env_id=self.env_id,
            seed=seed,
            concurrency=rollout.concurrency,
            timeout_s=rollout.timeout_s,
        )

    def _checked(self, trajectories: list[Trajectory], where: str) -> list[Trajectory]:
        errors = [t.error for t in trajectories if t.stop_reason.is_error]
        limit = self._config.rollout.max_fault_fraction
        if len(errors) > limit * len(trajectories):
            raise TrainingError(
                f"{where}: {len(errors)} of {len(trajectories)} episodes ended by an error, more "
                f"than rollout.max_fault_fraction={limit:g} allows. First: {errors[0]}"
            )
        return trajectories

    def _train_task(self, index: int) -> Task:
        """Return train task ``index``; a finite set comes round again after the reserved ones."""
        size, reserved = self._config.env.num_train_tasks, self._config.evaluation.validation_tasks
        if size is not None:
            index = reserved + (index - reserved) % (size - reserved)
        task: Task = self._task("train", index)
        return task

    def _seed(self, *path: str | int) -> int:
        return derive_seed(self._config.run.seed, *path)

    def _read_instructions(self) -> str | None:
        if not self._config.agent.instructions:
            return None
        _, info = self._catalogue.reset(seed=0, options={"task": self._task("train", 0)})
        return str(info.get("instructions", ""))
