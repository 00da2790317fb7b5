"""Screens as arrays, with the marks on them where that is wanted, and what stands on them."""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from turngym.environments.core.spaces import Image
from turngym.plugins import import_extra

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
