"""Environments of the user's own, named by a file, a class or a folder instead of an id.

    FILE.py           the one environment that the file registers or, if none, the one class in it
    FILE.py:NAME      a class of it, or a function that makes an environment
    module:NAME       the same of a module, looked for in the working folder first
    FOLDER            task folders in Harbor's format, or what ``turngym tasks make-swe`` made
    FILE.json         a file of those

A class is registered under ``local/<Name>-v0``, with its attribute ``max_turns`` as the limit.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from turngym import registry
from turngym.environments.gym.registration import register, register_entry
from turngym.errors import ConfigError
from turngym.plugins import import_attribute, import_module
from turngym.registry import EnvEntry
from turngym.tasks.harbor.problem import harbor_tasks

MAX_TURNS = 100
"""Where a class has no attribute ``max_turns``."""
_FAMILY = "local"
_SHELL = "turngym.environments.terminal.env"


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
        if not callable(found):
            kind = type(found).__name__
            raise ConfigError(f"environment {name!r}: wanted a class or a function, found a {kind}")
        return _of_object(found, module, attribute)
    if where.endswith(".py"):
        return _only(name, import_module("environment", where))
    path = Path(name).expanduser()
    return _tasks(name, path) if path.exists() else None


def add_class(cls: type, id: str) -> EnvEntry:
    """Register ``cls`` under ``id``, with what it declares itself."""
    limit = getattr(cls, "max_turns", None)
    register(
        id,
        f"{cls.__module__}:{cls.__qualname__}",
        family=id.partition("/")[0],
        max_turns=limit if isinstance(limit, int) else MAX_TURNS,
        snapshot_kind=getattr(cls, "snapshot_kind", "replay"),
    )
    return registry.find(id)


def _of_object(found: Any, module: ModuleType, attribute: str) -> EnvEntry:
    """Return the entry of a class or function: its own where it has just one, else a new one."""
    known = [e for e in registry.entries() if e.entry_point == f"{module.__name__}:{attribute}"]
    if len(known) == 1:
        return known[0]
    stem = re.sub(r"[^\w.-]", "-", attribute).removesuffix("Env") or attribute
    ids = [f"{_FAMILY}/{stem}-v0", f"{_FAMILY}/{stem}-{_digest(module)}-v0"]
    for entry in registry.entries():
        if entry.id == ids[0] and entry.entry_point != f"{module.__name__}:{attribute}":
            ids.pop(0)
    if inspect.isclass(found):
        return add_class(found, ids[0])
    point = f"{module.__name__}:{attribute}"
    register(ids[0], point, family=_FAMILY, max_turns=MAX_TURNS)
    return registry.find(ids[0])


def _only(name: str, module: ModuleType) -> EnvEntry:
    """Return the one environment of a file."""
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
    raise ConfigError(
        f"environment {name!r}: the file registers no environment and holds no class derived from "
        "TurnEnv, TextGame, AsyncTurnEnv or gymnasium.Env"
    )


def _is_env_class(value: Any, module: ModuleType) -> bool:
    return (
        inspect.isclass(value)
        and value.__module__ == module.__name__
        and not value.__name__.startswith("_")
        and not inspect.isabstract(value)
        and all(callable(getattr(value, name, None)) for name in ("reset", "step"))
    )


def _tasks(name: str, path: Path) -> EnvEntry:
    """Return what plays the task folders, or ``swe/bugs`` with the tasks, at ``path``."""
    place = str(path.resolve())
    if path.is_dir() and next(path.rglob("task.toml"), None) is not None:
        try:
            harbor_tasks(path, without_network=True)  # what is wrong is said now
        except ConfigError as error:
            raise ConfigError(f"environment {name!r}: {error}") from None
        return _played(path, "terminal/shell", f"{_SHELL}:HarborEnv", folder=place)
    is_tasks = path.suffix in (".json", ".jsonl") if path.is_file() else any(path.glob("*.json"))
    if not is_tasks:
        raise ConfigError(
            f"environment {name!r}: is no file of Python and holds no tasks of 'turngym tasks "
            "make-swe' (*.json)"
        )
    entry = registry.find("swe/bugs")
    return _played(path, "swe/bugs", entry.entry_point, **{**entry.kwargs, "tasks": place})


def _played(path: Path, like: str, entry_point: str, **kwargs: Any) -> EnvEntry:
    """Register what plays the tasks at ``path``.

    Args:
        path: A file or folder.
        like: Name of an environment that needs and limits the same.
        entry_point: The environment's class.
        kwargs: Its arguments.
    """
    stem = re.sub(r"[^\w.-]+", "-", path.resolve().stem).strip("-") or "tasks"
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]
    id = f"{_FAMILY}/{stem}-{digest}-v0"
    entry = registry.find(like)
    register_entry(replace(entry, id=id, entry_point=entry_point, kwargs=kwargs))
    return registry.find(id)


def _digest(module: ModuleType) -> str:
    return hashlib.sha256(str(module.__file__).encode()).hexdigest()[:8]
