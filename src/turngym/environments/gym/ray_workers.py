"""Environments on other nodes: workers that hold them, and hosts that rollouts await.

A worker is a Ray actor. It holds any number of environments, where ``as_async`` would have them,
so that those of one worker share what a process has once, such as a browser. Calls and answers are
those of an environment in a child process: actions one way, observations the other. When a worker
is lost, the calls that ran there are faults; the next ``reset`` of each environment goes to another
worker, and Ray starts the lost one again where there is room.
"""

from __future__ import annotations

import asyncio
import pickle
import time
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, Self

from turngym import nodes, registry
from turngym.coroutines import awaited
from turngym.environments.gym.hosts import AsyncEnv, EnvHost, Hosted, InlineEnv, Isolation, as_async
from turngym.environments.gym.process import (
    CALL,
    GET,
    STARTS_EPISODE,
    MakeEnv,
    make_here,
    open_reply,
    pack,
    pack_error,
)
from turngym.errors import ConfigError, EnvironmentFault
from turngym.faults import ExitBoundary

START = "start"
CALLS_AT_ONCE = 8
"""Calls to environments that wait for something outside that a worker carries out at a time."""
_LOOK_S = 0.5
_SILENT_S = 30.0
"""After which a worker that runs and does not answer is ended."""
_NOW_S = 60.0
"""For an attribute, for which the event loop waits."""
_CROWDED = 1.5
_CLOSE = pickle.dumps(("close", (), {}))


class Worker:
    """What runs on a node: environments by number. Ray makes an actor of it.

    Args:
        isolation: Where calls run in the worker, as for ``as_async``.
    """

    def __init__(self, isolation: Isolation) -> None:
        self._isolation: Isolation = isolation
        self._envs: dict[int, AsyncEnv] = {}
        self._turn = asyncio.Semaphore(CALLS_AT_ONCE)

    async def ping(self) -> None:
        """Answer."""

    async def call(self, number: int, source: tuple[list[str], bytes] | None, call: bytes) -> bytes:
        """Carry out one call and return its packed answer.

        Args:
            number: Of the environment.
            source: What makes it, where it is to be made.
            call: Name, positional and keyword arguments, pickled.
        """
        name = "call"
        try:
            name, args, kwargs = pickle.loads(call)
            with ExitBoundary(name, EnvironmentFault):
                if name == "close":
                    if (env := self._envs.pop(number, None)) is not None:
                        await env.close()
                    return pack(name, None)
                env = self._env(number, source)
                return pack(name, await self._carry_out(env, name, args, kwargs))
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - all of them belong to the other side
            return pack_error(name, error)

    def _env(self, number: int, source: tuple[list[str], bytes] | None) -> AsyncEnv:
        if number not in self._envs:
            if source is None:
                raise EnvironmentFault("the environment's worker was lost before; call reset")
            make = partial(make_here, *source)
            self._envs[number] = as_async(make, isolation=self._isolation)
        return self._envs[number]

    async def _carry_out(self, env: AsyncEnv, name: str, args: Any, kwargs: Any) -> Any:
        if name == START:
            return await env.start() if isinstance(env, EnvHost) else None
        if name == GET:
            value = getattr(env, args[0])
            return (True, None) if callable(value) else (False, value)
        if name == CALL:
            return await awaited(getattr(env, args[0])(*args[1:], **kwargs))
        method = getattr(env, name)
        if isinstance(env, InlineEnv):
            return await method(*args, **kwargs)
        async with self._turn:
            return await awaited(method(*args, **kwargs))


class _Lost(Exception):
    """A worker does not answer."""


class _Handle:
    """One worker, seen from here."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self.actor = ray, actor
        self.held = 0
        """Environments that are there."""
        self.is_up = True
        self.cause = ""
        self._looking: asyncio.Task[None] | None = None

    def send(self, *call: Any) -> Any:
        """Send a call, and return Ray's reference to its answer."""
        return self.actor.call.remote(*call)

    async def ask(self, *call: Any) -> bytes:
        """Return the answer to a call.

        Raises:
            _Lost: None came.
        """
        try:
            reference = self.send(*call)
            answer: bytes = await reference
        except self._ray.exceptions.RayError as error:
            self.suspect(str(error).strip().partition("\n")[0])
            raise _Lost(self.cause) from error
        except asyncio.CancelledError:
            self._ray.cancel(reference)
            self.suspect("a call was cancelled")
            raise
        return answer

    def ask_now(self, *call: Any) -> bytes:
        """As ``ask``, but have the event loop wait.

        Raises:
            _Lost: None came.
        """
        try:
            answer: bytes = self._ray.get(self.send(*call), timeout=_NOW_S)
        except self._ray.exceptions.RayError as error:
            self.suspect(str(error).strip().partition("\n")[0])
            raise _Lost(self.cause) from error
        return answer

    def suspect(self, cause: str) -> None:
        """Give it no environments until it answers."""
        self.is_up, self.cause = False, cause
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        """Wait until it answers; have Ray start it anew when it hangs."""
        while not self.is_up:
            try:
                await asyncio.wait_for(self.actor.ping.remote(), _SILENT_S)
                self.is_up = True
            except TimeoutError:
                self._ray.kill(self.actor, no_restart=False)
            except self._ray.exceptions.RayError as error:
                self.cause = str(error).strip().partition("\n")[0]
                await asyncio.sleep(_LOOK_S)

    def end(self) -> None:
        """End it for good, with all environments that it has."""
        if self._looking is not None:
            self._looking.cancel()
        self._ray.kill(self.actor)


