"""Spaces for language: any unicode text, and the observation dictionary."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

_SAMPLE_ALPHABET = "abcdefghijklmnopqrstuvwxyz ABC 0123456789 .,:;!?'\"{}[]()\n\té中🙂"


class Unicode(Space[str]):
    """Any text up to a length, newlines and the empty string included.

    ``gymnasium.spaces.Text`` rejects spaces, newlines and non-ASCII letters by default, so it
    cannot hold what an agent says or sees.

    Args:
        max_chars: Longest text, in unicode code points.
        seed: Seeds ``sample``.
    """

    def __init__(self, max_chars: int = 1_000_000, *, seed: int | None = None) -> None:
        if max_chars < 1:
            raise ValueError(f"Unicode(max_chars={max_chars}): wanted at least 1")
        self.max_chars = max_chars
        super().__init__(shape=None, dtype=str, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """False: text has no fixed shape."""
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Return a random text of at most 40 characters; without mask and ``probability``.

        Raises:
            ValueError: A mask or probability is given.
        """
        if mask is not None or probability is not None:
            raise ValueError("Unicode.sample takes no mask and no probability")
        length = int(self.np_random.integers(0, min(40, self.max_chars) + 1))
        picks = self.np_random.integers(0, len(_SAMPLE_ALPHABET), size=length)
        return "".join(_SAMPLE_ALPHABET[i] for i in picks)

    def contains(self, x: Any) -> bool:
        """Return True when ``x`` is a str that is not too long."""
        return isinstance(x, str) and len(x) <= self.max_chars

    def to_jsonable(self, sample_n: Iterable[str]) -> list[str]:
        """Return the samples as they are; text is JSON."""
        return list(sample_n)

    def from_jsonable(self, sample_n: list[Any]) -> list[str]:
        """Return the samples as they are."""
        return [str(sample) for sample in sample_n]

    def __eq__(self, other: object) -> bool:
        """Two spaces are equal when they admit the same texts."""
        return isinstance(other, Unicode) and other.max_chars == self.max_chars

    def __hash__(self) -> int:
        """Hash consistent with equality."""
        return hash((Unicode, self.max_chars))

    def __repr__(self) -> str:
        """Return the constructor call."""
        return f"Unicode({self.max_chars})"


def text_observation_space(
    max_chars: int = 1_000_000, *, image_hw: tuple[int, int] | None = None
) -> spaces.Dict:
    """Return the observation space of a turn environment.

    Args:
        max_chars: Longest text.
        image_hw: Height and width in pixels when there is a picture; then the key ``image``
            holds uint8 [H, W, 3].
    """
    parts: dict[str, Space[Any]] = {"text": Unicode(max_chars)}
    if image_hw is not None:
        height, width = image_hw
        parts["image"] = spaces.Box(0, 255, (height, width, 3), np.uint8)
    return spaces.Dict(parts)


Image = NDArray[np.uint8]
