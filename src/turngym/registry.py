"""Which environments exist: id, family, what each needs. Nothing is imported until it is made.

``turngym/<Name>-vN`` is the Gymnasium id; ``<family>/<name>`` is the short form of the command
line (``text/maze-hard`` for ``turngym/Maze-hard-v0``). ``find`` also takes a file, a class or a
folder of the user's own; ``own.py`` loads it. Packages add theirs through the entry-point group
``turngym.environments``: each entry point names an environment's class, or a function without
arguments that calls ``register``; and task sets through ``turngym.tasks``. One that fails is named
in a warning and in ``broken_plugins``; it hides no other.
"""

from __future__ import annotations

import importlib.util
import inspect
import logging
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

import gymnasium

from turngym.errors import (
    ConfigError,
    MissingExtraError,
    UnknownNameError,
    missing_extra,
    unknown_name,
)

ENTRY_POINT_GROUP = "turngym.environments"
TASKS_GROUP = "turngym.tasks"
OWN_NAMESPACE = "turngym"
CREATE = "turngym.environments.gym.registration:create"
"""What ``gymnasium.make`` calls for every one of them."""
PROVIDES = frozenset({"state_key", "ground_truth", "potential"})
"""What an environment may give credit methods beyond rewards."""
WITHOUT_DEPENDENCIES = frozenset({"miniwob"})
"""Modules wanted for the files they carry; what they would import is not needed."""

FORMS = (
    "an id, a short name, FILE.py, FILE.py:NAME, module:NAME, FILE.toml, FILE.tasks or a folder of "
    "tasks"
)
"""How one environment may be named."""

logger = logging.getLogger(__name__)

_ID = re.compile(r"^(?P<namespace>[\w-]+)/(?P<name>[\w.-]+)-v(?P<version>\d+)$")


@cache  # every environment that is made looks through all entries
def _short_name(family: str, id: str) -> str:
    match = _ID.match(id)
    return f"{family}/{match['name'].lower() if match else id}"


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
    """Programs that must be on the PATH. ``a|b`` is one or the other; ``$NAME`` stands for the
    program whose path is in the environment variable."""
    packages: Mapping[str, str] = field(default_factory=dict)
    """Debian package of a program, where the hint shall name it."""
    provides: frozenset[str] = frozenset()
    """What it gives credit methods: of ``state_key``, ``ground_truth``, ``potential``."""
    source: str | None = None
    """The file, class or folder of the user's own that it was loaded from; None where it needs no
    loading."""

    @property
    def short_name(self) -> str:
        """The form of the command line, ``<family>/<name>``."""
        return _short_name(self.family, self.id)

    @property
    def reference(self) -> str:
        """The name by which another process finds it."""
        return self.source or self.short_name

    @property
    def version(self) -> int:
        """The ``N`` of ``-vN``."""
        match = _ID.match(self.id)
        return int(match["version"]) if match else 0

    def missing(self) -> list[str]:
        """Return what is not there, as install hints; empty when it runs here."""
        modules, alone = self._missing_modules()
        hints = [f"pip install --no-deps {name}" for name in alone]
        if modules and self.extra:
            hints.append(f"pip install 'turngym[{self.extra}]'")
        elif modules:
            hints.append(f"install the Python module {modules[0]!r}")
        for name in (program_name(need) for need in self.programs if find_program(need) is None):
            package = self.packages.get(name)
            more = f": apt-get install {package}" if package else ""
            hints.append(f"install the program {name!r}{more}")
        return hints

    def require(self) -> None:
        """Raise when something is missing.

        Raises:
            MissingExtraError: A module of an extra, with the install line.
            ConfigError: Something else, with what to install.
        """
        hints = self.missing()
        if not hints:
            return
        what = f"environment {self.short_name!r}"
        modules, alone = self._missing_modules()
        if self.extra and modules:
            error = missing_extra(what, self.extra)
            more = [hint for hint in hints if f"turngym[{self.extra}]" not in hint]
            raise MissingExtraError("; ".join([str(error), *more]))
        if alone:
            raise MissingExtraError(f"{what} needs {alone[0]!r}: {'; '.join(hints)}")
        raise ConfigError(f"{what}: {'; '.join(hints)}")

    def _missing_modules(self) -> tuple[list[str], list[str]]:
        """Return the modules that are missing: those of the extra, and those wanted alone."""
        lacks = [name for name in self.modules if not _can_import(name)]
        alone = [name for name in lacks if name in WITHOUT_DEPENDENCIES]
        return [name for name in lacks if name not in alone], alone


