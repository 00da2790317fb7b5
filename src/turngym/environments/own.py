"""Environments of the user's own, named by a file, a class or a folder instead of an id.

    FILE.py           the one environment that the file registers or, if none, the one class in it,
                      or the one set of tasks, or all its problems
    FILE.py:NAME      a class of it, a function that makes an environment, a task set, a problem
    module:NAME       the same of a module, looked for in the working folder first
    FOLDER            task folders in Harbor's format, or what ``turngym tasks make-swe`` made
    FILE.json         a file of those
    FILE.toml         questions and answers; see ``turngym.tasks.questions``
    FILE.tasks        a pack of tasks; see ``turngym.tasks.pack``

A class is registered under ``local/<Name>-v0``, with its attribute ``max_turns`` as the limit.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from gymnasium.envs.registration import load_env_creator

from turngym import registry
from turngym.config import load_config
from turngym.environments import packed
from turngym.errors import ConfigError, UnknownNameError
from turngym.plugins import import_attribute, import_module
from turngym.provenance import digest_of, source_digest
from turngym.registry import EnvEntry, register, register_entry
from turngym.tasks.harbor.folders import harbor_tasks, task_folders
from turngym.tasks.pack import SUFFIX, read_pack
from turngym.tasks.problem import Problem
from turngym.tasks.questions import QuestionFile
from turngym.tasks.sets import TaskSet
from turngym.tasks.sources import in_module, is_problem_class, player_of, task_set

MAX_TURNS = 100
"""Where a class has no attribute ``max_turns``."""
_FAMILY = "local"
_PARTS = ("task.toml", "instruction.md", "environment", "tests", "solution", "steps")
"""Of a task folder."""
_BASES = "TurnEnv, TextGame, AsyncTurnEnv or from_gymnasium"


def load(name: str) -> EnvEntry | None:
    """Return the environment of a file, a class or a folder; None where ``name`` is none of them.

    Raises:
        ConfigError: It cannot be loaded, or holds no environment, or several.
    """
    entry = _load(name)
    if entry is None or entry.source is not None:
        return entry
    where, colon, attribute = name.partition(":")
    is_file = where.endswith(".py") or not colon
    return replace(entry, source=f"{Path(where).resolve()}{colon}{attribute}" if is_file else name)


def _load(name: str) -> EnvEntry | None:
    where, colon, attribute = name.partition(":")
    if colon and where and attribute:
        found = import_attribute("environment", name)
        module = import_module("environment", where)
        if isinstance(found, TaskSet | Problem) or is_problem_class(found):
            return _of_tasks(name)
        if not callable(found):
            kind = type(found).__name__
            raise ConfigError(f"environment {name!r}: wanted a class or a function, found a {kind}")
        return _of_object(found, module, attribute)
    if where.endswith(".py"):
        return _only(name, import_module("environment", where))
    path = Path(name).expanduser()
    if path.suffix in (".toml", SUFFIX) and not path.is_file():
        raise ConfigError(f"environment {name!r}: there is no such file")
    if path.suffix == ".toml":
        return _of_tasks(name)
    if path.suffix == SUFFIX:
        return _of_pack(path.resolve())
    return _tasks(name, path) if path.exists() else None


def add_class(cls: type, id: str) -> EnvEntry:
    """Register ``cls`` under ``id``, with what it declares itself.

    Raises:
        ConfigError: It is no environment.
    """
    if not _can_step(cls):
        name = f"{cls.__module__}:{cls.__qualname__}"
        raise ConfigError(f"environment {name!r}: wanted a class derived from {_BASES}")
    limit = getattr(cls, "max_turns", None)
    register(
        id,
        f"{cls.__module__}:{cls.__qualname__}",
        family=id.partition("/")[0],
        max_turns=MAX_TURNS if limit is None else limit,
        snapshot_kind=getattr(cls, "snapshot_kind", "replay"),
    )
    return registry.find(id)


def _of_object(found: Any, module: ModuleType, attribute: str) -> EnvEntry:
    """Return the entry of a class or function: its own where it has just one, else a new one."""
    point = f"{module.__name__}:{attribute}"
    if inspect.isclass(found):  # which another module may have imported
        point = f"{found.__module__}:{found.__qualname__}"
    known = [entry for entry in registry.entries() if entry.entry_point == point]
    if len(known) == 1:
        return known[0]
    stem = re.sub(r"[^\w.-]", "-", attribute).removesuffix("Env") or attribute
    digest = hashlib.sha256(str(module.__file__).encode()).hexdigest()[:8]
    ids = [f"{_FAMILY}/{stem}-v0", f"{_FAMILY}/{stem}-{digest}-v0"]
    for entry in registry.entries():
        if entry.id == ids[0] and entry.entry_point != point:
            ids.pop(0)
    if inspect.isclass(found):
        return add_class(found, ids[0])
    register(ids[0], point, family=_FAMILY, max_turns=MAX_TURNS)
    return registry.find(ids[0])


def _only(name: str, module: ModuleType) -> EnvEntry:
    point = f"{module.__name__}:"
    known = [entry for entry in registry.entries() if entry.entry_point.startswith(point)]
    classes = [key for key, value in vars(module).items() if _is_env_class(value, module)]
    if len(known) == 1:
        return known[0]
    if not known and len(classes) == 1:
        return _of_object(getattr(module, classes[0]), module, classes[0])
    found = [entry.short_name for entry in known] or [f"{name}:{key}" for key in classes]
    if found:
        raise ConfigError(f"environment {name!r} holds several: name one of {', '.join(found)}")
    if in_module(module, name) is not None:
        return _of_tasks(name)
    for key, value in vars(module).items():  # the nearest to a problem that there is
        if inspect.isabstract(value) and value.__module__ == module.__name__:
            lacks = ", ".join(sorted(value.__abstractmethods__))
            raise ConfigError(f"environment {name!r}: class {key} lacks {lacks}; write it")
    raise ConfigError(
        f"environment {name!r}: the file registers no environment and holds no class derived from "
        f"{_BASES}, no task set and no problem"
    )


def _is_env_class(value: Any, module: ModuleType) -> bool:
    return (
        inspect.isclass(value)
        and value.__module__ == module.__name__
        and not value.__name__.startswith("_")
        and not inspect.isabstract(value)
        and _can_step(value)
    )


def _can_step(cls: type) -> bool:
    return all(callable(getattr(cls, name, None)) for name in ("reset", "step"))


def _of_tasks(name: str) -> EnvEntry:
    where, colon, attribute = name.partition(":")
    is_file = where.endswith((".py", ".toml"))
    source = f"{Path(where).expanduser().resolve()}{colon}{attribute}" if is_file else name
    stem = f"{_FAMILY}/{_stem(Path(where), attribute)}"
    for entry in registry.entries():
        if entry.id == f"{stem}-v0" and entry.kwargs.get("tasks") != source:
            stem += f"-{hashlib.sha256(source.encode()).hexdigest()[:8]}"
    return add_tasks(f"{stem}-v0", source)


def add_tasks(id: str, source: str) -> EnvEntry:
    """Register what plays the task set called ``source`` under ``id``.

    Raises:
        ConfigError: There is no such set.
    """
    return _player(id, player_of(task_set(source)), tasks=source)


def _player(id: str, entry_point: str, **kwargs: str) -> EnvEntry:
    """Register ``id`` for a class that plays tasks, as it declares itself."""
    cls = load_env_creator(entry_point)
    register(
        id, entry_point, family=id.partition("/")[0], kwargs=kwargs,
        max_turns=getattr(cls, "max_turns", MAX_TURNS), programs=getattr(cls, "programs", ()),
        snapshot_kind=getattr(cls, "snapshot_kind", "replay"), modules=getattr(cls, "modules", ()),
        provides=getattr(cls, "provides", ()), extra=getattr(cls, "extra", None),
    )  # fmt: skip
    return registry.find(id)


def files_digest(source: str) -> str | None:
    """Return the SHA-256 of what an ``EnvEntry.source`` names; results beside tasks are no part."""
    path = Path(source)
    if source.endswith(".toml"):
        files = [path, path.parent / load_config(QuestionFile, [path]).questions]
    elif path.is_dir():
        tasks = task_folders(path)
        files = [task / part for task in tasks for part in _PARTS] or sorted(path.glob("*.json"))
    else:
        return source_digest(source)
    return hashlib.sha256(repr([digest_of(file) for file in files]).encode()).hexdigest()


def data_digests(options: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the SHA-256 of the questions and of the index that arguments of an environment name.

    That of an index is the one of its contents, as its manifest has it.
    """
    from turngym.environments.search.index import MANIFEST, read_manifest

    found: dict[str, str | None] = {}
    for name in {"questions", "index"} & options.keys():
        path = Path(str(options[name])).expanduser()
        if (path / MANIFEST).is_file():
            found[str(options[name])] = read_manifest(path).sha256
        elif path.is_file():
            found[str(options[name])] = digest_of(path)
    return found


