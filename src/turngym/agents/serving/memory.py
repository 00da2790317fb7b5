"""The memory of the policy server: sampled tokens by conversation, and a prefix cache.

A chat client sends its whole conversation at every call, as text. Encoding an earlier answer again
would give other tokens than were sampled. So the server remembers, for each conversation that it
answered, the tokens that it read and sampled; a request that continues one is rendered from there.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turngym.agents.engine.protocol import Generation, OnToken, Sampling, Session, TrainableEngine
from turngym.agents.rendering import AnswerEnd, Renderer
from turngym.agents.tool_calls import in_words
from turngym.coroutines import awaited
from turngym.types import Message

_MAX_REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class _Answered:
    """A conversation up to and with an answer of ours."""

    token_ids: tuple[int, ...]
    end: AnswerEnd


class ConversationMemory:
    """Renders a conversation to tokens, going on from what was really read and sampled.

    Args:
        renderer: Encodes what is new.
    """

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._answered: OrderedDict[str, _Answered] = OrderedDict()

    def prompt(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[int, ...]:
        """Return the tokens to read for ``messages``.

        Args:
            messages: The conversation.
            tools: What can be called, where the template shows tools.
        """
        for end in range(len(messages) - 1, 0, -1):
            if messages[end - 1].role != "assistant":
                continue
            known = self._answered.get(_key(messages[:end]))
            if known is not None:
                more = self._renderer.continuation(self._said(messages[end:]), known.end)
                return (*known.token_ids, *more)
        return self._renderer.opening(self._said(messages), tools)

    def _said(self, messages: Sequence[Message]) -> list[Message]:
        return list(messages if self._renderer.tools is not None else map(in_words, messages))

    def remember(
        self,
        messages: Sequence[Message],
        prompt: Sequence[int],
        answer: Message,
        end: AnswerEnd,
        generation: Generation,
    ) -> None:
        """Note what was read and sampled.

        Args:
            messages: The conversation.
            prompt: Its tokens.
            answer: What was said to it.
            end: How that ended.
            generation: Has its tokens.
        """
        key = _key([*messages, answer])
        self._answered[key] = _Answered((*prompt, *generation.token_ids), end)
        self._answered.move_to_end(key)
        if len(self._answered) > _MAX_REMEMBERED:
            self._answered.popitem(last=False)


class PrefixCache:
    """Engine sessions that stay open, for requests that continue what they have read.

    Args:
        engine: Samples the tokens.
        idle: Most sessions that are kept idle.
    """

    def __init__(self, engine: TrainableEngine, *, idle: int) -> None:
        self._engine = engine
        self._idle_max = idle
        self._idle: list[tuple[tuple[int, ...], Session]] = []
        self._version = engine.version

    async def generate(
        self,
        prompt: tuple[int, ...],
        sampling: Sampling,
        *,
        seed: int,
        sampled: int = 0,
        on_token: OnToken | None = None,
    ) -> Generation:
        """Sample after ``prompt``; only what no open session has read is computed.

        Args:
            prompt: The whole conversation.
            sampling: How to sample.
            seed: Of this request.
            sampled: Tokens at the end of ``prompt`` that this very request sampled, before it was
                cut: the random numbers go on after theirs.
            on_token: As in ``Session.generate``.
        """
        known, session = await self._take(prompt)
        version = self._version
        session.reseed(seed)
        if sampled:
            session.read((), sampled=sampled)
        try:
            generation = await session.generate(prompt[known:], sampling, on_token=on_token)
        except BaseException:
            await awaited(session.close())  # cut in the middle: what it has read is not known
            raise
        self._idle.append(((*prompt, *generation.token_ids), session))
        if len(self._idle) > self._idle_max or version != self._engine.version:
            place = 0 if version == self._engine.version else -1  # it read with older weights
            await awaited(self._idle.pop(place)[1].close())
        return generation

    async def close(self) -> None:
        """Close every session that is idle."""
        idle, self._idle = self._idle, []
        for _, session in idle:
            await awaited(session.close())

    async def _take(self, prompt: tuple[int, ...]) -> tuple[int, Session]:
        """Return how much of ``prompt`` is read already, and the session that has read it."""
        if self._engine.version != self._version:  # caches of older weights
            self._version = self._engine.version
            await self.close()
        best, place = 0, -1
        for i, (ids, _) in enumerate(self._idle):
            if best < len(ids) < len(prompt) and prompt[: len(ids)] == ids:
                best, place = len(ids), i
        if place >= 0:
            return best, self._idle.pop(place)[1]
        if self._engine.free_sessions == 0 and self._idle:
            await awaited(self._idle.pop(0)[1].close())
        return 0, self._engine.open(0)


def _key(messages: Sequence[Message]) -> str:
    rows = [
        [m.role, m.content, [[call.name, dict(call.arguments)] for call in m.tool_calls]]
        for m in messages
    ]
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()
