"""Given episodes, played by the scheduler as one step that is not trained on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from turngym.agents.policy import Policy
from turngym.environments.gym.hosts import Isolation
from turngym.errors import ConfigError
from turngym.rollouts.episode import AnyEnv, EpisodeSpec, KeepPicture
from turngym.rollouts.scheduler.config import (
    DeadlineConfig,
    FailureConfig,
    RetryConfig,
    SchedulerConfig,
)
from turngym.rollouts.scheduler.groups import GroupRequest, SampleKey, UniformSelection
from turngym.rollouts.scheduler.pool import EnvPool, calls_at_once
from turngym.rollouts.scheduler.scheduler import RolloutScheduler
from turngym.tasks.base import Task
from turngym.types import Trajectory

MakeEnv = Callable[[], AnyEnv]
OnEpisode = Callable[[Trajectory, float], None]
"""Called with an episode that ended, and the seconds that it took."""


async def collect(
    make_env: MakeEnv | Mapping[str, MakeEnv],
    policy: Policy,
    specs: Sequence[EpisodeSpec],
    *,
    concurrency: int,
    timeout_s: float | None = None,
    failures: FailureConfig | None = None,
    deadlines: DeadlineConfig | None = None,
    isolation: Isolation = "inline",
    calls: int | None = None,
    on_episode: OnEpisode | None = None,
    keep_picture: KeepPicture | None = None,
) -> list[Trajectory]:
    """Play all episodes, at most ``concurrency`` at a time, and return them in the order asked.

    Environments are made once per slot and used again. An episode that breaks is returned with its
    ``error_*`` stop reason and holds up no other. Its environment is replaced, and so is one whose
    episode ran out of time, because a call may have been cancelled in its middle.

    Args:
        make_env: Makes one environment; called at most ``concurrency`` times plus once per fault.
            Several by environment id where the episodes name theirs.
        policy: Acts in all of them.
        specs: The episodes.
        concurrency: Episodes alive at once, 1 or more.
        timeout_s: Wall-clock limit of one episode in seconds.
        failures: When there are too many faults to go on; None for never.
        deadlines: Seconds that one call may take; None for no limits.
        isolation: Where environments run, as for ``EnvPool``.
        calls: Calls to environments that wait for something outside, at a time; see
            ``calls_at_once``.
        on_episode: Called after each episode, with the seconds that it took.
        keep_picture: Keeps the ``image`` of each observation.

    Raises:
        ConfigError: ``concurrency`` is less than 1, or an environment or the policy refuses its
            settings.
        TooManyFaults: More episodes broke than ``failures`` allows.
    """
    if concurrency < 1:
        raise ConfigError(f"collect: concurrency must be at least 1, got {concurrency}")
    if not specs:
        return []
    found: dict[int, Trajectory] = {}

    def ended(key: SampleKey, trajectory: Trajectory, seconds: float) -> None:
        found[key.group] = trajectory
        if on_episode is not None:
            on_episode(trajectory, seconds)

    makers = make_env if isinstance(make_env, Mapping) else {specs[0].env_id: make_env}
    deadlines, turns = deadlines or DeadlineConfig(), calls_at_once(calls)
    pools = {
        env_id: _LazyPool(
            make, size=concurrency, isolation=isolation, deadlines=deadlines, calls=turns
        )
        for env_id, make in makers.items()
    }
    config = SchedulerConfig(
        concurrency=concurrency,
        groups_per_step=len(specs),
        retry=RetryConfig(max_tries=1),
        failures=failures or FailureConfig(fraction=1.0),
        timeout_s=timeout_s,
        deadlines=deadlines,
        watchdog_s=None,
    )
    async with RolloutScheduler(
        pools,
        policy,
        _Given(specs),
        config,
        env_id=specs[0].env_id,
        seed=0,
        on_episode=ended,
        keep_picture=keep_picture,
    ) as scheduler:
        await scheduler.take()
    return [found[number] for number in range(len(specs))]


class _LazyPool(EnvPool):
    async def open(self) -> None:
        """Make nothing yet: an environment that cannot be made costs its episode only."""


class _Given(UniformSelection):
    """Each of the given episodes as a group of one."""

    def __init__(self, specs: Sequence[EpisodeSpec]) -> None:
        super().__init__(lambda index: specs[index].task, group_size=1, count=len(specs))
        self._specs = specs

    def allocate(self, index: int, task: Task) -> GroupRequest:
        """Return the episode's group."""
        return GroupRequest(task=task, size=1, episodes=(self._specs[index],))
