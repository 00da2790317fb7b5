"""Screens as arrays, perhaps with marks, and environments that are looked at."""

from __future__ import annotations

import hashlib
import io
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal

import numpy as np

from turngym.environments.core.actions import ActionStyle
from turngym.environments.core.env import AsyncTurnEnv, Outcome
from turngym.environments.core.spaces import Image, text_observation_space
from turngym.errors import require_known
from turngym.plugins import import_extra
from turngym.tasks.base import Task

_COLOURS = ((200, 0, 0), (0, 90, 200), (0, 130, 0), (150, 0, 150), (190, 100, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenElement:
    """One part of a screen: something to act on or to read."""

    mark: int = 0
    """Number by which actions name it; 0 when it has none."""
    role: str
    name: str = ""
    value: str = ""
    """Text of a field, number of a slider."""
    states: tuple[str, ...] = ()
    """``checked``, ``disabled``, ``selected``, ``focused``, ``expanded`` ..."""
    depth: int = 0
    x: int = 0
    y: int = 0
    """Top left corner in the picture, in pixels."""
    width: int = 0
    height: int = 0

    @property
    def center(self) -> tuple[int, int]:
        """Its middle in the picture, in pixels."""
        return self.x + self.width // 2, self.y + self.height // 2


def decode(png: bytes, width: int, height: int) -> Image:
    """Return a PNG as uint8 [height, width, 3], cut or filled with white where it differs."""
    pillow = _pillow()
    with pillow.open(io.BytesIO(png)) as picture:
        found = np.asarray(picture.convert("RGB"), dtype=np.uint8)[:height, :width]
    if found.shape == (height, width, 3):
        return found.copy()
    whole = np.full((height, width, 3), 255, dtype=np.uint8)
    whole[: found.shape[0], : found.shape[1]] = found
    return whole


def draw_marks(image: Image, elements: Iterable[ScreenElement]) -> Image:
    """Return ``image`` with a box and the number of each marked element in view."""
    from PIL import ImageDraw

    picture = _pillow().fromarray(image)
    pen = ImageDraw.Draw(picture)
    for one in elements:
        if not one.mark or one.x >= picture.width or one.y >= picture.height:
            continue
        colour = _COLOURS[one.mark % len(_COLOURS)]
        pen.rectangle((one.x, one.y, one.x + one.width, one.y + one.height), outline=colour)
        text = str(one.mark)
        pen.rectangle((one.x, one.y, one.x + 6 * len(text) + 2, one.y + 10), fill=colour)
        pen.text((one.x + 1, one.y - 1), text, fill=(255, 255, 255))
    return np.asarray(picture, dtype=np.uint8).copy()


def resized(image: Image, scale: float) -> Image:
    """Return ``image`` at ``scale`` times its size."""
    height, width = (round(side * scale) for side in image.shape[:2])
    return np.asarray(_pillow().fromarray(image).resize((width, height)), dtype=np.uint8).copy()


def save(image: Image, path: Path) -> None:
    """Write ``image`` as a PNG."""
    _pillow().fromarray(image).save(path)


def _pillow() -> Any:
    return import_extra("PIL.Image", "screenshots", "web")


Screenshot = Literal["none", "plain", "marks"]


class ScreenEnv(AsyncTurnEnv):
    """Reach a goal on a screen that is read as text.

    Args:
        action_style: ``"commands"`` for actions in words, ``"tools"`` for JSON tool calls.
        screenshot: ``"plain"`` adds a picture to observations, ``"marks"`` one with marks on it.
        image_hw: Height and width of the picture, in pixels.
        keep: Folder in which every turn leaves its text, and its picture when there is one.
        render_mode: ``"ansi"`` or None.
    """

    def __init__(
        self,
        *,
        action_style: ActionStyle,
        screenshot: Screenshot,
        image_hw: tuple[int, int],
        keep: str | None,
        render_mode: str | None,
    ) -> None:
        super().__init__(render_mode=render_mode)
        require_known("screenshot", screenshot, ("none", "plain", "marks"))
        if screenshot != "none":
            self.observation_space = text_observation_space(image_hw=image_hw)
        self.action_style: ActionStyle = action_style
        self.goal = ""
        self._screenshot = screenshot
        self._image: Image | None = None
        self._keep = None if keep is None else Path(keep)
        self._kept: Path | None = None
        """Folder of the running episode."""

    @abstractmethod
    def page(self) -> str:
        """Return the goal and what was seen last, as text."""

    def reminder(self) -> str:
        return "\n" + self.page()

    def state_key(self) -> str:
        """Return a digest of the goal and what is seen."""
        return hashlib.sha256(self.page().encode()).hexdigest()[:16]

    def picture(self) -> Image | None:
        """Return the screen as it was last seen."""
        return self._image

    def _open_folder(self, task: Task) -> None:
        """Make an episode's folder: the task's name, with a number when it was played before."""
        if self._keep is None:
            return
        name = task.id.replace("/", "-")
        for number in count():
            self._kept = self._keep / (f"{name}-{number}" if number else name)
            try:
                self._kept.mkdir(parents=True)
            except FileExistsError:
                continue
            return

    def _keep_turn(self, number: int, outcome: Outcome) -> None:
        """Leave the text and the picture of a turn, where turns are kept."""
        if self._kept is None:
            return
        name = f"turn_{number:03}"
        (self._kept / f"{name}.txt").write_text(outcome.text, encoding="utf-8")
        if outcome.image is not None:
            save(outcome.image, self._kept / f"{name}.png")
