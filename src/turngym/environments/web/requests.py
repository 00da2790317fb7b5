"""The requests that a page has under way, as the browser reports them in the order of the page.

The proxy sees a request when it arrives, which on a busy machine may be long after the page made
it. Here it counts from the line of the page that made it: the browser reports both over one
connection, so whatever the page asked for before it answered us is known when its answer is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.async_api import CDPSession

_UNANSWERED = frozenset({"CSPViolationReport", "EventSource", "Ping", "Prefetch", "Preflight"})
"""Kinds of requests whose answer no page waits for, or that never end."""


class Requests:
    """The unanswered requests of one tab.

    Args:
        session: A session of the DevTools protocol with the page.
    """

    def __init__(self, session: CDPSession) -> None:
        self._open: dict[str, tuple[str, str]] = {}
        """By id: the frame and the document that made it."""
        self._changed = asyncio.Event()
        session.on("Network.requestWillBeSent", self._began)
        session.on("Network.loadingFinished", self._ended)
        session.on("Network.loadingFailed", self._ended)
        session.on("Page.frameNavigated", self._navigated)
        session.on("Page.frameDetached", self._detached)

    @property
    def is_idle(self) -> bool:
        """The page waits for no answer."""
        return not self._open

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until the page waits for no answer; False when that took too long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._open:
                    self._changed.clear()
                    await self._changed.wait()
        return self.is_idle

    def _began(self, event: dict[str, Any]) -> None:
        if event.get("type") not in _UNANSWERED:
            self._open[event["requestId"]] = event.get("frameId", ""), event["loaderId"]

    def _ended(self, event: dict[str, Any]) -> None:
        self._open.pop(event["requestId"], None)
        self._changed.set()

    def _navigated(self, event: dict[str, Any]) -> None:
        """Forget what the frame's last document asked for: nobody waits for it any more."""
        frame = event["frame"]
        is_top = "parentId" not in frame
        self._keep(
            lambda owner, document: (
                document == frame["loaderId"] or (owner != frame["id"] and not is_top)
            )
        )

    def _detached(self, event: dict[str, Any]) -> None:
        self._keep(lambda owner, _: owner != event["frameId"])

    def _keep(self, wanted: Callable[[str, str], bool]) -> None:
        self._open = {name: one for name, one in self._open.items() if wanted(*one)}
        self._changed.set()
