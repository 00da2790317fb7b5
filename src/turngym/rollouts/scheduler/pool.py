"""Environments that are lent to episodes, with a deadline for each call, replaced when broken."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from turngym.coroutines import COMPUTING, Named, Uncut, awaited
from turngym.environments.core.env import Observation, Step
from turngym.environments.core.episode import Outcome
from turngym.environments.core.spaces import Info
from turngym.environments.gym.hosts import (
    ISOLATIONS,
    AsyncEnv,
    EnvHost,
    InlineEnv,
    Isolation,
    as_async,
)
from turngym.environments.gym.ray_workers import RayHost, RayWorkers
from turngym.errors import ConfigError, EnvironmentFault, unknown_name
from turngym.faults import Boundary, ExitBoundary, Tolerated
from turngym.rollouts.scheduler.config import DeadlineConfig

logger = logging.getLogger(__name__)
T = TypeVar("T")

CALLS_PER_CORE = 8
"""Calls to environments that wait for something outside that run at a time, for each core of the
machine: more would only make all of them slow, and some too slow for their limits."""
_CANCEL_S = 5.0
"""Seconds that a call has to end after it was cancelled."""
_LOOK_S = 0.05
_BLOCKED_S = 0.5
"""How often the event loop is looked at, and how long an environment may wait in it, all in all."""

MakeAnyEnv = Callable[[], Any]
"""Makes a ``gymnasium.Env`` or an ``AsyncTurnEnv``."""


@dataclass(slots=True, kw_only=True)
class PoolStats:
    """Counts since the pool was made."""

    made: int = 0
    leases: int = 0
    replaced: int = 0
    """Environments given back broken."""
    timeouts: int = 0
    """Calls that did not answer in time."""
    close_faults: int = 0
    """Environments that raised when they were closed."""
    abandoned: int = 0
    """Environments that would not close in time."""


def calls_at_once(count: int | None = None, *, among: int = 1) -> asyncio.Semaphore:
    """Return what lets ``count`` calls run at a time; None for ``CALLS_PER_CORE`` on each core.

    Of several processes, ``among`` which they are shared out, each has its part.
    """
    whole = count or CALLS_PER_CORE * (os.cpu_count() or 1)
    return asyncio.Semaphore(max(1, whole // among))


class TooLate(EnvironmentFault):
    """A call did not answer within its deadline."""


class EnvPool:
    """At most ``size`` environments, each lent to one episode at a time.

    Made in one event loop and used there. ``close`` ends every environment, thread and process.

    Args:
        make_env: Makes one environment; for ``isolation="process"`` it must be picklable.
        size: Environments lent at once, 1 or more.
        isolation: Where calls run, as for ``as_async``. ``"inline"``: in the event loop; an
            environment that says that it blocks gets a thread all the same. ``"thread"``: calls
            that block do not hold up others. ``"process"``: nor do calls that crash, leak or never
            return. ``RayWorkers``: calls run on other nodes.
        deadlines: Seconds that calls may take.
        calls: Holds back calls to environments that do not compute in the event loop; it may be
            shared with other pools. None lets all of them run.

    Raises:
        ConfigError: ``size`` or ``isolation`` is wrong.
    """

    def __init__(
        self,
        make_env: MakeAnyEnv,
        *,
        size: int,
        isolation: Isolation | RayWorkers = "inline",
        deadlines: DeadlineConfig | None = None,
        calls: asyncio.Semaphore | None = None,
    ) -> None:
        if size < 1:
            raise ConfigError(f"environment pool: size must be at least 1, got {size}")
        if not isinstance(isolation, RayWorkers) and isolation not in ISOLATIONS:
            raise unknown_name("isolation", isolation, ISOLATIONS)
        self.size = size
        self._place: Isolation | RayWorkers = isolation
        self.deadlines = deadlines or DeadlineConfig()
        self.stats = PoolStats()
        self.calls = calls
        self._make_env = make_env
        self._lent = 0
        self._idle: deque[AsyncEnv] = deque()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._background: set[asyncio.Task[None]] = set()
        self._closed = False
        self.watch: BlockWatch | None = None

    async def open(self) -> None:
        """Make one environment, so that what is wrong with them is said at once.

        Raises:
            ConfigError: Deadlines are set that this isolation cannot keep.
            EnvironmentFault: An environment cannot be made.
        """
        self._idle.append(await self._make())

    async def lease(self) -> Lease:
        """Lend one environment, as soon as fewer than ``size`` are lent.

        Raises:
            EnvironmentFault: It cannot be made.
        """
        if self._closed:
            raise EnvironmentFault("lease: the environment pool is closed")
        if self._lent >= self.size:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():  # its turn had come: it is the next one's now
                    self._returned()
                raise
        else:
            self._lent += 1
        self.stats.leases += 1
        try:
            env = self._idle.popleft() if self._idle else await self._make()
        except BaseException:
            self._returned()
            raise
        return Lease(self, env)

    async def close(self) -> None:
        """Close every environment that is not lent, and wait for those that are being closed."""
        self._closed = True
        while self._background:
            await asyncio.wait(self._background)
        idle, self._idle = self._idle, deque()
        await asyncio.gather(*(self._close_env(env) for env in idle))
        if self.watch is not None:
            self.watch.close()

    def give_back(self, env: AsyncEnv, *, broken: bool) -> None:
        """Take back what was lent, ``broken`` or not; ``Lease.release`` calls it."""
        if broken or self._closed:
            self.stats.replaced += broken
            self._start(self._close_env(env))
        else:
            self._idle.append(env)
        self._returned()

    def _returned(self) -> None:
        """Pass a place on to who waits longest."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._lent -= 1

    async def _make(self) -> AsyncEnv:
        with Boundary("make", EnvironmentFault, ConfigError, EnvironmentFault):
            env: AsyncEnv = (
                RayHost(self._place, self._make_env)
                if isinstance(self._place, RayWorkers)
                else as_async(self._make_env, isolation=self._place)
            )
            if isinstance(env, EnvHost | RayHost):
                if self._place == "inline":
                    self._place = "thread"  # the next ones are made where they will be called
                await env.start()
            else:
                if isinstance(env, InlineEnv):
                    self._check_deadlines()
                self.watch = self.watch or BlockWatch()
        self.stats.made += 1
        return env

    def _check_deadlines(self) -> None:
        limits = self.deadlines
        if limits.reset_s or limits.step_s:
            name = "deadlines.reset_s" if limits.reset_s else "deadlines.step_s"
            raise ConfigError(
                f"environment pool: {name} is set, but isolation='inline' cannot end a call of a "
                "synchronous environment; use 'thread' or 'process'"
            )

    def turn(self, env: AsyncEnv) -> AbstractAsyncContextManager[None]:
        """Return what a call to ``env`` waits for first, its end included."""
        if self.calls is None or isinstance(env, InlineEnv | RayHost):
            return nullcontext()
        return self.calls

    async def _close_env(self, env: AsyncEnv) -> None:
        async with self.turn(env):  # ends that come all at once would be late for lack of cores
            with Tolerated("an environment did not close") as closing:
                await self.within("close", env.close(), self.deadlines.close_s)
        is_late = isinstance(closing.error, TooLate)
        self.stats.abandoned += is_late
        self.stats.close_faults += closing.error is not None and not is_late

    async def within(self, phase: str, call: Awaitable[T], limit_s: float) -> T:
        """Return what ``call`` in this ``phase`` returns; one that ignores its end is left behind.

        Raises:
            TooLate: There is no answer within ``limit_s``.
        """
        work = asyncio.ensure_future(_guarded(phase, call))
        try:
            await asyncio.wait({work}, timeout=limit_s)
            if work.done():
                return work.result()
        finally:
            if not work.done():
                await self._cancel(phase, work)
        self.stats.timeouts += phase != "close"
        raise TooLate(f"{phase}: no answer within {limit_s:g} s")

    async def _cancel(self, phase: str, work: asyncio.Future[Any]) -> None:
        work.add_done_callback(lambda done: done.cancelled() or done.exception())
        work.cancel()
        await asyncio.wait({work}, timeout=_CANCEL_S)
        if not work.done():
            logger.warning("a call that was cancelled goes on, and is left behind: %s", phase)

    def _start(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


async def open_all(pools: Collection[EnvPool]) -> None:
    """Open each of ``pools``; where one fails, or the task is cancelled, all are closed."""
    try:
        for pool in pools:
            await pool.open()
    except BaseException:
        await Uncut()(close_all(pools))
        raise


async def close_all(pools: Collection[EnvPool]) -> None:
    """Close each of ``pools``."""
    for pool in pools:
        await pool.close()


class BlockWatch:
    """Names each kind of environment or judge, once, that blocks the event loop of its episode.

    Its thread looks at the thread of the loop again and again: one that stands in one of them,
    and neither ran nor could have run since the last look, waits there for something outside. It
    goes by what calls say of themselves: the frames of a thread that runs may end while another
    one reads them, which has crashed Python 3.11.
    """

    def __init__(self) -> None:
        self._loop_thread = threading.get_ident()
        self._schedule = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
        self._blocked_s: defaultdict[str, float] = defaultdict(float)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="turngym-block-watch", daemon=True)
        if self._schedule.exists():  # Linux
            self._thread.start()

    def watched(self, env: AsyncEnv, work: Awaitable[T]) -> Awaitable[T]:
        """Return ``work`` of an environment, watched."""
        owner = env.env.unwrapped if isinstance(env, InlineEnv) else env
        return Named(type(owner).__qualname__, work)

    def close(self) -> None:
        """Stop watching."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _look(self) -> None:
        at, busy = time.monotonic(), self._busy_s()
        while not self._ended.wait(_LOOK_S):
            now, busy_now = time.monotonic(), self._busy_s()
            # A look that comes late was held up itself, maybe with the interpreter's lock in its
            # hands: what stood still meanwhile says nothing about the environment.
            is_on_time = now - at < 2 * _LOOK_S
            if is_on_time and busy_now - busy < 0.2 * (now - at):
                self._note(now - at)
            at, busy = now, busy_now

    def _busy_s(self) -> float:
        """Return how long the loop's thread ran, or was ready to run, in seconds."""
        running, ready, _ = self._schedule.read_text().split()
        return (int(running) + int(ready)) / 1e9

    def _note(self, seconds: float) -> None:
        kind = COMPUTING.get(self._loop_thread)
        if not kind:
            return
        before = self._blocked_s[kind]
        self._blocked_s[kind] += seconds
        if before < _BLOCKED_S <= self._blocked_s[kind]:
            logger.warning(
                "%s blocks the event loop, which holds up all other episodes: await what it waits "
                "for, set blocks = True in the environment's class, or use isolation 'thread' or "
                "'process'",
                kind,
            )


