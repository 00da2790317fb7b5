"""Environments as rollouts await them: in the event loop, in a thread, or in a child process.

An environment made of coroutines runs in the loop of its caller, and so does one that computes. One
that blocks (``TurnEnv.blocks``) gets a thread of its own. Exceptions cross as they are, but what
would end a thread, a loop or the program (exits, ``StopIteration``, cancellations of its own)
becomes an ``EnvironmentFault``. No executor is shared or global: a host owns its thread and its
process, and ``close`` ends them.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import pickle
import queue
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, Self

import gymnasium

from turngym.coroutines import forked
from turngym.environments.core.env import AsyncTurnEnv, Observation, Snapshot, Step, clone
from turngym.environments.core.episode import Outcome
from turngym.environments.core.spaces import Info
from turngym.environments.gym.face import GymFace
from turngym.environments.gym.process import CALL, GET, ChildEnv, LocalEnv, MakeEnv, dispatch
from turngym.environments.gym.registration import make, with_own_turns
from turngym.errors import ConfigError, EnvironmentFault, require_known

logger = logging.getLogger(__name__)
Isolation = Literal["inline", "thread", "process"]
ISOLATIONS: tuple[Isolation, ...] = ("inline", "thread", "process")

_Call = Callable[[], Any]
_Future = concurrent.futures.Future[Any]
_JOIN_TIMEOUT_S = 10.0
_INTERRUPT_TIMEOUT_S = 1.0
_INTERRUPTS = 20
"""How long a cancelled call is waited for, and how often it is interrupted meanwhile."""


def make_async(name: str, *, isolation: Isolation = "inline", **kwargs: Any) -> AsyncEnv:
    """Return the environment that ``make(name, **kwargs)`` makes, to be awaited by rollouts.

    Args:
        name: As for ``make``.
        isolation: As for ``as_async``.
        kwargs: Options of the environment.

    Raises:
        UnknownNameError: There is none of that name; the message names the nearest.
        MissingExtraError: It needs something that is not installed.
        ConfigError: It has no option of that name, or cannot be loaded.
    """
    return as_async(partial(make, name, **kwargs), isolation=isolation)


def as_async(
    env: gymnasium.Env[Any, Any] | AsyncTurnEnv | Callable[[], Any],
    *,
    isolation: Isolation = "inline",
) -> AsyncEnv:
    """Return ``env`` with coroutines, to be played next to others in one event loop.

    Args:
        env: An environment, wrapped or not, or a function that makes one. One that has coroutines
            is returned as it is.
        isolation: Where calls run. ``"inline"``: in the event loop, which is right for coroutines
            and for what computes for microseconds; what blocks gets a thread all the same.
            ``"thread"``: in a thread of its own; give a function where a library is bound to the
            thread that it was made in. ``"process"``: in a child process, for what crashes, leaks
            or keeps the interpreter busy; give an environment made by an id, or a function that can
            be pickled.

    Raises:
        ConfigError: The isolation is unknown, or what would make the environment in the child
            process cannot be pickled.
    """
    require_known("isolation", isolation, ISOLATIONS)
    if callable(env) and isolation == "inline":
        env = env()
    if isinstance(env, GymFace) and not env.is_started and isolation != "process":
        env = env.inner
    if not isinstance(env, gymnasium.Env):
        if not callable(env):
            return env
        return EnvHost(_picklable(env) if isolation == "process" else env, isolation)
    if isolation == "process":
        return EnvHost(_recipe(env), isolation)
    if isolation == "thread" or getattr(env.unwrapped, "blocks", False) is True:
        return EnvHost(_first(env), "thread")
    return InlineEnv(env)


def _recipe(env: gymnasium.Env[Any, Any]) -> MakeEnv:
    """Return what makes ``env`` again in another process."""
    if env.spec is None:
        raise ConfigError(
            f"as_async({env}, isolation='process'): an environment without a spec cannot be made "
            "again in a process; give a function that makes it"
        )
    return _picklable(partial(gymnasium.make, with_own_turns(env.spec, {})))


def _picklable(source: MakeEnv) -> MakeEnv:
    try:
        pickle.dumps(source)
    except Exception as error:  # pickling raises many types
        raise ConfigError(
            f"as_async(isolation='process'): {source!r} cannot be sent to a process ({error}); "
            "give an environment made by an id, or a function of a module"
        ) from error
    return source


def _first(env: gymnasium.Env[Any, Any]) -> MakeEnv:
    """Return what gives the environment itself the first time and equal new ones after that."""
    fresh = [env]
    return lambda: fresh.pop() if fresh else clone(env)


class Hosted(ABC):
    """A ``gymnasium.Env`` with the coroutines of ``AsyncTurnEnv``, used by one task at a time.

    Its other attributes (``score``, ``expert_action``, ``episode_limits`` ...) are those of the
    environment and its wrappers; they answer at once.
    """

    @abstractmethod
    async def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Carry out a call, see ``dispatch``."""

    @abstractmethod
    def _again(self) -> Self:
        """Return another host, of an equal environment."""

    @abstractmethod
    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the environment or its wrappers."""

    async def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Start an episode, as ``gymnasium.Env.reset``."""
        result: tuple[Observation, Info] = await self._call("reset", seed=seed, options=options)
        return result

    async def step(self, action: str) -> Step:
        """Carry out one action, as ``gymnasium.Env.step``."""
        result: Step = await self._call("step", action)
        return result

    async def end_at_limit(self) -> Outcome | None:
        """Judge the state in which a limit ends the episode, where the environment does that."""
        end: Outcome | None = await self._call("end_at_limit")
        return end

    async def snapshot(self) -> Snapshot:
        """Return the state of the environment and its wrappers."""
        state: Snapshot = await self._call("snapshot")
        return state

    async def restore(self, snapshot: Snapshot) -> None:
        """Go back to ``snapshot``, which may come from another equal environment."""
        await self._call("restore", snapshot)

    async def fork(self, n: int) -> list[Self]:
        """Return ``n`` independent hosts in the state of this one; each makes its environment."""
        state = await self.snapshot()
        return await forked(n, self._again, lambda child: child.restore(state))

    async def close(self) -> None:
        """Close the environment. Safe to call twice."""
        await self._call("close")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class InlineEnv(Hosted):
    """An environment that computes: its coroutines run in the event loop and never wait."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self.env = env

    async def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return dispatch(self.env, name, args, kwargs)

    def _again(self) -> Self:
        return type(self)(clone(self.env))

    async def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Start an episode; like ``step`` by the short path, which most text games take."""
        return self.env.reset(seed=seed, options=options)

    async def step(self, action: str) -> Step:
        return self.env.step(action)  # type: ignore[return-value]  # SupportsFloat

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self.env.get_wrapper_attr(name)


