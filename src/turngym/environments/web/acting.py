"""What a browser does for an agent: one method per action, within one episode's session."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from turngym.environments.core.actions import Action
from turngym.environments.web.browser import BrowserGone, BrowserHost
from turngym.environments.web.gate import Gate
from turngym.environments.web.settings import Settings
from turngym.environments.web.tab import ContextLost, Tab, TabLost

MAX_TABS = 8
LOAD_S = 10.0
"""How long an address may take to answer."""
_WAIT_S = 1.0
_TYPED_CHARS = 120
"""Longer text is pasted instead of typed key by key."""


class Acting(ABC):
    """The half of a session that acts; ``WebSession`` is the other, which keeps the tabs."""

    _host: BrowserHost
    _gate: Gate
    _settings: Settings
    _tabs: list[Tab]
    _active: int
    _notes: list[str]
    _clipboard: str
    folder: Path

    @property
    @abstractmethod
    def tab(self) -> Tab:
        """The tab that is looked at."""

    @abstractmethod
    async def _new_tab(self) -> None: ...

    @abstractmethod
    async def _drop_tab(self, tab: Tab) -> None: ...

    @abstractmethod
    async def _replace_tab(self, reason: str) -> None: ...

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
            return first_line(error)
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
                    str(arguments.get("text", "")).replace("\\n", "\n"),
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
                try:
                    forgotten = await self.tab.go_back()
                except LookupError as problem:
                    return str(problem)
                if forgotten is not None:
                    await self._goto(forgotten)
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
                self.tab.page.goto(url, wait_until="commit", timeout=LOAD_S * 1000), LOAD_S + 1
            )
        except Error as error:
            if not self._host.is_alive:
                raise BrowserGone("the browser died while it loaded a page") from error
            self._notes.append(f"{url[:80]} could not be opened: {first_line(error)}")

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


def first_line(error: Exception) -> str:
    """Return what an error of Playwright says, without the call that it came of."""
    line = next(iter(str(error).splitlines()), type(error).__name__)
    return line.split(": ", 1)[-1][:200]
