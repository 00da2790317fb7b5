"""Web browsing: a real browser as a fast environment; see ``docs/web.md``."""

from __future__ import annotations

from turngym.environments.web.chromium import NEED
from turngym.environments.web.miniwob.names import LONG, MAX_TURNS, TASKS
from turngym.registry import register

_HERE = "turngym.environments.web"
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


def register_web() -> None:
    """Register every web environment; called once by ``import turngym``. Imports no browser."""
    for task in TASKS:
        register(
            f"turngym/miniwob-{task}-v0",
            f"{_HERE}.miniwob.env:MiniWobEnv",
            family="web",
            max_turns=LONG.get(task, MAX_TURNS),
            kwargs={"task": task},
            extra="web",
            modules=("playwright", "miniwob"),
            programs=(NEED,),
            provides=("state_key",),
        )
    for site, kinds in SITES.items():
        for kind in kinds:
            register(
                f"turngym/{site.capitalize()}-{kind}-v0",
                f"{_HERE}.sites.{site}.env:{site.capitalize()}Env",
                family="web",
                max_turns=30,
                kwargs={"kind": kind},
                snapshot_kind="fs",
                extra="web",
                modules=("playwright",),
                programs=(NEED,),
                provides=("state_key",),
            )
