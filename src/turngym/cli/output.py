"""How commands speak: data on stdout, everything else on stderr."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from turngym.errors import ConfigError

Advance = Callable[[int, str], None]
"""Called with the units of work that are done, and a text for beside the bar, perhaps empty."""

_SECONDS_BETWEEN_LINES = 15.0
"""How often progress is reported where there is no terminal."""


def print_json(value: Any) -> None:
    """Write ``value`` to stdout as indented JSON."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def say(text: str) -> None:
    """Write a line for people to stderr."""
    print(text, file=sys.stderr, flush=True)


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return aligned columns, two blanks apart and never wrapped, so that a line is a record."""
    lines = [list(headers), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headers))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


@contextmanager
def progress(label: str, total: int | None) -> Iterator[Advance]:
    """Show how far a piece of work is: a bar on a terminal, now and then a line elsewhere.

    Args:
        label: What is being done.
        total: Units of work in all; None when that is not known.
    """
    if sys.stderr.isatty():
        with _bar(label, total) as advance:
            yield advance
    else:
        yield _lines(label, total)


@contextmanager
def _bar(label: str, total: int | None) -> Iterator[Advance]:
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(escape(label), total=total, note="")
        yield lambda done, note: bar.update(task, completed=done, note=escape(note))


def _lines(label: str, total: int | None) -> Advance:
    spoke = time.monotonic()

    def advance(done: int, note: str) -> None:
        nonlocal spoke
        if done != total and time.monotonic() - spoke >= _SECONDS_BETWEEN_LINES:
            spoke = time.monotonic()
            amount = str(done) if total is None else f"{done}/{total}"
            say(f"{label}: {amount} {note}".rstrip())

    return advance


def writable_folder(path: Path) -> Path:
    """Make ``path`` and return it, once a file could be written there.

    Raises:
        ConfigError: It is no folder, or nothing can be written to it.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise ConfigError(f"--out {path}: cannot be written to ({error.strerror})") from error
    return path
