"""Learning while episodes go on: a scheduler plays, a thread learns, weights change under way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from turngym.errors import RecordError, TrainingError
from turngym.rollouts.scheduler.config import (
    FailureConfig,
    GroupConfig,
    SchedulerConfig,
    check_schedule,
)
from turngym.rollouts.scheduler.groups import FilterDecision, GroupRequest, ReadyGroup
from turngym.rollouts.scheduler.ledger import LEDGER_FILE, Ledger
from turngym.rollouts.scheduler.pool import EnvPool
from turngym.rollouts.scheduler.scheduler import RolloutScheduler
from turngym.seeding import derive_seed
from turngym.tasks.base import Task
from turngym.trainers.beside import Uncut, Work
from turngym.trainers.credit.base import Credit
from turngym.trainers.runs.feed import Batch, Feed, Load, SyncFeed, Update
from turngym.trainers.runs.run import Run
from turngym.trainers.selection.batches import chosen
from turngym.trainers.selection.policy import DataSelection
from turngym.trainers.settings.selection import FixedBudget
from turngym.trainers.settings.train import RolloutConfig, TrainConfig
from turngym.types import TrajectoryGroup


@asynccontextmanager
async def open_feed(run: Run) -> AsyncIterator[Feed]:
    """Yield where a run's updates get their groups from; what it opened is closed afterwards."""
    config, arena = run.config, run.arena
    if config.rollout.mode == "sync":
        yield SyncFeed(config, arena, run.sampled, run.selection, run.state)
        return
    async with AsyncExitStack() as stack:
        ledger = Ledger(run.folder.path / LEDGER_FILE, manifest=run.folder.manifest)
        stack.push_async_callback(ledger.close)
        if run.state.step > 0 and ledger.is_empty:
            raise RecordError(
                f"{ledger.path}: is empty, but the checkpoint is of update {run.state.step}; "
                "restore it and what lies beside it from a copy"
            )
        watched = Watched(run.selection, group_size=largest_group(config))
        scheduler = RolloutScheduler(
            EnvPool(
                arena.make_env,
                size=config.rollout.concurrency,
                isolation=config.rollout.isolation,
            ),
            run.sampled,
            watched,
            schedule_of(config.rollout),
            env_id=arena.env_id,
            seed=derive_seed(config.run.seed, "train"),
            version=run.state.step,
            ledger=ledger,
        )
        await stack.enter_async_context(scheduler)
        yield OverlappedFeed(scheduler, watched)


def check_overlap(config: TrainConfig) -> None:
    """Make sure that an overlapped run can make progress.

    Raises:
        ConfigError: It cannot; the message names the inequality that fails.
    """
    if config.rollout.mode == "overlap":
        check_schedule(schedule_of(config.rollout), largest_group(config))


def schedule_of(rollout: RolloutConfig) -> SchedulerConfig:
    """Return what the scheduler is told of the settings of a run."""
    return SchedulerConfig.model_validate(
        {
            "concurrency": rollout.concurrency,
            "groups_per_step": rollout.groups_per_step,
            "admission": {"type": rollout.admission, "staleness": rollout.staleness},
            "stale": rollout.stale,
            "interruption": rollout.interruption,
            "group": GroupConfig(late="drop"),
            "failures": FailureConfig(fraction=rollout.max_fault_fraction),
            "episode_timeout_s": rollout.timeout_s,
        }
    )


def largest_group(config: TrainConfig) -> int:
    """Return the most attempts that any group of the run can have."""
    budget = config.selection.budget
    return config.rollout.group_size if isinstance(budget, FixedBudget) else budget.most


class Watched:
    """A ``Selection`` that remembers what was played for the next batch.

    Args:
        selection: Chooses and judges.
        group_size: Most attempts of a group, from which the scheduler sees whether they fit.
    """

    def __init__(self, selection: DataSelection, *, group_size: int) -> None:
        self.group_size = group_size
        self._selection = selection
        self._played: list[TrajectoryGroup] = []

    def propose(self, index: int) -> Task | None:
        """Return the task of group number ``index``."""
        return self._selection.propose(index)

    def allocate(self, index: int, task: Task) -> GroupRequest:
        """Return how ``task`` is played."""
        return self._selection.allocate(index, task)

    def observe(self, group: ReadyGroup) -> None:
        """Take a closed group down."""
        self._played.append(group.group)
        self._selection.observe(group)

    def admit(self, group: ReadyGroup) -> FilterDecision:
        """Return whether ``group`` is trained on."""
        return self._selection.admit(group)

    def replay(self, step: int, groups: Sequence[ReadyGroup]) -> Sequence[ReadyGroup]:
        """Return attempts of the past to train on besides."""
        return self._selection.replay(step, groups)

    def state(self) -> dict[str, Any]:
        """Return what the selection learned."""
        return self._selection.state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state`` returned."""
        self._selection.load_state(state)

    def taken(self) -> tuple[TrajectoryGroup, ...]:
        """Return the groups that closed since the last call."""
        played, self._played = self._played, []
        return tuple(played)

    def metrics(self) -> dict[str, float]:
        """Return ``selection/*`` since the last call."""
        return self._selection.metrics()


class OverlappedFeed:
    """Batches of a scheduler that goes on playing while they are trained on.

    Args:
        scheduler: Open.
        selection: Its selection.
    """

    def __init__(self, scheduler: RolloutScheduler, selection: Watched) -> None:
        self._scheduler = scheduler
        self._selection = selection
        self._uncut = Uncut()

    async def take(self, step: int) -> Batch:
        """Return the groups that update number ``step`` trains on, as soon as there are enough.

        Raises:
            TrainingError: Too many episodes ended by an error, or there is nothing left to play.
        """
        found = await self._scheduler.take()
        if found is None:
            raise TrainingError(f"update {step}: the selection has no task left to play")
        played = self._selection.taken()
        if found.replayed:  # composed before a crash, when its groups were counted for nobody
            played = (*played, *(group.group for group in found.groups))
        return Batch(
            chosen=chosen(found.groups, found.extra),
            played=played,
            metrics=self._scheduler.metrics() | self._selection.metrics(),
        )

    async def assign(self, credit: Work[Credit]) -> Credit:
        """Return what ``credit`` returns; it is never cut off, just as an update."""
        return await self._uncut(credit())

    async def train(self, update: Update) -> dict[str, float]:
        """Run ``update`` in a thread while episodes go on, and return what it returns.

        An update that has begun is never cut off: a cancellation waits until it is published.
        """
        return await self._uncut(asyncio.to_thread(update))

    async def publish(self, version: int, load: Load) -> None:
        """Put the weights of ``version`` into the engine, as ``rollout.interruption`` says."""
        self._uncut.check()
        await self._scheduler.publish(version, load)

    def mark_checkpointed(self, version: int) -> None:
        """Note in the ledger that the weights of ``version`` are in a checkpoint."""
        self._scheduler.mark_checkpointed(version)
