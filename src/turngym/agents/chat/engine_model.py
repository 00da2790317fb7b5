"""A chat model on an engine, which speaks in tokens and keeps every one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from turngym.agents.chat.prompting import ChatMessage, Completion
from turngym.agents.engine.protocol import Engine, Generation, Sampling, Session, spans_of
from turngym.agents.rendering import AnswerEnd, Renderer
from turngym.coroutines import awaited
from turngym.tracing import is_tracing, note, traced
from turngym.types import Message, Turn

_SMALL = 2**16
"""Bytes of a picture that is kept at once, in a millisecond or two. A thread makes the order of
requests, and so the rounding of their log-probs, depend on the clock."""

EngineT = TypeVar("EngineT", bound=Engine)


class EngineModel(Generic[EngineT]):
    """A chat model on an engine.

    Args:
        engine: Samples the tokens; shared by all conversations.
        renderer: Encodes messages.
        sampling: How answers are sampled.
    """

    def __init__(self, engine: EngineT, renderer: Renderer, *, sampling: Sampling) -> None:
        self.engine = engine
        self.renderer = renderer
        self.sampling = sampling

    @property
    def takes_tools(self) -> bool:
        """Whether tools are shown by the chat template."""
        return self.renderer.tools is not None

    def open(self, seed: int) -> EngineConversation:
        """Return a new conversation."""
        return EngineConversation(self.engine, self.renderer, sampling=self.sampling, seed=seed)


class EngineConversation:
    """A conversation as one sequence of tokens; text is encoded once and never read again."""

    def __init__(
        self, engine: Engine, renderer: Renderer, *, sampling: Sampling, seed: int
    ) -> None:
        self._engine = engine
        self._renderer = renderer
        self._sampling = sampling
        self._seed = seed
        self._session: Session = engine.open(seed)
        self._end: AnswerEnd | None = None  # None before the first answer
        self._tools: Sequence[Mapping[str, Any]] = ()
        self._resumed: Sequence[int] = ()
        """An answer of an earlier process, until the tools that it could call are known."""

    async def complete(
        self, messages: Sequence[ChatMessage], *, tools: Sequence[Mapping[str, Any]] = ()
    ) -> Completion:
        """Return the answer to ``messages``; where the template shows no tools they must."""
        self._tools = tools if self._renderer.tools is not None else ()
        if self._resumed:
            _, self._end = self._renderer.answer(self._resumed, self._tools)
            self._resumed = ()
        pictures = [entry.image for entry in messages if entry.image is not None]
        if self._renderer.vision is None or sum(one.size for one in pictures) <= _SMALL:
            new = self._seen(messages)
        else:  # they are written to files
            new = await asyncio.to_thread(self._seen, messages)
        if self._end is None:
            prompt = self._renderer.opening(new, self._tools)
        else:
            prompt = self._renderer.continuation(new, self._end)
        generate = self._traced if is_tracing() else self._session.generate
        answer = await generate(prompt, self._sampling)
        message, self._end = self._renderer.answer(answer.token_ids, self._tools)
        return Completion(
            message=message,
            spans=spans_of(prompt, answer),
            usage={
                "prompt_tokens": float(len(prompt)),
                "completion_tokens": float(len(answer.token_ids)),
            },
        )

    def _seen(self, messages: Sequence[ChatMessage]) -> list[Message]:
        return [self._renderer.seen(entry.message, entry.image) for entry in messages]

    @traced("generate")
    async def _traced(self, prompt: Sequence[int], sampling: Sampling) -> Generation:
        note(
            {
                "gen_ai.operation.name": "chat",
                "gen_ai.request.temperature": sampling.temperature,
                "gen_ai.request.max_tokens": sampling.max_new_tokens,
                "gen_ai.usage.input_tokens": len(prompt),  # those that are new to the conversation
            }
        )
        answer = await self._session.generate(prompt, sampling)
        note(
            {
                "gen_ai.usage.output_tokens": len(answer.token_ids),
                "gen_ai.response.finish_reasons": (answer.finish,),
                "turngym.policy.version": answer.versions[-1] if answer.versions else None,
            }
        )
        return answer

    def resume(self, messages: Sequence[ChatMessage], turn: Turn) -> None:
        """Take over the tokens of a turn that was played before, exactly as they were.

        Raises:
            ValueError: It has none.
        """
        ids = [token for span in turn.spans for token in span.token_ids]
        if not ids:
            raise ValueError("the turn has no tokens to resume from")
        self._session.read(ids, sampled=turn.num_sampled_tokens)
        self._resumed = ids[len(ids) - turn.num_sampled_tokens :]

    async def restart(self) -> None:
        """Forget everything; the next messages open a conversation, with the next seed."""
        await awaited(self._session.close())
        self._seed += 1
        self._session, self._end, self._resumed = self._engine.open(self._seed), None, ()

    def close(self) -> Awaitable[None] | None:
        """Free the engine's session."""
        return self._session.close()
