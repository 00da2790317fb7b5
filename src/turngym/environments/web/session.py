"""One episode in the browser: a context of its own, its tabs, and what happens in them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turngym.environments.folders import OwnedFolder
from turngym.environments.web.browser import (
    ANSWER_TIMEOUT_S,
    BrowserGone,
    BrowserHost,
    with_timeout,
)
from turngym.environments.web.egress import EgressProxy, Site
from turngym.environments.web.observation import PageView, read_view
from turngym.environments.web.observation import Tab as TabLine
from turngym.environments.web.settings import Settings
from turngym.environments.web.tab import Tab, TabLost
from turngym.errors import EnvironmentFault

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Dialog, Download, Page

MAX_TABS = 8
LOAD_S = 10.0
"""How long an address may take to answer."""
_STILL_MS = 20
"""How long a page whose clock stands still must be quiet: it has come to rest by its own clock."""
MAX_DIALOGS = 20
"""Dialogs of one page in one step; at one more the page is closed."""
MAX_DOWNLOAD_BYTES = 20 << 20
_DOWNLOAD_S = 10.0
_SHOWN_NOTES = 5
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
        # Nobody's page is in it yet that could hang: it has as long as the browser.
        await tab.within(tab.open(), ANSWER_TIMEOUT_S)
    except BaseException as error:
        with suppress(Exception):
            await asyncio.wait_for(context.close(), _CLOSE_S)
        if isinstance(error, TabLost):
            raise BrowserGone(f"no page was opened: {error}") from error
        raise
    return PrewarmedContext(context, proxy, tab)


class Prewarming:
    """A fresh context with one empty page, made ahead of the reset that takes it.

    Most of a reset is the start of a process for the page, which knows nothing of the episode yet.
    So the host keeps one context ready for each kind of session, made while the last one was used.
    It is given away once, and nothing ever ran in it. In the host's loop.
    """

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


class WebSession:
    """What one episode has open. Used in the host's loop only.

    Args:
        host: The browser.
        sites: Host name to what answers for it.
        settings: How pages are shown and waited for.
        storage: Cookies and local storage to begin with, as Playwright gives them.
    """

    def __init__(
        self, host: BrowserHost, sites: Mapping[str, Site], settings: Settings, storage: Any = None
    ) -> None:
        self.host = host
        self._sites = dict(sites)
        self.proxy = EgressProxy({})
        self.settings = settings
        self._storage = storage
        self._context: BrowserContext | None = None
        self.tabs: list[Tab] = []
        self.active = 0
        self._arriving: set[asyncio.Task[None]] = set()
        self._opening = 0
        """Pop-ups that are on their way to become tabs."""
        self._announced, self._arrival = 0, asyncio.Event()
        """Windows that pages have opened and that are not there yet; set when one is."""
        self.notes: list[str] = []
        self._dialogs = 0
        self._expects_page = False
        self._is_next_wanted = self._has_looked = False
        self.state: Any = None
        """What ``settings.state`` was after the last action; None where no clock was moved."""
        self.clipboard = ""
        """One per episode; the browser's own is shared by all of them."""
        self._owned = OwnedFolder("web")
        self.folder = self._owned.path
        """Downloads, and what may be uploaded."""

    async def open(self, url: str) -> None:
        """Start the episode at ``url``.

        Raises:
            BrowserGone: There is no browser to be had.
            EnvironmentFault: Nothing answers at ``url``.
        """
        fresh = None
        if self._storage is None and not self.settings.trace:
            fresh = await take_prewarmed(self.host, self.settings)
            self._is_next_wanted = True
        if fresh is None:
            fresh = await make_context(self.host, self.settings, self._storage, self.proxy)
        fresh.proxy.serve(self._sites, self.settings.allow)
        self._context, self.proxy = fresh.context, fresh.proxy
        self._context.on("page", self._page_opened)
        self._listen(fresh.tab.page)
        self._show(fresh.tab)
        if not await self.goto(url):
            raise EnvironmentFault(f"the first page of the task: {self.notes[-1]}")

    async def close(self, trace: Path | None = None) -> None:
        """End the episode and remove all it left. Safe to call twice.

        Args:
            trace: Where the Playwright trace goes, when one was recorded.
        """
        for task in self._arriving:
            task.cancel()
        context, self._context = self._context, None
        with suppress(Exception):  # the browser may be gone, and the context with it
            if context is not None:
                async with asyncio.timeout(LOAD_S):
                    if trace is not None and self.settings.trace:
                        await context.tracing.stop(path=trace)
                    await context.close()
        await self.proxy.close()
        self._owned.remove()

    async def goto(self, url: str) -> bool:
        """Open an address in the tab that is looked at; say whether it could be, else a note does.

        Raises:
            BrowserGone: The browser died.
        """
        from playwright.async_api import Error

        load_s = self.settings.load_s
        try:
            await self.tab.within(
                self.tab.page.goto(url, wait_until="commit", timeout=load_s * 1000), load_s + 1
            )
        except Error as error:
            if self.host.is_gone(error):
                raise BrowserGone("the browser died while it loaded a page") from error
            self.notes.append(f"{url[:80]} could not be opened: {first_line(error)}")
            return False
        return True

    @property
    def tab(self) -> Tab:
        """The tab that is looked at."""
        return self.tabs[self.active]

    # What a snapshot keeps.

    @property
    def is_plain(self) -> bool:
        """One tab is all there is: no others, no files, nothing on the clipboard."""
        return len(self.tabs) == 1 and not self.clipboard and not any(self.folder.iterdir())

    async def storage_state(self) -> Any:
        """Return cookies and local storage, as ``storage`` takes them."""
        assert self._context is not None
        return await with_timeout(self._context.storage_state())

    async def history(self) -> tuple[str, ...]:
        """Return the addresses that going back leads to, and the one that is open last."""
        return (*self.tab.earlier, *await self.tab.visited())

    # Looking.

    async def look(self) -> PageView:
        """Return the page once it is quiet, with what happened since the last look."""
        s = self.settings
        # The first page may still be at work when it is there.
        is_still = s.turn_ms is not None and self._has_looked
        self._has_looked = True
        if self._is_next_wanted:  # now, since the wait for the page to become quiet is idle time
            self._is_next_wanted = False
            await prewarm(self.host, s)
        # Looking may itself show that tabs opened or died; each round settles at least one of them.
        for _ in range(MAX_TABS + 1):
            if self._arriving:
                await asyncio.wait(self._arriving, timeout=LOAD_S)
            for tab in [tab for tab in self.tabs if tab.page.is_closed()]:
                await self.drop_tab(tab)
            try:
                raw = await self.tab.observe(
                    quiet_ms=_STILL_MS if is_still else s.quiet_ms,
                    cap_ms=s.cap_ms,
                    options={"ignore": s.ignore, "markText": s.mark_text},
                )
            except TabLost as lost:
                await self.replace_tab(str(lost))
                continue
            await self._windows()
            if not self._arriving:
                break
        return await self._view(raw)

    async def _windows(self) -> None:
        """Wait for windows that pages have opened; one that the browser blocks never comes."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.settings.cap_ms / 1000):
                while self._announced > 0:
                    self._arrival.clear()
                    await self._arrival.wait()
        self._announced = 0

    async def screenshot(self) -> bytes:
        """Return a PNG of the view."""
        try:
            return await self.tab.within(self.tab.page.screenshot(scale="css"))
        except TabLost as lost:
            await self.replace_tab(str(lost))
            return await self.tab.within(self.tab.page.screenshot(scale="css"))

    async def _view(self, raw: dict[str, Any]) -> PageView:
        notes, self.notes, self._dialogs = self.notes, [], 0
        notes += raw["notes"]
        notes += [f"{host} may not be reached." for host in dict.fromkeys(self.proxy.refused)]
        self.proxy.refused.clear()
        notes = list(dict.fromkeys(notes))
        if len(notes) > _SHOWN_NOTES:
            notes = [*notes[:_SHOWN_NOTES], f"... and {len(notes) - _SHOWN_NOTES} more."]
        tabs: list[TabLine] = []
        for tab in self.tabs if len(self.tabs) > 1 else ():
            title = ""
            with suppress(Exception):  # a tab that does not answer is listed without title
                title = await tab.within(tab.page.title(), 1.0)
            tabs.append(TabLine(title=title, url=tab.page.url))
        return read_view(raw, tabs=tuple(tabs), active_tab=self.active, notes=tuple(notes))

    # Tabs come and go.

    async def new_tab(self) -> None:
        """Open an empty tab, and look at it."""
        assert self._context is not None
        self._expects_page = True
        try:
            page = await with_timeout(self._context.new_page())
        finally:
            self._expects_page = False
        await self._adopt(page)

    async def _adopt(self, page: Page) -> None:
        """Look at a page from now on."""
        self._listen(page)
        tab = Tab(page, self.proxy)
        # Nobody's page is in it yet that could hang: it has as long as the browser.
        await tab.within(tab.open(), ANSWER_TIMEOUT_S)
        self._show(tab)

    def _listen(self, page: Page) -> None:
        # A task of its own: the page, and the step with it, waits until a dialog is answered.
        page.on("dialog", lambda dialog: self._later(self._answer_dialog(dialog)))
        page.on("download", lambda download: self._later(self._save(download)))

    def _announce(self) -> None:
        self._announced += 1

    def _show(self, tab: Tab) -> None:
        tab.when_opens = self._announce
        self.tabs.append(tab)
        self.active = len(self.tabs) - 1

    def _page_opened(self, page: Page) -> None:
        """A page opened a window of its own."""
        if self._expects_page:
            return
        self._announced -= 1
        self._arrival.set()
        has_room = len(self.tabs) + self._opening < MAX_TABS
        self._opening += has_room
        if not has_room:
            self.notes.append("A pop-up was closed; too many tabs are open.")
        self._later(self._take_popup(page) if has_room else page.close())

    async def _take_popup(self, page: Page) -> None:
        try:
            with suppress(TabLost):
                await self._adopt(page)
                self.notes.append("A new tab was opened.")
        finally:
            self._opening -= 1

    async def replace_tab(self, reason: str) -> None:
        """Close the tab that is looked at; when it was the last one, open an empty one.

        Raises:
            BrowserGone: The browser died.
        """
        from playwright.async_api import Error

        self.notes.insert(0, self.tab.lost_because or reason)
        try:
            await self.drop_tab(self.tab)
        except Error as error:
            raise BrowserGone(f"the browser died ({first_line(error)})") from error

    async def drop_tab(self, tab: Tab) -> None:
        """Close a tab; the last one gives way to an empty one.

        Raises:
            BrowserGone: The browser died.
        """
        if tab not in self.tabs:
            return
        place = self.tabs.index(tab)
        self.tabs.remove(tab)
        if self.active > place or self.active >= len(self.tabs):
            self.active = max(0, self.active - 1)
        await tab.close()
        if not self.host.is_alive:
            raise BrowserGone("the browser died")
        if not self.tabs:
            await self.new_tab()

    async def _answer_dialog(self, dialog: Dialog) -> None:
        """Accept it, but give a prompt no text; at too many of them close the page."""
        self._dialogs += 1
        if self._dialogs == MAX_DIALOGS + 1:
            for tab in [one for one in self.tabs if one.page is dialog.page]:
                tab.lost_because = (
                    f"The page opened more than {MAX_DIALOGS} dialogs and was closed."
                )
                await tab.close()
            return
        if self._dialogs > MAX_DIALOGS:
            return
        verb = "dismissed" if dialog.type == "prompt" else "accepted"
        if dialog.type != "beforeunload":
            text = " ".join(dialog.message[:200].split())
            self.notes.append(f"The page showed ({dialog.type}, {verb}): {text!r}")
        with suppress(Exception):  # the page may have gone meanwhile
            await (dialog.dismiss() if verb == "dismissed" else dialog.accept())

    async def _save(self, download: Download) -> None:
        name = re.sub(r"[^\w.-]", "_", Path(download.suggested_filename).name)[:80] or "download"
        target = first = self.folder / name
        numbers = count(1)
        while target.exists():  # as browsers do, none takes the place of another
            target = first.with_stem(f"{first.stem}-{next(numbers)}")
        target.touch()
        name = target.name
        try:
            async with asyncio.timeout(_DOWNLOAD_S):
                await download.save_as(target)
        except Exception:  # noqa: BLE001 - whatever stops it, a note says so
            with suppress(Exception):
                await download.cancel()
            target.unlink(missing_ok=True)
            self.notes.append(f"The download of {name} was stopped.")
            return
        size = target.stat().st_size
        if size > MAX_DOWNLOAD_BYTES:
            target.unlink()
            self.notes.append(f"The download of {name} was too large ({size} bytes).")
        else:
            self.notes.append(f"Downloaded {name} ({size} bytes).")

    def _later(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._arriving.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._arriving.discard(task)
        if not task.cancelled():
            task.exception()  # what a page that went away left behind


def first_line(error: Exception) -> str:
    """Return what an error of Playwright says, without the call that it came of."""
    line = next(iter(str(error).splitlines()), type(error).__name__)
    return line.split(": ", 1)[-1][:200]
