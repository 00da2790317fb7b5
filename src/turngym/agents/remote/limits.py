"""How fast a server may be asked: requests and tokens a minute, and a pause that all keep."""

from __future__ import annotations

import asyncio

from turngym.agents.remote.config import EndpointConfig


class RateLimit:
    """Lets through so much a minute, evenly, with a burst of a few seconds' worth.

    Args:
        per_minute: Amount a minute; None for no limit.
    """

    _BURST_S = 2.0

    def __init__(self, per_minute: float | None) -> None:
        self._seconds_each = 0.0 if per_minute is None else 60.0 / per_minute
        self._next = 0.0

    def reserve(self, amount: float, now: float) -> float:
        """Return for how many seconds to wait before using ``amount``."""
        if not self._seconds_each:
            return 0.0
        start = max(self._next, now - self._BURST_S)
        self._next = start + amount * self._seconds_each
        return max(0.0, start - now)

    def charge(self, amount: float) -> None:
        """Note that ``amount`` was used; who reserves next waits for it."""
        self._next += amount * self._seconds_each


class Limits:
    """The limits of one server, shared by all conversations with it."""

    def __init__(self, config: EndpointConfig) -> None:
        self._requests = RateLimit(config.requests_per_minute)
        self._tokens = RateLimit(config.tokens_per_minute)
        self._not_before = 0.0

    async def wait(self) -> None:
        """Wait until a request may be sent."""
        now = asyncio.get_running_loop().time()
        pause = max(
            self._not_before - now, self._requests.reserve(1, now), self._tokens.reserve(0, now)
        )
        if pause > 0:
            await asyncio.sleep(pause)

    def pause(self, seconds: float) -> None:
        """Let nobody send anything for so long: the server said that it has enough."""
        now = asyncio.get_running_loop().time()
        self._not_before = max(self._not_before, now + seconds)

    def charge(self, tokens: float) -> None:
        """Note what an answer cost in tokens."""
        self._tokens.charge(tokens)
