"""Talking with a chat model: lines in, one answer out, whatever the model is.

ChatModel.open(seed) -> Conversation
Conversation.say([Line, ...]) -> Said
Conversation.restart()          the history was rewritten; what follows is a new opening
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from turngym.types import Message, TokenSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One entry of a conversation as a model is told it."""

    message: Message
    image: NDArray[np.uint8] | None = None
    """What the message shows, shape [H, W, 3]; only models that see are told."""
    spoken: str | None = None
    """What an assistant said beside its tool calls; None when that is the message's content."""
    call_ids: tuple[str, ...] = ()
    """The server's names of an assistant's tool calls, or of the one that a tool line answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
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
    """As in ``Line``."""
    call_ids: tuple[str, ...] = ()

    @property
    def line(self) -> Line:
        """The answer as an entry of the conversation."""
        return Line(message=self.message, spoken=self.spoken, call_ids=self.call_ids)


class Conversation(Protocol):
    """One conversation with a chat model. Used by one task at a time."""

    async def say(self, lines: Sequence[Line], *, tools: Sequence[Mapping[str, Any]] = ()) -> Said:
        """Say what is new and return the answer.

        Args:
            lines: Entries since the last answer; it is part of the conversation already.
            tools: OpenAI-style function descriptions, for models with native tool calls.

        Raises:
            ContextOverflow: The conversation does not fit the model.
            PolicyFault: The model cannot be had just now.
            ConfigError: It can never be had this way.
        """
        ...

    async def restart(self) -> None:
        """Forget everything that was said; the next lines open the conversation anew."""
        ...

    def close(self) -> Awaitable[None] | None:
        """Release what the conversation holds. Safe to call twice; what it returns is awaited."""
        ...


class ChatModel(Protocol):
    """A model that many conversations are held with at once."""

    def open(self, seed: int) -> Conversation:
        """Return a new conversation whose answers depend on ``seed``."""
        ...
