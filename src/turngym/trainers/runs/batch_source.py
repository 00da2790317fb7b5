"""Where an update gets its groups from: the scheduler, in turns with it or ahead of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from turngym.agents.policy import Policy
from turngym.errors import RecordError, TrainingError
from turngym.records import Manifest
from turngym.rollouts.scheduler.groups import FilterDecision, GroupRequest, ReadyGroup
from turngym.rollouts.scheduler.ledger import LEDGER_FILE, Ledger
from turngym.rollouts.scheduler.metrics import SchedulerMetrics
from turngym.rollouts.scheduler.pool import EnvPool, calls_at_once
from turngym.rollouts.scheduler.scheduler import RolloutScheduler
from turngym.tasks.base import Task
from turngym.tracing import traced
from turngym.trainers.credit.base import Credit
from turngym.trainers.runs.episode_runner import EpisodeRunner
from turngym.trainers.runs.run import Run
from turngym.trainers.runs.run_log import rollout_metrics
from turngym.trainers.selection.batches import Chosen, chosen
from turngym.trainers.selection.policy import DataSelection
from turngym.trainers.settings.train import TrainConfig
from turngym.types import TrajectoryGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one update is made of, and what was played for it."""

    chosen: Chosen
    played: tuple[TrajectoryGroup, ...]
    """Groups that closed since the last batch, dropped ones included."""
    faults: Mapping[str, int] = field(default_factory=dict)
    """Tries since the last batch that ended by a fault, by stop reason."""
    metrics: Mapping[str, float] = field(default_factory=dict)


def step_metrics(batch: Batch, credit: Credit) -> dict[str, float]:
    """Return what is logged of a step's episodes: ``rollout/*``, ``credit/*``, ``selection/*``."""
    found = rollout_metrics(batch.played, credit, chosen=len(batch.chosen.groups))
    found |= {f"rollout/dropped_{reason}": float(n) for reason, n in batch.faults.items()}
    found["rollout/faults"] = float(sum(batch.faults.values()))
    return found | dict(batch.metrics)


