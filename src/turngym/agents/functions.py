"""Python functions as policies: many episodes ask one function at the same time.

A plain function runs in threads, one for each call that is going on, so that one which waits (for
a model behind HTTP, for example) holds up neither the others nor the event loop. A coroutine
function is awaited. A thread cannot be ended from outside: a call that is cancelled, by the time
limit of its episode or of its turn, is left behind and counted, and its thread ends with the call
or with the program.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import queue
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, cast

from turngym.agents.policy import EpisodeContext, PolicySession, PolicyTurn
from turngym.errors import ConfigError, PolicyFault
from turngym.types import Message, Turn

Seen = Mapping[str, Any]
ActFn = Callable[[Seen, Seen], str] | Callable[[Seen, Seen], Awaitable[str]]
"""(observation, info) -> action text; a coroutine function will do."""

_IDLE_S = 10.0
"""A thread without work for so long ends."""
_Call = tuple["Future[Any]", Callable[[], Any]]


class FunctionPolicy:
    """Acts by a Python function of ``(observation, info)``; see the top of the file.

    The function is called for several episodes at once. One that cannot stand that is played with a
    concurrency of 1, or is the method ``act`` of a class, of which each episode has an object.
    """

    def __init__(self, act: ActFn | type[Any]) -> None:
        self._act = act
        self._threads = CallThreads()

    @property
    def abandoned(self) -> int:
        """Calls that were cancelled and have not come back."""
        return self._threads.abandoned

    def start(self, context: EpisodeContext) -> PolicySession:
        """Return a session that calls the function, or the method of an object of its own."""
        act: ActFn = self._act().act if isinstance(self._act, type) else self._act
        return _Session(act, self._threads)


class _Session:
    """One episode. Turns that were played before are decided again before the next action."""

    def __init__(self, act: ActFn, threads: CallThreads) -> None:
        self._act = act
        self._threads = threads
        self._replayed: list[tuple[Seen, Seen]] = []

    async def act(self, observation: Seen, info: Seen) -> PolicyTurn:
        played, self._replayed = self._replayed, []
        for before in played:
            await self._ask(*before)
        text = await self._ask(observation, info)
        if not isinstance(text, str):
            kind = type(text).__name__
            raise ConfigError(f"the agent's function: an action is a str, got {kind}")
        seen = (Message(role="user", content=observation["text"]),)
        return PolicyTurn(observation=seen, action=Message(role="assistant", content=text))

    def replay(self, observation: Seen, info: Seen, turn: Turn) -> None:
        """Decide again, so that random numbers are where they were; what was done stands."""
        self._replayed.append((observation, info))

    def close(self) -> None:
        return None

    async def _ask(self, observation: Seen, info: Seen) -> Any:
        if is_coroutine_function(self._act):
            return await cast("Awaitable[Any]", self._act(observation, info))
        return await self._threads.run(lambda: self._act(observation, info))


def is_coroutine_function(value: Any) -> bool:
    """Return True for ``async def``, and for objects whose ``__call__`` is one."""
    called = getattr(type(value), "__call__", None)  # noqa: B004 - asks how, not whether
    return inspect.iscoroutinefunction(value) or inspect.iscoroutinefunction(called)


class CallThreads:
    """Threads for calls that may block: as many as there are calls at once, used again."""

    def __init__(self) -> None:
        self.abandoned = 0
        """Calls that were cancelled and have not come back."""
        self._idle: list[queue.SimpleQueue[_Call]] = []
        self._lock = threading.Lock()

    async def run(self, call: Callable[[], Any]) -> Any:
        """Return or raise what ``call`` does, in another thread."""
        context = contextvars.copy_context()
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()  # a call that runs cannot be taken back
        with self._lock:
            calls = self._idle.pop() if self._idle else None
        if calls is None:
            calls = queue.SimpleQueue()
            threading.Thread(
                target=self._work, args=(calls,), name="turngym-agent-call", daemon=True
            ).start()
        calls.put((future, lambda: context.run(call)))
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if not future.done():
                with self._lock:
                    self.abandoned += 1
                future.add_done_callback(self._came_back)
            raise

    def _came_back(self, future: Future[Any]) -> None:
        with self._lock:
            self.abandoned -= 1

    def _work(self, calls: queue.SimpleQueue[_Call]) -> None:
        while True:
            try:
                future, call = calls.get(timeout=_IDLE_S)
            except queue.Empty:
                with self._lock:
                    if calls in self._idle:
                        self._idle.remove(calls)
                        return
                continue
            try:
                settle = partial(future.set_result, call())
            except BaseException as error:  # noqa: BLE001 - the waiting caller gets it
                settle = partial(future.set_exception, _sendable(error))
            with self._lock:  # first, so that the next call finds this thread free
                self._idle.append(calls)
            settle()
            del future, call, settle


def _sendable(error: BaseException) -> Exception:
    """Return an error that may end one episode: no exit, no cancellation, no ``StopIteration``."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    fault = PolicyFault(f"act: {type(error).__name__}: {error}")
    fault.__cause__ = error
    return fault
