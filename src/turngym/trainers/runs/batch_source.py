"""Where an update gets its groups from: the scheduler, in turns with it or ahead of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from turngym.errors import TrainingError
from turngym.rollouts.scheduler.metrics import SchedulerMetrics
from turngym.tracing import traced
from turngym.trainers.credit.base import Credit
from turngym.trainers.runs.group_source import Taken, open_ledger, open_source
from turngym.trainers.runs.run import Run
from turngym.trainers.runs.run_log import rollout_metrics
from turngym.trainers.selection.batches import Chosen, chosen
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


@dataclass(frozen=True, slots=True)
class BatchSource:
    """Batches of groups for a run. ``take`` and ``publishing`` alternate."""

    _run: Run
    _take: Callable[[], Awaitable[Sequence[Taken]]]
    publishing: Callable[[int], AbstractAsyncContextManager[None]]
    """Returns the context in which the weights of a version are put into the engine."""
    mark_checkpointed: Callable[[int], None]
    """Notes in the ledger that the weights of a version are in a checkpoint."""

    @traced("rollout")
    async def take(self, step: int) -> Batch:
        """Return the groups that update number ``step`` trains on, as soon as there are enough.

        Dropped groups are replaced, for ``filter.max_rounds`` rounds at most.

        Raises:
            TrainingError: Too many episodes ended by an error, or there is nothing left to play.
        """
        return joined(self._run, step, await self._take())


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
            yield BatchSource(run, split.take, split.publishing, split.mark_checkpointed)
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
        scheduler = source.scheduler

        async def take() -> list[Taken]:
            return [await source.take()]

        yield BatchSource(run, take, scheduler.publishing, scheduler.mark_checkpointed)
