"""The contract of chat models: messages in, one completion out, whatever the model is.

ChatModel.open(seed) -> Conversation
Conversation.complete([ChatMessage, ...]) -> Completion
Conversation.resume([ChatMessage, ...], turn)       the same for a turn that was played before
Conversation.restart()                              the history was rewritten; a new opening follows
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from turngym.types import Message, TokenSpan, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """One entry of a conversation with what only a chat model needs besides."""

    message: Message
    image: NDArray[np.uint8] | None = None
    """What the message shows, shape [H, W, 3]; only for models that see."""
    spoken: str | None = None
    """Text of an assistant beside its tool calls; None when that is the message's content."""
    call_ids: tuple[str, ...] = ()
    """The server's ids of an assistant's tool calls, or of the one that a tool message answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A model's answer."""

    message: Message
    """Role assistant; the content is the action text, tool calls included."""
    spans: tuple[TokenSpan, ...] = ()
    """Tokens that this answer appended, its prompt first; empty when they are not known."""
    starts_segment: bool = False
    """The server's prompt did not continue what it had served before."""
    segment_reason: str | None = None
    usage: Mapping[str, float] = field(default_factory=dict)
    spoken: str | None = None
    """As in ``ChatMessage``."""
    call_ids: tuple[str, ...] = ()

    @property
    def entry(self) -> ChatMessage:
        """The answer as an entry of the conversation."""
        return ChatMessage(message=self.message, spoken=self.spoken, call_ids=self.call_ids)


class Conversation(Protocol):
    """One conversation with a chat model. Used by one task at a time."""

    async def complete(
        self, messages: Sequence[ChatMessage], *, tools: Sequence[Mapping[str, Any]] = ()
    ) -> Completion:
        """Append ``messages`` to the conversation and return the answer.

        Args:
            messages: Entries since the last answer; it is part of the conversation already.
            tools: OpenAI-style function descriptions, for models with native tool calls.

        Raises:
            ContextOverflow: The conversation does not fit the model.
            PolicyFault: The model cannot be had just now.
            ConfigError: It can never be had this way.
        """
        ...

    def resume(self, messages: Sequence[ChatMessage], turn: Turn) -> None:
        """Append what was said in a turn that was played before.

        Args:
            messages: Entries before the answer.
            turn: Gives the answer, and the tokens of both where they are known.

        Raises:
            ValueError: The model goes on from tokens, and the turn has none.
        """
        ...

    async def restart(self) -> None:
        """Forget everything; the next messages open the conversation anew."""
        ...

    def close(self) -> Awaitable[None] | None:
        """Release what the conversation holds. Safe to call twice; what it returns is awaited."""
        ...


class ChatModel(Protocol):
    """A model that has many conversations at once."""

    def open(self, seed: int) -> Conversation:
        """Return a new conversation whose answers depend on ``seed``."""
        ...
