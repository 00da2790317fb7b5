"""How much of a conversation a model still sees: all, the last turns, or a summary and the last.

A history that is cut opens a new segment: the tokens before it are no prefix of what comes after.
Cuts are rare and deep rather than shallow and at every turn, so that segments stay long.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from turngym.agents.chat.conversation import Line
from turngym.errors import ConfigError
from turngym.types import Message

Ask = Callable[[Sequence[Line]], Awaitable[str]]
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
    """A conversation that was cut: the lines it now begins with, and why."""

    lines: list[Line]
    reason: str


class History(Protocol):
    """Decides, before each answer, what the model is still told."""

    async def fit(self, lines: Sequence[Line], *, tokens: float, ask: Ask) -> Rewritten | None:
        """Return the conversation to go on with, or None to go on as it is.

        Args:
            lines: The whole conversation, the newest line last.
            tokens: Its length, as the model counted or as we guess.
            ask: Asks the model itself, apart from the conversation.
        """
        ...


class FullHistory:
    """Everything; the episode ends when the model's context does."""

    async def fit(self, lines: Sequence[Line], *, tokens: float, ask: Ask) -> Rewritten | None:
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

    async def fit(self, lines: Sequence[Line], *, tokens: float, ask: Ask) -> Rewritten | None:
        """Drop the oldest turns when there are too many."""
        starts = _turn_starts(lines)
        if len(starts) <= self._turns:
            return None
        kept = starts[-self._keep]
        return Rewritten(
            lines=[*_system(lines), *_unbound(lines[kept:])],
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

    async def fit(self, lines: Sequence[Line], *, tokens: float, ask: Ask) -> Rewritten | None:
        """Have the model sum up what is about to be dropped."""
        starts = _turn_starts(lines)
        if tokens <= self._max_tokens or len(starts) <= self._keep:
            return None
        kept = starts[-self._keep]
        request = Line(message=Message(role="user", content=SUMMARIZE))
        told = [*_unbound(lines[:kept]), request]
        notes = (await ask(told)).strip()
        summary = Line(message=Message(role="user", content=f"{SUMMARY}\n{notes}"))
        return Rewritten(
            lines=_merged([*_system(lines), summary, *_unbound(lines[kept:])]),
            reason=f"compaction: {tokens:.0f} tokens are past {self._max_tokens}",
        )


def guessed_tokens(lines: Sequence[Line]) -> float:
    """Return about how many tokens ``lines`` are, where nobody has counted."""
    return sum(len(line.message.content) for line in lines) / _CHARS_PER_TOKEN


def _turn_starts(lines: Sequence[Line]) -> list[int]:
    """Return where each observation stands; a system message is none."""
    return [i for i, line in enumerate(lines) if line.message.role in ("user", "tool")]


def _system(lines: Sequence[Line]) -> list[Line]:
    return [line for line in lines[:1] if line.message.role == "system"]


def _unbound(lines: Sequence[Line]) -> list[Line]:
    """Return ``lines``; a first answer to a tool whose call is gone becomes a user's words."""
    if not lines or lines[0].message.role != "tool":
        return list(lines)
    message = Message(role="user", content=lines[0].message.content)
    return [Line(message=message, image=lines[0].image), *lines[1:]]


def _merged(lines: Sequence[Line]) -> list[Line]:
    """Return ``lines`` with neighbouring words of the user as one: templates want roles in turn."""
    merged: list[Line] = []
    for line in lines:
        last = merged[-1] if merged else None
        if last is not None and last.message.role == line.message.role == "user":
            text = f"{last.message.content}\n\n{line.message.content}"
            merged[-1] = Line(message=Message(role="user", content=text), image=line.image)
        else:
            merged.append(line)
    return merged
