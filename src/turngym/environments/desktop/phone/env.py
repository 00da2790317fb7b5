"""A phone-shaped browser as a ``Device``, and tasks on it, judged on what its applications keep."""

from __future__ import annotations

import json
from collections.abc import Coroutine, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import replace
from typing import Any, ClassVar, TypeVar, Unpack

from turngym.environments.core.actions import Action
from turngym.environments.core.pictures import decode
from turngym.environments.core.spaces import Image
from turngym.environments.desktop.actions import PHONE_KEYS, TOUCHES
from turngym.environments.desktop.device import Phone, untypable
from turngym.environments.desktop.device_env import DeviceOptions, ProblemEnv
from turngym.environments.desktop.observation import Element, View, marked
from turngym.environments.desktop.phone.site import HOME, HOST, PhoneSite
from turngym.environments.desktop.phone.tasks import PhoneWorld, phone_tasks
from turngym.environments.web.acting import act
from turngym.environments.web.browser import BrowserGone, BrowserHost, require_browser
from turngym.environments.web.egress import Site
from turngym.environments.web.session import WebSession
from turngym.environments.web.settings import LOCAL
from turngym.environments.web.tab import Tab, TabLost
from turngym.errors import EnvironmentFault
from turngym.tasks.base import Task

T = TypeVar("T")

WIDTH, HEIGHT = 412, 732
"""Of the screen, in CSS pixels."""
_ANSWER_S = 45.0
_LONG_S, _REST_S = 0.7, 0.12
_STEPS = 12
_CHUNK = 500
_KEYS = {
    "backspace": "Backspace", "delete": "Delete", "down": "ArrowDown", "end": "End",
    "enter": "Enter", "escape": "Escape", "left": "ArrowLeft", "page_down": "PageDown",
    "page_up": "PageUp", "right": "ArrowRight", "space": "Space", "tab": "Tab", "up": "ArrowUp",
    "alt": "Alt", "ctrl": "Control", "meta": "Meta", "shift": "Shift",
}  # fmt: skip
"""Names of keys, and the browser's; ``back`` and ``home`` are the phone's buttons."""


