"""A browser as an environment: one page of text in, one action out."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypedDict

from turngym.environments.core.actions import Action, ActionStyle, InvalidAction, in_style
from turngym.environments.core.env import Outcome, opened
from turngym.environments.core.pictures import ScreenEnv, Screenshot, decode, draw_marks
from turngym.environments.core.spaces import Image
from turngym.environments.core.tasks import StoppedEnv
from turngym.environments.web.acting import act, as_tool_call, web_commands, web_tools
from turngym.environments.web.browser import BrowserGone, BrowserHost, require_browser
from turngym.environments.web.egress import Site
from turngym.environments.web.expert_view import ExpertView, as_stage
from turngym.environments.web.observation import PageView, address_text, page_text
from turngym.environments.web.session import WebSession
from turngym.environments.web.settings import Settings
from turngym.errors import EnvironmentFault, EpisodeError, TaskFault
from turngym.faults import Boundary
from turngym.tasks.base import Task

BROWSING = (
    "click", "double_click", "hover", "type", "submit", "append", "clear", "select", "press",
    "scroll_in", "scroll", "upload", "goto", "go_back", "new_tab", "close_tab", "switch_tab",
    "wait", "answer", "stop",
)  # fmt: skip
"""What can be done on the web at large."""
_MENU_TEXTS = 6
"""Texts of the goal that the menu of actions offers to type into each field."""
_MENU_ACTIONS = 150
_RECOVERIES = 3
"""Times that one step is tried again after the browser died."""


class WebOptions(TypedDict, total=False):
    """Arguments that every web environment passes on to ``WebEnv``."""

    screenshot: Screenshot
    action_style: ActionStyle
    keep: str | None
    render_mode: str | None


@dataclass(slots=True, kw_only=True)
class WebEpisode:
    """The state of one episode; ``reset`` and ``restore`` make a new one."""

    session: WebSession | None = None
    storage: Any = None
    """Cookies and local storage that it begins with."""
    view: PageView = field(default_factory=PageView)
    """What was seen last."""
    page: str | None = None
    """The text of ``view``; None until it is asked for."""
    done: list[Action] = field(default_factory=list)
    """What was carried out."""


class WebEnv(ScreenEnv):
    """Reach a goal in a browser.

    A subclass says what is there (``sites``), what is asked (``prepare``) and whether it was done
    (``judge``). Every episode has a browser context of its own, made fresh by ``reset``.

    Args:
        settings: How pages are shown and waited for.
        max_chars: Longest page in an observation; see ``page_text`` for what is left out.
        screenshot: ``"plain"`` adds a picture of the view to observations, ``"marks"`` one with
            the marks painted in.
        action_style: ``"commands"`` for actions in words, ``"tools"`` for JSON tool calls.
        keep: Folder in which every turn leaves its page as text, its picture when there is one,
            and with ``settings.trace`` every episode a Playwright trace.
        render_mode: ``"ansi"`` or None.

    Action: see ``turngym.environments.web.acting``; elements are named by their marks.
    Observation: the goal, title and address, what happened besides, and the page as text.
    Reward: what ``judge`` gives; see the subclass.
    Start: a fresh context at the task's first page.
    End: the goal is reached or missed for good, or the agent answers or stops.
    """

    actions: ClassVar[tuple[str, ...]] = BROWSING
    episode_type: ClassVar[type[WebEpisode]] = WebEpisode
    episode: WebEpisode
    shows_address: ClassVar[bool] = True
    """Show title and address of the page, useless where there is but one."""
    rules = (
        "You use a web browser to reach the goal. Elements that can be acted on have a number in "
        "brackets, which is how actions name them."
    )

    def __init__(
        self,
        *,
        settings: Settings | None = None,
        max_chars: int = 8_000,
        screenshot: Screenshot = "none",
        action_style: ActionStyle = "commands",
        keep: str | None = None,
        render_mode: str | None = None,
    ) -> None:
        self.settings = settings or Settings()
        super().__init__(
            action_style=action_style,
            screenshot=screenshot,
            image_hw=(self.settings.height, self.settings.width),
            keep=keep,
            render_mode=render_mode,
        )
        require_browser()
        self.action_format = in_style(
            action_style, web_commands(self.actions), web_tools(self.actions)
        )
        self._max_chars = max_chars
        self._host: BrowserHost | None = None
        self.episode = self.episode_type()

    # What a subclass gives.

    @abstractmethod
    def sites(self) -> Mapping[str, Site]:
        """Return host name to what answers for it, for the episode that begins."""

    @abstractmethod
    async def prepare(self, task: Task) -> tuple[str, str]:
        """Make the problem of ``task``; return the goal and the address to start at."""

    async def arrived(self, task: Task) -> None:
        """Do what the first page needs before it is looked at, in the browser's loop."""

    @abstractmethod
    async def judge(self, action: Action) -> Outcome | None:
        """Return the end of the episode after ``action``, in the browser's loop; None: go on.

        The text of the outcome is what the agent reads last.
        """

    # One episode.

    @property
    def session(self) -> WebSession:
        """The running episode's browser context. In the browser's loop only."""
        return opened(self.episode.session, self.name)

    @property
    def view(self) -> PageView:
        """What was seen last."""
        return self.episode.view

    async def begin(self, task: Task) -> Outcome:
        if self._host is None:
            self._host = BrowserHost.lease()
        return await self._host.run(self._begin(task))

    async def turn(self, action: Action) -> Outcome:
        """Act, wait until the page is quiet, judge and look.

        Raises:
            EnvironmentFault: The environment is closed.
        """
        return await self._open_host().run(self._turn(action))

    async def state_files(self) -> dict[str, bytes]:  # type: ignore[override]  # awaited
        """Return the page as HTML, and a picture of it."""
        return await self._open_host().run(self._state_files())

    async def _state_files(self) -> dict[str, bytes]:
        picture = await self.session.screenshot()
        return {"page.html": (await self.session.tab.page.content()).encode(), "page.png": picture}

    def _open_host(self) -> BrowserHost:
        if self._host is None:
            raise EnvironmentFault(f"{self.name}: the environment is closed")
        return self._host

    async def close(self) -> None:
        """Close the context; the last environment of the process also ends the browser."""
        host, self._host = self._host, None
        if host is not None:
            try:
                await host.run(self._drop_session())
            finally:
                host.release()

    # What the agent sees.

    def page(self) -> str:
        if self.episode.page is None:  # asked for as observation, state key and reminder
            parts = [f"Goal: {self.goal}"]
            if self.shows_address:
                parts.append(address_text(self.view))
            busy = ["The page is still busy."] if self.view.is_busy else []
            parts += [f"Note: {note}" for note in (*self.view.notes, *busy)]
            parts.append(page_text(self.view, self._max_chars) or "(the page is empty)")
            self.episode.page = "\n".join(parts)
        return self.episode.page

    def legal_actions(self) -> list[str]:
        """Return a menu: click what has a mark, type what the goal quotes, choose options.

        Endlessly many other actions would be carried out too.
        """
        texts = [a or b for a, b in re.findall(r'"([^"]+)"|\u201c([^\u201d]+)\u201d', self.goal)]
        menu: list[str] = []
        for one in self.view.elements:
            if not one.mark or "disabled" in one.states:
                continue
            if one.role in ("textbox", "searchbox", "combobox") and "read-only" not in one.states:
                menu += [
                    self.say("type", mark=one.mark, text=text)
                    for text in dict.fromkeys(texts[:_MENU_TEXTS])
                ]
            if one.role == "select":
                menu += [
                    self.say("select", mark=one.mark, option=option)
                    for option in one.options
                    if option and not option.startswith("... ")
                ]
            else:
                menu.append(self.say("click", mark=one.mark))
        menu += [self.say("scroll", direction=way) for way in ("down", "up")]
        return menu[-_MENU_ACTIONS:]

    def say(self, command: str, **arguments: Any) -> str:
        """Return the text that does ``command`` in the action style of this environment."""
        if self.action_style == "tools":
            command, arguments = as_tool_call(command, arguments)
        return self.action_format.render(Action(name=command, arguments=arguments))

    # In the browser's loop.

    async def _begin(self, task: Task) -> Outcome:
        with self._boundary("reset"):
            for attempt in range(_RECOVERIES):
                try:
                    await self._new_episode()
                    await self._enter(task)
                    break
                except BrowserGone:
                    if attempt == _RECOVERIES - 1:
                        raise
            self._open_folder(task)
            return await self._seen(Outcome(text=self.page()))

    async def _turn(self, action: Action) -> Outcome:
        before, done = self.page(), self.episode.done
        with self._boundary(action.name):
            for attempt in range(_RECOVERIES):
                try:
                    if attempt > 0:
                        await self._recover(before, done)
                    outcome = await self._step(action)
                    break
                except BrowserGone:
                    if attempt == _RECOVERIES - 1:
                        raise
            self.episode.done.append(action)
            return await self._seen(outcome)

    async def _new_episode(self) -> None:
        await self._drop_session()
        self.episode = self.episode_type()

    async def _enter(self, task: Task) -> None:
        goal, start = await self.prepare(task)
        await self._open_page(goal, start)

    async def _open_page(self, goal: str, url: str) -> None:
        """Look at ``url`` in a fresh context."""
        await self._drop_session()
        self.goal = goal
        host, episode = self._open_host(), self.episode
        episode.session = WebSession(host, self.sites(), self.settings, episode.storage)
        with self._crash_detection():
            await episode.session.open(url)
            await self.arrived(self.current_task)
            await self._look()

    async def _step(self, action: Action) -> Outcome:
        with self._crash_detection():
            problem = None
            if action.name not in ("answer", "stop"):
                problem = await act(self.session, action)
            if problem is None and (end := await self.judge(action)) is not None:
                return end
            if problem is not None:  # what the page did before this action is not news again
                self.episode.view, self.episode.page = replace(self.view, notes=()), None
                return Outcome(text=f"{problem}\n{self.page()}", invalid_action=problem)
            await self._look()
            # A page may take until now to show that the goal is reached.
            end = await self.judge(action)
            return Outcome(text=self.page()) if end is None else end

    async def _look(self) -> None:
        self.episode.view, self.episode.page = await self.session.look(), None

    async def _recover(self, before: str, done: list[Action]) -> None:
        """Play the episode again up to the page that showed ``before``, in a new browser.

        Raises:
            BrowserGone: This one died, too.
            EnvironmentFault: What was ``done`` does not lead to the same page.
        """
        await self._new_episode()
        await self._enter(self.current_task)
        for action in done:
            await self._step(action)
        self.episode.done = done
        if self.page() != before:
            raise EnvironmentFault(
                f"{self.name}: the browser died, and playing the episode again gave another page"
            )

    async def _seen(self, outcome: Outcome) -> Outcome:
        """Add the picture, and keep what should be kept."""
        if self._screenshot != "none":
            with self._crash_detection():
                outcome.image = self._image = await self._picture()
        self._keep_turn(len(self.episode.done), outcome)
        return outcome

    async def _picture(self) -> Image:
        picture = decode(await self.session.screenshot(), self.settings.width, self.settings.height)
        return draw_marks(picture, self.view.elements) if self._screenshot == "marks" else picture

    async def _drop_session(self) -> None:
        session, self.episode.session = self.episode.session, None
        if session is not None:
            trace = None if self._kept is None else self._kept / "trace.zip"
            await session.close(trace)
        self._kept = None

    @contextmanager
    def _crash_detection(self) -> Iterator[None]:
        """Tell the death of the browser from other failures."""
        from playwright.async_api import Error

        try:
            yield
        except Error as error:
            if self._open_host().is_gone(error):
                raise BrowserGone(f"the browser died ({str(error).splitlines()[0]})") from error
            raise


class ProblemWebEnv(StoppedEnv, WebEnv):
    """Solve a problem in a browser; at a limit it is judged as if the agent had stopped."""

    async def judge(self, action: Action) -> Outcome | None:
        return await self.judged(action)

    async def end_at_limit(self) -> Outcome | None:  # type: ignore[override]  # awaited
        return await self._open_host().run(self.judge(Action(name="stop")))

    def expert_action(self) -> str:
        """Return the script's action of this turn, then ``stop``.

        Raises:
            TaskFault: The script's step is no action.
        """
        self._said = len(self.episode.done)
        if (step := self._next()) is None:
            return self.say("stop")
        view = ExpertView(self.goal, self.view, tuple(self.episode.done))
        with Boundary(f"task {self._task_id}: expert, step {step!r:.60}", TaskFault, EpisodeError):
            name, arguments = as_stage(step)(view)
            text = self.say(name, **arguments)
            if isinstance(found := self.action_format.parse(text), InvalidAction):
                raise ValueError(f"cannot be said as an action: {found.reason}")
            return text