class EnvHost(Hosted):
    """An environment in a thread of its own, or in a child process that this thread waits for.

    While a call runs, attributes raise ``EnvironmentFault``. When a call is cancelled in a thread,
    the thread goes on and the next call waits for it, but the coroutine behind a ``GymFace`` is
    cancelled as well, and waited for a moment; in a process the child is killed, and the next
    ``reset`` starts a new one.
    """

    def __init__(self, source: MakeEnv, isolation: Isolation) -> None:
        self._source = source
        self._isolation: Isolation = isolation
        self._env = ChildEnv(source) if isolation == "process" else LocalEnv(source)
        self._thread = _Thread()
        self._last: tuple[str, _Future] | None = None
        self._closed = False
        self._finalizer = weakref.finalize(self, _abandon, self._env, self._thread)

    def _again(self) -> Self:
        return type(self)(self._source, self._isolation)

    async def start(self) -> None:
        """Make the environment now, and its process, instead of at the first call."""
        await self._call(GET, "metadata")

    async def close(self) -> None:
        """Close the environment and end its thread and process. Safe to call twice.

        A thread whose call was cancelled and still runs is not waited for: it closes the
        environment when it is done. A coroutine or process that was interrupted is given ten
        seconds, and then left to end in the same way, with a warning.
        """
        if self._closed:
            return
        self._closed = True
        self._finalizer.detach()
        running = self._running()
        ends_soon = running is None or self._env.interrupt()
        # After what still runs, and in the thread that the environment was made in.
        future = self._thread.start(self._env.close)
        self._thread.stop()
        if ends_soon:
            limit = None if running is None else _JOIN_TIMEOUT_S
            try:  # closing goes on when we are cancelled
                if running is not None:
                    await self._interrupt(running)
                done, late = await asyncio.wait([_settling(future)], timeout=limit)
                for closed in done:
                    closed.result()
                if late:
                    logger.warning("an environment is still closing after %g s", limit)
            finally:
                if future.done():
                    self._thread.join()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        is_callable, value = self._call_now(GET, name)
        return partial(self._call_now, CALL, name) if is_callable else value

    def _running(self) -> _Future | None:
        last = self._last
        return None if last is None or last[1].done() else last[1]

    async def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        while (running := self._running()) is not None:  # a cancelled call, still in the thread
            await asyncio.wait([_settling(running)])
        self._check_open(name)
        future = self._thread.start(partial(self._env.call, name, *args, **kwargs))
        self._last = name, future
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            await self._interrupt(future)
            raise

    async def _interrupt(self, future: _Future) -> None:
        """Interrupt a call, which may not have begun yet, and wait a moment for its end."""
        for _ in range(_INTERRUPTS):
            if future.done() or not self._env.interrupt():
                return
            await asyncio.wait([_settling(future)], timeout=_INTERRUPT_TIMEOUT_S / _INTERRUPTS)

    def _call_now(self, name: str, *args: Any, **kwargs: Any) -> Any:
        what = str(args[0])
        self._check_open(what)
        if self._running() is not None and self._last is not None:
            raise EnvironmentFault(f"{what}: the environment is busy with {self._last[0]!r}")
        return self._thread.start(partial(self._env.call, name, *args, **kwargs)).result()

    def _check_open(self, name: str) -> None:
        if self._closed:
            raise EnvironmentFault(f"{name}: the environment is closed")


