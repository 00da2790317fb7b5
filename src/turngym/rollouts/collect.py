"""Many episodes at once, and groups of attempts at one task."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from turngym.agents.policy import Policy
from turngym.environments.gym.hosts import AsyncEnv, InlineEnv, as_async
from turngym.errors import ConfigError, EnvironmentFault
from turngym.faults import Boundary, Tolerated, cancellations, message_of
from turngym.rollouts.episode import SELF_CANCELLED, AnyEnv, EpisodeSpec, faulted, rollout
from turngym.seeding import derive_seed
from turngym.tasks.base import Task
from turngym.types import StopReason, Trajectory, TrajectoryGroup

MakeEnv = Callable[[], AnyEnv]
OnEpisode = Callable[[Trajectory], None]
Play = Callable[[AnyEnv, Policy, EpisodeSpec], Awaitable[Trajectory]]

_CLOSE_S = 60.0
CALLS_PER_CORE = 8
"""Calls to environments in processes of their own that run at a time, for each core of the machine:
more would only make all of them slow, and some too slow for the limits that they stand under."""


def group_specs(env_id: str, task: Task, *, seed: int, group_size: int) -> list[EpisodeSpec]:
    """Return the attempts of one group: one environment seed, ``group_size`` policy seeds.

    Args:
        env_id: Name of the environment.
        task: The task all attempts share.
        seed: Root of the group's place in the seed tree.
        group_size: Number of attempts, 1 or more.
    """
    return [
        EpisodeSpec(
            env_id=env_id,
            task=task,
            env_seed=derive_seed(seed, task.id, "env"),
            policy_seed=derive_seed(seed, task.id, "policy", attempt),
            attempt=attempt,
        )
        for attempt in range(group_size)
    ]


async def collect(
    make_env: MakeEnv,
    policy: Policy,
    specs: Sequence[EpisodeSpec],
    *,
    concurrency: int,
    timeout_s: float | None = None,
    on_episode: OnEpisode | None = None,
    play: Play | None = None,
) -> list[Trajectory]:
    """Play all episodes, at most ``concurrency`` at a time, and return them in the order asked.

    Environments are made once per slot and used again. Those that wait for a browser, a sandbox or
    a desktop do so in threads, ``CALLS_PER_CORE`` beside each other on each core. An episode that
    breaks is returned with its ``error_*`` stop reason and holds up no other. Its environment is
    replaced, and so is one whose episode ran out of time, because a call may have been cut off in
    its middle.

    Args:
        make_env: Makes one environment; called at most ``concurrency`` times plus once per fault.
        policy: Who acts in all of them.
        specs: The episodes.
        concurrency: Episodes alive at once, 1 or more.
        timeout_s: Wall-clock limit of one episode in seconds.
        on_episode: Called after each episode, for progress.
        play: Plays one episode; ``rollout`` by default.

    Raises:
        ConfigError: ``concurrency`` is less than 1, or an environment or the policy refuses its
            settings.
    """
    if concurrency < 1:
        raise ConfigError(f"collect: concurrency must be at least 1, got {concurrency}")
    play = play or partial(rollout, timeout_s=timeout_s)
    results: list[Trajectory | None] = [None] * len(specs)
    todo = iter(enumerate(specs))
    turns = asyncio.Semaphore(CALLS_PER_CORE * (os.cpu_count() or 1))

    wanted = _Wanted()

    async def work() -> None:
        env: AnyEnv | None = None
        try:
            for index, spec in todo:
                try:
                    with Boundary("make", EnvironmentFault, ConfigError):
                        env = env if env is not None else _beside_others(make_env, turns)
                    trajectory = await wanted.unless_cancelled(play(env, policy, spec), spec)
                except EnvironmentFault as fault:
                    trajectory = faulted(spec, message_of(fault))
                results[index] = trajectory
                if on_episode is not None:
                    on_episode(trajectory)
                if env is not None and _must_replace(trajectory.stop_reason):
                    await _close(env)
                    env = None
        except BaseException:
            wanted.ends = True
            raise
        finally:
            if env is not None:
                await _close(env)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, len(specs))):
                group.create_task(work())
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None  # the others are the same, or come of it
    return [trajectory for trajectory in results if trajectory is not None]


class _Wanted:
    """Tells a cancellation of all episodes from one that an episode's own code asked for."""

    def __init__(self) -> None:
        self.ends = False
        """Whether an episode failed in a way that ends all."""
        self._caller = asyncio.current_task()
        self._before = cancellations()

    async def unless_cancelled(
        self, playing: Awaitable[Trajectory], spec: EpisodeSpec
    ) -> Trajectory:
        """Return what ``playing`` returns; a faulted episode when its code cancelled its task."""
        try:
            return await playing
        except asyncio.CancelledError:
            if self.ends or self._caller is None or self._caller.cancelling() > self._before:
                raise
            task = asyncio.current_task()
            while task is not None and task.cancelling():
                task.uncancel()
            return faulted(spec, SELF_CANCELLED)


def group_trajectories(trajectories: Sequence[Trajectory]) -> list[TrajectoryGroup]:
    """Return the groups among ``trajectories``, in order of first appearance."""
    groups: dict[tuple[str, str, int], list[Trajectory]] = {}
    for trajectory in trajectories:
        key = (trajectory.env_id, trajectory.task_id, trajectory.env_seed)
        groups.setdefault(key, []).append(trajectory)
    return [
        TrajectoryGroup(group_id=f"{task_id}@{seed:x}", trajectories=tuple(members))
        for (_, task_id, seed), members in groups.items()
    ]


class _Queued:
    """An environment that waits for something outside, whose calls begin when it is their turn."""

    def __init__(self, env: AsyncEnv, turns: asyncio.Semaphore) -> None:
        self._env = env
        self._turns = turns

    async def reset(self, **kwargs: Any) -> Any:
        async with self._turns:
            return await self._env.reset(**kwargs)

    async def step(self, action: str) -> Any:
        async with self._turns:
            return await self._env.step(action)

    async def close(self) -> None:
        await self._env.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)


def _beside_others(make_env: MakeEnv, turns: asyncio.Semaphore) -> AnyEnv:
    env = as_async(make_env)
    return env if isinstance(env, InlineEnv) else _Queued(env, turns)


def _must_replace(stop: StopReason) -> bool:
    return stop.is_error or stop is StopReason.TRUNCATED_TIME


async def _close(env: Any) -> None:
    with Tolerated("an environment did not close"):
        closing = env.close()
        if inspect.isawaitable(closing):
            async with asyncio.timeout(_CLOSE_S):
                await closing
