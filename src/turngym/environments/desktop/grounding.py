"""Grounding: point at the element that the goal names, on the screen of a real application.

Pointing changes nothing, so an episode needs no application of its own: the desktop is closed as
soon as its screen was taken, once per process, and every episode finds the screen as it was.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import ClassVar, Literal, Unpack, get_args

from turngym.environments.core.actions import Action
from turngym.environments.core.env import Outcome
from turngym.environments.core.spaces import Image
from turngym.environments.desktop.actions import pixels_of
from turngym.environments.desktop.device_env import DeviceEnv, DeviceOptions
from turngym.environments.desktop.display import require_desktop
from turngym.environments.desktop.observation import Element, View
from turngym.environments.desktop.tasks.words import NOUNS
from turngym.environments.desktop.x11_device import X11Device
from turngym.errors import ConfigError, EnvironmentFault, require_known
from turngym.tasks.base import Split, Task, split_of

APPS: Mapping[str, tuple[str, ...]] = {
    "calculator": ("galculator",), "editor": ("mousepad",), "files": ("pcmanfm",),
    "sheet": ("gnumeric",), "windows": ("obconf",),
}  # fmt: skip
"""Name in environment ids, and what is started."""
FOLDERS: Mapping[Split, int] = {"train": 8, "test": 4}
"""Different folders that the file manager shows; no name is in folders of both splits."""
_ENTRIES = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenCapture:
    """What a screen showed at one moment. Shared by episodes: no one writes to ``pixels``."""

    view: View
    pixels: Image
    """uint8 [height, width, 3]."""


ScreenKey = tuple[str, tuple[Split, int] | None, tuple[int, int]]
"""An application, the folder that a file manager shows, and the size of the screen in pixels."""
_taken: dict[ScreenKey, ScreenCapture] = {}
_lock = threading.Lock()


def take_capture(key: ScreenKey) -> ScreenCapture:
    """Return a screen; the first call of a process starts the application.

    Raises:
        EnvironmentFault: The desktop or the application could not be started.
    """
    with _lock:
        if key not in _taken:
            _taken[key] = _take(*key)
        return _taken[key]


def _take(app: str, folder: tuple[Split, int] | None, size: tuple[int, int]) -> ScreenCapture:
    device = X11Device(*size)
    try:
        if folder is not None:
            device.write_files(dict.fromkeys(folder_names(*folder)))
        device.launch(*APPS[app])
        device.rest()
        view, pixels = device.look(), device.pixels()
        pixels.setflags(write=False)
        return ScreenCapture(view=view, pixels=pixels)
    finally:
        device.close()


def folder_of(app: str, split: Split, seed: int) -> tuple[Split, int] | None:
    """Return the folder that the task of a ``seed`` shows; None where ``app`` shows none."""
    return (split, seed % FOLDERS[split]) if app == "files" else None


def folder_names(split: Split, folder: int) -> list[str]:
    """Return what the file manager shows in a folder of ``split``."""
    rng = Random(f"{split} {folder}")
    names: set[str] = set()
    while len(names) < _ENTRIES:
        name = "-".join(rng.sample(NOUNS, 2))
        if split_of(Element(role="cell", name=name).line_without_mark) == split:
            names.add(name)
    return sorted(names)


PointReward = Literal["hit", "box_size", "distance"]
_MAX_SAMPLES = 200
REWARDS: tuple[PointReward, ...] = get_args(PointReward)


class GroundingEnv(DeviceEnv):
    """Point at the element that the goal names: one turn, on one application's screen.

    Nothing is carried out, so one screen serves every episode of the process.

    Args:
        app: Whose screen, for example ``"calculator"``; see ``APPS``.
        reward: ``"hit"`` gives 1 or 0; ``"box_size"`` the reward of GUI-G1, best for ``box``;
            ``"distance"`` something for near misses. The score is always the hit.
        shows_tree: Name the elements with their marks; False for pointing from the picture.
        choices: None names all elements in full, and other elements are asked for in training than
            in tests. A number names at most so many, sampled by the seed, each by its name and
            mark, and then the goal: for very small models. Then what is held out are whole lists,
            of elements that training knows.
        options: As ``DeviceEnv``.

    Action: ``click`` by mark or place, or ``box`` with the four edges.
    Observation: the goal, and the application's elements or picture.
    Reward: see ``reward``; parts ``hit``, ``box_size`` and ``distance`` are in ``reward_parts``.
    Start: a fresh application.
    End: after one turn.
    """

    actions: ClassVar[tuple[str, ...]] = ("click_at", "click", "box")
    in_thread: ClassVar[bool] = False
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
        choices: int | None = None,
        **options: Unpack[DeviceOptions],
    ) -> None:
        require_known("app", app, APPS)
        require_known("reward", reward, REWARDS)
        if choices is not None and (choices < 2 or not shows_tree):
            raise ConfigError(
                f"grounding-{app}: choices is {choices}, shows_tree is {shows_tree}; wanted 2 "
                "elements or more, and that they are shown"
            )
        self.name = f"grounding-{app}"
        super().__init__(**options)
        require_desktop()
        self._app, self._reward = app, reward
        self._shows_tree, self._choices = shows_tree, choices
        self._capture: ScreenCapture | None = None
        self._target = Element(role="")
        self._score = 0.0

    async def begin(self, task: Task) -> Outcome:
        """Take the application's screen unless it was taken, and choose an element."""
        key = self._app, folder_of(self._app, task.split, task.seed), self.size
        self._capture = _taken.get(key) or await asyncio.to_thread(take_capture, key)
        return await super().begin(task)

    def open_device(self, task: Task) -> None:
        """Choose an element of the split; there is no device, since nothing is carried out.

        Raises:
            EnvironmentFault: The split has none.
        """
        assert self._capture is not None
        self._score = 0.0
        rng, self._shown = Random(task.seed), self._capture.view
        elements = targets(self._shown)
        if self._choices is None:
            own = [one for one in elements if split_of(one.line_without_mark) == task.split]
            if not own:
                raise EnvironmentFault(f"{self.name}: no element of split {task.split!r}")
            self._target = rng.choice(own)
        else:
            self._sample_list(rng, elements, task.split)
        self.goal = f'Click the {self._target.role} "{self._target.name}".'

    def _sample_list(self, rng: Random, elements: list[Element], split: Split) -> None:
        """Choose a short list of the split, which its content decides, and the wanted element."""
        assert self._choices is not None
        for _ in range(_MAX_SAMPLES):
            sampled = rng.sample(elements, min(len(elements), self._choices))
            shown = tuple(sorted(sampled, key=lambda one: one.mark))
            self._target = rng.choice(shown)
            if split_of(" ".join([*(one.name for one in shown), self._target.name])) == split:
                self._shown = replace(self._shown, elements=shown)
                return
        raise EnvironmentFault(f"{self.name}: no list of split {split!r} in {_MAX_SAMPLES} samples")

    def look(self) -> View:
        """Return what was seen when the application had started."""
        return self._shown

    def pixels(self) -> Image:
        assert self._capture is not None
        return self._capture.pixels

    def page(self) -> str:
        if self._choices is not None:
            lines = [f"{one.name} {one.mark}" for one in self.view.elements]
            return "\n".join([*lines, f"click {self._target.name}"])
        return super().page() if self._shows_tree else f"Goal: {self.goal}"

    def perform(self, action: Action) -> str | None:
        place = self._pointed(action)
        return place if isinstance(place, str) else None

    def judge(self, action: Action) -> Outcome:
        predicted, target = self._pointed(action), self._target.box
        assert not isinstance(predicted, str)
        middle = _middle(predicted)
        self._score = reward = float(is_hit(middle, target))
        if self._reward == "box_size":
            reward = box_size_reward(predicted, target, *self.size)
        elif self._reward == "distance":
            reward = distance_reward(middle, target, *self.size)
        text = "That is it." if self._score else "That is something else."
        info = {"reward_parts": {self._reward: reward}}
        return Outcome(text=text, reward=reward, terminated=True, info=info)

    def score(self) -> float:
        return self._score

    def expert_action(self) -> str:
        """Return a click on the element, by its mark where marks are shown."""
        x, y = self._target.center
        if self._shows_tree:
            return self.say("click", mark=self._target.mark)
        return self.say("click_at", x=round(x * self._scale), y=round(y * self._scale))

    def _pointed(self, action: Action) -> Box | str:
        """Return the box on the screen that ``action`` points at, or why there is none."""
        if action.name == "box":
            names = ("left", "top", "right", "bottom")
            left, top, right, bottom = (int(action.arguments[one]) / self._scale for one in names)
            if left > right or top > bottom:
                return "left must not be larger than right, and top not larger than bottom."
            return left, top, right, bottom
        if "mark" in action.arguments:
            found = self.view.named(action.arguments["mark"])
            return found if isinstance(found, str) else found.box
        place = pixels_of(action.arguments, self._scale)
        return (*place, *place)