class RecordingSelection:
    """A ``Selection`` that remembers what closed for the next batch.

    What closed is observed when a batch is composed, in the order in which groups began: so what is
    learned of it does not depend on speed.

    Args:
        selection: Chooses and judges.
        group_size: Most episodes of a group, from which the scheduler sees whether they fit.
        most: Groups that may begin between two batches, ``filter.max_rounds`` of them; then the
            batch is what there is.
    """

    def __init__(self, selection: DataSelection, *, group_size: int, most: int) -> None:
        self.group_size = group_size
        self._selection = selection
        self._most = most
        self._begun = 0
        self._closed: list[ReadyGroup] = []
        self._played: list[ReadyGroup] = []

    @property
    def is_spent(self) -> bool:
        """Whether no more groups may begin for the next batch."""
        return self._begun >= self._most

    def propose(self, index: int) -> Task | None:
        """Return the task of group number ``index``; None when the rounds are spent."""
        return None if self.is_spent else self._selection.propose(index)

    def allocate(self, index: int, task: Task) -> GroupRequest:
        """Return how ``task`` is played."""
        self._begun += 1
        return self._selection.allocate(index, task)

    def observe(self, group: ReadyGroup) -> None:
        """Record a closed group."""
        self._closed.append(group)

    def admit(self, group: ReadyGroup) -> FilterDecision:
        """Return whether ``group`` is trained on."""
        return self._selection.admit(group)

    def replay(self, step: int, groups: Sequence[ReadyGroup]) -> Sequence[ReadyGroup]:
        """Return attempts of the past to train on besides."""
        self._observe_closed()
        return self._selection.replay(step, groups)

    def state(self) -> dict[str, Any]:
        """Return what the selection learned."""
        return self._selection.state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state`` returned."""
        self._selection.load_state(state)

    def taken(self) -> tuple[ReadyGroup, ...]:
        """Return the groups that closed since the last call, and allow new rounds."""
        self._observe_closed()
        played, self._played, self._begun = self._played, [], 0
        return tuple(played)

    def metrics(self) -> dict[str, float]:
        """Return ``selection/*`` since the last call."""
        return self._selection.metrics()

    def _observe_closed(self) -> None:
        for group in sorted(self._closed, key=lambda group: group.index):
            self._selection.observe(group)
            self._played.append(group)
        self._closed = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What one scheduler gives for one update, and what happened since the last one."""

    groups: tuple[ReadyGroup, ...]
    extra: tuple[ReadyGroup, ...]
    played: tuple[ReadyGroup, ...]
    """Groups that closed, dropped ones included."""
    is_over: bool
    """The selection has no task left to play, and nothing came of it."""
    faults: Counter[str]
    next_index: int
    counts: Mapping[str, float]
    """Of ``RolloutScheduler.counts``."""
    stats: SchedulerMetrics
    selection: Mapping[str, float]
    """Metrics of the selection."""


class GroupSource:
    """What a scheduler and its selection have for one update after another.

    Args:
        scheduler: Open.
        selection: Its selection.
    """

    def __init__(self, scheduler: RolloutScheduler, selection: RecordingSelection) -> None:
        self.scheduler = scheduler
        self._selection = selection
        self._faults: Counter[str] = Counter()

    async def take(self) -> Taken:
        """Return the next groups to train on, as soon as there are enough.

        Raises:
            TrainingError: Too many episodes ended by an error.
        """
        found = await self.scheduler.take()
        is_over = found is None and not self._selection.is_spent
        groups, extra = ((), ()) if found is None else (found.groups, found.extra)
        played = self._selection.taken()
        if found is not None and found.replayed:  # its groups were counted for no one
            played = (*played, *groups)
        faults = Counter(self.scheduler.stats.faults) - self._faults
        self._faults += faults
        return Taken(
            groups=groups,
            extra=extra,
            played=played,
            is_over=is_over,
            faults=faults,
            next_index=self.scheduler.next_index,
            counts=self.scheduler.counts(),
            stats=self.scheduler.stats,
            selection=self._selection.metrics(),
        )


def joined(run: Run, step: int, parts: Sequence[Taken]) -> Batch:
    """Return what update number ``step`` trains on, in the order of the groups' numbers.

    Args:
        run: The run; its state counts the groups that were begun.
        step: The update.
        parts: What each of its schedulers gives.

    Raises:
        TrainingError: One of them has nothing left to play.
    """
    if any(part.is_over for part in parts):
        raise TrainingError(f"update {step}: the selection has no task left to play")
    run.state.groups = max(part.next_index for part in parts)
    measured: dict[str, float] = {}
    if run.config.rollout.mode == "overlap":
        stats = [part.stats for part in parts]
        whole = stats[0] if len(stats) == 1 else SchedulerMetrics.merged(stats)
        measured = _sums(part.counts for part in parts)
        measured["sched/version"] = float(step)
        measured |= whole.metrics(asyncio.get_running_loop().time())
    groups = sorted((g for part in parts for g in part.groups), key=lambda group: group.index)
    extra = [group for part in parts for group in part.extra]
    return Batch(
        chosen=chosen(groups, extra),
        played=tuple(group.group for part in parts for group in part.played),
        faults=sum((part.faults for part in parts), Counter[str]()),
        metrics=measured | _sums(part.selection for part in parts),
    )


def _sums(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            found[name] = found.get(name, 0.0) + value
    return found


class BatchSource(Protocol):
    """Batches of groups for a run. ``take`` and ``publishing`` alternate."""

    async def take(self, step: int) -> Batch:
        """Return the groups that update number ``step`` trains on, as soon as there are enough.

        Dropped groups are replaced, for ``filter.max_rounds`` rounds at most.

        Raises:
            TrainingError: Too many episodes ended by an error, or there is nothing left to play.
        """

    def publishing(self, version: int) -> AbstractAsyncContextManager[None]:
        """Return the context in which the weights of ``version`` are put into the engine."""

    def mark_checkpointed(self, version: int) -> None:
        """Note in the ledger that the weights of ``version`` are in a checkpoint."""


class _OwnBatches:
    """Batches from a scheduler in this process."""

    def __init__(self, run: Run, source: GroupSource) -> None:
        self._run = run
        self._source = source

    @traced("rollout")
    async def take(self, step: int) -> Batch:
        return joined(self._run, step, [await self._source.take()])

    def publishing(self, version: int) -> AbstractAsyncContextManager[None]:
        return self._source.scheduler.publishing(version)

    def mark_checkpointed(self, version: int) -> None:
        self._source.scheduler.mark_checkpointed(version)


@asynccontextmanager
async def open_batches(run: Run) -> AsyncIterator[BatchSource]:
    """Yield the batches of a run; what was opened for them is closed afterwards.

    In turns with the updates there is no ledger: nothing runs when a checkpoint is written.

    Raises:
        RecordError: The ledger is empty, but the run has a checkpoint.
    """
    config, folder = run.config, run.folder
    async with AsyncExitStack() as stack:
        if config.rollout.coordinators > 1:
            from turngym.trainers.runs.coordinators import SplitBatches

            split = SplitBatches(run)
            stack.push_async_callback(split.close)
            yield split
            return
        ledger = None
        if config.rollout.mode == "overlap":
            ledger = open_ledger(folder.path, folder.manifest, run.state.step)
            stack.push_async_callback(ledger.close)
        source = await stack.enter_async_context(
            open_source(
                config,
                run.runner,
                run.selection,
                run.sampled,
                ledger=ledger,
                version=run.state.step,
                first_group=0 if ledger is not None else run.state.groups,
            )
        )
        yield _OwnBatches(run, source)


def open_ledger(folder: Path, manifest: Manifest, version: int) -> Ledger:
    """Return the ledger in ``folder`` for a run whose weights are at ``version``.

    Args:
        folder: Holds it, or will.
        manifest: Of the folder.
        version: Updates done.

    Raises:
        ConfigError: Another process has it open.
        RecordError: It is damaged, or empty although there were updates.
    """
    ledger = Ledger(folder / LEDGER_FILE, manifest=manifest)
    if version > 0 and ledger.is_empty:
        ledger.abandon()
        raise RecordError(
            f"{ledger.path}: is empty, but the checkpoint is of update {version}; "
            "restore it and what lies beside it from a copy"
        )
    return ledger


@asynccontextmanager
async def open_source(
    config: TrainConfig,
    runner: EpisodeRunner,
    selection: DataSelection,
    policy: Policy,
    *,
    ledger: Ledger | None,
    version: int,
    first_group: int = 0,
    number: int = 0,
) -> AsyncIterator[GroupSource]:
    """Yield what the groups of a run come from, or those of one of its coordinators.

    Args:
        config: Of the run.
        runner: Knows its environments.
        selection: Chooses its tasks.
        policy: Acts.
        ledger: Accounts for the episodes; owned by the caller.
        version: Version of the policy's weights now.
        first_group: Running number of the first group.
        number: Of the coordinator.
    """
    count = config.rollout.coordinators
    schedule = config.rollout.share(number)
    rounds = config.selection.filter.max_rounds + schedule.admission.staleness
    recording = RecordingSelection(
        selection, group_size=config.largest_group, most=rounds * schedule.groups_started
    )
    calls = calls_at_once(config.rollout.calls_at_once, among=count)
    pools = {
        env_id: EnvPool(
            make_env,
            size=schedule.concurrency,
            isolation=runner.place,
            deadlines=schedule.deadlines,
            calls=calls,
        )
        for env_id, make_env in runner.make_env.items()
    }
    async with RolloutScheduler(
        pools,
        policy,
        recording,
        schedule,
        env_id=runner.env_id,
        seed=config.run.seed,
        version=version,
        first_group=first_group + number,
        stride=count,
        ledger=ledger,
    ) as scheduler:
        yield GroupSource(scheduler, recording)
