"""Temporary folders that do not outlive their owner for long, however it ends.

The owner holds a lock on each of its folders, which the kernel opens when the owner dies. So the
process that makes the next folder in the same place sees which ones have no owner any more, and
removes them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

_NEW, _OWNED = "turngym-new-", "turngym-owned-"


class OwnedFolder:
    """A temporary folder, removed by ``remove`` or, once this process is dead, by the next one.

    Args:
        name: Part of its name.
    """

    def __init__(self, name: str) -> None:
        _sweep(tempfile.gettempdir(), os.getpid())
        # It gets its lock before it gets the name by which others look for folders to remove.
        fresh = Path(tempfile.mkdtemp(prefix=_NEW))
        self._lock = os.open(fresh, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.path = fresh.rename(fresh.with_name(fresh.name.replace(_NEW, f"{_OWNED}{name}-")))

    def remove(self) -> None:
        """Remove the folder and all in it. Safe to call twice."""
        shutil.rmtree(self.path, ignore_errors=True)
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)


@cache
def _sweep(place: str, _process: int) -> None:
    """Remove the folders in ``place`` whose owner is dead; once for each process."""
    for folder in Path(place).glob(f"{_OWNED}*"):
        with suppress(OSError):  # another user's, or removed by somebody else
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
