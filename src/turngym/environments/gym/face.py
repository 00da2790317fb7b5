"""The synchronous face of an environment made of coroutines: what ``gymnasium.make`` returns."""

from __future__ import annotations

import asyncio
import inspect
import weakref
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar, cast

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from turngym.coroutines import LoopThread, finished, forked
from turngym.environments.core.env import AsyncTurnEnv, Observation, Step
from turngym.environments.core.spaces import Info
from turngym.errors import EnvironmentFault
from turngym.faults import ExitBoundary

T = TypeVar("T")
_JOIN_TIMEOUT_S = 10.0


class GymFace(gymnasium.Env[Observation, str]):
    """An ``AsyncTurnEnv`` as a real ``gymnasium.Env``.

    Its coroutines run in an event loop of its own, in one thread, from the first call until it is
    closed. A face that was not called yet has neither, and ``as_async`` takes ``inner`` out of it.
    """

    blocks = True

    def __init__(self, inner: AsyncTurnEnv) -> None:
        self.inner = inner
        self.metadata = inner.metadata
        self.render_mode = inner.render_mode
        self.observation_space = inner.observation_space
        self.action_space = inner.action_space
        self._thread: LoopThread | None = None
        self._is_closed = False
        self._task: asyncio.Task[Any] | None = None
        self._cancelled: asyncio.Task[Any] | None = None

    @property
    def is_started(self) -> bool:
        """Whether it was called, so that what it holds belongs to its event loop."""
        return self._thread is not None or self._is_closed

    @property
    def spec(self) -> EnvSpec | None:
        """As ``gymnasium.make`` made it."""
        return self.inner.spec

    @spec.setter
    def spec(self, value: EnvSpec | None) -> None:
        self.inner.spec = value

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Start an episode with the ``options`` of ``TurnEnv.reset``."""
        return self._run(self.inner.reset(seed=seed, options=options))

    def step(self, action: str) -> Step:
        """Carry out what the agent said, as ``TurnEnv.step``."""
        return self._run(self.inner.step(action))

    def render(self) -> str | None:
        """Return the last observation's text in render mode ``"ansi"``."""
        return self.inner.render()

    def close(self) -> None:
        """Close the environment, the event loop and its thread. Safe to call twice."""
        if self._is_closed:
            return
        try:
            self._run(self.inner.close())
        finally:
            thread, self._thread, self._is_closed = self._thread, None, True
            self._stop()
            if thread is not None:
                thread.join(_JOIN_TIMEOUT_S)

    def fork(self, n: int) -> list[GymFace]:
        """Return ``n`` independent environments in the state of this one, each with its loop."""
        state = self.snapshot()
        return finished(forked(n, self.clone, lambda child: child.restore(state)))

    def clone(self) -> GymFace:
        """Return a new environment made with the same arguments; it needs a reset."""
        return GymFace(self.inner.clone())

    def interrupt(self) -> None:
        """Cancel the coroutine of the call that another thread waits for, if there is one.

        That thread gets an ``EnvironmentFault``. A coroutine is cancelled once, so that a second
        interrupt does not cancel what it does to end.
        """
        task, thread = self._task, self._thread
        if thread is not None and task is not None and task is not self._cancelled:
            self._cancelled = task
            thread.loop.call_soon_threadsafe(task.cancel)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the environment; its coroutines as functions that wait."""
        if name.startswith("_"):
            raise AttributeError(name)
        value = getattr(self.inner, name)
        if inspect.iscoroutinefunction(value):
            return lambda *args, **kwargs: self._run(value(*args, **kwargs))
        return value

    @property
    def np_random(self) -> np.random.Generator:
        """The generator of the environment."""
        return self.inner.np_random

    @np_random.setter
    def np_random(self, value: np.random.Generator) -> None:
        self.inner.np_random = value

    @property
    def _np_random(self) -> np.random.Generator:  # type: ignore[override]
        return self.inner.np_random  # where gymnasium's own checks look

    @property
    def np_random_seed(self) -> int:
        """The seed of the last reset that had one; -1 when it is unknown."""
        return self.inner.np_random_seed

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._is_closed:
            work.close()
            raise EnvironmentFault("the environment is closed")
        future = (self._thread or self._start()).start(self._findable(work))
        try:
            return future.result()
        except CancelledError as error:
            raise EnvironmentFault("the call was cancelled") from error
        except BaseException:
            future.cancel()  # when it is we who are interrupted
            raise

    def _start(self) -> LoopThread:
        self._thread = LoopThread("turngym-env-loop")
        self._stop = weakref.finalize(self, self._thread.stop)
        return self._thread

    async def _findable(self, work: Coroutine[Any, Any, T]) -> T:
        """Do ``work`` where ``interrupt`` finds it."""
        task = self._task = asyncio.current_task()
        try:
            # Or this loop would end with what ends the program.
            with ExitBoundary(getattr(work, "__name__", "call"), EnvironmentFault):
                return await work
        finally:
            if self._task is task:
                self._task = None


def as_gym(env: AsyncTurnEnv | gymnasium.Env[Any, Any]) -> gymnasium.Env[Observation, str]:
    """Return ``env`` as a ``gymnasium.Env``; one that is none yet gets an event loop of its own."""
    if isinstance(env, gymnasium.Env):
        return cast("gymnasium.Env[Observation, str]", env)
    return GymFace(env)
