"""The seed tree: one run seed, and an independent stream for every named place below it.

``SeedSequence(run).spawn(task).spawn(attempt)`` in the form of pure functions: a path of names and
numbers gives a seed, whatever else was sampled before. Nothing here touches global random state.
"""

from __future__ import annotations

import hashlib
import json
from operator import index

import numpy as np


def derive_seed(root: int, *path: str | int) -> int:
    """Return the 63-bit seed at ``path`` below ``root``.

    The path is hashed whole and unambiguously: ``(7, "a")``, ``(7, "a", 0)`` and ``(7, "a", "0")``
    are three places. ``numpy.random.SeedSequence`` over the same numbers would mix up the first
    two, because it pads short entropy with zeros.

    Args:
        root: Seed of the run, any integer.
        path: Where in the tree, for example ``("task", 17, "attempt", 3)``.

    Returns:
        An integer in [0, 2**63); equal paths give equal seeds on every machine.
    """
    place = [index(root), *(part if isinstance(part, str) else index(part) for part in path)]
    digest = hashlib.sha256(json.dumps(place).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def generator(root: int, *path: str | int) -> np.random.Generator:
    """Return a fresh NumPy generator seeded at ``path`` below ``root``."""
    return np.random.default_rng(derive_seed(root, *path))
