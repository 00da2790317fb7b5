"""Task types on a desktop: each is a module's generator of the same name."""

from __future__ import annotations

from collections.abc import Mapping

from turngym.environments.desktop.names import TASK_TYPES
from turngym.environments.desktop.problems import DesktopProblem, Generator
from turngym.environments.desktop.tasks import across, calculator, folders, notes, settings, sheets
from turngym.errors import require_known
from turngym.tasks.sets import GeneratedSet

_MODULES = {
    "across": across, "calc": calculator, "files": folders, "notes": notes, "settings": settings,
    "sheet": sheets,
}  # fmt: skip


GENERATORS: Mapping[str, Generator] = {
    f"{group}-{name}": vars(_MODULES[group])[f"_{name.replace('-', '_')}"]
    for group, _, name in (kind.partition("-") for kind in TASK_TYPES)
}
"""Kind to what makes its problems: of ``notes-copy-as`` it is ``notes._copy_as``."""


def desktop_tasks(kind: str) -> GeneratedSet[DesktopProblem]:
    """Return the problems of a kind.

    Raises:
        ConfigError: There is no such kind.
    """
    require_known("kind of desktop task", kind, GENERATORS)
    return GeneratedSet(f"desktop-{kind}", GENERATORS[kind], seed_name="")
