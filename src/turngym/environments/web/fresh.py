"""A fresh browser context with one empty page, made ahead of the reset that takes it.

Most of a reset is the start of a process for the page, which knows nothing of the episode yet. So
the host keeps one such context ready for each kind of session, made while the last one was used.
It is given away once, and nothing ever ran in it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from turngym.environments.web.browser import BrowserGone, BrowserHost, answered
from turngym.environments.web.gate import Gate
from turngym.environments.web.settings import Settings
from turngym.environments.web.tab import Tab, TabLost

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext

_MOST_WAITING = 2
_CLOSE_S = 5.0

Kind = tuple[int, int, bool, str]
"""What contexts must share to stand for each other: the view, and the first script."""


@dataclass(frozen=True, slots=True)
class Fresh:
    """A context, its way out, and its one empty page."""

    context: BrowserContext
    gate: Gate
    tab: Tab

    @property
    def is_usable(self) -> bool:
        """Browser and page are still there."""
        browser = self.context.browser
        is_alive = browser is not None and browser.is_connected()
        return is_alive and not self.tab.page.is_closed() and not self.tab.is_crashed

    async def close(self) -> None:
        """Close it unused."""
        with suppress(Exception):  # the browser may be gone, and the context with it
            await asyncio.wait_for(self.context.close(), _CLOSE_S)
        await self.gate.close()


async def make_fresh(host: BrowserHost, settings: Settings, storage: Any, gate: Gate) -> Fresh:
    """Return a new context whose only way out is ``gate``. In the host's loop.

    Raises:
        BrowserGone: There is no browser to be had.
    """
    s = settings
    await gate.open()
    context = await host.new_context(
        viewport={"width": s.width, "height": s.height},
        is_mobile=s.is_phone,
        has_touch=s.is_phone,
        locale="en-US",
        timezone_id="UTC",
        color_scheme="light",
        reduced_motion="reduce",
        service_workers="block",
        accept_downloads=True,
        storage_state=storage,
        proxy={"server": gate.address, "bypass": "<-loopback>"},
    )
    try:
        if s.init_script:
            await answered(context.add_init_script(s.init_script))
        if s.trace:
            await answered(context.tracing.start(screenshots=True, snapshots=True))
        tab = Tab(await answered(context.new_page()), gate)
        await tab.within(tab.open())
    except BaseException as error:
        with suppress(Exception):
            await asyncio.wait_for(context.close(), _CLOSE_S)
        if isinstance(error, TabLost):
            raise BrowserGone(f"no page was opened: {error}") from error
        raise
    return Fresh(context, gate, tab)


class Waiting:
    """A context that is made, or waits to be taken. In the host's loop."""

    def __init__(self, host: BrowserHost, settings: Settings) -> None:
        self.kind = kind_of(settings)
        self._gate = Gate({})
        self._making = asyncio.get_running_loop().create_task(
            make_fresh(host, settings, None, self._gate)
        )

    async def take(self) -> Fresh | None:
        """Return it once it is there, None when it is of no use any more."""
        try:
            fresh = await self._making
        except Exception:  # noqa: BLE001 - whatever it was, the next attempt will tell
            await self._gate.close()
            return None
        if fresh.is_usable:
            return fresh
        await fresh.close()
        return None

    async def stop(self) -> None:
        """Close it unused."""
        self._making.cancel()
        with suppress(Exception, asyncio.CancelledError):
            await (await self._making).close()
        await self._gate.close()


async def take_fresh(host: BrowserHost, settings: Settings) -> Fresh | None:
    """Return the context that waits for a session with ``settings``; None when there is none."""
    for one in host.kept:
        if isinstance(one, Waiting) and one.kind == kind_of(settings):
            host.kept.remove(one)
            return await one.take()
    return None


async def keep_fresh(host: BrowserHost, settings: Settings) -> None:
    """Begin to make a context for the next session with ``settings``; the oldest gives way."""
    waiting = [one for one in host.kept if isinstance(one, Waiting)]
    if kind_of(settings) in [one.kind for one in waiting]:
        return
    host.kept.append(Waiting(host, settings))
    for oldest in waiting[: len(waiting) + 1 - _MOST_WAITING]:
        host.kept.remove(oldest)
        await oldest.stop()


def kind_of(settings: Settings) -> Kind:
    """Return what contexts of sessions with ``settings`` share."""
    return settings.width, settings.height, settings.is_phone, settings.init_script
