"""Sampling on servers: sessions of token ids that any server can go on with, and who may ask.

The process that trains publishes weights and tends the servers (``engine.py``). Others of the run
sample on the same servers: they follow what it says of them, and report those that fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from turngym.agents.engine.config import VllmEngineConfig
from turngym.agents.engine.protocol import (
    EngineStats,
    Experts,
    Generation,
    OnToken,
    Sampling,
    one_less,
)
from turngym.agents.engine.vllm.fleet import Fleet, Member, favoured
from turngym.agents.engine.vllm.replica import (
    ConnectionLost,
    Publication,
    Replica,
    ReplicaError,
    Sampled,
    version_of,
)
from turngym.agents.policy import ContextOverflow
from turngym.errors import ConfigError, EnginesLost, PolicyFault
from turngym.seeding import derive_seed

if TYPE_CHECKING:
    from turngym.agents.engine.vision import Vision

AnswerT = TypeVar("AnswerT")

_MOST_TRIES = 8
"""Of one request: one that ends every server it meets must not end them all."""


class ServerSampler:
    """An ``Engine`` on the servers of a run.

    Args:
        servers: Says which one serves.
        run: What the labels of the run's weights begin with.
        end_ids: The tokens that end an action.
        context: Longest sequence in tokens.
        max_sessions: Most sessions open at once.
        routing: Servers report the experts of each token.
        vision: How pictures among token ids are sent; None for a model that sees none.
    """

    def __init__(
        self,
        servers: Fleet | FollowedServers,
        run: str,
        *,
        end_ids: tuple[int, ...],
        context: int,
        max_sessions: int,
        routing: bool = False,
        vision: Vision | None = None,
    ) -> None:
        self.context = context
        self._reports_routing = routing
        self._vision = vision
        self.run = run
        self.stats = EngineStats()
        self.end_ids = end_ids
        self.free_sessions = self._max_sessions = max_sessions
        self._servers = servers
        self._requests: set[asyncio.Future[Generation]] = set()
        self._is_closed = False
        self._retried = 0

    def open(self, seed: int) -> VllmSession:
        """Return an empty session.

        Raises:
            ConfigError: ``max_sessions`` are open.
        """
        self.free_sessions = one_less(self.free_sessions, self._max_sessions)
        return VllmSession(self, seed)

    async def close(self) -> None:
        """End what still runs."""
        self._is_closed = True
        for task in self._requests:
            task.cancel()

    async def _ready(self) -> None:
        """Wait until there are weights to sample with."""

    def _version_of(self, label: str) -> int:
        version = version_of(label, self.run)
        assert version is not None
        return version

    async def submit(
        self, session: VllmSession, new_ids: Sequence[int], sampling: Sampling
    ) -> Generation:
        """Sample for ``session`` after ``new_ids``; see its ``generate``.

        Raises:
            PolicyFault: The engine is closed.
        """
        if self._is_closed or session.closed:
            raise PolicyFault("engine: closed")
        work = asyncio.ensure_future(self._sample(session, new_ids, sampling))
        self._requests.add(work)
        try:
            await asyncio.wait({work})
        except asyncio.CancelledError:
            work.cancel()
            raise
        finally:
            self._requests.discard(work)
        if work.cancelled():
            raise PolicyFault("engine: closed")
        return work.result()

    async def _sample(
        self, session: VllmSession, new_ids: Sequence[int], sampling: Sampling
    ) -> Generation:
        prompt = [*session.ids, *new_ids]
        room = self.context - len(prompt)
        if not prompt:
            raise ConfigError("engine: generate needs at least one new token")
        if room < 1:
            raise ContextOverflow(
                f"conversation of {len(prompt)} tokens, context of {self.context}"
            )
        await self._ready()
        limit = min(sampling.max_new_tokens, room)
        ids, logprobs, versions, finish = list[int](), list[float](), list[int](), "abort"
        routing = list[Experts]()
        known = len(session.ids)
        while finish == "abort" and len(ids) < limit:
            left = replace(sampling, max_new_tokens=limit - len(ids))
            start = max(0, known - 1) if self._reports_routing else None
            ask = self._request(session, [*prompt, *ids], left, start)
            answer = await self._asked(session, ask)
            ids += answer.token_ids
            logprobs += answer.logprobs
            versions += map(self._version_of, answer.labels)
            if answer.routing is not None:
                # Nothing leads to the first token of all.
                first = answer.routing[:1] if known == 0 else answer.routing[:0]
                routing += [first, answer.routing]
                known = len(prompt) + len(ids)
            finish = "end" if ids and ids[-1] in self.end_ids else answer.finish
        self.stats.reused_tokens += session.read_ids
        self.stats.read_tokens += len(prompt) - session.read_ids
        self.stats.sampled_tokens += len(ids)
        session.ids = [*prompt, *ids]
        session.read_ids = len(session.ids)
        return Generation(
            token_ids=tuple(ids),
            logprobs=tuple(logprobs),
            versions=tuple(versions),
            finish="length" if finish == "abort" else finish,
            routing=np.concatenate(routing) if routing else None,
        )

    def _request(
        self, session: VllmSession, prompt: list[int], sampling: Sampling, routing_from: int | None
    ) -> Callable[[Member], Awaitable[Sampled]]:
        async def ask(member: Member) -> Sampled:
            assert member.serves is not None
            found = await member.replica.generate(
                prompt,
                sampling,
                seed=session.next_seed(),
                end_ids=self.end_ids,
                weights=member.serves,
                routing_from=routing_from,
                vision=self._vision,
            )
            unknown = {label for label in found.labels if version_of(label, self.run) is None}
            if unknown:
                raise ReplicaError(
                    f"{member.replica.url}: sampled with weights {', '.join(sorted(unknown))}, "
                    "which this run never gave it; a server is of one run at a time"
                )
            return found

        return ask

    async def _asked(
        self, session: VllmSession | None, ask: Callable[[Member], Awaitable[AnswerT]]
    ) -> AnswerT:
        """Return what ``ask`` returns, from the first server that answers."""
        last: Exception | None = None
        lost = set[Member]()
        for _ in range(_MOST_TRIES):
            member = await self._servers.pick(None if session is None else session.member)
            if session is not None:
                session.member = member
            member.in_flight += 1
            try:
                return await ask(member)
            except ReplicaError as error:
                last = error
                self._retried += 1
                if isinstance(error, ConnectionLost) and member not in lost:
                    lost.add(member)  # one that is gone refuses the next connection
                else:
                    self._servers.suspect(member, error)
            finally:
                member.in_flight -= 1
        raise PolicyFault(f"engine: no whole answer in {_MOST_TRIES} tries: {last}")


class VllmSession:
    """A session of token ids; any server can go on with it."""

    def __init__(self, engine: ServerSampler, seed: int) -> None:
        self._engine = engine
        self._seed, self._calls = seed, 0
        self.ids: list[int] = []
        self.read_ids = 0
        """How many of them some server has read."""
        self.member: Member | None = None
        self.closed = False

    async def generate(
        self, new_ids: Sequence[int], sampling: Sampling, *, on_token: OnToken | None = None
    ) -> Generation:
        """Append ``new_ids`` to the sequence, and sample an action after it.

        Args:
            new_ids: At least one token, unless the last action was cut short and is to continue.
            sampling: How to sample.
            on_token: Called with all tokens at the end.

        Raises:
            ContextOverflow: There is no room for even one more token.
            PolicyFault: The request is refused, or fails at every server.
            EnginesLost: No server is left.
        """
        found = await self._engine.submit(self, new_ids, sampling)
        found.report(on_token)
        return found

    def read(self, token_ids: Sequence[int], *, sampled: int) -> None:
        """Append the tokens ``sampled`` in an earlier turn; the next request has the next seed."""
        self.ids.extend(token_ids)
        self._calls += 1

    def reseed(self, seed: int) -> None:
        """Begin another stream of seeds."""
        self._seed, self._calls = seed, 0

    def next_seed(self) -> int:
        """Return the seed of one more request."""
        self._calls += 1
        return derive_seed(self._seed, "call", self._calls) % 2**31

    def close(self) -> None:
        """Give the place back. Safe to call twice."""
        if not self.closed:
            self.closed = True
            self._engine.free_sessions += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerView:
    """One server, as another process of the run has to know it."""

    url: str
    label: str
    """Of the newest weights, where it serves them; else empty."""
    model: str
    """What it calls its model."""
    adapters: str
    """Their folder, where they are adapters; else empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetView:
    """All servers of a run at one moment."""

    servers: tuple[ServerView, ...]
    lost: str = ""
    """Why none will ever serve again; empty while one may."""