def _tasks(name: str, path: Path) -> EnvEntry:
    """Return what plays the task folders, or ``swe/bugs`` with the tasks, at ``path``."""
    place = str(path.resolve())
    id = f"{_FAMILY}/{_stem(path, place)}-v0"
    if path.is_dir() and task_folders(path):
        try:
            harbor_tasks(path, without_network=True)  # what is wrong is said now
        except ConfigError as error:
            raise ConfigError(f"environment {name!r}: {error}") from None
        return _player(id, "turngym.environments.terminal.env:HarborEnv", folder=place)
    is_tasks = path.suffix in (".json", ".jsonl") if path.is_file() else any(path.glob("*.json"))
    if not is_tasks:
        raise ConfigError(
            f"environment {name!r}: is no file of Python and holds no tasks, neither in Harbor's "
            "format (task.toml) nor of 'turngym tasks make-swe' (*.json)"
        )
    entry = registry.find("swe/bugs")
    register_entry(replace(entry, id=id, kwargs={**entry.kwargs, "tasks": place}))
    return registry.find(id)


def _of_pack(path: Path) -> EnvEntry:
    pack, id = read_pack(path), f"{_FAMILY}/{_stem(path, str(path))}-v0"
    if not pack.manifest.env:
        place = str(pack.unpacked())
        return _player(id, "turngym.environments.terminal.env:HarborEnv", folder=place)
    try:
        entry = registry.find(pack.manifest.env)
    except UnknownNameError as error:
        raise UnknownNameError(
            f"{path}: install the package that brings its environment here: {error}"
        ) from error
    register_entry(packed.playing(entry, path, pack.manifest.options, id=id))
    return registry.find(id)


def _stem(path: Path, more: str) -> str:
    """Return a name for what is at ``path``, with a digest of ``more`` where that is a place."""
    stem = re.sub(r"[^\w.-]+", "-", path.resolve().stem).strip("-") or "tasks"
    if "/" in more:
        return f"{stem}-{hashlib.sha256(more.encode()).hexdigest()[:8]}"
    return f"{stem}-{more}" if more else stem
