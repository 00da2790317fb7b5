"""What an agent saw, as PNG files named after their content."""

from __future__ import annotations

import hashlib
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FOLDER = "pictures"
_SIGNATURE = b"\x89PNG\r\n\x1a\n"


class PictureFolder:
    """Keeps each different picture once.

    Args:
        folder: Where records are; pictures go to ``pictures/`` in it, made with the first.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER
        self._known: set[str] = set()

    def __call__(self, pixels_HW3: Any) -> str:
        """Keep a picture and return the name of its file.

        Args:
            pixels_HW3: uint8, shape [H, W, 3].

        Raises:
            ValueError: It is something else.
        """
        pixels = np.ascontiguousarray(pixels_HW3)
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
            raise ValueError(f"a picture is uint8 [H, W, 3], not {pixels.dtype} {pixels.shape}")
        shape = str(pixels.shape).encode()
        name = hashlib.sha256(shape + pixels.tobytes()).hexdigest()[:24] + ".png"
        if name not in self._known:
            self._write(name, png(pixels))
            self._known.add(name)
        return name

    def _write(self, name: str, content: bytes) -> None:
        file = self._folder / name
        if not file.exists():
            self._folder.mkdir(exist_ok=True)
            partial = file.with_name(name + ".partial")
            partial.write_bytes(content)
            partial.replace(file)


def png(pixels_HW3: NDArray[np.uint8]) -> bytes:
    """Return a picture as PNG: 8 bits a channel, no filter.

    Args:
        pixels_HW3: Shape [H, W, 3].

    Source:
        ISO/IEC 15948.
    """
    height, width = pixels_HW3.shape[:2]
    rows = np.zeros((height, 1 + 3 * width), np.uint8)  # each begins with filter type 0
    rows[:, 1:] = pixels_HW3.reshape(height, 3 * width)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(rows.tobytes(), 6)
    return _SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, content: bytes) -> bytes:
    check = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)