class Lease:
    """One environment while one episode has it; ``rollout`` takes it for the environment itself.

    A call that raises or does not answer in time makes the environment broken: it is replaced when
    the lease is released.
    """

    def __init__(self, pool: EnvPool, env: AsyncEnv) -> None:
        self._pool = pool
        self._env = env
        self._released = False
        limits = pool.deadlines
        self._reset_s, self._step_s = limits.reset_s, limits.step_s
        self._turn = pool.turn(env)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> Awaitable[tuple[Observation, Info]]:
        """Start an episode with ``options``, within the deadline for it."""
        return self._called(
            "reset", lambda: self._env.reset(seed=seed, options=options), self._reset_s
        )

    def step(self, action: str) -> Awaitable[Step]:
        """Carry out one action, within the deadline for it."""
        return self._called("step", lambda: self._env.step(action), self._step_s)

    def end_at_limit(self) -> Awaitable[Outcome | None]:
        """Judge the state at a limit, within the deadline of a step."""
        judge = getattr(self._env, "end_at_limit", lambda: None)
        return self._called("judge", lambda: awaited(judge()), self._step_s)

    async def _called(
        self, phase: str, call: Callable[[], Awaitable[T]], limit_s: float | None
    ) -> T:
        async with self._turn:
            watch = self._pool.watch
            answer = call() if watch is None else watch.watched(self._env, call())
            return await (answer if limit_s is None else self._pool.within(phase, answer, limit_s))

    def release(self, *, broken: bool = False) -> None:
        """Give the environment back. Safe to call twice."""
        if not self._released:
            self._released = True
            self._pool.give_back(self._env, broken=broken)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the environment or its wrappers."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._env, name)


async def _guarded(phase: str, call: Awaitable[T]) -> T:
    """Await ``call`` in a task of its own, which must not end the loop with an exit."""
    with ExitBoundary(phase, EnvironmentFault):
        return await call
