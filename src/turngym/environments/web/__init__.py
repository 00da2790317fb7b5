"""Web browsing: a real browser as a fast environment; see ``docs/web.md``."""

from __future__ import annotations

from turngym.environments.gym.registration import register
from turngym.environments.web.chromium import NEED
from turngym.environments.web.miniwob.names import LONG, MAX_TURNS, TASKS
from turngym.environments.web.sites.kinds import SITES

_HERE = "turngym.environments.web"


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
            provides=("anchor",),
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
                provides=("anchor",),
            )
