"""A chat model made of an engine and a chat template: it speaks in tokens and keeps every one."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from turngym.agents.chat.prompting import ChatMessage, Completion
from turngym.agents.engine.protocol import Engine, Sampling, Session, spans_of
from turngym.agents.rendering import Renderer
from turngym.types import Message, Turn

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
        self._hit_eos: bool | None = None  # None before the first answer

    async def complete(
        self, messages: Sequence[ChatMessage], *, tools: Sequence[Mapping[str, Any]] = ()
    ) -> Completion:
        """Return the answer to ``messages``, which must describe the tools themselves."""
        new = [entry.message for entry in messages]
        if self._hit_eos is None:
            prompt = self._renderer.opening(new)
        else:
            prompt = self._renderer.continuation(new, hit_eos=self._hit_eos)
        answer = await self._session.generate(prompt, self._sampling)
        self._hit_eos = answer.finish == "end"
        text = self._renderer.decode_action(answer.token_ids)
        return Completion(
            message=Message(role="assistant", content=text),
            spans=spans_of(prompt, answer),
            usage={
                "prompt_tokens": float(len(prompt)),
                "completion_tokens": float(len(answer.token_ids)),
            },
        )

    def resume(self, messages: Sequence[ChatMessage], turn: Turn) -> None:
        """Take over the tokens of a turn that was played before, exactly as they were.

        Raises:
            ValueError: It has none.
        """
        ids = [token for span in turn.spans for token in span.token_ids]
        if not ids:
            raise ValueError("the turn has no tokens to resume from")
        self._session.read(ids, sampled=turn.num_sampled_tokens)
        self._hit_eos = ids[-1] == self._renderer.tokenizer.eos_token_id

    async def restart(self) -> None:
        """Forget everything; the next messages open a conversation, with the next seed."""
        if (closing := self._session.close()) is not None:
            await closing
        self._seed += 1
        self._session, self._hit_eos = self._engine.open(self._seed), None

    def close(self) -> Awaitable[None] | None:
        """Free the engine's session."""
        return self._session.close()
