"""Problems in a shell: 55 kinds in six groups, each sampled from a seed."""

from __future__ import annotations

from collections.abc import Mapping

from turngym.errors import require_known
from turngym.tasks.sets import GeneratedSet
from turngym.tasks.shell import archives, databases, files, programs, repositories, text
from turngym.tasks.shell.words import EndState, Generator

_BY_GROUP: Mapping[str, Mapping[str, Generator]] = {
    group: {
        name: one
        for name, one in vars(module).items()
        if getattr(one, "__module__", "") == module.__name__ and not name.startswith("_")
    }
    for group, module in (
        ("files", files), ("text", text), ("archives", archives), ("git", repositories),
        ("programs", programs), ("sql", databases),
    )
}  # fmt: skip
"""Of each group the public functions of its module. Their order decides what a seed samples."""
GENERATORS: Mapping[str, Generator] = {
    name: one for kinds in _BY_GROUP.values() for name, one in kinds.items()
}
"""Kind of problem to its generator."""
GROUPS: Mapping[str, tuple[str, ...]] = {group: tuple(kinds) for group, kinds in _BY_GROUP.items()}
"""Group to the kinds of problems in it."""


def shell_tasks(group: str = "all", kind: str | None = None) -> GeneratedSet[EndState]:
    """Return the problems of a group, or of one kind.

    Args:
        group: ``"all"`` or a key of ``GROUPS``.
        kind: A key of ``GENERATORS`` instead.

    Raises:
        ConfigError: There is no such group or kind.
    """
    groups = {"all": GENERATORS, **_BY_GROUP}
    require_known("group of terminal tasks", group, groups)
    if kind is not None:
        require_known("kind of terminal task", kind, GENERATORS)
    generators = [GENERATORS[kind]] if kind else list(groups[group].values())
    # One in two is for test, as published results have it.
    return GeneratedSet(
        f"shell-{kind or group}", generators, seed_name="terminal", one_in=2, remainder=1
    )
