"""``turngym export``: trajectories for other tools."""

from __future__ import annotations

import shutil
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from turngym.cli.output import say
from turngym.errors import ConfigError, unknown_name

if TYPE_CHECKING:
    from collections.abc import Iterator

_FORMATS = ("jsonl", "csv", "parquet", "hf")
_ROWS = ("episodes", "turns")


def export(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Folder of a run, or a file of trajectories.")
    ],
    format: Annotated[
        str, typer.Option(help="jsonl, csv, parquet, or hf: a folder for datasets.load_dataset.")
    ] = "jsonl",
    rows: Annotated[str, typer.Option(help="What a row is: episodes or turns.")] = "episodes",
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Add token ids, log-probs, versions and advantages.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="File or, for hf, folder; jsonl and csv go to stdout else.")
    ] = None,
) -> None:
    """Write episodes or turns as a flat table: ids, messages, actions, rewards, score, stop reason.

    Of a training run these are the episodes that it keeps in its folder.
    """
    from turngym.reports.export import (
        columns,
        table,
        write_csv,
        write_dataset,
        write_jsonl,
        write_parquet,
    )

    if format not in _FORMATS:
        raise unknown_name("value of --format", format, _FORMATS)
    if rows not in _ROWS:
        raise unknown_name("value of --rows", rows, _ROWS)
    if out is None and format in ("parquet", "hf"):
        raise ConfigError(f"--format {format} cannot go to stdout; say --out PATH")
    kinds = columns(rows, tokens=tokens)  # type: ignore[arg-type]  # it is one of the two
    found = table(run, rows, tokens=tokens)  # type: ignore[arg-type]
    if out is not None and format in ("parquet", "hf"):
        if format == "hf" and out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise ConfigError(f"--out {out}: holds something already; wanted a new folder")
        with _whole(out) as partial:
            write = write_dataset if format == "hf" else write_parquet
            count = write(found, kinds, partial)
    else:
        with _text(out) as file:
            if format == "csv":
                count = write_csv(found, list(kinds), file)
            else:
                count = write_jsonl(found, file)
    say(f"{count} {rows}" + ("" if out is None else f" are in {out}"))


@contextmanager
def _text(out: Path | None) -> Iterator[IO[str]]:
    if out is None:
        yield sys.stdout
        return
    with _whole(out) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        yield file


@contextmanager
def _whole(out: Path) -> Iterator[Path]:
    """Yield a place to write to, which becomes ``out`` when all is written."""
    partial = out.with_name(out.name + ".partial")
    _remove(partial)  # of one that was killed
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        partial.replace(out)
    except OSError as error:
        raise ConfigError(f"--out {out}: cannot be written ({error.strerror})") from error
    finally:
        _remove(partial)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    elif path.exists():
        path.unlink()
