"""Which environments exist: id, family, what each needs. Nothing is imported until it is made.

``turngym/<Name>-vN`` is the Gymnasium id; ``<family>/<name>`` is the short form of the command
line (``text/maze-hard`` for ``turngym/Maze-hard-v0``). Packages add theirs through the entry-point
group ``turngym.environments``: each entry point names a function without arguments that calls
``register``.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any

from turngym.errors import ConfigError, missing_extra, unknown_name

ENTRY_POINT_GROUP = "turngym.environments"

_ID = re.compile(r"^(?P<namespace>[\w-]+)/(?P<name>[\w.-]+)-v(?P<version>\d+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvEntry:
    """One registered environment."""

    id: str
    family: str
    entry_point: str
    """``"package.module:Class"``."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    max_turns: int
    """Turns after which an episode is truncated."""
    snapshot_kind: str
    extra: str | None = None
    """Extra of this package that installs what is needed."""
    modules: tuple[str, ...] = ()
    """Python modules that must be importable."""
    programs: tuple[str, ...] = ()
    """Programs that must be on the PATH."""

    @property
    def short_name(self) -> str:
        """The form of the command line, ``<family>/<name>``."""
        match = _ID.match(self.id)
        return f"{self.family}/{match['name'].lower() if match else self.id}"

    def missing(self) -> list[str]:
        """Return what is not there, as install hints; empty when it runs here."""
        hints = []
        if any(importlib.util.find_spec(name) is None for name in self.modules):
            hints.append(f"pip install 'turngym[{self.extra}]'")
        hints += [
            f"install the program {name!r}" for name in self.programs if not shutil.which(name)
        ]
        return hints

    def require(self) -> None:
        """Raise when something is missing.

        Raises:
            MissingExtraError: With the install line.
        """
        if any(importlib.util.find_spec(name) is None for name in self.modules):
            raise missing_extra(f"environment {self.short_name!r}", self.extra or "")
        for hint in self.missing():
            raise ConfigError(f"environment {self.short_name!r}: {hint}")


_entries: dict[str, EnvEntry] = {}
_discovered = False


def add(entry: EnvEntry) -> None:
    """Add an environment.

    Raises:
        ConfigError: The id is malformed or already taken.
    """
    if _ID.match(entry.id) is None:
        raise ConfigError(f"environment id {entry.id!r}: wanted '<namespace>/<Name>-v<N>'")
    if entry.id in _entries:
        raise ConfigError(f"environment id {entry.id!r} is registered twice")
    _entries[entry.id] = entry


def entries() -> list[EnvEntry]:
    """Return every environment, plug-ins included, sorted by short name."""
    discover()
    return sorted(_entries.values(), key=lambda entry: entry.short_name)


def find(name: str) -> EnvEntry:
    """Return the environment called ``name``, by id or short name.

    Raises:
        UnknownNameError: There is none; the message names the nearest.
    """
    discover()
    if name in _entries:
        return _entries[name]
    by_short = {entry.short_name: entry for entry in _entries.values()}
    if name.lower() in by_short:
        return by_short[name.lower()]
    known = _entries if re.search(r"-v\d+$", name) else by_short
    raise unknown_name("environment", name, known, hint="See 'turngym envs'.")


def match(pattern: str) -> list[EnvEntry]:
    """Return the environments that ``pattern`` names: one name, or ``<family>/*``."""
    if not pattern.endswith("/*"):
        return [find(pattern)]
    family = pattern.removesuffix("/*")
    found = [entry for entry in entries() if entry.family == family]
    if not found:
        raise unknown_name("family", family, {entry.family for entry in entries()})
    return found


def discover() -> None:
    """Load the entry points of other packages, once."""
    global _discovered  # noqa: PLW0603
    if _discovered:
        return
    _discovered = True
    for point in entry_points(group=ENTRY_POINT_GROUP):
        point.load()()
