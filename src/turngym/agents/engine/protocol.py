"""What any engine is asked for and gives back, wherever it runs. Knows no torch."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

from turngym.errors import ConfigError
from turngym.types import TokenSpan

OnToken = Callable[[int, float, int], None]
"""Told a token as it is drawn: id, log-prob, policy version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn.

    The log-prob of a token is the one under the distribution it was drawn from: after temperature
    and ``top_p``. At temperature 0 the likeliest token is taken, with log-prob 0.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    """Draw among the likeliest tokens that together hold this probability."""
    max_new_tokens: int = 64
    """Longest action in tokens, the end token included."""
    stop: tuple[str, ...] = ()
    """Texts that end an action besides the end token; they stay part of it."""

    def __post_init__(self) -> None:
        if self.temperature < 0 or not 0 < self.top_p <= 1 or self.max_new_tokens < 1:
            raise ConfigError(
                f"sampling: temperature={self.temperature} must be 0 or more, top_p={self.top_p} "
                f"in (0, 1], max_new_tokens={self.max_new_tokens} at least 1"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What was drawn for one request. All sequences have one length [N]."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    """Policy version that drew each token; ascending."""
    finish: str
    """``"end"`` (the end token), ``"stop"`` (a stop text) or ``"length"``."""


class Session(Protocol):
    """One episode's place in an engine."""

    async def generate(self, new_ids: Sequence[int], sampling: Sampling) -> Generation:
        """Read ``new_ids`` after what was read and drawn so far, and draw an action.

        Raises:
            ContextOverflow: There is no room for even one more token.
            PolicyFault: The engine broke.
        """
        ...

    def close(self) -> Awaitable[None] | None:
        """Release what the session holds. Safe to call twice; what it returns is awaited."""
        ...


class Engine(Protocol):
    """Draws tokens for many sessions at once."""

    def open(self, seed: int) -> Session:
        """Return a fresh session whose draws depend on ``seed``."""
        ...


def spans_of(prompt: Sequence[int], drawn: Generation) -> tuple[TokenSpan, ...]:
    """Return the prompt's span, then one span per policy version that drew.

    An empty prompt has no span.
    """
    spans = [TokenSpan(token_ids=tuple(prompt), sampled=False)] if prompt else []
    for version, places in groupby(range(len(drawn.token_ids)), key=drawn.versions.__getitem__):
        run = list(places)
        spans.append(
            TokenSpan(
                token_ids=tuple(drawn.token_ids[i] for i in run),
                logprobs=tuple(drawn.logprobs[i] for i in run),
                sampled=True,
                policy_version=version,
            )
        )
    return tuple(spans)
