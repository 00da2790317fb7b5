"""Web browsing: a real browser as a fast environment; see ``docs/web.md``."""

from __future__ import annotations

from turngym.environments.registration import register
from turngym.environments.web.chromium import NEED
from turngym.environments.web.miniwob.names import LONG, MAX_TURNS, TASKS
from turngym.environments.web.sites.tracker.kinds import TRACKER_KINDS

_HERE = "turngym.environments.web"


def register_web() -> None:
    """Register every web environment; called once by ``import turngym``. Imports no browser."""
    for task in TASKS:
        register(
            f"turngym/miniwob-{task}-v0",
            f"{_HERE}.factories:miniwob",
            family="web",
            max_turns=LONG.get(task, MAX_TURNS),
            kwargs={"task": task},
            extra="web",
            modules=("playwright", "miniwob"),
            programs=(NEED,),
            provides=("anchor",),
        )
    for kind in TRACKER_KINDS:
        register(
            f"turngym/Tracker-{kind}-v0",
            f"{_HERE}.factories:tracker",
            family="web",
            max_turns=30,
            kwargs={"kind": kind},
            extra="web",
            modules=("playwright",),
            programs=(NEED,),
            provides=("anchor",),
        )
