"""What schedulers have for each update, in the process of the trainer or in others.

Nothing here or below imports torch: a process that only plays does without.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from turngym.agents.policy import Policy
from turngym.errors import RecordError, TrainingError
from turngym.records import Manifest
from turngym.rollouts.players import by_player, groups_by_player
from turngym.rollouts.scheduler.groups import (
    FilterDecision,
    GroupRequest,
    Member,
    ReadyGroup,
    UniformSelection,
)
from turngym.rollouts.scheduler.ledger import LEDGER_FILE, Ledger
from turngym.rollouts.scheduler.metrics import SchedulerMetrics
from turngym.rollouts.scheduler.pool import EnvPool, calls_at_once
from turngym.rollouts.scheduler.scheduler import RolloutScheduler
from turngym.tasks.base import Task
from turngym.trainers.runs.episode_runner import EpisodeRunner
from turngym.trainers.selection.past import IMITATED, as_context
from turngym.trainers.selection.policy import DataSelection
from turngym.trainers.settings.train import TrainConfig
from turngym.types import Trajectory, TrajectoryGroup


class RecordingSelection:
    """A ``Selection`` that remembers what closed for the next batch.

    What closed is observed when a batch is composed, in the order in which groups began: so what is
    learned of it does not depend on speed.

    Args:
        selection: Chooses and judges.
        group_size: Fewest episodes of a group, from which the scheduler sees whether a quorum fits.
        most: Groups that may begin between two batches, ``filter.max_rounds`` of them; then the
            batch is what there is.
        first: Number of the first group since the last batch, which an earlier process may have
            begun; None for the first that is asked for.
        stride: What numbers of groups differ by.
        counted: Groups that an earlier process left, and recorded.
    """

    def __init__(
        self,
        selection: DataSelection | UniformSelection,
        *,
        group_size: int,
        most: int,
        first: int | None = None,
        stride: int = 1,
        counted: Collection[int] = (),
    ) -> None:
        self.group_size = group_size
        self._counted = frozenset(counted)
        self._selection = selection
        self._span = most * stride
        self._first, self._next = first, first or 0
        self._closed: list[ReadyGroup] = []
        self._played: list[ReadyGroup] = []

    @property
    def is_spent(self) -> bool:
        """Whether no more groups may begin for the next batch."""
        return self._first is not None and self._next >= self._first + self._span

    def propose(self, index: int) -> Task | None:
        """Return the task of group number ``index``; None when the rounds are spent."""
        self._next = index
        if self._first is None:
            self._first = index
        return None if self.is_spent else self._selection.propose(index)

    def allocate(self, index: int, task: Task) -> GroupRequest:
        """Return how ``task`` is played."""
        return self._selection.allocate(index, task)

    def observe(self, group: ReadyGroup) -> None:
        """Record a closed group."""
        if group.index not in self._counted:
            self._closed.append(group)

    def admit(self, group: ReadyGroup) -> FilterDecision:
        """Return whether ``group`` is trained on."""
        return self._selection.admit(group)

    def replay(self, step: int, groups: Sequence[ReadyGroup]) -> Sequence[ReadyGroup]:
        """Return attempts of the past to train on besides."""
        self._observe_closed()
        return self._selection.replay(step, groups)

    def taken(self, next_index: int) -> tuple[ReadyGroup, ...]:
        """Return the groups that closed since the last call, and allow new rounds.

        Args:
            next_index: Number of the next group.
        """
        self._observe_closed()
        played, self._played = self._played, []
        self._first = self._next = next_index
        return tuple(played)

    def metrics(self) -> dict[str, float]:
        """Return ``selection/*`` since the last call; nothing where nothing is chosen."""
        return self._selection.metrics() if isinstance(self._selection, DataSelection) else {}

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
    """Tries of the run so far that ended by a fault, by stop reason."""
    next_index: int
    closed: tuple[int, ...]
    """Groups that were played and wait for an update."""
    blamed: Mapping[str, int]
    """Faults of the environment so far, by task."""
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

    async def take(self) -> Taken:
        """Return the next groups to train on, as soon as there are enough.

        Raises:
            TrainingError: Too many episodes ended by an error.
        """
        found = await self.scheduler.take()
        is_over = found is None and not self._selection.is_spent
        groups, extra = ((), ()) if found is None else (found.groups, found.extra)
        played = self._selection.taken(self.scheduler.next_index)
        return Taken(
            groups=groups,
            extra=extra,
            played=played,
            is_over=is_over,
            faults=self.scheduler.stats.faults.copy(),
            next_index=self.scheduler.next_index,
            closed=self.scheduler.closed,
            blamed=self.scheduler.blamed,
            counts=self.scheduler.counts(),
            stats=self.scheduler.stats,
            selection=self._selection.metrics(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The groups of one update."""

    groups: tuple[TrajectoryGroup, ...]
    """What is compared, successes of the past among their groups."""
    imitated: tuple[Trajectory, ...] = ()
    """Attempts of the past that are trained on apart."""


def chosen(groups: Sequence[ReadyGroup], extra: Sequence[ReadyGroup] = ()) -> Chosen:
    """Return what an update is made of.

    Args:
        groups: New groups, with at least one member each.
        extra: Attempts of the past and late members, which join the new group of their number;
            early turns of episodes that still run, and late members whose group was trained on
            before, are groups of their own. The latter stand beside the attempts that their group
            closed with, which are context.
    """
    new = {group.index for group in groups}
    joining: dict[int, list[Member]] = {}
    imitated: list[Trajectory] = []
    apart: list[TrajectoryGroup] = []
    for past in extra:
        if past.request.condition == IMITATED:
            imitated += [side for one in past.trajectories for side in by_player(one)]
        elif past.kind == "partial" or (past.kind == "late" and past.index not in new):
            siblings = [replace(t, turns=as_context(t.turns)) for t in past.siblings]
            alone = _as_group(past, ())
            apart.append(replace(alone, trajectories=(*siblings, *alone.trajectories)))
        else:
            joining.setdefault(past.index, []).extend(past.members)
    made = [_as_group(group, joining.get(group.index, [])) for group in groups]
    groups_of_all = groups_by_player([*made, *apart])
    return Chosen(groups=tuple(groups_of_all), imitated=tuple(imitated))


def _as_group(group: ReadyGroup, past: Sequence[Member]) -> TrajectoryGroup:
    members = [*group.members, *past]
    return TrajectoryGroup(
        group_id=group.group_id, trajectories=tuple(trained_part(member) for member in members)
    )


def trained_part(member: Member) -> Trajectory:
    """Return the episode with every turn but those that are trained on as context."""
    trajectory, first, end = member.trajectory, member.first_turn, member.end_turn
    if first == 0 and end == len(trajectory.turns):
        return trajectory
    turns = trajectory.turns
    return replace(
        trajectory, turns=(*as_context(turns[:first]), *turns[first:end], *as_context(turns[end:]))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one update is made of, and what was played for it."""

    chosen: Chosen
    played: tuple[TrajectoryGroup, ...]
    """Groups that closed since the last batch, dropped ones included."""
    faults: Mapping[str, int] = field(default_factory=dict)
    """Tries of the run so far that ended by a fault, by stop reason."""
    next_index: int = 0
    """Groups of the run that were begun."""
    closed: list[int] = field(default_factory=list)
    """Groups that were played and wait for an update."""
    blamed: Mapping[str, int] = field(default_factory=dict)
    """Faults of the environment so far, by task."""
    metrics: Mapping[str, float] = field(default_factory=dict)


def joined(parts: Sequence[Taken], *, step: int, measures: bool) -> Batch:
    """Return what update number ``step`` trains on, in the order of the groups' numbers.

    Args:
        parts: What each scheduler of the run gives.
        step: The update.
        measures: Whether schedulers are measured, as where they run ahead of updates.

    Raises:
        TrainingError: One of them has nothing left to play.
    """
    if any(part.is_over for part in parts):
        raise TrainingError(f"update {step}: the selection has no task left to play")
    measured: dict[str, float] = {}
    if measures:
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
        next_index=max(part.next_index for part in parts),
        closed=[index for part in parts for index in part.closed],
        blamed=dict(sum((Counter(part.blamed) for part in parts), Counter[str]())),
        metrics=measured | _sums(part.selection for part in parts),
    )


def _sums(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            found[name] = found.get(name, 0.0) + value
    return found


def open_ledger(
    folder: Path, manifest: Manifest, version: int, *, checkpoints: int | None = None
) -> Ledger:
    """Return the ledger in ``folder`` for a run whose weights are at ``version``.

    Args:
        folder: Holds it, or will.
        manifest: Of the folder.
        version: Updates done.
        checkpoints: As for ``Ledger``.

    Raises:
        ConfigError: Another process has it open.
        RecordError: It is damaged, or empty although there were updates.
    """
    ledger = Ledger(folder / LEDGER_FILE, manifest=manifest, checkpoints=checkpoints)
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
    selection: DataSelection | UniformSelection,
    policy: Policy,
    *,
    ledger: Ledger | None,
    version: int,
    counted: Collection[int] = (),
    blamed: Mapping[str, int] | None = None,
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
        counted: Groups that an earlier process left, and counted.
        blamed: Faults of the environment in an earlier process, by task.
        first_group: Running number of the first group since the last update.
        number: Of the coordinator.
    """
    count = config.rollout.coordinators
    schedule = config.rollout.share(number)
    rounds = config.selection.filter.max_rounds + schedule.admission.staleness
    recording = RecordingSelection(
        selection,
        group_size=config.smallest_group,
        most=rounds * schedule.groups_started,
        first=first_group if count == 1 else None,
        stride=count,
        counted=counted,
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
        blamed=blamed,
        stride=count,
        ledger=ledger,
        keep_picture=runner.pictures,
    ) as scheduler:
        yield GroupSource(scheduler, recording)
