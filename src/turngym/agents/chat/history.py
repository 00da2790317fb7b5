"""Histories: how much of a conversation a model still sees (all, a window, a summary).

A history that is cut opens a new segment: the tokens before it are no prefix of what comes after.
Cuts are rare and deep rather than shallow and at every turn, so that segments stay long.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from turngym.agents.chat.conversation import ChatMessage
from turngym.errors import ConfigError
from turngym.types import Message

Ask = Callable[[Sequence[ChatMessage]], Awaitable[str]]
"""Opens a conversation of its own with the same model and returns the text of its answer."""

SUMMARIZE = (
    "The conversation is about to be cut. Write down, in at most 200 words, what you must know to "
    "go on: the task, what was found out, what was tried and how it ended, and what to do next. "
    "Take no action now."
)
SUMMARY = "Your notes of what happened so far:"
_CHARS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A conversation that was cut: the messages it now begins with, and why."""

    messages: list[ChatMessage]
    reason: str


class History(Protocol):
    """Decides, before each answer, what the model still sees."""

    async def fit(
        self, messages: Sequence[ChatMessage], *, tokens: float, ask: Ask
    ) -> Rewritten | None:
        """Return the conversation to go on with, or None to go on as it is.

        Args:
            messages: The whole conversation, the newest entry last.
            tokens: Its length, as the model counted or as we guess.
            ask: Asks the model itself, apart from the conversation.
        """
        ...


class FullHistory:
    """Everything; the episode ends when the model's context does."""

    async def fit(
        self, messages: Sequence[ChatMessage], *, tokens: float, ask: Ask
    ) -> Rewritten | None:
        """Go on as it is."""
        return None


class WindowHistory:
    """The system message and the last turns.

    Args:
        turns: Most turns that are seen, the present one included.
        keep: Turns that are left when there are more; half of ``turns`` by default.
    """

    def __init__(self, turns: int, keep: int | None = None) -> None:
        keep = max(1, turns // 2) if keep is None else keep
        if not 1 <= keep <= turns:
            raise ConfigError(f"history: keep={keep} must lie in 1..turns={turns}")
        self._turns, self._keep = turns, keep

    async def fit(
        self, messages: Sequence[ChatMessage], *, tokens: float, ask: Ask
    ) -> Rewritten | None:
        """Drop the oldest turns when there are too many."""
        starts = _turn_starts(messages)
        if len(starts) <= self._turns:
            return None
        kept = starts[-self._keep]
        return Rewritten(
            messages=[*_system(messages), *_unbound(messages[kept:])],
            reason=f"window: the last {self._keep} of {len(starts)} turns are kept",
        )


class SummaryHistory:
    """The model's own notes of what is dropped, and the last turns word for word.

    Args:
        max_tokens: Length past which the conversation is compacted.
        keep: Turns that are kept word for word, the present one included.
    """

    def __init__(self, max_tokens: int, keep: int = 2) -> None:
        if max_tokens < 1 or keep < 1:
            raise ConfigError(f"history: max_tokens={max_tokens} and keep={keep} must be 1 or more")
        self._max_tokens, self._keep = max_tokens, keep

    async def fit(
        self, messages: Sequence[ChatMessage], *, tokens: float, ask: Ask
    ) -> Rewritten | None:
        """Have the model sum up what is about to be dropped."""
        starts = _turn_starts(messages)
        if tokens <= self._max_tokens or len(starts) <= self._keep:
            return None
        kept = starts[-self._keep]
        request = ChatMessage(message=Message(role="user", content=SUMMARIZE))
        notes = (await ask([*_unbound(messages[:kept]), request])).strip()
        summary = ChatMessage(message=Message(role="user", content=f"{SUMMARY}\n{notes}"))
        return Rewritten(
            messages=_merged([*_system(messages), summary, *_unbound(messages[kept:])]),
            reason=f"compaction: {tokens:.0f} tokens are past {self._max_tokens}",
        )


def estimated_tokens(messages: Sequence[ChatMessage]) -> float:
    """Return about how many tokens ``messages`` are, by their characters."""
    return sum(len(entry.message.content) for entry in messages) / _CHARS_PER_TOKEN


def _turn_starts(messages: Sequence[ChatMessage]) -> list[int]:
    """Return where each observation stands; a system message is none."""
    return [i for i, entry in enumerate(messages) if entry.message.role in ("user", "tool")]


def _system(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    return [entry for entry in messages[:1] if entry.message.role == "system"]


def _unbound(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return ``messages``; a first answer to a tool whose call is gone becomes a user's words."""
    if not messages or messages[0].message.role != "tool":
        return list(messages)
    message = Message(role="user", content=messages[0].message.content)
    return [ChatMessage(message=message, image=messages[0].image), *messages[1:]]


def _merged(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Join neighbouring messages of the user: templates want roles to alternate."""
    merged: list[ChatMessage] = []
    for entry in messages:
        last = merged[-1] if merged else None
        if last is not None and last.message.role == entry.message.role == "user":
            text = f"{last.message.content}\n\n{entry.message.content}"
            merged[-1] = ChatMessage(message=Message(role="user", content=text), image=entry.image)
        else:
            merged.append(entry)
    return merged
