"""Policies without a model: expert, random, no-op, inline, and Python functions of the user.

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
from collections.abc import Awaitable, Callable, Collection, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, cast

import numpy as np

from turngym.agents.policy import EpisodeContext, PolicySession, PolicyTurn, messages_seen
from turngym.errors import ConfigError, PolicyFault
from turngym.types import Message, Turn


class _InlineSession:
    """Acts by a function that is called in the event loop itself, and waits for nothing."""

    def __init__(self, act: Callable[[Mapping[str, Any], Mapping[str, Any]], str]) -> None:
        self._act = act

    async def act(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> PolicyTurn:
        seen = messages_seen(observation, info)
        text = self._act(observation, info)
        return PolicyTurn(observation=seen, action=Message(role="assistant", content=text))

    def replay(self, observation: Mapping[str, Any], info: Mapping[str, Any], turn: Turn) -> None:
        """Decide again, so that random numbers are where they were; what was done stands."""
        self._act(observation, info)

    def close(self) -> None:
        return None


class InlinePolicy:
    """Acts by a function that is called in the event loop itself, such as one that reads a key."""

    def __init__(self, act: Callable[[Mapping[str, Any], Mapping[str, Any]], str]) -> None:
        self._act = act

    def start(self, context: EpisodeContext) -> PolicySession:
        """Return a session that calls the function."""
        return _InlineSession(self._act)


class ExpertPolicy:
    """The environment's own expert, mixed with random legal actions.

    Args:
        noise: Probability in [0, 1] of a random legal action instead of the expert's.
        noise_commands: First words of the legal actions that are sampled; empty for all. An
            expert that asks at random but answers well has ``["ask"]``.

    An environment without an expert is refused, and so is one that, at the first turn, has no legal
    action that begins with each of ``noise_commands``.
    """

    def __init__(self, noise: float = 0.0, noise_commands: Collection[str] = ()) -> None:
        if not 0.0 <= noise <= 1.0:
            raise ConfigError(f"ExpertPolicy: noise must lie in [0, 1], got {noise}")
        if isinstance(noise_commands, str):
            raise ConfigError(
                f"ExpertPolicy: noise_commands must be a list, got {noise_commands!r}"
            )
        self._noise = noise
        self._noise_commands = frozenset(noise_commands)

    def start(self, context: EpisodeContext) -> PolicySession:
        """Return a session that asks the environment's expert.

        Raises:
            ConfigError: The environment has none.
        """
        expert, noise, commands = context.expert, self._noise, self._noise_commands
        if expert is None:
            raise ConfigError(f"environment {context.env_id!r} has no expert")
        rng = np.random.default_rng(context.seed)
        is_first = True

        def act(observation: Mapping[str, Any], info: Mapping[str, Any]) -> str:
            nonlocal is_first
            if is_first and commands:
                words = {_first_word(text) for text in _legal(info, context.env_id)}
                if unknown := set(commands) - words:
                    raise ConfigError(
                        f"noise_commands: no legal action of {context.env_id!r} begins with "
                        f"{sorted(unknown)}; they begin with {sorted(words)}"
                    )
            is_first = False
            if noise and rng.random() < noise:
                return _random_action(rng, info, context.env_id, commands)
            return expert()

        return _InlineSession(act)


class RandomPolicy:
    """A uniformly random legal action each turn."""

    def start(self, context: EpisodeContext) -> PolicySession:
        """Return a session with its own generator, seeded by the context."""
        rng = np.random.default_rng(context.seed)
        return _InlineSession(lambda _, info: _random_action(rng, info, context.env_id))


class NoopPolicy:
    """Says nothing, every turn."""

    def start(self, context: EpisodeContext) -> PolicySession:
        """Return a session whose every action is the empty text."""
        return _InlineSession(lambda _observation, _info: "")


def _random_action(
    rng: np.random.Generator, info: Mapping[str, Any], env_id: str, commands: Collection[str] = ()
) -> str:
    legal = _legal(info, env_id)
    if commands:
        legal = [text for text in legal if _first_word(text) in commands] or legal
    return str(legal[int(rng.integers(len(legal)))])


def _legal(info: Mapping[str, Any], env_id: str) -> list[str]:
    legal = info.get("legal_actions")
    if not legal:
        raise ConfigError(
            f"environment {env_id!r} lists no legal actions to sample from; write its "
            "legal_actions; a warm start can imitate without noise (warm_start.expert_noise=0)"
        )
    return list(legal)


def _first_word(action: str) -> str:
    return action.partition(" ")[0]


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
        text = text.encode(errors="replace").decode()  # half of a unicode pair: no file holds it
        seen = messages_seen(observation, info)
        return PolicyTurn(observation=seen, action=Message(role="assistant", content=text))

    def replay(self, observation: Seen, info: Seen, turn: Turn) -> None:
        """Decide again, so that random numbers are where they were; what was done stands."""
        self._replayed.append((observation, info))

    def close(self) -> None:
        return None

    async def _ask(self, observation: Seen, info: Seen) -> Any:
        if is_coroutine_function(self._act):
            return await cast("Awaitable[Any]", self._act(observation, info))
        found = await self._threads.run(lambda: self._act(observation, info))
        return await found if inspect.isawaitable(found) else found  # a lambda, a decorator


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
