"""Global random state of one's own, for engines that draw from the ``random`` module."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

_SWAP = threading.RLock()


class OwnRandom:
    """The global generators of ``random`` and ``numpy.random`` as one environment sees them.

    Inside ``installed()`` the engine finds its own states in the global places; outside of it those
    places hold what they held before. One engine at a time is inside.

    Args:
        seed: Seeds both generators.
    """

    def __init__(self, seed: int) -> None:
        self.state: tuple[Any, Any] = (
            random.Random(seed).getstate(),
            np.random.RandomState(seed % (1 << 32)).get_state(),
        )
        """State of ``random``, state of ``numpy.random``. Immutable and picklable."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Put the own states into the global places for the length of the block."""
        with _SWAP:
            outer = _states()
            _set_states(self.state)
            try:
                yield
            finally:
                self.state = _states()
                _set_states(outer)


def _states() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state()


def _set_states(states: tuple[Any, Any]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
