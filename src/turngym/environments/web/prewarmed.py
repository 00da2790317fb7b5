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

from turngym.environments.web.browser import BrowserGone, BrowserHost, with_timeout
from turngym.environments.web.egress import EgressProxy
from turngym.environments.web.settings import Settings
from turngym.environments.web.tab import Tab, TabLost

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext

_MOST_WAITING = 2
_CLOSE_S = 5.0

Kind = tuple[int, int, bool, str]
"""What contexts must share to stand for each other: the view, and the first script."""


@dataclass(frozen=True, slots=True)
class PrewarmedContext:
    """A context, its way out, and its one empty page."""

    context: BrowserContext
    proxy: EgressProxy
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
        await self.proxy.close()


async def make_context(
    host: BrowserHost, settings: Settings, storage: Any, proxy: EgressProxy
) -> PrewarmedContext:
    """Return a new context whose only way out is ``proxy``. In the host's loop.

    Args:
        host: The browser.
        settings: Of the session that it is for.
        storage: Cookies and local storage to begin with; None for none.
        proxy: Not yet open.

    Raises:
        BrowserGone: There is no browser to be had.
    """
    s = settings
    await proxy.open()
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
        proxy={"server": proxy.address, "bypass": "<-loopback>"},
    )
    try:
        if s.init_script:
            await with_timeout(context.add_init_script(s.init_script))
        if s.trace:
            await with_timeout(context.tracing.start(screenshots=True, snapshots=True))
        tab = Tab(await with_timeout(context.new_page()), proxy)
        await tab.within(tab.open())
    except BaseException as error:
        with suppress(Exception):
            await asyncio.wait_for(context.close(), _CLOSE_S)
        if isinstance(error, TabLost):
            raise BrowserGone(f"no page was opened: {error}") from error
        raise
    return PrewarmedContext(context, proxy, tab)


class Prewarming:
    """A context that is made, or waits to be taken. In the host's loop."""

    def __init__(self, host: BrowserHost, settings: Settings) -> None:
        self.kind = context_key(settings)
        self._proxy = EgressProxy({})
        self._making = asyncio.get_running_loop().create_task(
            make_context(host, settings, None, self._proxy)
        )

    async def take(self) -> PrewarmedContext | None:
        """Return it once it is there, None when it is of no use any more."""
        try:
            fresh = await self._making
        except Exception:  # noqa: BLE001 - whatever it was, the next attempt will show it
            await self._proxy.close()
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
        await self._proxy.close()


async def take_prewarmed(host: BrowserHost, settings: Settings) -> PrewarmedContext | None:
    """Return the context that waits for a session with ``settings``; None when there is none."""
    for one in host.kept:
        if isinstance(one, Prewarming) and one.kind == context_key(settings):
            host.kept.remove(one)
            return await one.take()
    return None


async def prewarm(host: BrowserHost, settings: Settings) -> None:
    """Begin to make a context for the next session with ``settings``; the oldest gives way."""
    waiting = [one for one in host.kept if isinstance(one, Prewarming)]
    if context_key(settings) in [one.kind for one in waiting]:
        return
    host.kept.append(Prewarming(host, settings))
    for oldest in waiting[: len(waiting) + 1 - _MOST_WAITING]:
        host.kept.remove(oldest)
        await oldest.stop()


def context_key(settings: Settings) -> Kind:
    """Return what contexts of sessions with ``settings`` share."""
    return settings.width, settings.height, settings.is_phone, settings.init_script
