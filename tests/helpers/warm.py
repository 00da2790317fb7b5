"""Processes that begin with torch and transformers imported, which takes a new Python seconds.

They are forked from a server that never ran anything else and has a hash seed of its own.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

MODULES = (
    "matplotlib.backends.backend_agg",
    "transformers.models.llama.modeling_llama",
    "turngym.cli.main",
    "turngym.cli.train",
    "turngym.trainers.loop",
)
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(list(MODULES))
Main = Callable[[Sequence[str]], int]


def start(
    main: Main, arguments: Sequence[str], *, out: Path | Connection, err: Path
) -> multiprocessing.process.BaseProcess:
    """Run ``main`` with arguments in a process, which exits with what it returns.

    Args:
        main: A function of a module.
        arguments: What it is given.
        out: File or pipe for standard output.
        err: File for standard error.
    """
    process = FORKS.Process(target=_run, args=(main, arguments, out, err, dict(os.environ)))
    process.start()
    return process


def _run(
    main: Main,
    arguments: Sequence[str],
    out: Path | Connection,
    err: Path,
    variables: Mapping[str, str],
) -> None:
    for number, target in ((1, out), (2, err)):
        with target if isinstance(target, Connection) else target.open("ab") as file:
            os.dup2(file.fileno(), number)
    os.environ.clear()
    os.environ.update(variables)
    sys.exit(main(arguments))
