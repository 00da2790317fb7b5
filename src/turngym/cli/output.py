"""How commands speak: data on stdout, everything else on stderr; errors as lines and exit codes."""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import typer

from turngym.errors import ConfigError, EnginesLost, Interrupted, RecordError, TurnGymError
from turngym.faults import describe, is_of_user
from turngym.records import writable_folder
from turngym.reports.texts import figure, percent

Advance = Callable[[int, str], None]
"""Called with the units of work that are done, and a text for beside the bar, perhaps empty."""

_SECONDS_BETWEEN_LINES = 15.0
"""How often progress is reported where there is no terminal."""


_kept: TextIO | None = None


def keep_stdout() -> None:
    """From here on ``print_json`` alone writes to stdout; what else is printed goes to stderr.

    For the whole process and those that it starts: a user's module prints, and so do programs.
    """
    global _kept
    _kept = os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors)
    os.dup2(2, 1)


def kept_stdout() -> TextIO | None:
    """Return what stdout was before ``keep_stdout``; None while it still is that."""
    return _kept


def print_json(value: Any) -> None:
    """Write ``value`` to stdout as indented JSON."""
    print(json.dumps(value, indent=2, ensure_ascii=False), file=_kept, flush=True)


def print_found(found: Any, text: str, *, as_json: bool) -> None:
    """Write to stdout what was found: as JSON, or as ``text`` for people."""
    if as_json:
        print_json(found)
    else:
        print(text)


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

    ``total`` is the units of work in all; None when that is not known.
    """
    if not sys.stderr.isatty():
        yield _lines(label, total)
        return
    from rich import progress as bars
    from rich.console import Console
    from rich.markup import escape

    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TimeElapsedColumn(),
        bars.TimeRemainingColumn(),
        bars.TextColumn("{task.fields[note]}"),
    )
    with bars.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
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


def writable_file(path: Path, option: str = "--out") -> None:
    """Make the folder of ``path``, which ``option`` names, before there is something to write.

    Raises:
        ConfigError: It is a folder itself, or nothing can be written to the one around it.
    """
    if path.is_dir():
        raise ConfigError(f"{option} {path}: is a folder; wanted a file")
    writable_folder(path.parent, option)


FINE, FAILED, WRONG_INPUT, INTERRUPTED = 0, 1, 2, 130

# Typer keeps its own copy of Click in some releases; both have this family tree.
_UsageError: Any = typer.BadParameter.__mro__[1]
_ClickError: Any = _UsageError.__mro__[1]


def first_cause(error: BaseException) -> BaseException:
    """Return the first error inside groups, as a ``TaskGroup`` raises them."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def exit_code(error: BaseException) -> int | None:
    """Return the exit code for an error that needs no traceback; None for a bug of ours."""
    if isinstance(error, ConfigError | RecordError | _UsageError):
        return WRONG_INPUT
    if isinstance(error, KeyboardInterrupt | typer.Abort | Interrupted):
        return INTERRUPTED
    if isinstance(error, EnginesLost):
        return error.exit_code
    if isinstance(error, TurnGymError | OSError | _ClickError) or is_of_user(error):
        return FAILED
    return None


def lines(error: BaseException) -> list[str]:
    """Return what to say of an error, at least one line."""
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return ["interrupted"]
    if isinstance(error, _ClickError):
        text = error.format_message()
    elif isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f"{error.filename}: " if error.filename else ""
        text = f"{where}the disk is full; free some space, then run the same command again"
    else:
        text = str(error) if isinstance(error, TurnGymError | OSError) else describe(error)
    found = text.strip().splitlines() or [type(error).__name__]
    if isinstance(error, _UsageError) and error.ctx is not None:
        found[-1] = f"{found[-1].rstrip('.')}; see '{error.ctx.command_path} --help'"
    return found


Found = Mapping[str, Any]
"""One environment's part of ``turngym eval --json``."""


def evaluation_table(results: Mapping[str, Found]) -> str:
    """Return one line for each environment; columns without any number are left out."""
    columns = _columns(results)
    rows = [[name, *(cell(found) for _, cell in columns)] for name, found in results.items()]
    return table(["ENVIRONMENT", *(header for header, _ in columns)], rows)


def _columns(results: Mapping[str, Found]) -> list[tuple[str, Callable[[Found], str]]]:
    most = max((int(k) for found in results.values() for k in found["pass_at"]), default=0)
    columns: list[tuple[str, Callable[[Found], str]]] = [
        ("EPISODES", lambda found: str(found["episodes"])),
        ("SUCCESS [95 %]", lambda found: percent(found["success"], found["success_ci95"])),
    ]
    if most > 1:
        powers = (1 << i for i in range(most.bit_length()) if 1 << i < most)
        columns += [(f"PASS@{k}", _pass_cell(k)) for k in (*powers, most)]
    columns += [("RETURN", _cell("mean_return")), ("TURNS", _cell("mean_turns", 1))]
    for header, name, digits in (
        ("TOKENS IN", "mean_prompt_tokens", 0),
        ("TOKENS OUT", "mean_completion_tokens", 0),
        ("COST $", "mean_cost_usd", 4),
    ):
        if any(found[name] is not None for found in results.values()):
            columns.append((header, _cell(name, digits)))
    columns.append(("SECONDS", lambda found: _cell("mean_seconds", 3)(found["time"])))
    return [*columns, ("FAULTS", _faults)]


def _cell(name: str, digits: int = 2) -> Callable[[Found], str]:
    return lambda found: figure(found[name], found[f"{name}_ci95"], digits)


def _pass_cell(k: int) -> Callable[[Found], str]:
    def cell(found: Found) -> str:
        value, low, high = found["pass_at"].get(str(k), (None, None, None))
        return percent(value, None if low is None else (low, high))

    return cell


def _faults(found: Found) -> str:
    kinds = [
        f"{kind.removeprefix('error_')} {percent(share, (low, high))}"
        for kind, (share, low, high) in found["faults_by_kind"].items()
    ]
    return f"{found['faults']}{': ' if kinds else ''}{', '.join(kinds)}"
