"""Where a conversation stands in token space, when a server says what it read and sampled.

A chat server gets the whole conversation at every call and renders it anew. Only the ids that it
reports say what it really read: a template may have dropped earlier thinking, trimmed a text, or
encoded it in other tokens than were sampled. ``TokenTrace`` compares each call with the one before:
a prompt that continues it adds spans; any other opens a new segment, with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from turngym.agents.engine.protocol import Generation, spans_of
from turngym.types import TokenSpan, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """What one call added."""

    spans: tuple[TokenSpan, ...]
    starts_segment: bool
    reason: str | None
    """Why a new segment starts."""


class TokenTrace:
    """The tokens of one conversation's last call."""

    def __init__(self) -> None:
        self._served: tuple[int, ...] | None = None
        self._prompt_length = 0
        self._lost: str | None = None

    def add(self, prompt_ids: Sequence[int], generation: Generation) -> Traced:
        """Take in one call and return what it adds to the trajectory.

        Args:
            prompt_ids: Everything the server read, from the first token on.
            generation: What it sampled after it.
        """
        prompt = tuple(prompt_ids)
        reason = self._lost or self._divergence(prompt)
        before = 0 if self._served is None or reason is not None else len(self._served)
        self._served = (*prompt, *generation.token_ids)
        self._prompt_length, self._lost = len(prompt), None
        return Traced(
            spans=spans_of(prompt[before:], generation),
            starts_segment=reason is not None,
            reason=reason,
        )

    def resume(self, turn: Turn) -> None:
        """Take over the tokens of a turn that was played before, where they are known."""
        if not turn.spans:
            return
        before = () if turn.starts_segment or self._served is None else self._served
        added = tuple(token for span in turn.spans for token in span.token_ids)
        self._served = (*before, *added)
        self._prompt_length = len(self._served) - turn.num_sampled_tokens

    def lose(self, reason: str) -> None:
        """Note that a call went by whose tokens are not known; the next one starts a segment."""
        self._lost = reason

    def _divergence(self, prompt: tuple[int, ...]) -> str | None:
        """Return why ``prompt`` does not continue what was served, or None when it does."""
        served = self._served
        if served is None or prompt[: len(served)] == served:
            return None
        pairs = zip(prompt, served, strict=False)
        same = next((i for i, (new, old) in enumerate(pairs) if new != old), None)
        if same is None:
            return f"history was cut: {len(prompt)} tokens, after {len(served)} were served"
        if same >= self._prompt_length:
            return f"an answer came back in other tokens, from token {same} of {len(served)} on"
        return f"history was rewritten from token {same} of {len(served)} on"
