"""The same environment seen from the other side: sync as async, async as sync.

``as_async`` gives any ``gymnasium.Env`` the coroutines of ``AsyncTurnEnv``, so that one that
blocks does not hold up the others. ``as_sync`` makes a real ``gymnasium.Env`` of an
``AsyncTurnEnv``. Exceptions cross both ways as they are, but what would end a thread, a loop or the
program (exits, ``StopIteration``, cancellations of its own) becomes an ``EnvironmentFault``. No
executor is shared or global: an adapter owns its threads and its process, and ``close`` ends them.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import pickle
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from functools import partial
from typing import Any, Literal, Self, TypeGuard, TypeVar, cast

import gymnasium
import numpy as np

from turngym.environments.core.env import AsyncTurnEnv, Observation, Snapshot
from turngym.environments.core.info import Info
from turngym.environments.core.snapshot import StackSnapshot, clone
from turngym.environments.gym.registration import make
from turngym.environments.gym.workers import (
    CALL,
    GET,
    CallFuture,
    Home,
    LocalHome,
    MakeEnv,
    OneThread,
    ProcessHome,
    Runner,
    ShortThreads,
)
from turngym.errors import ConfigError, EnvironmentFault, unknown_name
from turngym.faults import ExitBoundary

logger = logging.getLogger(__name__)
T = TypeVar("T")
Executor = Literal["thread", "pinned-thread", "process"]
EXECUTORS: tuple[Executor, ...] = ("thread", "pinned-thread", "process")

_JOIN_TIMEOUT_S = 10.0
_INTERRUPT_TIMEOUT_S = 1.0
_INTERRUPTS = 20
"""How long a call that was broken off is waited for, and how often it is told meanwhile."""


class AsyncAdapter:
    """A sync environment with the coroutines of ``AsyncTurnEnv``; see ``as_async``.

    Used by one task at a time. Its other attributes (``score``, ``expert_action``,
    ``legal_actions``, ``instructions``, ``observation_space`` ...) are those of the environment
    and its wrappers; they answer at once, and raise ``EnvironmentFault`` while a call runs.

    When a call is cancelled in a thread, the thread goes on and the next call waits for it, but the
    coroutine of an environment that came through ``as_sync`` is cancelled as well, and waited for a
    moment; in a process the child is killed, and the next ``reset`` starts a new one.
    """

    def __init__(self, source: MakeEnv, executor: Executor) -> None:
        self._source = source
        self._executor = executor
        self._home: Home = ProcessHome(source) if executor == "process" else LocalHome(source)
        self._runner: Runner = OneThread() if executor == "pinned-thread" else ShortThreads()
        self._last: tuple[str, CallFuture] | None = None
        self._closed = False
        self._finalizer = weakref.finalize(self, _abandon, self._home, self._runner)

    async def start(self) -> None:
        """Make the environment now, and its process, instead of at the first call."""
        await self._call(GET, "metadata")

    async def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Start an episode, as ``gymnasium.Env.reset``."""
        result: tuple[Observation, Info] = await self._call("reset", seed=seed, options=options)
        return result

    async def step(self, action: str) -> tuple[Observation, float, bool, bool, Info]:
        """Carry out one action, as ``gymnasium.Env.step``."""
        result: tuple[Observation, float, bool, bool, Info] = await self._call("step", action)
        return result

    async def snapshot(self) -> StackSnapshot:
        """Return the state of the environment and its wrappers."""
        state: StackSnapshot = await self._call("snapshot")
        return state

    async def restore(self, state: StackSnapshot) -> None:
        """Go back to ``state``, which may come from another equal environment."""
        await self._call("restore", state)

    async def fork(self, n: int) -> list[AsyncAdapter]:
        """Return ``n`` independent adapters in the state of this one, with threads of their own."""
        if self._executor == "thread":
            envs = await self._call("fork", n)
            return [AsyncAdapter(partial(_itself, env), self._executor) for env in envs]
        state = await self.snapshot()
        children: list[AsyncAdapter] = []
        try:
            for _ in range(n):  # one is made where it will live
                children.append(AsyncAdapter(self._source, self._executor))
                await children[-1].restore(state)
        except BaseException:
            for child in children:
                await child.close()
            raise
        return children

    async def close(self) -> None:
        """Close the environment and end its threads and process. Safe to call twice.

        A thread whose call was cancelled and still runs is not waited for: it closes the
        environment when it is done. A coroutine or process that was broken off is given ten
        seconds, and then left to end in the same way, with a warning.
        """
        if self._closed:
            return
        self._closed = True
        self._finalizer.detach()
        running = self._running()
        ends_soon = running is None or self._home.interrupt()
        future = self._runner.start(self._home.close, after=running)
        self._runner.stop()
        if ends_soon:
            limit = None if running is None else _JOIN_TIMEOUT_S
            try:  # closing goes on when we are cancelled
                if running is not None:
                    await self._break_off(running)
                done, late = await asyncio.wait([_settling(future)], timeout=limit)
                for closed in done:
                    closed.result()
                if late:
                    logger.warning("an environment is still closing after %g s", limit)
            finally:
                if future.done():
                    self._runner.join()

    async def __aenter__(self) -> Self:
        """Return the adapter."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close it."""
        await self.close()

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the environment or its wrappers."""
        if name.startswith("_"):
            raise AttributeError(name)
        is_callable, value = self._call_now(GET, name)
        return partial(self._call_now, CALL, name) if is_callable else value

    def _running(self) -> CallFuture | None:
        last = self._last
        return None if last is None or last[1].done() else last[1]

    async def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        while (running := self._running()) is not None:  # a cancelled call, still in its thread
            await asyncio.wait([_settling(running)])
        self._check_open(name)
        future = self._runner.start(partial(self._home.call, name, *args, **kwargs))
        self._last = name, future
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            await self._break_off(future)
            raise

    async def _break_off(self, future: CallFuture) -> None:
        """Interrupt a call, which may not have begun yet, and wait a moment for its end."""
        for _ in range(_INTERRUPTS):
            if future.done() or not self._home.interrupt():
                return
            await asyncio.wait([_settling(future)], timeout=_INTERRUPT_TIMEOUT_S / _INTERRUPTS)

    def _call_now(self, name: str, *args: Any, **kwargs: Any) -> Any:
        what = str(args[0])
        self._check_open(what)
        if self._running() is not None and self._last is not None:
            raise EnvironmentFault(f"{what}: the environment is busy with {self._last[0]!r}")
        return self._runner.now(partial(self._home.call, name, *args, **kwargs))

    def _check_open(self, name: str) -> None:
        if self._closed:
            raise EnvironmentFault(f"{name}: the environment is closed")


def as_async(
    env: gymnasium.Env[Any, Any] | AsyncTurnEnv | MakeEnv | str, *, executor: Executor = "thread"
) -> AsyncAdapter | AsyncTurnEnv:
    """Return ``env`` with coroutines, to be played next to others in one event loop.

    Args:
        env: An environment, wrapped or not; a function that makes one; or an id for ``make``. An
            ``AsyncTurnEnv`` is returned as it is.
        executor: Where the calls run. ``"thread"``: each in a thread of its own, one at a time.
            ``"pinned-thread"``: all in one thread, for libraries bound to a thread; give a
            function or an id, so that the environment is made there too. ``"process"``: in a child
            process, for what crashes, leaks or keeps the interpreter busy; give an id, an
            environment made by ``make``, or a function that can be pickled.

    Raises:
        ConfigError: The executor is unknown, or what would make the environment in the child
            process cannot be pickled.
    """
    if executor not in EXECUTORS:
        raise unknown_name("executor", executor, EXECUTORS)
    if isinstance(env, AsyncTurnEnv):
        return env
    return AsyncAdapter(_source(env, executor), executor)


def _source(env: gymnasium.Env[Any, Any] | MakeEnv | str, executor: Executor) -> MakeEnv:
    if isinstance(env, str):
        return partial(make, env)
    if not isinstance(env, gymnasium.Env):
        return _checked(env) if executor == "process" else env
    if executor != "process":
        return _First(env)
    if env.spec is None:
        raise ConfigError(
            f"as_async({env}, executor='process'): an environment without a spec cannot be made "
            "again in a process; give an id or a function that makes it"
        )
    return _checked(partial(gymnasium.make, env.spec))


def _checked(source: MakeEnv) -> MakeEnv:
    try:
        pickle.dumps(source)
    except Exception as error:  # pickling raises many types
        raise ConfigError(
            f"as_async(executor='process'): {source!r} cannot be sent to a process ({error}); "
            "give an id or a function of a module"
        ) from error
    return source


class _First:
    """Gives the environment itself the first time and equal new ones after that."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self._env = env
        self._given = False

    def __call__(self) -> gymnasium.Env[Any, Any]:
        if self._given:
            return clone(self._env)
        self._given = True
        return self._env


