"""An agent put together of parts: a chat model, a way of prompting, a history, a memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from turngym.agents.chat.conversation import ChatModel, Line, Said
from turngym.agents.chat.history import FullHistory, History, guessed_tokens
from turngym.agents.chat.prompting import PlainPrompting, Prompting
from turngym.agents.chat.reflection import Reflection
from turngym.agents.policy import EpisodeContext, EpisodeEnd, PolicySession, PolicyTurn
from turngym.errors import PolicyFault
from turngym.seeding import derive_seed
from turngym.types import Message


class ChatAgent:
    """Acts with any chat model.

    Args:
        model: Who answers.
        prompting: What it is told.
        history: How much of the conversation it still sees.
        reflection: Learns a lesson from each failed attempt at a task, for the next one; None for
            no memory between episodes.
        native_tools: The model calls an environment's tools natively, where there are some.
        turn_timeout_s: Seconds for one turn, a summary included; None for no limit.
    """

    def __init__(
        self,
        model: ChatModel,
        *,
        prompting: Prompting | None = None,
        history: History | None = None,
        reflection: Reflection | None = None,
        native_tools: bool = False,
        turn_timeout_s: float | None = None,
    ) -> None:
        self.model = model
        self.prompting: Prompting = prompting or PlainPrompting()
        self.history: History = history or FullHistory()
        self.reflection = reflection
        self.native_tools = native_tools
        self.turn_timeout_s = turn_timeout_s

    def start(self, context: EpisodeContext) -> PolicySession:
        """Return a session with a conversation of its own."""
        if self.reflection is None:
            return _ChatSession(self, context)
        return _ReflectingSession(self, context, self.reflection)


class _ChatSession:
    def __init__(
        self, agent: ChatAgent, context: EpisodeContext, lessons: Sequence[str] = ()
    ) -> None:
        self._agent = agent
        self._context = context
        self._conversation = agent.model.open(context.seed)
        self._tools: Sequence[Mapping[str, Any]] = ()
        self._lines: list[Line] = []
        self._tokens = 0.0
        self._spent: dict[str, float] = {}
        self._asides = 0
        self._lessons = lessons

    async def act(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> PolicyTurn:
        limit = self._agent.turn_timeout_s
        try:
            async with asyncio.timeout(limit):
                return await self._act(observation, info)
        except TimeoutError as error:
            raise PolicyFault(f"no action within {limit:g} s") from error

    async def _act(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> PolicyTurn:
        self._tools = info.get("tools", self._tools)
        line = self._agent.prompting.line(observation, info)
        if self._lines and self._lines[-1].call_ids:
            line = replace(line, message=replace(line.message, role="tool"))
        new = [line] if self._lines else [*self._opening(), line]
        self._spent = {}
        whole = [*self._lines, *new]
        tokens = self._tokens + guessed_tokens(new)
        rewritten = await self._agent.history.fit(whole, tokens=tokens, ask=self.ask)
        if rewritten is not None:
            await self._conversation.restart()
            self._lines, new = [], rewritten.lines
        said = await self._conversation.say(new, tools=self._tools)
        self._lines += [*new, said.line]
        self._count(said, fresh=rewritten is not None)
        reason = said.segment_reason if rewritten is None else rewritten.reason
        return PolicyTurn(
            observation=tuple(line.message for line in new),
            action=said.message,
            spans=said.spans,
            starts_segment=said.starts_segment or rewritten is not None,
            segment_reason=reason,
            usage=_sum(self._spent, said.usage),
        )

    async def ask(self, lines: Sequence[Line]) -> str:
        """Ask the model something apart from the conversation, and count what it costs."""
        self._asides += 1
        aside = self._agent.model.open(derive_seed(self._context.seed, "aside", self._asides))
        try:
            said = await aside.say(lines)
        finally:
            closing = aside.close()
            if closing is not None:
                await closing
        self._spent = _sum(self._spent, said.usage)
        return said.message.content

    def close(self) -> Awaitable[None] | None:
        return self._conversation.close()

    def _opening(self) -> list[Line]:
        agent = self._agent
        text = agent.prompting.opening(
            self._context.instructions,
            self._lessons,
            native_tools=agent.native_tools and bool(self._tools),
        )
        return [Line(message=Message(role="system", content=text))] if text else []

    def _count(self, said: Said, *, fresh: bool) -> None:
        """Note how long the conversation is now."""
        if said.spans:  # what this answer added
            added = float(sum(len(span.token_ids) for span in said.spans))
            starts = fresh or said.starts_segment
            self._tokens = added if starts else self._tokens + added
        elif "prompt_tokens" in said.usage and said.usage["prompt_tokens"] > 0:
            self._tokens = said.usage["prompt_tokens"] + said.usage["completion_tokens"]
        else:
            self._tokens = guessed_tokens(self._lines)


class _ReflectingSession(_ChatSession):
    """A session that is told earlier lessons, and draws one from its own failure."""

    def __init__(self, agent: ChatAgent, context: EpisodeContext, reflection: Reflection) -> None:
        super().__init__(agent, context, reflection.lessons(context))
        self._reflection = reflection

    async def finish(self, end: EpisodeEnd) -> None:
        """Ask for a lesson when the attempt failed."""
        await self._reflection.learn(self._context, self._lines, end, ask=self.ask)


def _sum(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {key: one.get(key, 0.0) + other.get(key, 0.0) for key in {**one, **other}}