class FollowedServers:
    """The servers of a run whose weights another process publishes.

    Args:
        config: Limits; ``max_requests`` is this process's part.
        report: Called with the number of a server that failed, and how.
    """

    def __init__(self, config: VllmEngineConfig, report: Callable[[int, str], None]) -> None:
        self.members: list[Member] = []
        self._config = config
        self._report = report
        self._lost = ""
        self._changed = asyncio.Event()
        self._moves: set[asyncio.Task[None]] = set()

    def follow(self, view: FleetView) -> None:
        """Take over what the process that tends the servers says of them."""
        for number, server in enumerate(view.servers):
            if number == len(self.members):
                self.members.append(Member(replica=Replica(server.url, self._config)))
            member = self.members[number]
            if member.replica.url != server.url.rstrip("/"):
                old, member.replica = member.replica, Replica(server.url, self._config)
                self._moves.add(move := asyncio.create_task(old.close()))
                move.add_done_callback(self._moves.discard)
            member.replica.model = server.model
            member.serves = _named(server) if server.label else None
        self._lost = view.lost
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def pick(self, liked: Member | None) -> Member:
        """Return the server for a request, as soon as one serves.

        Raises:
            EnginesLost: None is left.
        """
        while not (serving := [one for one in self.members if one.serves is not None]):
            if self._lost:
                raise EnginesLost(self._lost)
            await self._changed.wait()
        return favoured(serving, liked)

    def suspect(self, member: Member, error: Exception) -> None:
        """Send ``member`` nothing until news of it come; who tends it looks at it."""
        if member.serves is not None:
            member.serves = None
            self._report(self.members.index(member), str(error))

    async def close(self) -> None:
        """Close the connections."""
        await asyncio.gather(*self._moves, *(one.replica.close() for one in self.members))


def _named(server: ServerView) -> Publication:
    """Return the weights that a server serves by name alone: all that a request needs of them."""
    return Publication(
        label=server.label,
        adapters=server.adapters,
        probe=(),
        expected=np.empty(0, dtype=np.float32),
        before=np.empty(0, dtype=np.float32),
    )