def find_program(need: str) -> str | None:
    """Return the path of the first program that meets ``need``, a value of ``programs``."""
    for name in need.split("|"):
        wanted = os.environ.get(name[1:]) if name.startswith("$") else name
        if wanted and (found := shutil.which(wanted)) is not None:
            return found
    return None


def program_name(need: str) -> str:
    """Return what to install for ``need``."""
    return next(name for name in need.split("|") if not name.startswith("$"))


def _can_import(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False


_entries: dict[str, EnvEntry] = {}
_own: Callable[[], Any]  # the module environments.own
_broken: list[str] = []
_discovered = False
_lock = threading.RLock()


def register(
    id: str,
    entry_point: str,
    *,
    family: str,
    max_turns: int,
    kwargs: Mapping[str, Any] | None = None,
    snapshot_kind: Literal["exact", "fs", "replay"] = "replay",
    nondeterministic: bool = False,
    extra: str | None = None,
    modules: Sequence[str] = (),
    programs: Sequence[str] = (),
    packages: Mapping[str, str] | None = None,
    provides: Collection[str] = (),
) -> None:
    """Register an environment under ``id`` for ``gymnasium.make`` and ``turngym.make``.

    Args:
        id: ``"<namespace>/<Name>-v<N>"``. The version goes up when results change.
        entry_point: ``"package.module:Class"``, imported when the environment is first made.
        family: Group for listings, for example ``"text"``.
        max_turns: Turns after which an episode is truncated (``TurnLimit``).
        kwargs: Arguments of the class.
        snapshot_kind: What the class declares.
        nondeterministic: The same seed does not give the same episode; checks then ask for less.
        extra: Extra that installs what is needed, for the hint when something is missing.
        modules: Python modules that must be importable.
        programs: Programs that must be on the PATH.
        packages: Program to the Debian package that holds it, for the hint.
        provides: What it gives credit methods beyond rewards: ``"state_key"``, ``"ground_truth"``
            (with ``answer``), ``"potential"``.

    Raises:
        ConfigError: The id is malformed or taken, or ``max_turns`` or ``provides`` is wrong.
    """
    entry = EnvEntry(
        id=id,
        family=family,
        entry_point=entry_point,
        kwargs=dict(kwargs or {}),
        max_turns=max_turns,
        snapshot_kind=snapshot_kind,
        extra=extra,
        modules=tuple(modules),
        programs=tuple(programs),
        packages=dict(packages or {}),
        provides=frozenset(provides),
    )
    register_entry(entry, nondeterministic=nondeterministic)


def register_entry(entry: EnvEntry, *, nondeterministic: bool = False) -> None:
    """Register what ``entry`` describes, ``nondeterministic`` or not, as ``register``.

    A file that is both run and imported registers twice what is one environment.

    Raises:
        ConfigError: The id is malformed or taken, or ``max_turns`` or ``provides`` is wrong.
    """
    if _ID.match(entry.id) is None:
        raise ConfigError(f"environment id {entry.id!r}: wanted '<namespace>/<Name>-v<N>'")
    if type(entry.max_turns) is not int or entry.max_turns < 1:
        limit = repr(entry.max_turns)
        raise ConfigError(f"{entry.id}: max_turns={limit}: wanted a whole number of 1 or more")
    if not entry.provides <= PROVIDES:
        wanted, found = sorted(PROVIDES), sorted(entry.provides)
        raise ConfigError(f"{entry.id}: provides={found}: wanted some of {wanted}")
    old = _entries.get(entry.id)
    if old is not None:
        same = replace(old, entry_point=entry.entry_point, source=entry.source)
        if same != entry or _place(old) != _place(entry):
            raise ConfigError(
                f"environment id {entry.id!r} is registered twice: as {old.entry_point} and as "
                f"{entry.entry_point}"
            )
        if not old.entry_point.startswith("__main__:"):  # which no other process could import
            return
    _entries[entry.id] = entry
    gymnasium.registry.pop(entry.id, None)
    gymnasium.register(
        id=entry.id,
        entry_point=CREATE,
        kwargs={
            "entry_point": entry.entry_point,
            "registered": [entry.id, entry.max_turns],
            **entry.kwargs,
        },
        nondeterministic=nondeterministic,
        disable_env_checker=True,
        order_enforce=False,  # TurnEnv refuses a step without a reset itself
    )


def _place(entry: EnvEntry) -> tuple[str, str]:
    """Return the file and the name of what an entry point stands for."""
    module, _, attribute = entry.entry_point.partition(":")
    file = getattr(sys.modules.get(module), "__file__", None)
    return (os.path.realpath(file) if file else module, attribute)


def extend(own: Callable[[], Any]) -> None:
    """Set where ``find`` gets the module from that loads what is the user's own, once it needs it.

    Its ``load`` returns the environment of a file, a class or a folder, None where a name is none
    of them; ``add_class`` and ``add_tasks`` register a class and a task set under an id.
    """
    global _own
    _own = own


def entries() -> list[EnvEntry]:
    """Return every environment, plug-ins included, sorted by short name."""
    discover()
    return sorted(_entries.values(), key=lambda entry: entry.short_name)


def find(name: str) -> EnvEntry:
    """Return the environment called ``name``: an id, a short name, or what ``own.load`` takes.

    Raises:
        UnknownNameError: There is none; the message names the nearest.
        ConfigError: A file or class of the user's own cannot be loaded; the message says why.
    """
    if not isinstance(name, str):  # of a call from Python
        raise ConfigError(f"environment: wanted {FORMS}; got a {type(name).__name__}")
    discover()
    if name in _entries:
        return _entries[name]
    by_short = {entry.short_name: entry for entry in sorted(_entries.values(), key=_rank)}
    if name.lower() in by_short:
        return by_short[name.lower()]
    own: EnvEntry | None = _own().load(name)
    if own is not None:
        _entries[own.id] = own
        return own
    if "*" in name:
        raise ConfigError(
            f"{name!r} may be several; here one environment is wanted, and "
            f"\"turngym envs '{name}'\" lists them"
        )
    known = _entries if re.search(r"-v\d+$", name) else by_short
    hint = " ".join([f"Wanted {FORMS}; see 'turngym envs'.", *_broken])
    raise unknown_name("environment", name, known, hint=hint)


def _rank(entry: EnvEntry) -> tuple[bool, int]:
    """Order of entries that share a short name: ours and the newest last, which wins."""
    return (entry.id.startswith(OWN_NAMESPACE + "/"), entry.version)


def sources() -> list[str]:
    """Return what was loaded from files and classes, for ``loaded`` in another process."""
    return [entry.source for entry in _entries.values() if entry.source is not None]


@contextmanager
def loaded(sources: Sequence[str]) -> Iterator[None]:
    """Load what another process had loaded, before the block makes something of it.

    One that cannot be loaded here matters only where the block then does not find a name.

    Raises:
        ConfigError: The block failed that way; the message says what could not be loaded, and why.
    """
    failed = []
    for source in sources:
        try:
            find(source)
        except ConfigError as error:
            failed.append(str(error))
    try:
        yield
    except (AttributeError, ImportError, UnknownNameError) as error:
        if not failed:
            raise
        raise ConfigError(f"{error} (not loaded in this process: {'; '.join(failed)})") from error


def match(pattern: str) -> list[EnvEntry]:
    """Return the environments that ``pattern`` names: one name, or short names with ``*``.

    Of several names for one and the same environment, only the first is returned.

    Raises:
        ConfigError: No environment is called so.
    """
    if "*" not in pattern:
        return [find(pattern)]
    found: dict[str, EnvEntry] = {}
    for entry in entries():
        if fnmatchcase(entry.short_name, pattern.lower()):
            found.setdefault(repr((entry.entry_point, entry.kwargs, entry.max_turns)), entry)
    if found:
        return [*found.values()]
    family, families = pattern.split("/")[0], {entry.family for entry in entries()}
    if family not in families:
        raise unknown_name("family", family, families)
    raise ConfigError(f"no environment is called {pattern!r}; 'turngym envs {family}' lists them")


def discover() -> None:
    """Load the entry points of other packages, once."""
    global _discovered
    with _lock:
        if _discovered:
            return
        _discovered = True  # first, since a plug-in may look around while it registers
        with redirect_stdout(sys.stderr):  # some packages print a greeting
            for group in (ENTRY_POINT_GROUP, TASKS_GROUP):
                for point in entry_points(group=group):
                    _load(point)


def broken_plugins() -> list[str]:
    """Return one line per entry point that failed, naming its distribution and the reason."""
    discover()
    return list(_broken)


def _load(point: EntryPoint) -> None:
    try:
        if point.group == TASKS_GROUP:
            _own().add_tasks(point.name, point.value)
            return
        found = point.load()
        if not callable(found) or inspect.iscoroutinefunction(found):
            kind = "an async one" if callable(found) else type(found).__name__
            raise TypeError(f"wanted a class or a plain function, found {kind}")
        if not inspect.isclass(found):
            found()
        else:
            _own().add_class(found, point.name)
    except BaseException as error:
        from turngym.faults import describe, is_from_signal  # which load asyncio

        if is_from_signal(error):  # and else whatever foreign code raises
            raise
        owner = f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown package"
        reason = describe(error).splitlines()[0]
        _broken.append(f"plug-in {point.name!r} of {owner} is broken: {reason}")
        logger.warning("%s", _broken[-1])
