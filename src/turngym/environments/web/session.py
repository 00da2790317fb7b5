"""One episode in the browser: a context of its own, its tabs, and what happens in them."""

from __future__ import annotations

import asyncio
import re
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turngym.environments.actions import Action
from turngym.environments.web.browser import BrowserGone, BrowserHost
from turngym.environments.web.gate import Gate, Site
from turngym.environments.web.observation import PageView, read_view
from turngym.environments.web.observation import Tab as TabLine
from turngym.environments.web.tab import ContextLost, Tab, TabLost

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Dialog, Download, Page

MAX_TABS = 8
MAX_DIALOGS = 20
"""Dialogs of one page in one step; at one more the page is closed."""
MAX_DOWNLOAD_BYTES = 20 << 20
_DOWNLOAD_S = 10.0
_LOAD_S = 10.0
_WAIT_S = 1.0
_TYPED_CHARS = 120
"""Longer text is pasted instead of typed key by key."""
_SHOWN_NOTES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a page is shown and waited for."""

    width: int = 1024
    height: int = 768
    """Of the view, in CSS pixels."""
    quiet_ms: int = 40
    """A page is quiet when its document has not changed for so long and no request is open."""
    cap_ms: int = 4_000
    """Longest wait for that, after which the page is shown as it is."""
    ignore: str = ""
    """CSS selector of what is not shown."""
    mark_text: bool = False
    """Give marks to text, too."""
    init_script: str = ""
    """Run in every page before its own scripts."""
    allow: tuple[str, ...] = ()
    """Hosts beyond the task's own that may be reached."""
    trace: bool = False
    """Record a Playwright trace."""