def targets(view: View) -> list[Element]:
    """Return the elements that can be acted on and whose role and name belong to no other."""
    marked = [one for one in view.elements if one.mark and one.name]
    counts = Counter((one.role, one.name) for one in marked)
    return [one for one in marked if counts[one.role, one.name] == 1]


Box = tuple[float, float, float, float]
Point = tuple[float, float]

IOU_WEIGHT, EDGE_WEIGHT = 0.25, 0.125


def is_hit(point: Point, target: Box) -> bool:
    """Say whether ``point`` lies in ``target``, edges included."""
    x, y = point
    left, top, right, bottom = target
    return left <= x <= right and top <= y <= bottom


def iou(a: Box, b: Box) -> float:
    """Return the area that boxes ``a`` and ``b`` share over what they cover, in [0, 1]."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    shared = max(0.0, width) * max(0.0, height)
    covered = _area(a) + _area(b) - shared
    return shared / covered if covered > 0 else 0.0


def edge_agreement(predicted: Box, target: Box, width: int, height: int) -> float:
    """Return how near the edges of ``predicted`` and ``target`` are: harmonic mean of 1 - d / side.

    1 for equal boxes, and 0 once an edge is a whole screen away. Of itself it favours neither
    small nor large boxes, as hits favour small ones and overlap large ones.
    """
    sides = (width, height, width, height)
    near = [1 - abs(p - t) / side for p, t, side in zip(predicted, target, sides, strict=True)]
    if min(near) <= 0:
        return 0.0
    return len(near) / sum(1 / one for one in near)


def box_size_reward(predicted: Box, target: Box, width: int, height: int) -> float:
    """Return the box-size-aware reward of a predicted box, in [0, 1].

    ``(hit + 0.25 iou + 0.125 edges) / 1.375``, where ``hit`` says whether the middle of the
    predicted box lies in the target and ``edges`` is ``edge_agreement``.

    Args:
        predicted: What the agent pointed at; a click is a box without area.
        target: The element's box.
        width: Of the screen, in pixels.
        height: Of the screen, in pixels.

    Source:
        Zhou et al. 2025, GUI-G1, arXiv:2505.15810, with the weights of the authors' code; divided
        by their sum, so that the best reward is 1.
    """
    total = (
        float(is_hit(_middle(predicted), target))
        + IOU_WEIGHT * iou(predicted, target)
        + EDGE_WEIGHT * edge_agreement(predicted, target, width, height)
    )
    return total / (1 + IOU_WEIGHT + EDGE_WEIGHT)


def distance_reward(point: Point, target: Box, width: int, height: int) -> float:
    """Return 1 in the target, and less the farther ``point`` is from it, down to 0.

    Outside it is ``(1 - d)^2 / 2`` with the distance ``d`` to the box as a share of the screen's
    diagonal; so a near miss is worth half of a hit, and every step nearer is worth something.
    """
    if is_hit(point, target):
        return 1.0
    x, y = point
    dx = max(target[0] - x, 0.0, x - target[2])
    dy = max(target[1] - y, 0.0, y - target[3])
    share = min(1.0, math.hypot(dx, dy) / math.hypot(width, height))
    return (1 - share) ** 2 / 2


def _middle(box: Box) -> Point:
    return (box[0] + box[2]) / 2, (box[1] + box[3]) / 2


def _area(box: Box) -> float:
    return max(0.0, box[2] - box[0]) * max(0.0, box[3] - box[1])
