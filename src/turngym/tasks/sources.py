"""Task sets by name: a file of problems, a module's set, a TOML file of questions."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

from turngym.errors import ConfigError
from turngym.plugins import import_attribute, import_module
from turngym.tasks.base import SPLITS
from turngym.tasks.problem import Problem
from turngym.tasks.questions import read_questions
from turngym.tasks.sets import ListedSet, TaskSet


def task_set(source: TaskSet[Any] | str) -> TaskSet[Any]:
    """Return the task set that ``source`` names.

    Args:
        source: A set; ``FILE.toml`` of questions; ``FILE.py``, for the one set or all the problems
            in it; ``FILE.py:NAME`` or ``module:NAME``, for a set, a class of problems, or a
            function without arguments that returns one.

    Raises:
        ConfigError: There is none; the message says what was found.
    """
    if isinstance(source, TaskSet):
        return source
    where, _, attribute = source.partition(":")
    if where.endswith(".toml"):
        return read_questions(where)
    if attribute:
        return _as_set(import_attribute("tasks", source), source, attribute)
    found = in_module(import_module("tasks", source), source)
    if found is None:
        raise ConfigError(f"tasks {source!r}: the file holds no task set and no problem")
    return found


def in_module(module: ModuleType, source: str) -> TaskSet[Any] | None:
    """Return the one set of a module or, if none, all the problems that it defines; else None.

    Raises:
        ConfigError: It holds several sets.
    """
    sets = {name: one for name, one in vars(module).items() if isinstance(one, TaskSet)}
    if len(sets) > 1:
        names = ", ".join(f"{source}:{name}" for name in sets)
        raise ConfigError(f"tasks {source!r} holds several sets: name one of {names}")
    if sets:
        return next(iter(sets.values()))
    problems = [
        (name, one)
        for name, one in vars(module).items()
        if is_problem_class(one) and one.__module__ == module.__name__
    ]
    if not problems:
        return None
    stem = Path(source).stem if source.endswith(".py") else module.__name__.rpartition(".")[2]
    return ListedSet(stem, [(name, _made(one, source)) for name, one in problems], where=source)


def _as_set(found: Any, source: str, attribute: str) -> TaskSet[Any]:  # the user's
    if isinstance(found, TaskSet):
        return found
    if is_problem_class(found):
        found = _made(found, source)
    if isinstance(found, Problem):
        return ListedSet(attribute.lower(), [(attribute, found)], where=source)
    if inspect.isfunction(found):
        return _as_set(found(), source, attribute)
    kind = type(found).__name__
    raise ConfigError(f"tasks {source!r}: wanted a task set or a problem, found {kind}")


def is_problem_class(value: Any) -> bool:  # of the user's module
    """Return whether ``value`` is a class of problems of which there can be some."""
    return inspect.isclass(value) and issubclass(value, Problem) and not inspect.isabstract(value)


def _made(cls: type[Problem[Any]], source: str) -> Problem[Any]:
    try:
        return cls()
    except TypeError as error:
        raise ConfigError(
            f"tasks {source!r}: {cls.__name__} cannot be made without arguments ({error}); list "
            "its problems in a ListedSet or make them in a GeneratedSet"
        ) from None


def player_of(tasks: TaskSet[Any]) -> str:
    """Return the environment that plays a set, ``module:Class``.

    Raises:
        ConfigError: Its problems are of no kind that an environment plays.
    """
    split = next(one for one in SPLITS if tasks.count(one) != 0)
    problem = tasks.problem(tasks.task(split, 0))
    if not problem.played_by:
        raise ConfigError(
            f"task set {tasks.name}: no environment plays a {type(problem).__name__}; derive it "
            "from FileProblem or AnswerProblem"
        )
    return str(problem.played_by)