def _itself(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    return env


def _settling(future: CallFuture) -> asyncio.Future[Any]:
    """Return an awaitable end of ``future`` whose result nobody needs to look at."""
    waiting = asyncio.wrap_future(future)
    waiting.add_done_callback(lambda done: done.cancelled() or done.exception())
    return waiting


def _abandon(home: Home, runner: Runner) -> None:
    """Let go of what an adapter that was dropped without ``close`` still holds."""
    home.interrupt()
    runner.stop()


class SyncAdapter(gymnasium.Env[Observation, str]):
    """An ``AsyncTurnEnv`` as a real ``gymnasium.Env``; see ``as_sync``.

    Its coroutines run in an event loop of its own, in one thread, for as long as it is open.
    """

    def __init__(self, source: AsyncTurnEnv | Callable[[], AsyncTurnEnv]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread: threading.Thread | None = threading.Thread(
            target=_run_loop, args=(self._loop,), name="turngym-env-loop", daemon=True
        )
        self._thread.start()
        self._finalizer = weakref.finalize(self, self._loop.call_soon_threadsafe, self._loop.stop)
        self._task: asyncio.Task[Any] | None = None
        self._broken_off: asyncio.Task[Any] | None = None
        self._inner = source if isinstance(source, AsyncTurnEnv) else self._run(_made(source))
        self.metadata = self._inner.metadata
        self.render_mode = self._inner.render_mode
        self.observation_space = self._inner.observation_space
        self.action_space = self._inner.action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Start an episode, as ``TurnEnv.reset``."""
        return self._run(self._inner.reset(seed=seed, options=options))

    def step(self, action: str) -> tuple[Observation, float, bool, bool, Info]:
        """Carry out what the agent said, as ``TurnEnv.step``."""
        return self._run(self._inner.step(action))

    def render(self) -> str | None:
        """Return the last observation's text in render mode ``"ansi"``."""
        return self._inner.render()

    def close(self) -> None:
        """Close the environment, the event loop and its thread. Safe to call twice."""
        if self._thread is None:
            return
        try:
            self._run(self._inner.close())
        finally:
            thread, self._thread = self._thread, None
            self._finalizer()
            thread.join(_JOIN_TIMEOUT_S)

    def snapshot(self) -> Snapshot:
        """Return the state of the episode."""
        return self._run(self._inner.snapshot())

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to ``snapshot``."""
        self._run(self._inner.restore(snapshot))

    def fork(self, n: int) -> list[SyncAdapter]:
        """Return ``n`` independent environments in the state of this one, each with its loop."""
        snapshot, children = self.snapshot(), list[SyncAdapter]()
        try:
            for _ in range(n):
                children.append(self.clone())
                children[-1].restore(snapshot)
        except BaseException:
            for child in children:
                child.close()
            raise
        return children

    def clone(self) -> SyncAdapter:
        """Return a new environment made with the same arguments; it needs a reset."""
        made = SyncAdapter(self._inner.clone)
        made.spec = self.spec
        return made

    def interrupt_call(self) -> None:
        """Cancel the coroutine of the call that another thread waits for, if there is one.

        That thread gets an ``EnvironmentFault``. A coroutine is cancelled once, so that telling it
        again does not break off what it does to end.
        """
        task = self._task
        if task is not None and task is not self._broken_off:
            self._broken_off = task
            self._loop.call_soon_threadsafe(task.cancel)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the async environment."""
        if name.startswith("_"):
            raise AttributeError(name)
        value = getattr(self._inner, name)
        if inspect.iscoroutinefunction(value):
            return lambda *args, **kwargs: self._run(value(*args, **kwargs))
        return value

    @property
    def np_random(self) -> np.random.Generator:
        """The generator of the async environment."""
        return self._inner.np_random

    @np_random.setter
    def np_random(self, value: np.random.Generator) -> None:
        self._inner.np_random = value

    @property
    def _np_random(self) -> np.random.Generator:  # type: ignore[override]
        return self._inner.np_random  # where gymnasium's own checks look

    @property
    def np_random_seed(self) -> int:
        """The seed of the last reset that had one; -1 when it is unknown."""
        seed = self._inner._np_random_seed
        return -1 if seed is None else seed

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._thread is None:
            work.close()
            raise EnvironmentFault("the environment is closed")
        future = asyncio.run_coroutine_threadsafe(self._told(work), self._loop)
        try:
            return future.result()
        except CancelledError as error:
            raise EnvironmentFault("the call was broken off") from error
        except BaseException:
            future.cancel()  # when it is we who are interrupted
            raise

    async def _told(self, work: Coroutine[Any, Any, T]) -> T:
        """Do ``work`` where ``interrupt_call`` finds it."""
        task = self._task = asyncio.current_task()
        try:
            with ExitBoundary(_name(work), EnvironmentFault):  # or this loop would end with it
                return await work
        finally:
            if self._task is task:
                self._task = None


def as_sync(
    env: AsyncTurnEnv | Callable[[], AsyncTurnEnv] | gymnasium.Env[Any, Any],
) -> gymnasium.Env[Observation, str]:
    """Return ``env`` as a ``gymnasium.Env``, with an event loop of its own until it is closed.

    Args:
        env: An ``AsyncTurnEnv``, or a function that makes one, called inside the event loop. A
            ``gymnasium.Env`` is returned as it is.
    """
    if isinstance(env, gymnasium.Env):
        return cast("gymnasium.Env[Observation, str]", env)
    return SyncAdapter(env)


def waits(env: object) -> TypeGuard[gymnasium.Env[Any, Any]]:
    """Return True when the calls of ``env`` wait more than they work, so that a thread pays.

    So it is with one that is made of coroutines, and with one that says so: ``blocks = True``. One
    that plays in this very thread is cheaper called than sent to another.
    """
    if not isinstance(env, gymnasium.Env):
        return False
    inner = env.unwrapped
    return isinstance(inner, SyncAdapter) or getattr(inner, "blocks", False) is True


def _name(work: Coroutine[Any, Any, Any]) -> str:
    return str(getattr(work, "__name__", "call")).strip("_")


async def _made(source: Callable[[], AsyncTurnEnv]) -> AsyncTurnEnv:
    return source()


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Run ``loop`` until it is stopped, then end all that it still holds."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        asyncio.set_event_loop(None)
        loop.close()
