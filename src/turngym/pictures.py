"""Pictures that agents see: as PNG files, and kept once each under a number."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import shutil
import struct
import tempfile
import threading
import weakref
import zlib
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turngym.errors import RecordError
from turngym.plugins import import_extra

Pixels = NDArray[np.uint8]
"""A picture, shape [H, W, 3]."""

FOLDER = "pictures"
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_RGB_8_BIT = (8, 2, 0, 0, 0)
_HEADER = struct.Struct(">4xIIBBBBB")
_NUMBERS = 2**31
_REMEMBERED = 64
"""How many pictures stay in memory."""


def png(image: Pixels) -> bytes:
    """Return ``image`` [H, W, 3] as a PNG file.

    Raises:
        ValueError: Another shape or type.

    Source:
        W3C, Portable Network Graphics (Third Edition), sections 5 and 11.
    """
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
        raise ValueError(
            f"a picture is uint8 [H, W, 3] and not empty, not {image.dtype} {list(image.shape)}"
        )
    height, width, _ = image.shape
    no_filter = np.zeros((height, 1), dtype=np.uint8)
    rows = np.concatenate([no_filter, image.reshape(height, -1)], axis=1)
    header = struct.pack(">IIBBBBB", width, height, *_RGB_8_BIT)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 6)), (b"IEND", b"")]
    return _SIGNATURE + b"".join(_chunk(name, data) for name, data in parts)


def pixels_of(file: bytes) -> Pixels:
    """Return what ``png`` was given, [H, W, 3].

    Raises:
        ValueError: The bytes are no such file.
    """
    try:
        (size,) = struct.unpack_from(">I", file, 33)  # signature and header have 33 bytes
        width, height, *kind = _HEADER.unpack_from(file, 12)
        rows = np.frombuffer(zlib.decompress(file[41 : 41 + size]), dtype=np.uint8)
        rows = rows.reshape(height, 1 + 3 * width)
    except (struct.error, zlib.error, ValueError) as error:
        raise ValueError(f"no PNG file of ours: {error}") from error
    if tuple(kind) != _RGB_8_BIT or rows[:, 0].any():
        raise ValueError("no PNG file of ours: it has colours or filters that we do not write")
    return rows[:, 1:].reshape(height, width, 3).copy()


def pixels_in(file: bytes) -> Pixels:
    """Return what an image file of any kind shows, [H, W, 3].

    Raises:
        ValueError: It cannot be read.
        MissingExtraError: What reads pictures is not installed.
    """
    pillow: Any = import_extra("PIL.Image", "pictures", "vision")
    try:
        with pillow.open(io.BytesIO(file)) as picture:
            return np.asarray(picture.convert("RGB"), dtype=np.uint8)
    except Exception as error:  # what reads files of others raises anything
        why = str(error).partition(" <_io.")[0]  # without the address of our bytes
        raise ValueError(f"no picture that can be read: {why}") from error


def data_url(image: Pixels) -> str:
    """Return ``image`` [H, W, 3] as ``data:image/png;base64,...``."""
    return "data:image/png;base64," + base64.b64encode(png(image)).decode()


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


class PictureFolder:
    """Keeps each different picture once, under a number from 1 that its pixels give it.

    Several processes may share the folder: a number that another picture has already is passed
    over for the next one.

    Args:
        folder: Where records are; pictures go to ``pictures/`` in it, made with the first. None
            for a folder of this process, which ends with it.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = None if folder is None else folder / FOLDER
        self._numbers: dict[bytes, int] = {}
        """By the digest of the pixels, and of files."""
        self._seen: OrderedDict[int, Pixels] = OrderedDict()
        self._lock = threading.RLock()

    def __getstate__(self) -> Path:
        return self._file(1).parent  # which others share while this process lives

    def __setstate__(self, folder: Path) -> None:
        PictureFolder.__init__(self)
        self._folder = folder

    def __call__(self, pixels_HW3: Any) -> str:
        """Keep a picture and return the name of its file; see ``keep``."""
        return name_of(self.keep(pixels_HW3))

    def keep(self, pixels_HW3: Any) -> int:
        """Keep a picture and return its number.

        Args:
            pixels_HW3: uint8, shape [H, W, 3].

        Raises:
            ValueError: It is something else.
        """
        pixels = np.ascontiguousarray(pixels_HW3)
        digest = hashlib.sha256(str(pixels.shape).encode() + pixels.tobytes()).digest()
        with self._lock:
            number = self._numbers.get(digest)
        content = png(pixels) if number is None else b""  # takes long, so others need not wait
        with self._lock:
            if number is None:
                number = self._numbers[digest] = self._kept(pixels, digest, content)
            self._remember(number, pixels)
        return number

    def keep_file(self, file: bytes) -> int:
        """Keep the picture in an image file of any kind, and return its number.

        The file is read once, however often it comes.

        Raises:
            ValueError: It cannot be read.
        """
        digest = hashlib.sha256(file).digest()
        with self._lock:
            number = self._numbers.get(digest)
        if number is None:
            number = self._numbers[digest] = self.keep(pixels_in(file))
        return number

    def sample(self, pixels_HW3: Pixels) -> int:
        """Return a number for a picture that is looked at right away, and has no file.

        Args:
            pixels_HW3: uint8, shape [H, W, 3].
        """
        digest = hashlib.sha256(pixels_HW3.tobytes()).digest()
        number = int.from_bytes(digest[:4], "big") % (_NUMBERS - 1) + 1
        with self._lock:
            self._remember(number, pixels_HW3)
        return number

    def _kept(self, pixels: Pixels, digest: bytes, content: bytes) -> int:
        number = int.from_bytes(digest[:4], "big") % (_NUMBERS - 1) + 1
        while (file := self._file(number)).exists():
            if np.array_equal(self.pixels(number), pixels):
                return number
            number = number % (_NUMBERS - 1) + 1
        file.parent.mkdir(parents=True, exist_ok=True)
        # Others may be writing the very same picture.
        partial = file.with_name(f"{file.name}.{os.getpid()}.partial")
        partial.write_bytes(content)
        partial.replace(file)
        return number

    def pixels(self, number: int) -> Pixels:
        """Return the picture of ``number``, [H, W, 3].

        Raises:
            RecordError: It is not there, or its file is broken.
        """
        with self._lock:
            found = self._seen.get(number)
            if found is None:
                file = self._file(number)
                try:
                    found = pixels_of(file.read_bytes())
                except (OSError, ValueError) as error:
                    raise RecordError(f"{file}: what was seen cannot be read: {error}") from error
            self._remember(number, found)
        return found

    def _remember(self, number: int, pixels: Pixels) -> None:
        self._seen[number] = pixels
        self._seen.move_to_end(number)
        if len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)

    def _file(self, number: int) -> Path:
        if self._folder is None:
            own = tempfile.mkdtemp(prefix="turngym-")
            weakref.finalize(self, shutil.rmtree, own, ignore_errors=True)
            self._folder = Path(own) / FOLDER
        return self._folder / name_of(number)


def name_of(number: int) -> str:
    """Return the name of the file of picture ``number``."""
    return f"{number:08x}.png"


def number_of(name: str) -> int:
    """Return the number of the picture in file ``name``."""
    return int(name.removesuffix(".png"), 16)
