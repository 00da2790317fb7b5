"""The kinds of tasks in the tracker; kept apart, so that registering them imports nothing else."""

from __future__ import annotations

TRACKER_KINDS = (
    "append", "assign", "bulk", "close", "close-named", "comment", "compare", "component", "count",
    "explain", "file", "keyword", "owner", "page", "priority", "rename", "reopen", "retarget",
)  # fmt: skip
