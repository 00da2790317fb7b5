"""Plays episodes on slots: what runs, what waits, and what happens when one ends."""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from turngym.agents.policy import Policy
from turngym.coroutines import is_cut_off
from turngym.errors import ConfigError, EnvironmentFault
from turngym.faults import describe, is_from_signal, message_of
from turngym.rollouts.episode import (
    SELF_CANCELLED,
    CannotReplay,
    NoReplay,
    ReplayedTurn,
    digest_of,
    faulted,
    rollout,
)
from turngym.rollouts.scheduler.group_buffer import GroupBuffer
from turngym.rollouts.scheduler.groups import Member, OpenGroup, SampleKey, retried
from turngym.rollouts.scheduler.metrics import FailureBudget, describe_tasks
from turngym.rollouts.scheduler.packing import pack_tail
from turngym.rollouts.scheduler.pool import EnvPool, Lease
from turngym.rollouts.scheduler.running import (
    Preempted,
    QueuedEpisode,
    RunningEpisode,
    SchedulerContext,
)
from turngym.types import StopReason, Trajectory

logger = logging.getLogger(__name__)

_CANCEL_S = 10.0
"""Seconds that episodes have to end when everything is closed."""
_SLOW = frozenset({"redundant", "late", "oversampled", "stale"})
"""Reasons that hit slow episodes."""


class Owner(Protocol):
    """The scheduler, as far as the dispatcher needs it."""

    def schedule(self) -> None:
        """Begin whatever may begin now."""

    def changed(self) -> None:
        """Let the consumer look again."""

    def fail(self, error: BaseException) -> None:
        """Stop everything."""