class WebPhone(Phone):
    """One phone: Chromium's mobile emulation, from its start to ``close``. See ``Device``.

    Its methods block, in any thread but the browser's own.

    Args:
        host: The browser that the caller holds a lease on.
        sites: Host name to what answers for it.
        home: Address of the home screen.

    Raises:
        EnvironmentFault: No page could be opened.
    """

    def __init__(self, host: BrowserHost, sites: Mapping[str, Site], home: str) -> None:
        self.width, self.height = WIDTH, HEIGHT
        self._host, self._home = host, home
        self._session = WebSession(
            host, sites, replace(LOCAL, width=WIDTH, height=HEIGHT, is_phone=True)
        )
        try:
            self._await(self._session.open(home))
        except BaseException:
            self.close()
            raise

    def look(self) -> View:
        """Return what is on the screen once page and network are quiet."""
        page = self._await(self._session.look())
        notes = [*page.notes, *(["The page is still busy."] if page.is_busy else [])]
        elements = [
            Element(
                role=one.role, name=one.name or one.hint, value=one.value, states=one.states,
                depth=one.depth, mark=one.mark, x=one.x, y=one.y, width=one.width,
                height=one.height,
            )
            for one in page.elements
        ]  # fmt: skip
        shown = marked(elements, self.width, self.height)
        return View(active=page.title or page.url, notes=tuple(notes), elements=shown)

    def pixels(self) -> Image:
        return decode(self._await(self._session.screenshot()), self.width, self.height)

    def click(self, x: int, y: int, *, button: str = "left", times: int = 1) -> str | None:
        problem = self._outside(x, y)
        if problem is None and button == "right":
            self._in_tab(lambda tab: tab.press_long(x, y, hold_s=_LONG_S))
        elif problem is None:
            for _ in range(times):
                self._touch([(x, y)])
        return problem

    def drag(self, start: tuple[int, int], end: tuple[int, int]) -> str | None:
        problem = self._outside(*start) or self._outside(*end)
        if problem is None:
            (x, y), (to_x, to_y) = start, end
            path = [
                (x + (to_x - x) * i / _STEPS, y + (to_y - y) * i / _STEPS)
                for i in range(_STEPS + 1)
            ]
            self._touch(path)
        return problem

    def scroll(self, x: int, y: int, *, up: bool) -> str | None:
        """Scroll what is at a place by half of the screen; ``up`` shows what is above.

        No swipe does it: how much of one a browser takes for the beginning of a move depends on how
        busy the machine is, and what is shown then is not the same.
        """
        problem = self._outside(x, y)
        if problem is None:
            half = self.height // 2
            self._in_tab(lambda tab: tab.call("scrollAt", x, y, -half if up else half))
        return problem

    def type_text(self, text: str) -> str | None:
        if problem := untypable(text, lambda char: char == "\n" or char.isprintable()):
            return problem
        for number, line in enumerate(text.split("\n")):
            if number:
                self._press("Enter")
            for start in range(0, len(line), _CHUNK):
                self._in_tab(lambda tab, part=line[start : start + _CHUNK]: tab.within(
                    tab.page.keyboard.insert_text(part)
                ))  # fmt: skip
        return None

    def press(self, keys: str) -> str | None:
        """Press a key or chord; ``back`` and ``home`` are the phone's buttons."""
        name = keys.strip().lower()
        if name == "home":
            self.launch(self._home)
            return None
        if name == "back":
            if self._in_tab(lambda tab: tab.can_go_back()) is False:
                return None  # as on any phone's home screen
            return self._await(act(self._session, Action(name="go_back")))
        names = keys.replace(" ", "").split("+")
        plain = {one: one for one in names if len(one) == 1 and one.isascii()}
        chord = [_KEYS.get(one.lower(), plain.get(one, "")) for one in names]
        if not all(chord) or len(chord) > 4:
            return f"Unknown key {keys[:40]!r}; keys are such as back, home, enter, a or ctrl+a."
        self._press("+".join(chord))
        return None

    def launch(self, *command: str) -> None:
        """Open the address that ``command`` is.

        Raises:
            EnvironmentFault: It may not be opened.
        """
        action = Action(name="goto", arguments={"url": command[0]})
        if problem := self._await(act(self._session, action)):
            raise EnvironmentFault(f"phone: {problem}")

    def state(self, query: str) -> str | None:
        """Return ``"window"``, the address in front, or ``"storage KEY"``, what the page keeps."""
        match query.split():
            case ["window"]:
                return str(self._session.tab.page.url)
            case ["storage", key]:
                asked = f"localStorage.getItem({json.dumps(key)})"
                value = self._in_tab(lambda tab: tab.main(asked))
                return None if value is None else str(value)
        return None

    def close(self) -> None:
        self._await(self._session.close())

    def _press(self, keys: str) -> None:
        self._in_tab(lambda tab: tab.within(tab.page.keyboard.press(keys)))

    def _touch(self, path: list[tuple[float, float]]) -> None:
        self._in_tab(lambda tab: tab.touch(path, hold_s=_REST_S))

    def _in_tab(self, work: Any) -> Any:  # a function of the tab that gives a coroutine
        """Do something in the page; what a lost page does not take, the next look reports."""

        async def guarded() -> Any:
            tab: Tab = self._session.tab
            try:
                return await work(tab)
            except TabLost as lost:
                tab.lost_because = tab.lost_because or str(lost)
                return None

        return self._await(guarded())

    def _await(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what ``work`` gives in the browser's loop.

        Raises:
            EnvironmentFault: The browser died or does not answer.
        """
        from playwright.async_api import Error

        future = self._host.start(work)
        try:
            return future.result(_ANSWER_S)
        except FutureTimeoutError:
            future.cancel()
            raise BrowserGone(f"phone: no answer within {_ANSWER_S:.0f} s") from None
        except Error as error:
            if self._host.is_gone(error):
                said = next(iter(str(error).splitlines()), "")
                raise BrowserGone(f"phone: the browser died ({said})") from error
            raise


class PhoneEnv(ProblemEnv):
    """One kind of task on a phone with small applications.

    Args:
        kind: Which, for example ``"contact-add"``; see ``GENERATORS``.
        options: As ``DeviceEnv``.

    Action: tapping, swiping, typing and keys; see ``turngym.environments.desktop.actions``.
    Observation: the goal, the title of the screen, what happened besides, and the screen's parts.
    Reward: 1 at ``stop`` or ``answer`` when all that the applications keep, and the answer, are
        exactly as the goal wants them, else 0.
    Start: the home screen of a fresh phone.
    End: ``stop`` or ``answer``.
    """

    actions: ClassVar[tuple[str, ...]] = TOUCHES
    menu_keys: ClassVar[tuple[str, ...]] = PHONE_KEYS
    size = (WIDTH, HEIGHT)
    rules = (
        "You use a phone to reach the goal. Elements that can be acted on have a number in "
        "brackets; scroll down to see more. Dragging swipes, a right click presses long, key back "
        "and key home are the phone's buttons. Say stop when the goal is reached."
    )

    def __init__(self, *, kind: str, **options: Unpack[DeviceOptions]) -> None:
        self.tasks = phone_tasks(kind)
        self.name = self.tasks.name
        super().__init__(**options)
        require_browser()
        self._host: BrowserHost | None = None

    def open_device(self, task: Task) -> WebPhone:
        """Return a phone that shows its home screen, with what the problem's applications keep."""
        self._site = PhoneSite(self.open_problem(task).start)
        if self._host is None:
            self._host = BrowserHost.lease()
        return WebPhone(self._host, {HOST: self._site}, HOME)

    def world(self, answer: str | None) -> PhoneWorld:
        return PhoneWorld(device=self.device, answer=answer, state=self._site.state)

    def release(self) -> None:
        host, self._host = self._host, None
        if host is not None:
            host.release()
