"""The seed tree: one run seed, and an independent stream for every named place below it.

``SeedSequence(run).spawn(task).spawn(attempt)`` in the form of pure functions: a path of names and
numbers gives a seed, whatever else was drawn before. Nothing here touches global random state.
"""

from __future__ import annotations

import hashlib

import numpy as np


def derive_seed(root: int, *path: str | int) -> int:
    """Return the 63-bit seed at ``path`` below ``root``.

    Args:
        root: Seed of the run, any non-negative integer.
        path: Where in the tree, for example ``("task", 17, "attempt", 3)``.

    Returns:
        An integer in [0, 2**63); equal paths give equal seeds on every machine.
    """
    entropy = [root, *(_word(part) for part in path)]
    words = np.random.SeedSequence(entropy).generate_state(2, np.uint64)
    return int(words[0] >> np.uint64(1))


def generator(root: int, *path: str | int) -> np.random.Generator:
    """Return a fresh NumPy generator seeded at ``path`` below ``root``."""
    return np.random.default_rng(derive_seed(root, *path))


def _word(part: str | int) -> int:
    if isinstance(part, int):
        return part
    return int.from_bytes(hashlib.sha256(part.encode()).digest()[:8], "little")
