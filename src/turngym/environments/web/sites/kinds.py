"""The kinds of tasks in the web applications; registering them imports nothing else."""

from __future__ import annotations

SITES: dict[str, tuple[str, ...]] = {
    "tracker": (
        "append", "assign", "bulk", "close", "close-named", "comment", "compare", "component",
        "count", "explain", "file", "keyword", "owner", "page", "priority", "rename", "reopen",
        "retarget",
    ),
    "forum": (
        "announce", "as-other", "compare", "count", "delete", "edit", "follow", "last", "lock",
        "lock-all", "move", "pin", "poll", "remove", "reply", "search", "signature", "start",
        "unfollow", "unlock", "vote",
    ),
    "shop": (
        "add", "address", "again", "alert", "as-other", "cheapest", "compare", "coupon", "drop",
        "forget", "later", "many", "moved", "new-list", "order", "price", "profile", "quantity",
        "review", "search", "spent", "stock", "two", "wish",
    ),
    "wiki": (
        "append", "as-other", "block", "category", "create", "delete", "discuss", "highest",
        "largest", "last-editor", "mayor", "mayors", "move", "protect", "real-name", "redirect",
        "search", "section", "undo", "unwatch", "update", "watch",
    ),
}  # fmt: skip
"""Name of an application to the kinds of tasks in it."""
