"""Processes that begin with torch and transformers imported, which takes a new Python seconds.

They are forked from a server that never ran anything else and has a hash seed of its own.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir
from multiprocessing.connection import Connection
from pathlib import Path

from turngym.__main__ import main

MODULES = (
    "matplotlib.backends.backend_agg",
    "transformers.models.llama.modeling_llama",
    "turngym.cli.main",
    *(f"turngym.cli.{name}" for name in ("check", "corpus", "doctor", "eval", "plan", "play")),
    *(
        f"turngym.cli.{name}"
        for name in ("replay", "report", "serve", "simulate", "tasks", "train")
    ),
    "turngym.trainers.loop",
)
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(list(MODULES))
Main = Callable[[Sequence[str]], int]


def start(
    main: Main,
    arguments: Sequence[str],
    *,
    out: Path | Connection,
    err: Path | Connection,
    env: Mapping[str, str] | None = None,
) -> multiprocessing.process.BaseProcess:
    """Run ``main`` with arguments in a process, which exits with what it returns.

    Args:
        main: A function of a module.
        arguments: What it is given.
        out: File or pipe for standard output.
        err: File or pipe for standard error.
        env: More environment variables.
    """
    variables = {**os.environ, **(env or {})}
    process = FORKS.Process(target=_run, args=(main, arguments, out, err, variables))
    process.start()
    return process


def run(
    main: Main, *arguments: str | Path, cwd: Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``main`` in the working directory ``cwd`` to its end, and return what it said."""
    with tempfile.TemporaryDirectory() as folder, chdir(cwd):
        out, err = Path(folder, "out"), Path(folder, "err")
        process = start(main, [*map(str, arguments)], out=out, err=err, env=env)
        process.join(900)
        assert process.exitcode is not None, "it did not end"
        said, errors = (file.read_text(encoding="utf-8") for file in (out, err))
        return subprocess.CompletedProcess(arguments, process.exitcode, said, errors)


def turngym(
    *arguments: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``turngym``, as the function of this name in ``helpers.cli`` does."""
    return run(program, *arguments, cwd=cwd or Path.cwd(), env=env)


def program(arguments: Sequence[str]) -> int:
    """Be ``turngym``, started with arguments."""
    sys.argv[:] = ["turngym", *arguments]
    return main()


def script(arguments: Sequence[str]) -> int:
    """Run a Python file with arguments as ``python`` does."""
    sys.argv[:], sys.path[0] = arguments, str(Path(arguments[0]).parent)
    runpy.run_path(arguments[0], run_name="__main__")
    return 0


class Heard:
    """A process whose standard error is read line by line, as that of a ``Popen``."""

    def __init__(self, main: Main, *arguments: str | Path, out: Path) -> None:
        reader, writer = multiprocessing.Pipe(duplex=False)
        self._process = start(main, [*map(str, arguments)], out=out, err=writer)
        writer.close()
        self.stderr = os.fdopen(os.dup(reader.fileno()), encoding="utf-8")
        reader.close()

    @property
    def returncode(self) -> int | None:
        """The exit code of a process that has ended."""
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self._process.pid or 0, number)

    def rest(self) -> str:
        """Wait for the end, and return what was not read yet."""
        said = self.stderr.read()
        self._process.join(900)
        return said

    def close(self) -> None:
        """Kill it, if it has not ended."""
        self._process.kill()
        self._process.join()
        self.stderr.close()


def _run(
    main: Main,
    arguments: Sequence[str],
    out: Path | Connection,
    err: Path | Connection,
    variables: Mapping[str, str],
) -> None:
    for number, target in ((1, out), (2, err)):
        with target if isinstance(target, Connection) else target.open("ab") as file:
            os.dup2(file.fileno(), number)
    os.environ.clear()
    os.environ.update(variables)
    sys.exit(main(arguments))
