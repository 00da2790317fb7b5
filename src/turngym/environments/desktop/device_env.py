"""A device as an environment: a screen in, one action out."""

from __future__ import annotations

import asyncio
import re
from abc import abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, ClassVar, TypedDict, TypeVar, Unpack

from turngym.coroutines import finished
from turngym.environments.core.actions import Action, ActionStyle, in_style
from turngym.environments.core.env import Outcome, opened
from turngym.environments.core.pictures import ScreenEnv, Screenshot, draw_marks, resized
from turngym.environments.core.spaces import Image
from turngym.environments.core.tasks import StoppedEnv
from turngym.environments.desktop.actions import (
    NAMES,
    act,
    as_tool_call,
    device_commands,
    device_tools,
)
from turngym.environments.desktop.device import Device
from turngym.environments.desktop.observation import View, view_text
from turngym.environments.desktop.problems import DeviceWorld
from turngym.errors import ConfigError, EnvironmentFault
from turngym.tasks.base import Task

T = TypeVar("T")

_MENU_ACTIONS = 150
_MAX_SCROLLS = 6
"""Times in a row that the expert scrolls before it stops looking."""


class DeviceOptions(TypedDict, total=False):
    """Arguments that every environment with a device has."""

    max_chars: int
    """Longest list of elements in an observation; 6,000 characters by default."""
    screenshot: Screenshot
    """``"plain"`` adds a picture to observations, ``"marks"`` one with marks painted in."""
    scale: float
    """Size of the picture relative to the screen; coordinates of actions are its pixels."""
    action_style: ActionStyle
    """``"commands"`` for actions in words, ``"tools"`` for JSON tool calls."""
    keep: str | None
    """Folder in which every turn leaves its text, and its picture when there is one."""
    render_mode: str | None
    """``"ansi"`` or None."""


