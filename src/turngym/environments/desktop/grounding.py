"""Grounding: point at the element that the goal names, on the screen of a real application."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import ClassVar, Literal

from turngym.environments.actions import Action
from turngym.environments.base import Outcome
from turngym.environments.desktop.acting import place_of
from turngym.environments.desktop.device_env import DeviceEnv
from turngym.environments.desktop.env import require_all
from turngym.environments.desktop.observation import Element, View
from turngym.environments.desktop.pointing import (
    Box,
    box_size_reward,
    distance_reward,
    is_hit,
)
from turngym.environments.desktop.pool import DisplayPool
from turngym.environments.desktop.x11_device import X11Device
from turngym.environments.screen import ActionStyle, Screenshot
from turngym.environments.text.base import split_of
from turngym.errors import EnvironmentFault, unknown_name
from turngym.tasks.base import Task

APPS: dict[str, tuple[str, ...]] = {
    "calculator": ("galculator",),
    "editor": ("mousepad",),
    "files": ("pcmanfm", "/usr/share"),
    "sheet": ("gnumeric",),
    "windows": ("obconf",),
}
"""Name in environment ids, and what is started."""
PointReward = Literal["hit", "box_size", "distance"]
REWARDS: tuple[PointReward, ...] = ("hit", "box_size", "distance")


class GroundingEnv(DeviceEnv):
    """Point at the element that the goal names: one turn, on one application's screen.

    Nothing is carried out, so the screen serves one episode after the other.

    Args:
        app: Whose screen, for example ``"calculator"``; see ``APPS``.
        reward: ``"hit"`` gives 1 or 0; ``"box_size"`` the reward of GUI-G1, best for ``box``;
            ``"distance"`` something for near misses. The score is always the hit.
        shows_tree: Name the elements with their marks; False for pointing from the picture.
        max_chars: As ``DeviceEnv``.
        screenshot: As ``DeviceEnv``.
        scale: As ``DeviceEnv``.
        action_style: As ``DeviceEnv``.
        keep: As ``DeviceEnv``.
        render_mode: ``"ansi"`` or None.

    Action: ``click`` by mark or place, or ``box`` with the four edges.
    Observation: the goal, and the application's elements or picture.
    Reward: see ``reward``; parts ``hit``, ``box_size`` and ``distance`` are in ``reward_parts``.
    Start: a fresh application.
    End: after one turn.
    """

    actions: ClassVar[tuple[str, ...]] = ("click_at", "click", "box")
    rules = (
        "You see the screen of a program. Point at the element that the goal names: click it, or "
        "say box with its left, top, right and bottom edge."
    )

    def __init__(
        self,
        *,
        app: str,
        reward: PointReward = "hit",
        shows_tree: bool = True,
        max_chars: int = 6_000,
        screenshot: Screenshot = "none",
        scale: float = 1.0,
        action_style: ActionStyle = "commands",
        keep: str | None = None,
        render_mode: str | None = None,
    ) -> None:
        if app not in APPS:
            raise unknown_name("app", app, APPS)
        if reward not in REWARDS:
            raise unknown_name("reward", reward, REWARDS)
        self.name = f"grounding-{app}"
        super().__init__(
            max_chars=max_chars,
            screenshot=screenshot,
            scale=scale,
            action_style=action_style,
            keep=keep,
            render_mode=render_mode,
        )
        require_all()
        self._app, self._reward, self._shows_tree = app, reward, shows_tree
        self._pool: DisplayPool | None = None
        self._screen: tuple[X11Device, View] | None = None
        """A desktop with the application, which every episode finds as it was."""
        self._target = Element(role="")
        self._score = 0.0

    def open_device(self, task: Task) -> X11Device:
        """Start the application unless it is there, and choose an element of the split."""
        device, view = self._ready()
        self._score = 0.0
        choices = [one for one in targets(view) if split_of(one.line_without_mark) == task.split]
        if not choices:
            raise EnvironmentFault(f"{self.name}: no element of split {task.split!r}")
        self._target = Random(task.seed).choice(choices)
        self.goal = f'Click the {self._target.role} "{self._target.name}".'
        return device

    def look(self) -> View:
        """Return what was seen when the application had started."""
        return self._ready()[1]

    def page(self) -> str:
        """Return the goal, and the elements where they are told."""
        return super().page() if self._shows_tree else f"Goal: {self.goal}"

    def perform(self, action: Action) -> str | None:
        """Carry out nothing; say whether the place is one."""
        place = self._pointed(action)
        return place if isinstance(place, str) else None

    def judge(self, action: Action) -> Outcome:
        """Return the end of the episode."""
        predicted = self._pointed(action)
        assert not isinstance(predicted, str)
        middle = ((predicted[0] + predicted[2]) / 2, (predicted[1] + predicted[3]) / 2)
        width, height = self.size
        target = self._target.box
        parts = {
            "hit": float(is_hit(middle, target)),
            "box_size": box_size_reward(predicted, target, width, height),
            "distance": distance_reward(middle, target, width, height),
        }
        self._score = parts["hit"]
        text = "That is it." if self._score else "That is something else."
        return Outcome(
            text=text, reward=parts[self._reward], terminated=True,
            info={"reward_parts": {self._reward: parts[self._reward]}},
        )  # fmt: skip

    def score(self) -> float:
        """Return 1 when the last turn hit."""
        return self._score

    def oracle_action(self) -> str:
        """Return a click on the element, by its mark where marks are told."""
        x, y = self._target.center
        if self._shows_tree:
            return self.say("click", mark=self._target.mark)
        return self.say("click_at", x=round(x * self._scale), y=round(y * self._scale))

    def release(self) -> None:
        """End the application, and give the lease on the pool back."""
        screen, self._screen = self._screen, None
        if screen is not None:
            screen[0].close()
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.release()

    def drop_device(self) -> None:
        """Keep the desktop: nothing was changed on it."""
        self._device = None

    def _ready(self) -> tuple[X11Device, View]:
        if self._screen is not None and self._screen[0].display.is_alive:
            return self._screen
        if self._pool is None:
            self._pool = DisplayPool.lease(*self.size)
        if self._screen is not None:
            self._screen[0].close()
        device = self._pool.take()
        try:
            device.launch(*APPS[self._app])
            self._screen = device, device.look()
        except BaseException:
            device.close()
            raise
        return self._screen

    def _pointed(self, action: Action) -> Box | str:
        """Return the box on the screen that ``action`` points at, or why there is none."""
        if action.name == "box":
            left, top, right, bottom = (
                int(action.arguments[name]) / self._scale
                for name in ("left", "top", "right", "bottom")
            )
            if left > right or top > bottom:
                return "left must not be larger than right, and top not larger than bottom."
            return left, top, right, bottom
        if "mark" in action.arguments:
            found = self.view.named(action.arguments["mark"])
            return found if isinstance(found, str) else found.box
        place = place_of(self.device, self.view, action.arguments, self._scale)
        if not isinstance(place, tuple):
            return place or "A mark or a place is needed."
        return (*place, *place)


def targets(view: View) -> list[Element]:
    """Return the elements that can be acted on and whose role and name belong to no other."""
    marked = [one for one in view.elements if one.mark and one.name]
    counts = Counter((one.role, one.name) for one in marked)
    return [one for one in marked if counts[one.role, one.name] == 1]
