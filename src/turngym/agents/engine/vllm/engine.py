"""The engine on servers: sessions of token ids that any server can go on with.

A session is its ids. A request carries all of them, and the server that saw most of them has them
in its prefix cache. What an update cut off, or a server that died left undone, is asked for again
with the tokens that came; so nothing that was sampled is lost or sampled twice, and an episode
never learns that an engine died.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from turngym.agents.engine.config import VllmEngineConfig
from turngym.agents.engine.protocol import (
    EngineStats,
    EngineTraits,
    Generation,
    OnToken,
    Sampling,
    one_less,
)
from turngym.agents.engine.vllm.children import HOST, Child, RayChild, command, free_port
from turngym.agents.engine.vllm.fleet import Fleet, Member
from turngym.agents.engine.vllm.replica import ConnectionLost, Replica, ReplicaError, Sampled
from turngym.agents.engine.vllm.weights import Handover, zero_adapters
from turngym.agents.policy import ContextOverflow
from turngym.errors import ConfigError, PolicyFault
from turngym.seeding import derive_seed

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

AnswerT = TypeVar("AnswerT")

_MOST_TRIES = 8
"""Of one request: one that ends every server it meets must not end them all."""


class VllmEngine:
    """A ``TrainableEngine`` on servers that speak vLLM's wire.

    Args:
        config: The servers.
        model: Gives the first weights and the shape.
        tokenizer: Its end token ends an action. Servers are sent ids, never text.
        context: Longest sequence in tokens.
        max_sessions: Most sessions open at once.

    Raises:
        ConfigError: The folder for weights cannot be written, or a port is taken.
    """

    def __init__(
        self,
        config: VllmEngineConfig,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        context: int,
        max_sessions: int,
    ) -> None:
        self.context = context
        self.traits = EngineTraits(
            deterministic=False, exact_versions=True, takes_adapters=config.adapter_rank > 0
        )
        self.version = 0
        self.stats = EngineStats()
        self.free_sessions = self._max_sessions = max_sessions
        self.end_id = int(tokenizer.eos_token_id)
        self._handover = Handover(config, model, tokenizer)
        rank = config.adapter_rank
        self._initial: Mapping[str, Tensor] | None = (
            zero_adapters(model, rank) if rank else dict(model.state_dict())
        )
        self._versions: dict[str, int] = {}
        self._label = ""
        self._requests: set[asyncio.Future[Generation]] = set()
        self._publishing = asyncio.Lock()
        self._is_closed = False
        self._seconds = 0.0
        self._retried = 0
        members = _members(config, self._handover, context)
        self._fleet = Fleet(members, config, self._handover.token)

    def open(self, seed: int) -> VllmSession:
        """Return an empty session.

        Raises:
            ConfigError: ``max_sessions`` are open.
        """
        self.free_sessions = one_less(self.free_sessions, self._max_sessions)
        return VllmSession(self, seed)

    async def publish(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Sample with new weights from now on; returns as soon as one server does.

        Raises:
            EnginesLost: No server is left that could take them.
        """
        async with self._publishing:
            await self._publish(weights, version)

    async def _publish(self, weights: Mapping[str, Tensor], version: int) -> None:
        began = time.monotonic()
        new = await asyncio.to_thread(self._handover.prepare, weights, version)
        self._initial = None
        self._versions[new.label] = version
        await self._fleet.publish(new)
        self._label, self.version = new.label, version
        self._seconds += time.monotonic() - began

    async def score(self, sequences: Sequence[Sequence[int]]) -> list[NDArray[np.float32]]:
        """Return each sequence's own log-probs at temperature 1, shape [L - 1], from token 1 on.

        Raises:
            PolicyFault: Servers have adapters: vLLM 0.32 ends when it does this beside sampling.
        """
        if self.traits.takes_adapters:
            raise PolicyFault("engine.adapter_rank: servers with adapters score no sequences")
        await self._ready()

        async def one(ids: Sequence[int]) -> NDArray[np.float32]:
            return await self._asked(None, partial(_score, ids=ids))

        return list(await asyncio.gather(*(one(ids) for ids in sequences)))

    async def pause(self) -> None:
        """Sample nothing until ``resume``; running requests wait."""
        await self._fleet.hold(True)

    async def resume(self) -> None:
        """Go on with what waits."""
        await self._fleet.hold(False)

    async def close(self) -> None:
        """End what still runs, let go of the servers, and end those that were started here."""
        if not self._is_closed:
            self._is_closed = True
            for task in self._requests:
                task.cancel()
            await self._fleet.close()
            await asyncio.to_thread(self._handover.close)

    def metrics(self) -> dict[str, float]:
        """Return what is logged at each update, counted since the start."""
        serving = sum(one.serves is not None for one in self._fleet.members)
        return self._fleet.counts | {
            "engine/serving": float(serving),
            "engine/publish_s": self._seconds,
            "engine/weights_bytes": float(self._handover.bytes_written),
            "engine/retried_requests": float(self._retried),
        }

    # What sessions call.

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
        while finish == "abort" and len(ids) < limit:
            left = replace(sampling, max_new_tokens=limit - len(ids))
            answer = await self._asked(session, self._request(session, [*prompt, *ids], left))
            ids += answer.token_ids
            logprobs += answer.logprobs
            versions += (self._versions[label] for label in answer.labels)
            finish = "end" if ids and ids[-1] == self.end_id else answer.finish
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
        )

    def _request(
        self, session: VllmSession, prompt: list[int], sampling: Sampling
    ) -> Callable[[Member], Awaitable[Sampled]]:
        async def ask(member: Member) -> Sampled:
            assert member.serves is not None
            found = await member.replica.generate(
                prompt,
                sampling,
                seed=session.next_seed(),
                end_id=self.end_id,
                weights=member.serves,
            )
            unknown = set(found.labels) - self._versions.keys()
            if unknown:
                raise ReplicaError(
                    f"{member.replica.url}: sampled with weights {unknown} of others"
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
            member = await self._fleet.pick(None if session is None else session.member)
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
                    self._fleet.suspect(member, error)
            finally:
                member.in_flight -= 1
        raise PolicyFault(f"engine: no whole answer in {_MOST_TRIES} tries: {last}")

    async def _ready(self) -> None:
        """Have the servers sample with the first weights, where none were published yet."""
        if self._initial is not None:
            async with self._publishing:
                if self._initial is not None:
                    await self._publish(self._initial, self.version)


class VllmSession:
    """A session of token ids; any server can go on with it."""

    def __init__(self, engine: VllmEngine, seed: int) -> None:
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


def build(
    config: VllmEngineConfig,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    context: int,
    max_sessions: int,
) -> VllmEngine:
    """Return ``context``'s engine for ``max_sessions``; the builder of ``VllmEngineConfig``."""
    return VllmEngine(config, model, tokenizer, context=context, max_sessions=max_sessions)


async def _score(member: Member, ids: Sequence[int]) -> NDArray[np.float32]:
    assert member.serves is not None
    return await member.replica.score(ids, member.serves)


def _members(config: VllmEngineConfig, handover: Handover, context: int) -> list[Member]:
    if config.urls:
        return [Member(replica=Replica(url, config)) for url in config.urls]
    if config.resource:
        return [_far_member(config, handover, context, n) for n in range(config.replicas)]
    members: list[Member] = []
    for number in range(config.replicas):
        port = free_port(config.port and config.port + number)
        folder = handover.folder
        line, more = command(
            config,
            handover.model_folder,
            context=context,
            port=port,
            folder=folder,
            number=number,
        )
        child = Child(line, more, folder / f"engine-{number}.log")
        members.append(Member(replica=Replica(f"http://{HOST}:{port}", config), child=child))
    return members


def _far_member(config: VllmEngineConfig, handover: Handover, context: int, number: int) -> Member:
    name = f"engine-{number}"
    replica = Replica(f"http://{name}", config)  # until it has an address
    model, log = handover.model_folder.resolve(), f"{name}.log"
    return Member(replica=replica, child=RayChild(replica, config, model, context, log))
