"""Train or test: decided by a problem's own content, so that no problem is in both."""

from __future__ import annotations

import hashlib

from turngym.tasks.base import Split


def split_of(content: str, *, one_in: int = 5, remainder: int = 0) -> Split:
    """Return the split of the problem with this content; equal contents, equal splits.

    Args:
        content: Everything that makes the problem this one.
        one_in: Share of the test split: one problem in so many.
        remainder: Which residue of the digest is tested, 0 to ``one_in - 1``.
    """
    digest = hashlib.sha256(content.encode()).digest()
    return "test" if digest[0] % one_in == remainder else "train"
