"""The kinds of tasks in the forum; kept apart, so that registering them imports nothing else."""

from __future__ import annotations

FORUM_KINDS = (
    "announce", "as-other", "compare", "count", "delete", "edit", "follow", "last", "lock",
    "lock-all", "move", "pin", "poll", "remove", "reply", "search", "signature", "start",
    "unfollow", "unlock", "vote",
)  # fmt: skip
