"""Problems in a shell as task folders in Harbor's format, schema 1.4.

The verifier is separate: when the agent is done its workspace is packed, with modes and links, and
judged where the agent has never been, by a program of the library alone (``harbor_judge.py``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turngym.errors import ConfigError
from turngym.tasks.base import Task
from turngym.tasks.interop import harbor_judge
from turngym.tasks.problem import Machine
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


def export_harbor(tasks: TaskSet[Any], task: Task, out: Path) -> Path:
    """Write one task below ``out`` and return its folder.

    Args:
        tasks: The set.
        task: Which of its tasks.
        out: Where folders of tasks stand.

    Raises:
        ConfigError: Its judge is more than a wanted end state, or the folder is there already.
    """
    folder = out / re.sub(r"[^\w.-]+", "-", task.id)
    if folder.exists():
        raise ConfigError(f"{folder}: is there already; name another folder, or remove it")
    for path, text in _files(task, _end_state(tasks.problem(task), task)).items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(text if isinstance(text, bytes) else text.encode())
        if path.endswith(".sh"):
            place.chmod(0o755)
    return folder


def _end_state(problem: object, task: Task) -> EndState:
    if not isinstance(problem, EndState):
        raise ConfigError(
            f"task {task.id}: is a {type(problem).__name__}, whose judge is a program; only "
            "problems in a shell that say their end as data (EndState) become folders for Harbor"
        )
    if problem.machine != Machine():
        raise ConfigError(f"task {task.id}: wants a machine of its own, which no folder can say")
    return problem


def _files(task: Task, problem: EndState) -> Mapping[str, str | bytes]:
    """Return the folder of a task: path to content."""
    is_git = "git " in problem.prepare + problem.probe + problem.solution
    base = f"FROM {IMAGE}\n{_GIT if is_git else ''}"
    judged = {
        "files": dict(problem.files), "prepare": problem.prepare, "probe": problem.probe,
        "wanted": dict(problem.wanted), "free": problem.free, "expected": problem.expected,
    }  # fmt: skip
    copied = "COPY files /workspace\n" * bool(problem.files)
    prepared = "COPY prepare.sh /tmp/prepare.sh\nRUN bash /tmp/prepare.sh\nRUN rm /tmp/prepare.sh\n"
    prepared *= bool(problem.prepare)
    found: dict[str, str | bytes] = {
        "task.toml": _CONFIG.format(
            name=json.dumps("turngym/" + re.sub(r"[^\w.-]+", "-", task.id)),
            description=json.dumps(problem.prompt[:200]), task=json.dumps(task.id),
            seed=json.dumps(str(task.seed)), split=task.split, pack=_PACK,
        ),
        "instruction.md": f"{_RULES}\n{problem.prompt}\n",
        "environment/Dockerfile": f"{base}WORKDIR /workspace\n{copied}{prepared}",
        "tests/Dockerfile": f"{base}WORKDIR /workspace\nCOPY . /tests\n",
        "tests/test.sh": "#!/bin/bash\nexec python3 -I /tests/judge.py\n",
        "tests/judge.py": Path(harbor_judge.__file__).read_bytes(),
        "tests/task.json": json.dumps(judged, indent=1, ensure_ascii=False) + "\n",
        "solution/solve.sh": f"#!/bin/bash\ncd /workspace\n{problem.solution}\n",
    }  # fmt: skip
    if problem.prepare:
        found["environment/prepare.sh"] = f"#!/bin/bash\n{problem.prepare}\n"
    for path, data in problem.files.items():
        found[f"environment/files/{path}"] = data
    return found
