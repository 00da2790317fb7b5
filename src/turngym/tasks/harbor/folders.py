"""Folders of tasks in Harbor's format: read once, however many environments play them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from threading import Lock

from turngym.errors import ConfigError
from turngym.tasks.harbor.problem import HarborProblem
from turngym.tasks.sets import ListedSet

_READING = Lock()
"""Held while folders are read, so that of several environments one reads and the others wait."""


def harbor_tasks(folder: Path, *, without_network: bool = False) -> ListedSet[HarborProblem]:
    """Return the tasks of ``folder``: itself, or every folder below it with a ``task.toml``.

    Environments of the same folder share its problems until a file or a variable changes.

    Args:
        folder: Where they are.
        without_network: Play also those that want a network, which they do not get.

    Raises:
        ConfigError: There is no such folder, or one cannot be played here as it asks; the message
            says by name what it asks.
    """
    root = folder.expanduser().resolve()
    if not root.is_dir():
        raise ConfigError(f"folder {str(folder)!r}: does not exist; give one with a task.toml")
    with _READING:
        stamp = hash((*_stamps(str(root)), *os.environ.items()))
        problems = _problems(root, without_network, stamp)
    name = re.sub(r"[^\w.-]+", "-", root.name)
    splits = {id: one.split for id, one in problems if one.split is not None}
    return ListedSet(name, problems, where=f"folder {str(folder)!r}", splits=splits)


def task_folders(root: Path) -> list[Path]:
    """Return ``root`` and the folders below it with a ``task.toml``; one inside a task is none."""
    found = {file.parent for file in root.rglob("task.toml")}
    return sorted(one for one in found if found.isdisjoint(one.parents))


@lru_cache(maxsize=8)
def _problems(
    root: Path, without_network: bool, _stamp: int
) -> tuple[tuple[str, HarborProblem], ...]:
    """Return id and problem of each folder; ``_stamp`` is another where they may be others."""
    return tuple(
        (str(one.relative_to(root)), HarborProblem(folder=one, without_network=without_network))
        for one in task_folders(root)
    )


def _stamps(folder: str) -> Iterator[tuple[str, int, int]]:
    """Yield path, size and last change of everything below ``folder``."""
    with os.scandir(folder) as found:
        for one in sorted(found, key=lambda entry: entry.name):
            about = one.stat(follow_symlinks=False)
            yield one.path, about.st_size, about.st_ctime_ns
            if one.is_dir(follow_symlinks=False):
                yield from _stamps(one.path)
