"""Every kind of task on a desktop, and how problems are drawn."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from turngym.environments.desktop.jobs import Job
from turngym.environments.desktop.kinds.across import ACROSS
from turngym.environments.desktop.kinds.calculator import CALCULATOR
from turngym.environments.desktop.kinds.folders import FOLDERS
from turngym.environments.desktop.kinds.notes import NOTES
from turngym.environments.desktop.kinds.settings import SETTINGS
from turngym.environments.desktop.kinds.sheets import SHEETS
from turngym.errors import ConfigError
from turngym.tasks.base import Split
from turngym.tasks.splits import split_of

TEMPLATES: dict[str, Callable[[Random], Job]] = {
    **NOTES,
    **FOLDERS,
    **CALCULATOR,
    **SHEETS,
    **SETTINGS,
    **ACROSS,
}
"""Kind to what makes its problems."""
_DRAWS = 1_000


def draw(kind: str, rng: Random, split: Split) -> Job:
    """Return the first problem of ``kind`` that belongs to ``split``.

    A problem belongs to a split by its own content, so none is ever in both.
    """
    template = TEMPLATES[kind]
    for _ in range(_DRAWS):
        job = template(rng)
        if split_of(f"{job.goal}\n{sorted(job.files.items(), key=str)}") == split:
            return job
    raise ConfigError(f"{kind}: no problem of split {split!r} in {_DRAWS} draws")
