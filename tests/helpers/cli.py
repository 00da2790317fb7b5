"""Run the command line as a user does: a process with its own streams."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import gymnasium.envs.registration
import pytest

import turngym as package
from turngym import registry
from turngym.cli.main import main

COMMAND = (sys.executable, "-m", "turngym")
SOURCE = str(Path(package.__file__).parents[1])
"""Where the package under test is, whatever the working directory."""

TINY_RUN = """
[env]
id = "text/maze"

[model]
hidden = 16
layers = 1
heads = 1
context = 256
vocab_size = 270

[warm_start]
episodes = 16
max_steps = 6
evaluate_every = 3

[rollout]
groups_per_step = 2
group_size = 2
max_new_tokens = 8

[evaluation]
validation_tasks = 4
held_out_tasks = 4

[run]
steps = 2
checkpoint_every = 1
tensorboard = false
"""
"""Settings of a run of a second or two, which learns nothing."""


def turngym(
    *arguments: str | Path,
    cwd: Path | None = None,
    stdin: str = "",
    hide: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    timeout_s: float = 900,
) -> subprocess.CompletedProcess[str]:
    """Run ``turngym`` and return what it said and its exit code.

    Args:
        arguments: After the program's name.
        cwd: Working directory; needed with ``hide``, which writes a file there.
        stdin: What is typed.
        hide: Modules that shall look as if they were not installed.
        env: More environment variables.
        timeout_s: Seconds after which the process is killed and the test fails.
    """
    paths = [SOURCE]
    if hide:
        assert cwd is not None
        lines = ["import sys", *(f"sys.modules[{name!r}] = None" for name in hide)]
        (cwd / "sitecustomize.py").write_text("\n".join(lines))
        paths.insert(0, str(cwd))
    variables = {**os.environ, **(env or {}), "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        cwd=cwd,
        input=stdin,
        env=variables,
        text=True,
        capture_output=True,
        timeout=timeout_s,
        check=False,
    )


def turngym_here(
    *arguments: str | Path, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``turngym`` in this process, where nothing depends on starting a new one."""
    out, err = io.StringIO(), io.StringIO()
    with chdir(cwd or Path.cwd()), redirect_stdout(out), redirect_stderr(err):
        code = main([*map(str, arguments)])
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def lab_environment(monkeypatch: pytest.MonkeyPatch, id: str, **changes: Any) -> None:
    """Register a maze under ``id`` in the family "lab", for the length of one test."""
    games = gymnasium.envs.registration.registry
    monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(games))
    maze = "turngym.environments.text.maze:MazeEnv"
    package.register(id, maze, family="lab", max_turns=14, **changes)


@contextmanager
def server(*arguments: str, **env: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """Start a server and yield it with what it told on stdout."""
    process = subprocess.Popen(
        [*COMMAND, "serve", *arguments],
        env={**os.environ, "PYTHONPATH": SOURCE, **env},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        told = ""
        while not told.endswith("}\n"):
            line = process.stdout.readline()
            assert line, "the server ended before it told where it is"
            told += line
        yield process, json.loads(told)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.wait(timeout=900)
        assert process.stdout is not None
        process.stdout.close()
