"""Where an update gets its groups from: the scheduler, in turns with it or ahead of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from turngym.errors import RecordError, TrainingError
from turngym.rollouts.scheduler.groups import FilterDecision, GroupRequest, ReadyGroup
from turngym.rollouts.scheduler.ledger import LEDGER_FILE, Ledger
from turngym.rollouts.scheduler.pool import EnvPool, calls_at_once
from turngym.rollouts.scheduler.scheduler import RolloutScheduler
from turngym.tasks.base import Task
from turngym.tracing import traced
from turngym.trainers.credit.base import Credit
from turngym.trainers.runs.run import Run
from turngym.trainers.runs.run_log import rollout_metrics
from turngym.trainers.selection.batches import Chosen, chosen
from turngym.trainers.selection.policy import DataSelection
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
        self._played: list[TrajectoryGroup] = []

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

    def taken(self) -> tuple[TrajectoryGroup, ...]:
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
            self._played.append(group.group)
        self._closed = []


class BatchSource:
    """Batches of groups for a run, from a scheduler.

    Args:
        run: The run; its state counts the groups that were begun.
        scheduler: Open.
        selection: Its selection.
    """

    def __init__(
        self, run: Run, scheduler: RolloutScheduler, selection: RecordingSelection
    ) -> None:
        self._run = run
        self._scheduler = scheduler
        self._selection = selection
        self._faults: Counter[str] = Counter()

    @traced("rollout")
    async def take(self, step: int) -> Batch:
        """Return the groups that update number ``step`` trains on, as soon as there are enough.

        Dropped groups are replaced, for ``filter.max_rounds`` rounds at most.

        Raises:
            TrainingError: Too many episodes ended by an error, or there is nothing left to play.
        """
        found = await self._scheduler.take()
        if found is None and not self._selection.is_spent:
            raise TrainingError(f"update {step}: the selection has no task left to play")
        groups, extra = ((), ()) if found is None else (found.groups, found.extra)
        played = self._selection.taken()
        if found is not None and found.replayed:  # its groups were counted for no one
            played = (*played, *(group.group for group in groups))
        self._run.state.groups = self._scheduler.next_index
        faults = Counter(self._scheduler.stats.faults) - self._faults
        self._faults += faults
        is_ahead = self._run.config.rollout.mode == "overlap"
        measured = self._scheduler.metrics() if is_ahead else {}
        return Batch(
            chosen=chosen(groups, extra),
            played=played,
            faults=faults,
            metrics=measured | self._selection.metrics(),
        )

    def publishing(self, version: int) -> AbstractAsyncContextManager[None]:
        """Return the context in which the weights of ``version`` are put into the engine."""
        return self._scheduler.publishing(version)

    def mark_checkpointed(self, version: int) -> None:
        """Note in the ledger that the weights of ``version`` are in a checkpoint."""
        self._scheduler.mark_checkpointed(version)


@asynccontextmanager
async def open_batches(run: Run) -> AsyncIterator[BatchSource]:
    """Yield the batches of a run; what was opened for them is closed afterwards.

    In turns with the updates there is no ledger: nothing runs when a checkpoint is written.

    Raises:
        RecordError: The ledger is empty, but the run has a checkpoint.
    """
    config, runner = run.config, run.runner
    schedule = config.rollout.schedule()
    rounds = config.selection.filter.max_rounds + schedule.admission.staleness
    selection = RecordingSelection(
        run.selection, group_size=config.largest_group, most=rounds * schedule.groups_started
    )
    calls = calls_at_once(config.rollout.calls_at_once)
    async with AsyncExitStack() as stack:
        ledger = None
        if config.rollout.mode == "overlap":
            ledger = Ledger(run.folder.path / LEDGER_FILE, manifest=run.folder.manifest)
            stack.push_async_callback(ledger.close)
            if run.state.step > 0 and ledger.is_empty:
                raise RecordError(
                    f"{ledger.path}: is empty, but the checkpoint is of update {run.state.step}; "
                    "restore it and what lies beside it from a copy"
                )
        scheduler = RolloutScheduler(
            {
                env_id: EnvPool(
                    make_env,
                    size=schedule.concurrency,
                    isolation=runner.place,
                    deadlines=schedule.deadlines,
                    calls=calls,
                )
                for env_id, make_env in runner.make_env.items()
            },
            run.sampled,
            selection,
            schedule,
            env_id=runner.env_id,
            seed=config.run.seed,
            version=run.state.step,
            first_group=0 if ledger is not None else run.state.groups,
            ledger=ledger,
        )
        await stack.enter_async_context(scheduler)
        yield BatchSource(run, scheduler, selection)
