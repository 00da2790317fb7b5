"""Training on one screen: imitate, measure, reinforce, measure again.

Every phase begins where ``RunState`` says, and the state changes only together with the weights,
between two waits. So a run can be stopped at any wait, or killed at any time, and resumed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from turngym.agents.build import check_engine
from turngym.coroutines import Uncut, cancelled_by_signals
from turngym.errors import ConfigError, EnginesLost, Interrupted
from turngym.rollouts.evaluation.statistics import summarize
from turngym.tracing import note, traced, traced_run
from turngym.trainers.distributed.launch import check_size
from turngym.trainers.runs.build_run import build_run, check_devices
from turngym.trainers.runs.episode_runner import check_environments
from turngym.trainers.runs.group_source import Batch, Taken, joined, open_ledger, open_source
from turngym.trainers.runs.needs import check_needs
from turngym.trainers.runs.progress import HeldOut, Progress, Silent, TrainResult
from turngym.trainers.runs.run import Run
from turngym.trainers.runs.run_folder import RunFolder
from turngym.trainers.runs.run_log import trackers_of
from turngym.trainers.settings.train import TrainConfig
from turngym.trainers.trackers.base import End
from turngym.trainers.update.imitation import FAILED_START

if TYPE_CHECKING:
    from turngym.trainers.distributed.group import Group


def train(config: TrainConfig, out: str | Path, *, progress: Progress | None = None) -> TrainResult:
    """Train a policy, or go on with a run that was stopped.

    Args:
        config: What to do.
        out: Folder of the run. The same settings in the same folder resume the run, to the bit; a
            finished run is not repeated.
        progress: Watches.

    Returns:
        What came of it, as in ``summary.json``.

    Raises:
        ConfigError: The settings do not fit, the environment does not give what the credit method
            needs, or the folder belongs to something else.
        TrainingError: The run cannot go on: a loss that is not finite, too many broken episodes, a
            checkpoint that could not be written.
        EnginesLost: No server that samples is left; the state is saved.
        Interrupted: SIGINT or SIGTERM arrived; the state is saved.
    """
    check_needs(config)
    check_devices(config, Path(out))
    check_engine(config.engine, context=config.model.context)
    if not (Path(out) / "summary.json").exists():
        check_environments(config)
    with (
        _joined(config) as group,
        RunFolder(Path(out), config) as folder,
        _threads(config.run.torch_threads),
    ):
        if not folder.summary.exists():
            with _spans(config, folder):
                asyncio.run(_train(config, folder, progress or Silent(), group))
        else:
            trackers_of(config, folder, done=True).close("finished")
        return TrainResult.from_json(folder.path, folder.read_summary())


def obey(config: TrainConfig) -> None:
    """Be one of the ranks of a run, not the first, until the first one ends it.

    Raises:
        ConfigError: There are other processes than ``learner.ranks``.
    """
    with _joined(config) as group, _threads(config.run.torch_threads):
        assert group is not None
        group.obey()


async def _train(
    config: TrainConfig, folder: RunFolder, progress: Progress, group: Group | None
) -> None:
    run: Run | None = None
    how: End = "failed"
    try:
        with cancelled_by_signals():
            progress.phase("preparation", None)
            run = await build_run(config, folder, group)
            folder.accept()
            run.log.begin_tracking()
            await _imitate(run, progress)
            await _measure(run, "before", progress)
            await _reinforce(run, progress)
            await _measure(run, "after", progress)
            run.conclude()
            await folder.outbox.settle()
        how = "finished"
    except EnginesLost as error:
        if run is not None:
            await _save_now(run)
        how = "stopped"
        raise EnginesLost(f"{folder.path}: {error}; the same command resumes the run") from error
    except asyncio.CancelledError:
        if run is None:
            raise Interrupted(f"{folder.path}: interrupted; nothing to save yet") from None
        is_saved = await _save_now(run)
        how = "stopped"
        if not is_saved:
            raise Interrupted(
                f"{folder.path}: interrupted while the disk is full; free some space, and the same "
                "command resumes it from its newest checkpoint"
            ) from None
        raise Interrupted(
            f"{folder.path}: interrupted and saved; the same command resumes it"
        ) from None
    finally:
        if run is not None:
            # A signal that came with the error would cancel this and take the error's place.
            await Uncut()(run.close(how))


async def _save_now(run: Run) -> bool:
    """Save a run that ends early, whatever is asked meanwhile; say whether there was room."""
    outbox = run.folder.outbox
    if not outbox.is_stuck:
        run.save()
        await Uncut()(outbox.flush())
    return not outbox.is_stuck


async def _imitate(run: Run, progress: Progress) -> None:
    """Imitate the expert until validation success reaches its target, or the steps are spent."""
    state, imitator = run.state, run.imitator
    if state.phase != "warm_start":
        return
    if imitator is not None:
        progress.phase("warm start", run.config.warm_start.max_steps)
        while not await _is_warm(run):
            metrics = imitator.step()
            run.log.write(state.warm_steps, metrics)
            state.warm_steps += 1
            progress.advance(state.warm_steps, metrics)
            await run.folder.outbox.settle()  # where a signal may stop the run
        _judge_start(run, progress)
    run.begin("before")
    await run.folder.outbox.settle()


async def _is_warm(run: Run) -> bool:
    """Validate when it is due, and say whether imitation is over."""
    config, state = run.config.warm_start, run.state
    is_last = state.warm_steps >= config.max_steps
    is_due = is_last or (
        state.warm_steps >= config.evaluate_from and state.warm_steps % config.evaluate_every == 0
    )
    if is_due and state.validated != state.warm_steps:
        found = await run.validate("warm_start", state.warm_steps)
        state.warm_success = None if found.success is None else found.solved_share
        run.save()
        await run.folder.outbox.settle()
    success = state.warm_success
    return is_last or (success is not None and success >= config.target_success)


async def _reinforce(run: Run, progress: Progress) -> None:
    """Collect, assign credit, update, publish, until the target is reached or the steps spent."""
    if run.state.phase != "train":
        return
    progress.phase("reinforcement", run.config.run.steps)
    uncut = Uncut()  # what is learned of a batch belongs to the next weights
    async with open_batches(run) as batches:
        while not await _is_good(run):
            metrics = await _update(run, batches, uncut)
            progress.advance(run.state.step, metrics)
    _judge_end(run, progress)
    run.begin("after")
    await run.folder.outbox.settle()


@traced("update", root=True)
async def _update(run: Run, batches: BatchSource, uncut: Uncut) -> dict[str, float]:
    """Do one update and return its metrics."""
    note({"turngym.update": run.state.step})
    run.begin_step()
    batch = await batches.take(run.state.step)
    run.log.record("rollout_s")
    credit = await uncut(run.assign_credit(batch.chosen))
    run.log.record("credit_s")
    trained = await uncut(asyncio.to_thread(run.update, credit.samples))
    metrics = run.finish_step(batch, credit, trained)
    uncut.check()
    async with batches.publishing(run.state.step):
        await run.publish()
    is_due = run.state.step % run.config.run.checkpoint_every == 0
    if is_due:
        run.save()
    await run.folder.outbox.settle()
    if is_due:
        batches.mark_checkpointed(run.state.step)
    return metrics


async def _is_good(run: Run) -> bool:
    """Validate when it is due, and say whether reinforcement is over."""
    config, state = run.config.evaluation, run.state
    is_last = state.step >= run.config.run.steps
    if (is_last or state.step % config.every == 0) and state.validated != state.step:
        found = await run.validate("validation", state.step)
        target = config.target_success
        state.reached_target = target is not None and found.solved_share >= target
        run.log.draw_now_and_then()
        await run.folder.outbox.settle()
    return is_last or state.reached_target


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
        measures = self._run.config.rollout.mode == "overlap"
        batch = joined(await self._take(), step=step, measures=measures)
        state = self._run.state
        state.groups, state.counted, state.blamed = batch.next_index, batch.closed, batch.blamed
        if state.firsts:
            state.firsts[step + 1 :] = [state.groups]
        return batch


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
            kept = config.run.keep_checkpoints
            ledger = open_ledger(folder.path, folder.manifest, run.state.step, checkpoints=kept)
            stack.push_async_callback(ledger.close)
        source = await stack.enter_async_context(
            open_source(
                config,
                run.runner,
                run.selection,
                run.playing,
                ledger=ledger,
                version=run.state.step,
                counted=run.state.counted,
                blamed=run.state.blamed,
                first_group=run.state.groups,
            )
        )
        scheduler = source.scheduler
        if ledger is None:  # which knows all of them
            scheduler.stats.faults.update(run.state.faults_by_reason)

        async def take() -> list[Taken]:
            return [await source.take()]

        yield BatchSource(run, take, scheduler.publishing, scheduler.mark_checkpointed)


async def _measure(run: Run, phase: Literal["before", "after"], progress: Progress) -> None:
    """Play the held-out tasks, sampled and greedy."""
    if run.state.phase != phase:
        return
    progress.phase(f"held-out tasks, {phase}", 2)
    sampled = await run.runner.held_out_episodes(run.measured)
    progress.advance(1, {})
    greedy = await run.runner.held_out_episodes(run.measured_greedy)
    run.finish_measure(HeldOut(sampled=summarize(sampled), greedy=summarize(greedy)), sampled)
    await run.folder.outbox.settle()
    progress.advance(2, {})


def _judge_start(run: Run, progress: Progress) -> None:
    """Say it aloud when the warm start is too weak for reinforcement to build on."""
    success = run.state.warm_success or 0.0
    is_failed = success < FAILED_START
    run.log.write(run.state.warm_steps, {"warm_start/failed": float(is_failed)})
    if is_failed:
        progress.note(
            f"the warm start reached {success:.0%} sampled success, below {FAILED_START:.0%}: "
            "reinforcement will be slow. Try more warm_start.max_steps, a lower warm_start.lr or "
            "another seed"
        )


def _judge_end(run: Run, progress: Progress) -> None:
    """Say it aloud when no update changed the policy."""
    assert run.learning is not None
    if run.state.step and not run.learning.steps:
        progress.note(
            f"none of {run.state.step} updates changed the policy: no group was left to train on "
            "(rollout/groups_used in metrics.jsonl). Attempts that all earn the same teach "
            "nothing, and a critic learns alone for its first warmup_updates"
        )


def _spans(config: TrainConfig, folder: RunFolder) -> AbstractContextManager[None]:
    """Emit spans inside the block, where the settings want some."""
    if not config.run.opentelemetry:
        return nullcontext()
    path = folder.path.resolve()
    return traced_run(
        {
            "turngym.run.name": path.name,
            "turngym.run.folder": str(path),
            "turngym.env.id": config.env.name,
            "turngym.algo": config.algo.name,
            "turngym.seed": config.run.seed,
        }
    )


@contextmanager
def _joined(config: TrainConfig) -> Iterator[Group | None]:
    """Join the other ranks for the block; None where there are none."""
    check_size(config.learner.ranks)
    if config.learner.ranks == 1:
        yield None
        return
    try:
        from turngym.trainers.distributed.group import Group
    except ImportError as error:  # parts of FSDP2 that older versions lack
        raise ConfigError(
            f"learner.ranks={config.learner.ranks} wants torch 2.13 or newer; found "
            f"{torch.__version__} ({error})"
        ) from error
    group = Group(config.learner)
    try:
        yield group
    finally:
        group.close()


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Set torch's number of threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
