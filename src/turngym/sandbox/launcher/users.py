"""Which host user a sandbox is.

What the kernel counts for each user (inotify instances, memory of pipes, passed descriptors) is
shared by all sandboxes of one user. So each that starts from nothing, and each folder of the host
that others start on, gets a user of its own. Snapshots and forks have that of what they stand on,
because the files are that user's.
"""

from __future__ import annotations

FIRST = 1 << 30
"""Beyond the ranges that distributions hand out. The users of a launcher follow from its process
id, so no two that run at a time share one."""
_EACH = 256


class Users:
    """The host users of one launcher; a plain user's sandboxes are all that user."""

    def __init__(self, *, is_root: bool, pid: int) -> None:
        self.first = FIRST + pid * _EACH if is_root else 0
        self._is_root = is_root
        self._count = 0
        self._of: dict[str, int] = {}

    def fresh(self) -> int:
        """Return a user; after 255 others one is shared with what was started long before."""
        self._count = self._count % (_EACH - 1) + 1
        return self.first + self._count if self._is_root else 0

    def of(self, layer: str) -> int:
        """Return the user whose files a layer holds, a new one when it has none."""
        return self._of[layer] if layer in self._of else self.fresh()

    def note(self, layer: str, user: int) -> None:
        """Remember that a layer holds files of ``user``."""
        self._of[layer] = user

    def forget(self, layer: str) -> None:
        """Forget a layer that is gone."""
        self._of.pop(layer, None)