class WebSession:
    """What one episode has open. Used in the host's loop only.

    Args:
        host: The browser.
        sites: Host name to what answers for it.
        settings: How pages are shown and waited for.
        storage: Cookies and local storage to begin with, as ``storage_state`` returns them.
    """

    def __init__(
        self,
        host: BrowserHost,
        sites: Mapping[str, Site],
        settings: Settings,
        storage: Any = None,
    ) -> None:
        self._host = host
        self._gate = Gate(sites, settings.allow)
        self._settings = settings
        self._storage = storage
        self._context: BrowserContext | None = None
        self._tabs: list[Tab] = []
        self._active = 0
        self._arriving: set[asyncio.Task[None]] = set()
        self._notes: list[str] = []
        self._dialogs = 0
        self._expects_page = False
        self._clipboard = ""
        """One per episode; the browser's own is shared by all of them."""
        self.folder = Path(tempfile.mkdtemp(prefix="turngym-web-"))
        """Downloads, and what may be uploaded."""

    async def open(self, url: str) -> None:
        """Start the episode at ``url``.

        Raises:
            BrowserGone: There is no browser to be had.
        """
        s = self._settings
        await self._gate.open()
        self._context = await self._host.new_context(
            viewport={"width": s.width, "height": s.height},
            locale="en-US",
            timezone_id="UTC",
            color_scheme="light",
            reduced_motion="reduce",
            service_workers="block",
            accept_downloads=True,
            storage_state=self._storage,
            proxy={"server": self._gate.address, "bypass": "<-loopback>"},
        )
        if s.init_script:
            await self._context.add_init_script(s.init_script)
        if s.trace:
            await self._context.tracing.start(screenshots=True, snapshots=True)
        self._context.on("page", self._page_opened)
        await self._new_tab()
        await self._goto(url)

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
                async with asyncio.timeout(_LOAD_S):
                    if trace is not None and self._settings.trace:
                        await context.tracing.stop(path=trace)
                    await context.close()
        await self._gate.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def tab(self) -> Tab:
        """The tab that is looked at."""
        return self._tabs[self._active]

    async def storage_state(self) -> Any:
        """Return cookies and local storage, for another session to begin with."""
        assert self._context is not None
        return await self._context.storage_state()

    # Looking.

    async def look(self) -> PageView:
        """Return the page once it is quiet, with what happened since the last look."""
        s = self._settings
        for _ in range(MAX_TABS + 1):
            await self._settle_arrivals()
            try:
                raw = await self.tab.observe(
                    quiet_ms=s.quiet_ms,
                    cap_ms=s.cap_ms,
                    options={"ignore": s.ignore, "markText": s.mark_text},
                )
            except TabLost as lost:
                await self._replace_tab(str(lost))
                continue
            if not self._arriving:
                break
        return await self._view(raw)

    async def screenshot(self) -> bytes:
        """Return a PNG of the view."""
        try:
            return await self.tab.within(self.tab.page.screenshot(scale="css"))
        except TabLost as lost:
            await self._replace_tab(str(lost))
            return await self.tab.within(self.tab.page.screenshot(scale="css"))

    async def _view(self, raw: dict[str, Any]) -> PageView:
        notes, self._notes, self._dialogs = self._notes, [], 0
        notes += [f"{host} may not be reached." for host in dict.fromkeys(self._gate.refused)]
        self._gate.refused.clear()
        notes = list(dict.fromkeys(notes))
        if len(notes) > _SHOWN_NOTES:
            notes = [*notes[:_SHOWN_NOTES], f"... and {len(notes) - _SHOWN_NOTES} more."]
        tabs: list[TabLine] = []
        for tab in self._tabs if len(self._tabs) > 1 else ():
            title = ""
            with suppress(Exception):  # a tab that does not answer is listed without title
                title = await tab.within(tab.page.title(), 1.0)
            tabs.append(TabLine(title=title, url=tab.page.url))
        return read_view(raw, tabs=tuple(tabs), active_tab=self._active, notes=tuple(notes))

    # Acting.

    async def act(self, action: Action) -> str | None:
        """Carry out ``action``; return why it could not be, or None.

        What an action sets off may close tabs or open others; ``look`` tells.

        Raises:
            BrowserGone: The browser died.
        """
        from playwright.async_api import Error

        try:
            return await self._act(action)
        except TabLost as lost:
            await self._replace_tab(str(lost))
        except ContextLost:
            self._notes.append("The page changed before that could be done.")
        except Error as error:
            if not self._host.is_alive:
                raise BrowserGone(f"the browser died during {action.name}") from error
            return _first_line(error)
        return None

    async def _act(self, action: Action) -> str | None:
        arguments = dict(action.arguments)
        mark = _number(arguments.get("mark"))
        if mark is None and "mark" in arguments:
            return f"{str(arguments['mark'])[:40]!r} is not the number of an element."
        match action.name:
            case "click" | "double_click" | "hover":
                return await self._point(action.name, mark or 0)
            case "click_at":
                await self._mouse_at(int(arguments["x"]), int(arguments["y"]))
            case "drag":
                return await self._drag(mark or 0, _number(arguments["target"]))
            case "drag_at":
                ends = [int(arguments[name]) for name in ("x", "y", "to_x", "to_y")]
                await self._drag_mouse((ends[0], ends[1]), (ends[2], ends[3]))
            case "type" | "submit" | "append" | "clear":
                return await self._type(
                    mark or 0,
                    _unescaped(str(arguments.get("text", ""))),
                    clear=action.name != "append" and bool(arguments.get("clear", True)),
                    submit=action.name == "submit" or bool(arguments.get("submit")),
                )
            case "select":
                return await self._select(mark or 0, str(arguments["option"]))
            case "press":
                return await self._press(str(arguments["keys"]))
            case "scroll" | "scroll_in":
                return await self._scroll(mark or 0, str(arguments["direction"]))
            case "upload":
                return await self._upload(mark or 0, str(arguments["file"]))
            case "wait":
                await asyncio.sleep(_WAIT_S)
            case _:
                return await self._navigate(action.name, arguments)
        return None

    async def _navigate(self, name: str, arguments: dict[str, Any]) -> str | None:
        match name:
            case "goto":
                url = str(arguments["url"])
                url = url if "://" in url or ":" in url.split("/")[0] else f"http://{url}"
                if not self._gate.admits(url):
                    return f"{url[:80]!r} may not be opened."
                await self._goto(url)
            case "go_back":
                # Playwright's own waits for what may never come.
                moved = await self.tab.main("history.length > 1 && (history.back(), true)")
                if not moved:
                    return "There is no page to go back to."
                await asyncio.sleep(0)
            case "new_tab":
                if len(self._tabs) >= MAX_TABS:
                    return f"At most {MAX_TABS} tabs can be open."
                await self._new_tab()
            case "close_tab":
                if len(self._tabs) == 1:
                    return "The last tab cannot be closed."
                await self._drop_tab(self.tab)
            case "switch_tab":
                number = int(arguments["tab"])
                if not 0 <= number < len(self._tabs):
                    return f"There is no tab {number}; tabs are 0 to {len(self._tabs) - 1}."
                self._active = number
                await self.tab.within(self.tab.page.bring_to_front())
            case _:
                return f"{name!r} is not possible here."
        return None

    async def _goto(self, url: str) -> None:
        from playwright.async_api import Error

        try:
            await self.tab.within(
                self.tab.page.goto(url, wait_until="commit", timeout=_LOAD_S * 1000), _LOAD_S + 1
            )
        except Error as error:
            if not self._host.is_alive:
                raise BrowserGone("the browser died while it loaded a page") from error
            self._notes.append(f"{url[:80]} could not be opened: {_first_line(error)}")

    async def _point(self, name: str, mark: int) -> str | None:
        found = await self.tab.call("locate", mark)
        if "problem" in found:
            return _problem(mark, found["problem"])
        if found["covered"]:
            self._notes.append(f"[{mark}] is covered by {found['covered']}.")
        mouse = self.tab.page.mouse
        if name == "hover":
            await self.tab.within(mouse.move(found["x"], found["y"], steps=2))
        elif name == "double_click":
            await self.tab.within(mouse.dblclick(found["x"], found["y"]))
        else:
            await self.tab.within(mouse.click(found["x"], found["y"]))
        return None

    async def _mouse_at(self, x: int, y: int) -> None:
        s = self._settings
        x, y = min(max(x, 0), s.width - 1), min(max(y, 0), s.height - 1)
        await self.tab.within(self.tab.page.mouse.click(x, y))

    async def _drag(self, mark: int, target: int | None) -> str | None:
        ends: list[tuple[float, float]] = []
        for one in (target, mark):  # the source last, so that it is in view
            if one is None:
                return "The target is not the number of an element."
            found = await self.tab.call("locate", one)
            if "problem" in found:
                return _problem(one, found["problem"])
            ends.append((found["x"], found["y"]))
        await self._drag_mouse(ends[1], ends[0])
        return None

    async def _drag_mouse(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        mouse, steps = self.tab.page.mouse, 20

        async def drag() -> None:
            await mouse.move(*start)
            await mouse.down()
            await mouse.move(*end, steps=steps)
            await mouse.up()

        await self.tab.within(drag())

    async def _type(self, mark: int, text: str, *, clear: bool, submit: bool) -> str | None:
        found = await self.tab.call("edit", mark, text, clear)
        if "problem" in found:
            return _problem(mark, found["problem"])
        if "kept" in found:
            return f"[{mark}] did not take {text[:40]!r}; it holds {found['kept'][:40]!r}."
        keyboard = self.tab.page.keyboard
        if found["way"] == "keys":
            if clear and not found["empty"]:
                await self.tab.within(keyboard.press("Delete"))
            typed, pasted = text[:_TYPED_CHARS], text[_TYPED_CHARS:]
            if typed:
                await self.tab.within(keyboard.type(typed), 10.0)
            if pasted:
                await self.tab.within(keyboard.insert_text(pasted), 10.0)
        if submit:
            await self.tab.within(keyboard.press("Enter"))
        return None

    async def _select(self, mark: int, option: str) -> str | None:
        found = await self.tab.call("choose", mark, option)
        if found.get("problem") == "no option":
            return (
                f"[{mark}] has no option {option[:40]!r}; options: {' | '.join(found['options'])}."
            )
        return _problem(mark, found["problem"]) if "problem" in found else None

    async def _press(self, keys: str) -> str | None:
        from playwright.async_api import Error

        keys = keys.replace(" ", "")
        try:
            if keys.lower() in ("control+c", "control+x"):
                self._clipboard = await self.tab.call("selected")
                keys = "Delete" if keys.lower() == "control+x" else "Control"
            if keys.lower() == "control+v":
                await self.tab.within(self.tab.page.keyboard.insert_text(self._clipboard))
            else:
                await self.tab.within(self.tab.page.keyboard.press(keys))
        except Error as error:
            if "Unknown key" in str(error):
                return f"Unknown key {keys[:40]!r}; keys are such as Enter, Tab, a or Control+A."
            raise
        return None

    async def _scroll(self, mark: int, direction: str) -> str | None:
        found = await self.tab.call("scroll", mark, direction)
        if "problem" in found:
            return _problem(mark, found["problem"])
        if not found["moved"]:
            self._notes.append("There is nothing more to scroll.")
        return None

    async def _upload(self, mark: int, name: str) -> str | None:
        file = (self.folder / name).resolve()
        if not file.is_relative_to(self.folder.resolve()) or not file.is_file():
            known = ", ".join(sorted(one.name for one in self.folder.iterdir())) or "none"
            return f"There is no file {name[:80]!r}; files: {known}."
        if not await self.tab.upload(mark, [str(file)]):
            return f"[{mark}] takes no file."
        return None

    # Tabs come and go.

    async def _new_tab(self) -> None:
        assert self._context is not None
        self._expects_page = True
        try:
            page = await self._context.new_page()
        finally:
            self._expects_page = False
        await self._adopt(page)

    async def _adopt(self, page: Page) -> None:
        page.on("dialog", self._dialog_opened)
        page.on("download", self._download_started)
        tab = Tab(page, self._gate)
        await tab.within(tab.open())
        self._tabs.append(tab)
        self._active = len(self._tabs) - 1

    def _page_opened(self, page: Page) -> None:
        """A page opened a window of its own."""
        if not self._expects_page:
            self._later(self._take_popup(page))

    async def _take_popup(self, page: Page) -> None:
        if len(self._tabs) + len(self._arriving) > MAX_TABS:
            self._notes.append("A pop-up was closed; too many tabs are open.")
            await page.close()
            return
        with suppress(TabLost):
            await self._adopt(page)
            self._notes.append("A new tab was opened.")

    async def _settle_arrivals(self) -> None:
        if self._arriving:
            await asyncio.wait(self._arriving, timeout=_LOAD_S)
        for tab in [tab for tab in self._tabs if tab.page.is_closed()]:
            await self._drop_tab(tab)

    async def _replace_tab(self, reason: str) -> None:
        """Close the tab that is looked at; when it was the last one, open an empty one."""
        from playwright.async_api import Error

        self._notes.insert(0, self.tab.lost_because or reason)
        try:
            await self._drop_tab(self.tab)
        except Error as error:
            raise BrowserGone(f"the browser died ({_first_line(error)})") from error

    async def _drop_tab(self, tab: Tab) -> None:
        if tab not in self._tabs:
            return
        place = self._tabs.index(tab)
        self._tabs.remove(tab)
        if self._active > place or self._active >= len(self._tabs):
            self._active = max(0, self._active - 1)
        await tab.close()
        if not self._host.is_alive:
            raise BrowserGone("the browser died")
        if not self._tabs:
            await self._new_tab()

    def _dialog_opened(self, dialog: Dialog) -> None:
        self._later(self._answer_dialog(dialog))

    async def _answer_dialog(self, dialog: Dialog) -> None:
        """Accept it, but give a prompt no text; at too many of them close the page."""
        self._dialogs += 1
        if self._dialogs == MAX_DIALOGS + 1:
            for tab in self._tabs:
                if tab.page is dialog.page:
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
            self._notes.append(f"The page showed ({dialog.type}, {verb}): {text!r}")
        with suppress(Exception):  # the page may have gone meanwhile
            await (dialog.dismiss() if verb == "dismissed" else dialog.accept())

    def _download_started(self, download: Download) -> None:
        self._later(self._save(download))

    async def _save(self, download: Download) -> None:
        name = re.sub(r"[^\w.-]", "_", Path(download.suggested_filename).name)[:80] or "download"
        target = self.folder / name
        try:
            async with asyncio.timeout(_DOWNLOAD_S):
                await download.save_as(target)
        except Exception:  # noqa: BLE001 - whatever stops it, the agent is told
            with suppress(Exception):
                await download.cancel()
            self._notes.append(f"The download of {name} was stopped.")
            return
        size = target.stat().st_size
        if size > MAX_DOWNLOAD_BYTES:
            target.unlink()
            self._notes.append(f"The download of {name} was too large ({size} bytes).")
        else:
            self._notes.append(f"Downloaded {name} ({size} bytes).")

    def _later(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._arriving.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._arriving.discard(task)
        if not task.cancelled():
            task.exception()  # what a page that went away left behind


def _number(mark: Any) -> int | None:
    text = str(mark).strip().strip("[]#")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 8 else None


def _problem(mark: int, kind: str) -> str:
    return {
        "unknown": f"There is no element [{mark}] on this page.",
        "gone": f"Element [{mark}] is gone; the page has changed.",
        "hidden": f"Element [{mark}] is not visible.",
        "disabled": f"Element [{mark}] cannot be changed.",
        "no field": f"Nothing can be typed into [{mark}].",
        "no list": f"[{mark}] is no list of options; click it instead.",
    }[kind]


def _unescaped(text: str) -> str:
    """Return ``text`` without the quotes around it, and with real line breaks."""
    if len(text) >= 2 and text[0] == text[-1] == '"':
        text = text[1:-1]
    return text.replace("\\n", "\n")


def _first_line(error: Exception) -> str:
    line = next(iter(str(error).splitlines()), type(error).__name__)
    return line.split(": ", 1)[-1][:200]