class DeviceEnv(ScreenEnv):
    """Reach a goal on a device: the dialogue, whatever the device is.

    A subclass makes the device (``open_device``), says what is asked, and judges.

    Args:
        max_chars: Longest list of elements in an observation, in characters; 6,000 by default.
        scale: Size of the picture relative to the screen; coordinates of actions are its pixels.
        options: See ``DeviceOptions``.
    """

    actions: ClassVar[tuple[str, ...]] = NAMES
    menu_keys: ClassVar[tuple[str, ...]] = (
        "enter", "tab", "escape", "ctrl+a", "ctrl+c", "ctrl+s", "ctrl+v", "delete",
    )  # fmt: skip
    """Keys that the menu of actions offers."""
    size: tuple[int, int] = (1024, 768)
    """Width and height of the screen, in pixels."""
    in_thread: ClassVar[bool] = True
    """The device waits, so what touches it runs in a thread of its own."""

    def __init__(self, **options: Unpack[DeviceOptions]) -> None:
        if unknown := sorted(options.keys() - DeviceOptions.__annotations__.keys()):
            raise TypeError(f"{self.name}: got an unexpected keyword argument {unknown[0]!r}")
        scale, screenshot = options.get("scale", 1.0), options.get("screenshot", "none")
        action_style = options.get("action_style", "commands")
        if not 0.05 <= scale <= 1.0:
            raise ConfigError(f"{self.name}: scale is {scale}; wanted 0.05 to 1")
        self._scale = 1.0 if screenshot == "none" else scale
        width, height = (round(side * self._scale) for side in self.size)
        super().__init__(
            action_style=action_style,
            screenshot=screenshot,
            image_hw=(height, width),
            keep=options.get("keep"),
            render_mode=options.get("render_mode"),
        )
        self.action_format = in_style(
            action_style, device_commands(self.actions), device_tools(self.actions)
        )
        self._max_chars = options.get("max_chars", 6_000)
        self._thread: ThreadPoolExecutor | None = None
        """The one thread that touches the device."""
        self._device: Device | None = None
        self.view = View()
        """What was seen last."""
        self.turns = 0

    # What a subclass gives.

    @abstractmethod
    def open_device(self, task: Task) -> Device | None:
        """Return a device that shows the first screen of ``task``; set ``goal``.

        None where nothing is ever carried out; then ``look``, ``pixels`` and ``perform`` are the
        subclass's own.
        """

    @abstractmethod
    def judge(self, action: Action) -> Outcome | None:
        """Return the end of the episode after ``action``; None: go on."""

    def look(self) -> View:
        """Return what is on the screen."""
        return self.device.look()

    def pixels(self) -> Image:
        """Return the screen, uint8 [height, width, 3]."""
        return self.device.pixels()

    def perform(self, action: Action) -> str | None:
        """Carry out ``action``; return why it could not be, or None."""
        return act(self.device, self.view, action, scale=self._scale)

    def release(self) -> None:
        """Give back what devices are made of."""

    # One episode.

    @property
    def device(self) -> Device:
        """The running episode's device."""
        return opened(self._device, self.name)

    async def begin(self, task: Task) -> Outcome:
        return await self._run("reset", lambda: self._begin(task))

    async def turn(self, action: Action) -> Outcome:
        """Act, wait until the screen is quiet, look and judge."""
        return await self._run(action.name, lambda: self._turn(action))

    async def state_files(self) -> dict[str, Any]:  # type: ignore[override]  # awaited
        return {"screen.png": await self._run("screen", self.pixels)}

    async def end_at_limit(self) -> Outcome | None:  # type: ignore[override]  # awaited
        """Judge as at ``stop``, where there is that."""
        if "stop" not in self.actions:
            return None
        return await self._run("judge", lambda: self.judge(Action(name="stop")))

    async def close(self) -> None:
        if self._thread is None:
            return
        try:
            await self._run("close", self._close)
        finally:
            thread, self._thread = self._thread, None
            thread.shutdown(wait=False)

    # What the agent sees.

    def page(self) -> str:
        return f"Goal: {self.goal}\n{view_text(self.view, self._max_chars)}"

    def legal_actions(self) -> list[str]:
        """Return a menu: click what has a mark, type what the goal quotes, common keys, scrolling.

        Endlessly many other actions would be carried out too.
        """
        menu = [
            self.say("click", mark=one.mark)
            for one in self.view.elements
            if one.mark and "disabled" not in one.states
        ]
        if "type" in self.actions:
            quoted = re.findall(r'"([^"\n]+)"', self.goal)
            menu += [self.say("type", text=text) for text in dict.fromkeys(quoted)]
        if "key" in self.actions:
            menu += [self.say("key", keys=keys) for keys in self.menu_keys]
        if "scroll" in self.actions:
            menu += [self.say("scroll", direction=way) for way in ("down", "up")]
        ends = [self.say("stop")] if "stop" in self.actions else []
        return menu[: _MENU_ACTIONS - 1] + ends

    def say(self, name: str, **arguments: Any) -> str:
        """Return the text that does ``name`` in this environment's action style."""
        action = Action(name=name, arguments=arguments)
        if self.action_style == "tools":
            action = as_tool_call(action)
        return self.action_format.render(action)

    # In the device's thread.

    def _begin(self, task: Task) -> Outcome:
        self._drop_device()
        self._kept = None
        self.turns = 0
        self._device = self.open_device(task)
        self.view = self.look()
        self._open_folder(task)
        return self._seen(Outcome(text=self.page()))

    def _turn(self, action: Action) -> Outcome:
        self.turns += 1
        problem = None
        if action.name not in ("answer", "stop"):
            problem = self.perform(action)
            self.view = self.look()
        if problem is not None:
            text = f"{problem}\n{self.page()}"
            return self._seen(Outcome(text=text, invalid_action=problem))
        end = self.judge(action)
        return self._seen(Outcome(text=self.page()) if end is None else end)

    def _seen(self, outcome: Outcome) -> Outcome:
        """Add the picture, and keep what should be kept."""
        if self._screenshot != "none":
            picture = self.pixels()
            if self._screenshot == "marks":
                picture = draw_marks(picture, self.view.elements)
            outcome.image = self._image = (
                picture if self._scale == 1.0 else resized(picture, self._scale)
            )
        self._keep_turn(self.turns, outcome)
        return outcome

    def _drop_device(self) -> None:
        device, self._device = self._device, None
        if device is not None:
            device.close()

    def _close(self) -> None:
        try:
            self._drop_device()
        finally:
            self.release()

    async def _run(self, phase: str, work: Callable[[], T]) -> T:
        """Run ``work`` in the device's thread. Cancelled, it is let finish there."""
        if not self.in_thread:
            with self._boundary(phase):
                return work()
        if self._thread is None:
            if phase not in ("reset", "close"):
                raise EnvironmentFault(f"{self.name}: the environment is closed")
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="turngym-device")
        loop = asyncio.get_running_loop()
        with self._boundary(phase):
            return await loop.run_in_executor(self._thread, work)


class ProblemEnv(StoppedEnv, DeviceEnv):
    """Solve a problem on a device; ``stop`` or ``answer`` ends the episode and has it judged."""

    last_words = ("The goal is reached.", "The goal is not reached.")
    _scrolls: int = 0

    def open_problem(self, task: Task) -> Any:  # of the family of the set
        """Return the problem of ``task``, whose prompt is the goal."""
        problem = super().open_problem(task)
        self.goal, self._scrolls = problem.prompt, 0
        return problem

    def world(self, answer: str | None) -> DeviceWorld:
        return DeviceWorld(device=self.device, answer=answer)

    def judge(self, action: Action) -> Outcome | None:
        return finished(self.judged(action))

    def perform(self, action: Action) -> str | None:
        """Carry out ``action``, and note whether the expert would have done it."""
        if (said := self._said_next()) is None:
            self._scrolls += 1
        elif said == self.say(action.name, **action.arguments):
            self._said, self._scrolls = self._said + 1, 0
        return super().perform(action)

    def expert_action(self) -> str:
        """Return the script's next action, or a scroll where what it names is not in view.

        After anything else than the script it is lost, and stops.
        """
        if self._next() is None:
            return self.say("stop")
        scroll = self._scrolls < _MAX_SCROLLS
        return self._said_next() or (
            self.say("scroll", direction="down") if scroll else self.say("stop")
        )

    def _said_next(self) -> str | None:
        """Return the script's next action as text; None when what it names is not in view."""
        with suppress(LookupError):
            step = self._next()
            action = step if isinstance(step, Action | None) else step(self.view)
            return None if action is None else self.say(action.name, **action.arguments)
        return None
