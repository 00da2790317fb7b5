"""Problems in a shell as task folders in Harbor's format, schema 1.4.

The verifier is separate: when the agent is done its workspace is packed, with modes and links, and
judged where the agent has never been. Of an end state that is data the judge is a program of the
library alone (``harbor_judge.py``); another problem brings its own with ``harbor_parts``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from turngym.errors import ConfigError
from turngym.tasks.base import Task
from turngym.tasks.harbor.problem import HarborProblem
from turngym.tasks.interop import harbor_judge
from turngym.tasks.problem import FileProblem, Machine
from turngym.tasks.sets import TaskSet
from turngym.tasks.shell.words import EndState

IMAGE = "python:3.13-slim-bookworm"
"""Base of both containers; with Git it has all that our problems in a shell need."""
_CONFIG = """schema_version = "1.4"

[task]
name = {name}
description = {description}

[metadata]
turngym = {{ task = {task}, seed = {seed}, split = "{split}" }}

[agent]
timeout_sec = 600.0

[verifier]
timeout_sec = 600.0
environment_mode = "separate"
network_mode = "no-network"

[[verifier.collect]]
command = "mkdir -p /workspace /logs/artifacts && {pack}"

[environment]
network_mode = "no-network"
"""
_PACK = "tar --hard-dereference -C /workspace -cf /logs/artifacts/workspace.tar ."
_GIT = "RUN apt-get update && apt-get install -y --no-install-recommends git\n"
_RULES = (
    "You work in a shell, in /workspace. There is no network. Do what is asked, change nothing "
    "else. Programs that you leave running end with your session.\n"
)


@dataclass(frozen=True, kw_only=True)
class HarborParts:
    """What a folder holds of a problem besides its prompt."""

    files: Mapping[str, str | bytes]
    """What the workspace begins with."""
    tests: Mapping[str, str | bytes]
    """``test.sh``, which judges ``/logs/artifacts/workspace.tar``, and what it reads."""
    solution: str
    """Script that solves it, in the workspace."""
    prepare: str = ""
    """Script that makes the rest of the beginning."""
    install: str = ""
    """Lines of both Dockerfiles."""


@runtime_checkable
class Exportable(Protocol):
    """A problem that says its folder itself."""

    def harbor_parts(self) -> HarborParts:
        """Return what its folder holds."""


def export_harbor(tasks: TaskSet[Any], task: Task, out: Path) -> Path:
    """Write one task below ``out`` and return its folder.

    Args:
        tasks: The set.
        task: Which of its tasks.
        out: Where folders of tasks stand.

    Raises:
        ConfigError: Its judge cannot be written as a script, or the folder is there already.
    """
    folder = out / re.sub(r"[^\w.-]+", "-", task.id)
    if folder.exists():
        raise ConfigError(f"{folder}: is there already; name another folder, or remove it")
    for path, text in _files(tasks.problem(task), task).items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(text if isinstance(text, bytes) else text.encode())
        if path.endswith(".sh"):
            place.chmod(0o755)
    return folder


def _parts(problem: FileProblem, task: Task) -> HarborParts:
    if isinstance(problem, HarborProblem):
        place = problem.folder
        raise ConfigError(f"task {task.id}: is a folder in Harbor's format already, {place}")
    if problem.machine != Machine():
        raise ConfigError(f"task {task.id}: has a `machine`, which is not written for Harbor")
    if isinstance(problem, Exportable):
        return problem.harbor_parts()
    if not isinstance(problem, EndState):
        raise ConfigError(
            f"task {task.id}: is a {type(problem).__name__}, whose judge is a program; only "
            "problems in a shell that say their end as data (EndState), or their folder "
            "(harbor_parts), are written for Harbor"
        )
    judged = {
        "files": dict(problem.files), "prepare": problem.prepare, "probe": problem.probe,
        "wanted": dict(problem.wanted), "free": problem.free, "expected": problem.expected,
    }  # fmt: skip
    return HarborParts(
        files=problem.files, prepare=problem.prepare, solution=problem.solution,
        install=_GIT if "git " in problem.prepare + problem.probe + problem.solution else "",
        tests={
            "test.sh": "#!/bin/bash\nexec python3 -I /tests/judge.py\n",
            "judge.py": Path(harbor_judge.__file__).read_bytes(),
            "task.json": json.dumps(judged, indent=1, ensure_ascii=False) + "\n",
        },
    )  # fmt: skip


def _files(problem: FileProblem, task: Task) -> Mapping[str, str | bytes]:
    """Return the folder of a task: path to content."""
    if not isinstance(problem, FileProblem):
        raise ConfigError(f"task {task.id}: is a {type(problem).__name__}, which no shell plays")
    parts = _parts(problem, task)
    base = f"FROM {IMAGE}\n{parts.install}WORKDIR /workspace\n"
    copied = "COPY files /workspace\n" * bool(parts.files)
    prepared = "COPY prepare.sh /tmp/prepare.sh\nRUN bash /tmp/prepare.sh\nRUN rm /tmp/prepare.sh\n"
    prepared *= bool(parts.prepare)
    quoted = partial(json.dumps, ensure_ascii=False)  # TOML knows no halves of a pair
    found: dict[str, str | bytes] = {
        "task.toml": _CONFIG.format(
            name=quoted("turngym/" + re.sub(r"[^\w.-]+", "-", task.id)),
            description=quoted(problem.prompt[:200]), task=quoted(task.id),
            seed=quoted(str(task.seed)), split=task.split, pack=_PACK,
        ),
        "instruction.md": f"{_RULES}\n{problem.prompt}\n",
        "environment/Dockerfile": f"{base}{copied}{prepared}",
        "tests/Dockerfile": f"{base}COPY . /tests\n",
        "solution/solve.sh": f"#!/bin/bash\ncd /workspace\n{parts.solution}\n",
        **{f"environment/files/{path}": data for path, data in parts.files.items()},
        **{f"tests/{path}": data for path, data in parts.tests.items()},
    }  # fmt: skip
    if parts.prepare:
        found["environment/prepare.sh"] = f"#!/bin/bash\n{parts.prepare}\n"
    return found