class RayWorkers:
    """The workers of a run, on nodes that offer a resource; ``close`` ends them.

    Args:
        resource: Label of the nodes, as in ``ray start --resources``.
        amount: How much of it each worker takes.
        number: How many workers; None for all that fit.
        isolation: Where calls run in a worker, as for ``as_async``.
        patience_s: For a worker to answer, before what waits for one is a fault.

    Raises:
        MissingExtraError: Ray is not installed.
        ConfigError: No cluster answers, it has no room for them, or they do not start.
    """

    def __init__(
        self,
        *,
        resource: str,
        amount: float,
        number: int | None,
        isolation: Isolation,
        patience_s: float,
    ) -> None:
        setting = "rollout.isolation='ray'"
        ray = nodes.connect(setting)
        needed = {resource: amount}
        total = nodes.check_room(nodes.alive(ray), needed, number, setting="rollout.workers")
        actors = ray.remote(Worker).options(
            num_cpus=0, resources=needed, max_restarts=-1, scheduling_strategy="SPREAD"
        )
        self.patience_s = patience_s
        self.handles = [_Handle(ray, actors.remote(isolation)) for _ in range(total)]
        self.callable: dict[tuple[bytes, str], bool] = {}
        """By environment and name, whether an attribute can be called."""
        self.numbers = count()
        try:
            ray.get([one.actor.ping.remote() for one in self.handles], timeout=patience_s)
        except ray.exceptions.RayError as error:
            self.close()
            raise ConfigError(
                f"{setting}: {total} workers did not start within {patience_s:g} s: "
                f"{str(error).strip().splitlines()[-1]}"
            ) from error

    async def pick(self) -> _Handle:
        """Return the worker with the fewest environments, of those that answer.

        Raises:
            EnvironmentFault: None does.
        """
        until = time.monotonic() + self.patience_s
        while not (up := [one for one in self.handles if one.is_up]):
            if time.monotonic() > until:
                raise EnvironmentFault(f"no worker answers: {self.handles[0].cause}")
            await asyncio.sleep(_LOOK_S)
        return min(up, key=lambda one: one.held)

    def is_crowded(self, worker: _Handle) -> bool:
        """Return whether another worker has so much less to hold that it is worth moving there."""
        least = min((one.held for one in self.handles if one.is_up), default=worker.held)
        return worker.held > 2 + _CROWDED * least

    def close(self) -> None:
        """End all of them."""
        for one in self.handles:
            one.end()


class RayHost(Hosted):
    """An environment on a worker; as a host in a child process, on another node.

    Args:
        workers: Where it may be.
        make: Makes it; must be picklable.

    Raises:
        ConfigError: ``make`` is not.
    """

    def __init__(self, workers: RayWorkers, make: MakeEnv) -> None:
        self._workers, self._make = workers, make
        try:
            self._source = (registry.sources(), pickle.dumps(make))
        except Exception as error:  # pickling raises many types
            raise ConfigError(
                f"rollout.isolation='ray': {make!r} cannot be sent to a worker ({error})"
            ) from error
        self._number = -1
        self._worker: _Handle | None = None
        self._is_lost = self._is_closed = False

    def _again(self) -> Self:
        return type(self)(self._workers, self._make)

    async def start(self) -> None:
        """Make the environment now instead of at the first call."""
        await self._call(START)

    async def close(self) -> None:
        self._is_closed = True
        worker, lost = self._let_go(), self._is_lost
        if worker is not None and not lost:
            with suppress(_Lost):
                open_reply("close", await worker.ask(self._number, None, _CLOSE))

    async def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        call = pickle.dumps((name, args, kwargs))
        begins = name == START or name in STARTS_EPISODE
        for is_last in (not begins, True):  # nothing has happened yet that could happen twice
            await self._have_worker(name, begins)
            assert self._worker is not None
            source = self._source if begins else None
            try:
                reply = await self._worker.ask(self._number, source, call)
            except _Lost as error:
                self._is_lost = True
                if is_last:
                    raise EnvironmentFault(f"{name}: the environment's worker is lost") from error
            else:
                return open_reply(name, reply)
        return None

    async def _have_worker(self, name: str, begins: bool) -> None:
        """Have a worker that answers; what begins an episode may begin it elsewhere."""
        self._check(name, begins)
        mine = self._worker
        if (begins and mine is not None) and (
            self._is_lost or not mine.is_up or self._workers.is_crowded(mine)
        ):
            self._let_go()
            mine.send(self._number, None, _CLOSE)  # its answer is not waited for
        if self._worker is None:
            self._worker = await self._workers.pick()
            self._worker.held += 1
            self._number, self._is_lost = next(self._workers.numbers), False

    def _check(self, name: str, begins: bool) -> None:
        if self._is_closed:
            raise EnvironmentFault(f"{name}: the environment is closed")
        if self._is_lost and not begins:
            raise EnvironmentFault(f"{name}: the environment's worker was lost; call reset")

    def _let_go(self) -> _Handle | None:
        """Belong to no worker any more; return the one that it was."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.held -= 1
        return worker

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        known = self._workers.callable
        key = self._source[1], name
        if key not in known:
            known[key], value = self._call_now(GET, name)
            if not known[key]:
                del known[key]
                return value
        return partial(self._call_now, CALL, name)

    def _call_now(self, name: str, *args: Any, **kwargs: Any) -> Any:
        what = str(args[0])
        self._check(what, False)
        if self._worker is None:
            raise EnvironmentFault(f"{what}: the environment is not on a worker yet; call reset")
        try:
            reply = self._worker.ask_now(self._number, None, pickle.dumps((name, args, kwargs)))
        except _Lost as error:
            self._is_lost = True
            raise EnvironmentFault(f"{what}: the environment's worker is lost") from error
        return open_reply(what, reply)