class Dispatcher:
    """Has at most ``concurrency`` episodes running, each in a task of its own."""

    def __init__(
        self,
        pools: Mapping[str, EnvPool],
        policy: Policy,
        context: SchedulerContext,
        buffer: GroupBuffer,
        owner: Owner,
        blamed: Mapping[str, int],
    ) -> None:
        self.failures = FailureBudget(context.config.failures, alive=context.config.concurrency)
        self._pools = pools
        self._policy = policy
        self._context = context
        self._buffer = buffer
        self._owner = owner
        self._config = context.config
        self._jobs: deque[QueuedEpisode] = deque()
        self._running: dict[int, tuple[RunningEpisode, asyncio.Task[None]]] = {}
        self._free_slots: list[int] = []
        """Numbers below those of running episodes that no one has: a heap."""
        self.blamed = Counter(blamed)
        """Faults of the environment, by task."""
        self._round_open = True
        self._is_ending = False
        """Whether everything is cancelled, and nothing is accounted for any more."""
        self._freed: float | None = None
        self._idle_waiters: list[asyncio.Future[None]] = []
        self._timers: set[asyncio.TimerHandle] = set()

    # What there is.

    @property
    def running(self) -> int:
        """Episodes that run."""
        return len(self._running)

    @property
    def queued(self) -> int:
        """Episodes that wait to run."""
        return len(self._jobs)

    @property
    def quarantined(self) -> int:
        """Tasks that are shut out, because the environment broke on them too often."""
        return sum(map(self._is_shut_out, self.blamed))

    @property
    def has_timers(self) -> bool:
        """Whether something happens by itself later."""
        return bool(self._timers)

    @property
    def is_busy(self) -> bool:
        """Whether anything runs or waits to run."""
        return bool(self._running or self._jobs)

    @property
    def has_room(self) -> bool:
        """Whether one more episode may begin now."""
        return self._round_open and len(self._running) < self._config.concurrency

    def episodes(self) -> list[RunningEpisode]:
        """Return what runs."""
        return [episode for episode, _ in self._running.values()]

    def tasks(self) -> list[asyncio.Task[object]]:
        """Return the tasks of what runs."""
        return [task for _, task in self._running.values()]

    async def idle(self) -> None:
        """Wait until nothing runs."""
        if self._running:
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle_waiters.append(waiting)
            await waiting

    # What is to be played.

    def add_group(self, group: OpenGroup) -> None:
        """Queue the members of a new group."""
        self._jobs.extend(fresh(group, number) for number in range(len(group.episodes)))

    def add(self, jobs: Iterable[QueuedEpisode]) -> None:
        """Queue episodes of an earlier process."""
        self._jobs.extend(jobs)

    def start_next(self) -> bool:
        """Begin the episode that waits longest; False when none waits."""
        if not self._jobs:
            return False
        job = self._jobs.popleft()
        # The lowest number that is free; without a gap as many run as have been given out.
        slot = heapq.heappop(self._free_slots) if self._free_slots else len(self._running) + 1
        episode = RunningEpisode(job, self._context, slot)
        if self._context.barrier is not None:
            self._context.barrier.join()
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._play(episode, self._freed), name=f"episode {job.key}")
        self._running[slot] = (episode, task)
        task.add_done_callback(partial(self._task_ended, episode))
        return True

    def close_round(self) -> None:
        """In the modes with barriers: let no episode in until all that run have ended."""
        if self._config.barrier != "none" and self._running:
            self._round_open = False

    # Breaking off.

    def drop_members(self, index: int, members: Sequence[int], reason: str) -> None:
        """Stop members of a group and report them as dropped for ``reason``."""
        wanted = set(members)
        for episode, task in list(self._running.values()):
            if episode.job.key.group == index and episode.job.key.member in wanted:
                self._drop_running(episode, task, reason)
        waiting = [j for j in self._jobs if j.key.group == index and j.key.member in wanted]
        for job in waiting:
            self._jobs.remove(job)
            tokens = sum(p.turn.num_sampled_tokens for p in job.played[job.trained_to :])
            self._report_dropped(job, reason, tokens=tokens, turns=len(job.played))

    def drop_hopeless(self, version: int) -> None:
        """Stop episodes whose oldest trainable token is beyond the bound already."""
        bound = self._config.admission.staleness
        for episode, task in list(self._running.values()):
            own = episode.versions[episode.job.trained_to :]
            if own and version - min(own) > bound:
                self._drop_running(episode, task, "stale")

    def preempt_all(self) -> None:
        """Stop everything that runs between two turns, to be resumed first of all."""
        for episode, task in list(self._running.values()):
            episode.stop_asked = True
            if episode.phase == "act" and episode.drop_reason is None:
                task.cancel()

    def cancel_all(self) -> None:
        """Stop everything and begin nothing more."""
        self._is_ending = True
        self._jobs.clear()
        for _, task in self._running.values():
            task.cancel()

    async def close(self) -> None:
        """Stop everything and wait until it has stopped."""
        for timer in self._timers:
            timer.cancel()
        self.cancel_all()
        if tasks := self.tasks():
            _, late = await asyncio.wait(tasks, timeout=_CANCEL_S)
            if late:
                logger.warning("left behind on closing:\n%s", describe_tasks(late, _CANCEL_S))
        self._running.clear()

    def call_later(self, seconds: float, function: Callable[[], None]) -> None:
        """Call ``function`` in ``seconds`` and schedule, unless everything is closed before."""

        def ring() -> None:
            self._timers.discard(timer)
            function()
            self._owner.changed()
            self._owner.schedule()

        timer = asyncio.get_running_loop().call_later(seconds, ring)
        self._timers.add(timer)

    def _drop_running(self, episode: RunningEpisode, task: asyncio.Task[None], reason: str) -> None:
        if episode.drop_reason is None:
            episode.drop_reason = reason
            if episode.entered:  # a task that never began could not clean up after itself
                task.cancel()

    # One episode.

    async def _play(self, episode: RunningEpisode, freed: float | None) -> None:
        episode.entered = True
        context, job, config = self._context, episode.job, self._config
        lease: Lease | None = None
        ended: Trajectory | CannotReplay | None = None
        broken = False
        try:
            if episode.drop_reason is None and not episode.stop_asked:
                episode.enter()
                lease = await self._pools[job.spec.env_id].lease()
                if freed is not None:
                    context.stats.refills.append(context.clock() - freed)
                ended = await rollout(
                    lease,
                    self._policy,
                    job.spec,
                    timeout_s=config.timeout_s,
                    act_timeout_s=config.deadlines.act_s,
                    keep_picture=context.keep_picture,
                    watch=episode,
                    played=job.played,
                )
                stop = ended.stop_reason
                broken = stop.is_error or stop is StopReason.TRUNCATED_TIME
        except CannotReplay as error:
            ended = error
        except Preempted:
            pass
        except asyncio.CancelledError:
            broken = episode.phase != "act"
            if self._is_ending or is_cut_off():
                if context.ledger is not None and episode.uncommitted_tokens:
                    context.ledger.lose(job.key, episode.retry, episode.uncommitted_tokens)
                raise
            if episode.drop_reason is None and not episode.stop_asked:  # not at our request
                ended, broken = faulted(job.spec, SELF_CANCELLED), True
        except EnvironmentFault as fault:
            ended = faulted(job.spec, message_of(fault))
        except Exception as error:  # noqa: BLE001 - wrong settings, or a bug: the consumer gets it
            self._owner.fail(error)
            return
        finally:
            if lease is not None:
                lease.release(broken=broken)
            episode.leave(ended)
            self._leave(episode)
        self._conclude(episode, ended)

    def _task_ended(self, episode: RunningEpisode, task: asyncio.Task[None]) -> None:
        """Make a fault of a try whose task ended without an end of its own."""
        if self._running.get(episode.slot, (None, None))[0] is episode:
            self._leave(episode)  # it was cancelled before it began
        error = None if task.cancelled() else task.exception()
        is_ending = self._is_ending or is_cut_off()
        if episode.concluded or is_ending or (error is not None and is_from_signal(error)):
            return
        cause = "it was cancelled" if error is None else describe(error)
        self._conclude(episode, faulted(episode.job.spec, f"the task ended early: {cause}"))

    def _leave(self, episode: RunningEpisode) -> None:
        self._running.pop(episode.slot, None)
        heapq.heappush(self._free_slots, episode.slot)
        if self._context.barrier is not None:
            self._context.barrier.leave()
        if not self._running:
            self._round_open = True
            waiters, self._idle_waiters = self._idle_waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def _conclude(self, episode: RunningEpisode, ended: Trajectory | CannotReplay | None) -> None:
        """Account for what ended, and begin what that allows before anything else runs."""
        context = self._context
        episode.concluded = True
        context.alive()
        now = context.clock()
        try:
            if isinstance(ended, Trajectory) and not ended.stop_reason.is_error:
                self._finished(episode, ended, now)
            else:
                episode.cut()
                self._broken(episode, ended)
        except BaseException as error:  # noqa: BLE001 - a hook of the user's, or too many faults
            self._owner.fail(error)
            return
        # Who begins within this call took the place of this episode; the gap is a metric.
        self._freed = now
        self._owner.schedule()
        self._freed = None
        self._owner.changed()

    def _broken(self, episode: RunningEpisode, ended: Trajectory | CannotReplay | None) -> None:
        """Account for a try that did not end by itself."""
        if episode.drop_reason is not None:
            self._dropped(episode, episode.drop_reason)
        elif isinstance(ended, Trajectory):
            self._faulted(episode, ended)
        elif isinstance(ended, CannotReplay):
            self._not_taken_up(episode, ended)
        else:
            self._requeue(episode)

    def _report(self, episode: RunningEpisode, trajectory: Trajectory, now: float) -> None:
        if self._context.on_episode is not None:
            self._context.on_episode(episode.job.key, trajectory, now - episode.began)

    def _finished(self, episode: RunningEpisode, trajectory: Trajectory, now: float) -> None:
        job, context = episode.job, self._context
        self.failures.good()
        context.stats.ended(now - episode.began)
        self._report(episode, trajectory, now)
        self._end_try(episode, trajectory.stop_reason.value, None, whole=trajectory)
        context.stats.waste["cut_off"] += episode.uncommitted_tokens
        member = Member(
            number=job.key.member,
            retry=episode.retry,
            trajectory=trajectory,
            first_turn=job.trained_to,
            end_turn=len(trajectory.turns),
            versions=tuple(episode.versions),
            start_version=episode.first_version,
            packed=None if episode.packed is None else tuple(episode.packed),
        )
        self._buffer.finished(job.group, member, now)

    def _faulted(self, episode: RunningEpisode, trajectory: Trajectory) -> None:
        job, stop, error = episode.job, trajectory.stop_reason, trajectory.error or ""
        task_id = job.group.request.task.id
        self._end_try(episode, stop.value, error)
        self._context.stats.faults[stop.value] += 1
        if stop is not StopReason.ERROR_POLICY:
            self.blamed[task_id] += 1
        job.faults += 1
        self.failures.fault(stop, error, task_id)
        shut_out = self._is_shut_out(task_id)
        if job.faults < self._config.retry.max_tries and not shut_out:
            self._begin_again(episode, "retried")
        else:
            reason = "quarantined" if shut_out else stop.value
            self._report(episode, trajectory, self._context.clock())
            self._report_dropped(job, reason, tokens=_lost(episode), turns=len(episode.turns))

    def _is_shut_out(self, task_id: str) -> bool:
        return self.blamed[task_id] >= self._config.retry.quarantine_after

    def _not_taken_up(self, episode: RunningEpisode, error: CannotReplay) -> None:
        """Begin an episode anew whose turns led elsewhere; drop it when its prefix did."""
        job = episode.job
        if isinstance(error, NoReplay) and self._config.interruption == "abort_requeue":
            raise ConfigError(
                f"scheduler: interruption='abort_requeue' takes episodes up again, but {error}; "
                "use 'continue_partial' or 'drain'"
            )
        self._end_try(episode, "cannot_replay", str(error))
        if len(job.played) > len(job.group.request.prefix):
            self._begin_again(episode, "lost")
        else:
            self._report_dropped(job, "cannot_replay", tokens=0, turns=0)
            self.failures.fault(StopReason.ERROR_ENV, f"prefix: {error}", job.group.request.task.id)

    def _begin_again(self, episode: RunningEpisode, waste: str) -> None:
        """Queue a fresh try, ahead of what has not begun."""
        job = episode.job
        self._context.stats.waste[waste] += _lost(episode)
        again = fresh(job.group, job.key.member)
        again.retry, again.faults = episode.retry + 1, job.faults
        again.spec = retried(job.spec, job.faults)
        self._jobs.appendleft(again)

    def _requeue(self, episode: RunningEpisode) -> None:
        """Queue an episode that was stopped, to go on where it stood."""
        job = episode.job
        self._end_try(episode, "preempted", None)
        self._context.stats.waste["retried"] += episode.uncommitted_tokens
        job.start_version = episode.first_version
        job.carry_from = episode.retry
        job.retry = episode.retry + 1
        job.played, job.versions = episode.carried(), list(episode.versions)
        self._jobs.appendleft(job)

    def _dropped(self, episode: RunningEpisode, reason: str) -> None:
        self._end_try(episode, "cancelled", None)
        job = episode.job
        self._report_dropped(job, reason, tokens=_lost(episode), turns=len(episode.turns))

    def _end_try(
        self,
        episode: RunningEpisode,
        outcome: str,
        error: str | None,
        whole: Trajectory | None = None,
    ) -> None:
        """Enter how a try ended; with a ``whole`` trajectory the episode is over, too."""
        if self._context.ledger is not None:
            self._context.ledger.end(
                episode.job.key,
                episode.retry,
                outcome,
                error=error,
                uncommitted_tokens=episode.uncommitted_tokens,
                tail=None if whole is None else pack_tail(whole),
            )

    def _report_dropped(self, job: QueuedEpisode, reason: str, *, tokens: int, turns: int) -> None:
        stats, ledger = self._context.stats, self._context.ledger
        stats.dropped(reason, tokens=tokens, turns=turns, slow=reason in _SLOW)
        if ledger is not None:
            ledger.drop(job.key.group, [job.key.member], reason)
        self._buffer.lost(job.group, job.key.member, self._context.clock())


def fresh(group: OpenGroup, member: int) -> QueuedEpisode:
    """Return an episode that has only the prefix of its group, whose tokens are context."""
    played = []
    for turn in group.request.prefix:
        seen = digest_of({"text": turn.observation[-1].content}) if turn.observation else None
        given = replace(turn.as_context(), usage={})  # nothing was spent on it here
        played.append(ReplayedTurn(given, seen))
    return QueuedEpisode(
        group=group,
        key=SampleKey(group.index, member),
        spec=group.episodes[member],
        played=played,
        versions=[group.start_version] * len(played),
        trained_to=len(played),
    )


def _lost(episode: RunningEpisode) -> int:
    """Return the sampled tokens of a try that is dropped, those of an unfinished turn too."""
    own = episode.turns[episode.job.trained_to :]
    return episode.uncommitted_tokens + sum(turn.num_sampled_tokens for turn in own)