AsyncEnv = AsyncTurnEnv | Hosted
"""What rollouts play: coroutines, used by one task at a time."""


def _settling(future: _Future) -> asyncio.Future[Any]:
    """Return an awaitable end of ``future`` whose result may go unread."""
    waiting = asyncio.wrap_future(future)
    waiting.add_done_callback(lambda done: done.cancelled() or done.exception())
    return waiting


def _abandon(env: LocalEnv | ChildEnv, thread: _Thread) -> None:
    """Let go of what a host that was dropped without ``close`` still holds."""
    env.interrupt()
    thread.stop()


class _Thread:
    """One thread for all calls of an environment, in order, from the first until ``stop``.

    A daemon, unlike those of ``concurrent.futures``: a call that never ends must not keep the
    program from ending.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[_Future, _Call] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, call: _Call) -> _Future:
        """Queue ``call``; the future takes what it returns or raises."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=_work, args=(self._calls,), name="turngym-env", daemon=True
            )
            self._thread.start()
        future: _Future = concurrent.futures.Future()
        self._calls.put((future, call))
        return future

    def stop(self) -> None:
        """Let the thread end after the calls that are queued."""
        self._calls.put(None)

    def join(self) -> None:
        """Wait for the thread; its work must be done already."""
        if self._thread is not None:
            self._thread.join()


def _work(calls: queue.SimpleQueue[tuple[_Future, _Call] | None]) -> None:
    while (item := calls.get()) is not None:
        _run(*item)
        del item  # or the last call keeps its environment alive


def _run(future: _Future, call: _Call) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 - the caller gets it
        future.set_exception(error)
    else:
        future.set_result(result)
