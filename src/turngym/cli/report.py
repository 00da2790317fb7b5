"""``turngym report``, ``view``, ``export``: tables, plots, what happened, and the rows as files."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from turngym.api.agents import need_train_extra
from turngym.cli.arguments import Json
from turngym.cli.output import evaluation_table, print_json, progress, say, table
from turngym.errors import ConfigError, require_known
from turngym.records import Manifest, writable_folder, write_trajectories
from turngym.reports.texts import amount, percent

if TYPE_CHECKING:
    from turngym.reports.evaluations import EvalRun
    from turngym.reports.runs import FinishedRun, Protocol


REFERENCE_HELP = "Algorithm that the others are measured against; grpo, or else the first."


def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR", help="Folders that hold runs, at any depth.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder of the report; the first DIR by default.")
    ] = None,
    reference: Annotated[str | None, typer.Option(help=REFERENCE_HELP)] = None,
    as_json: Json = False,
) -> None:
    """Write tables and plots of all evaluations and finished training runs in some folders.

    Evaluations are computed anew from their episodes.jsonl.
    The second and later ones are compared with the first, or with the one that --reference names.
    """
    from turngym.reports.runs import check_reported

    for note in check_reported(folders):
        say(note)
    evaluations = _evaluations(folders)
    if evaluations:
        _print_evaluations(evaluations, out or folders[0], reference=reference, as_json=as_json)
        return
    need_train_extra("'turngym report'")
    from turngym.reports.runs import find_runs, read_protocol

    done, notes = find_runs(folders)
    for note in notes:
        say(note)
    if not done:
        where = ", ".join(str(folder) for folder in folders)
        raise ConfigError(
            f"{where}: no training run in here is finished and judged; 'turngym view' shows them"
        )
    print_report(
        done,
        out or folders[0],
        protocol=read_protocol(folders),
        reference=reference,
        notes=notes,
        as_json=as_json,
    )


def _evaluations(folders: Sequence[Path]) -> list[EvalRun]:
    """Return the evaluations, if that is what ``folders`` hold."""
    from turngym.reports.evaluations import find_evaluations
    from turngym.reports.runs import is_run

    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"{folder}: there is no such folder")
    evaluations = find_evaluations(folders)
    trained = [p for f in folders for p in f.rglob("config.json") if is_run(p.parent)]
    if evaluations and trained:
        raise ConfigError(
            f"{trained[0].parent} is a training run and {evaluations[0].folder} an evaluation; "
            "report one kind at a time"
        )
    return evaluations


def _print_evaluations(
    runs: Sequence[EvalRun], out: Path, *, reference: str | None, as_json: bool
) -> None:
    from turngym.reports import evaluations

    comparisons = evaluations.compare_runs(runs, reference)
    image = _draw(runs, writable_folder(out))
    page = evaluations.write_evaluations(runs, comparisons, out, image=image)
    if as_json:
        print_json(evaluations.evaluations_json(runs, comparisons))
    else:
        for run in runs:
            unfinished = "" if run.is_finished else ", unfinished"
            is_named = len(runs) > 1 or unfinished
            title = f"{run.name}, {run.plan['agent']}{unfinished}\n" if is_named else ""
            print(f"{title}{evaluation_table(run.results())}")
        rows = [evaluations.difference_row(found) for found in comparisons]
        if rows:
            headers = [name.upper() for name in evaluations.DIFFERENCES]
            print(f"\n{table(headers, rows)}")
    say(f"report: {page}")


def _draw(runs: Sequence[EvalRun], out: Path) -> str | None:
    """Draw the plots and return the name of the PNG; None without matplotlib."""
    from turngym.reports.tables import draw_evaluations

    if not any(run.rows for run in runs):
        return None
    try:
        return draw_evaluations(runs, out / "evaluations")[0].name
    except ImportError:
        say("no plots: they need the extra 'train': pip install 'turngym[train]'")
        return None


def print_report(
    runs: Sequence[FinishedRun],
    out: Path,
    *,
    protocol: Protocol,
    reference: str | None,
    notes: Sequence[str],
    as_json: bool,
) -> None:
    """Write a report and print what matters of it; ``notes`` are what a reader must see first."""
    from turngym.reports.comparison import rank
    from turngym.reports.overall import overall
    from turngym.reports.tables import episodes, overall_rows, report_json, write_report

    rankings = rank(runs, reference=reference, protocol=protocol)
    together = overall(runs, rankings[0].reference)
    page = write_report(rankings, writable_folder(out), notes=notes, overall=together)
    if as_json:
        print_json(report_json(rankings, notes=notes, overall=together))
    else:
        for ranking in rankings:
            headers = ["ALGORITHM", "SEEDS", "HELD-OUT [95 %]", "AREA [95 %]"]
            headers.append(f"EPISODES TO {ranking.reference.upper()}")
            rows = [
                [
                    entry.algo,
                    str(len(entry.seeds)),
                    percent(entry.held_out),
                    percent(entry.area),
                    episodes(entry.reach, ranking.budget),
                ]
                for entry in ranking.entries
            ]
            remarks = "".join(f"- {remark}\n" for remark in ranking.remarks)
            print(
                f"{ranking.env}, {ranking.budget:.0f} episodes\n{table(headers, rows)}\n{remarks}"
            )
        if together is not None:
            headers, rows = overall_rows(together)
            print(f"all environments\n{table([h.upper() for h in headers], rows)}")
    say(f"report: {page}")


def view(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Folder of a run, or a file of trajectories.")
    ],
    html: Annotated[
        Path | None, typer.Option(help="Write one self-contained page there instead.")
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port; 0 takes any that is free.")
    ] = 0,
    browse: Annotated[bool, typer.Option("--open", help="Open a browser.")] = False,
) -> None:
    """Show episodes, learning curves and timeline in a browser on this machine; Ctrl-C ends it."""
    from turngym.reports.runs import check_shown
    from turngym.reports.viewer.library import Library
    from turngym.reports.viewer.page import HOST, Viewer, make_server, write_page

    if html is not None and html.is_dir():
        raise ConfigError(f"--html {html}: is a folder; wanted a file")
    for note in check_shown(run):
        say(note)
    if html is not None:
        library = Library(run)
        with progress("episodes", None) as advance:
            library.scan(lambda: advance(len(library.rows), ""))
        try:
            write_page(library, html)
        except OSError as error:
            raise ConfigError(f"--html {html}: cannot be written ({error.strerror})") from error
        broken = f", {amount(library.broken, 'line')} left out" if library.broken else ""
        size = html.stat().st_size / 1e6
        say(f"{html}: {amount(len(library.rows), 'episode')}{broken}, {size:.1f} MB")
        return
    with make_server(Viewer(run), port) as server:
        address = f"http://{HOST}:{server.server_port}/"
        print(address, flush=True)
        say("Ctrl-C ends it")
        if browse:
            import webbrowser

            webbrowser.open(address)
        with suppress(KeyboardInterrupt):
            server.serve_forever()


_FORMATS = ("jsonl", "csv", "parquet", "hf", "atif", "trajectories")
_FOLDERS = ("hf", "atif")


def export(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Folder of a run, file of trajectories, or ATIF.")
    ],
    format: Annotated[
        str,
        typer.Option(
            help="jsonl, csv, parquet; hf: a folder for datasets.load_dataset; atif: a document "
            "of each episode; trajectories: a file as runs have it."
        ),
    ] = "jsonl",
    rows: Annotated[
        str,
        typer.Option(
            help="What a row is: episodes, turns, or pairs of a better and a worse attempt."
        ),
    ] = "episodes",
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Add token ids, log-probs, versions and advantages.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="File or, for hf, folder; jsonl and csv go to stdout else.")
    ] = None,
) -> None:
    """Write episodes or turns as a flat table, or episodes as other tools have them.

    A row has ids, messages, actions, rewards, score and stop reason.

    Of a training run these are the episodes that it keeps in its folder.
    """
    from turngym.reports import export as flat
    from turngym.reports.runs import check_shown
    from turngym.rollouts.recorded import episodes, sources_of

    _check_table(format, rows, tokens=tokens)
    if out is None and format not in ("jsonl", "csv"):
        raise ConfigError(f"--format {format} cannot go to stdout; say --out PATH")
    if out is not None and run.exists():
        sources = [source.resolve() for source in sources_of(run)]
        if out in Manifest(out.parent) or out.resolve() in sources:
            raise ConfigError(f"--out {out}: is a file of the run itself; choose another name")
    for note in check_shown(run):
        say(note)
    kinds = flat.columns(rows, tokens=tokens)  # type: ignore[arg-type]  # it is one of them
    found = flat.table(run, rows, tokens=tokens)  # type: ignore[arg-type]

    def write_text(file: IO[str]) -> int:
        if format == "csv":
            return flat.write_csv(found, list(kinds), file)
        return flat.write_jsonl(found, file)

    if out is None:
        count = write_text(sys.stdout)
    else:
        if format in _FOLDERS and out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise ConfigError(f"--out {out}: holds something already; wanted a new folder")
        with _whole(out) as partial:
            if format in ("jsonl", "csv"):
                with partial.open("w", encoding="utf-8", newline="") as file:
                    count = write_text(file)
            elif format == "atif":
                rows, count = "episodes", flat.write_atif(run, partial)
            elif format == "trajectories":
                every = [one for _, one in episodes(run)]
                rows, count = "episodes", len(every)
                write_trajectories(partial, every)
            else:
                write = flat.write_dataset if format == "hf" else flat.write_parquet
                count = write(found, kinds, partial)
    say(f"{count} {rows}" + ("" if out is None else f" are in {out}"))


def _check_table(format: str, rows: str, *, tokens: bool) -> None:
    require_known("value of --format", format, _FORMATS)
    require_known("value of --rows", rows, ("episodes", "turns", "pairs"))
    if rows == "turns" and format in ("atif", "trajectories"):
        raise ConfigError(f"--rows turns: --format {format} has whole episodes; leave one out")
    if rows == "pairs" and (tokens or format in ("atif", "trajectories")):
        given = "--tokens" if tokens else f"--format {format}"
        raise ConfigError(
            f"--rows pairs: has messages alone, and {given} wants more; leave one out"
        )


@contextmanager
def _whole(out: Path) -> Iterator[Path]:
    """Yield a place to write to, which becomes ``out`` when all is written."""
    place = out.resolve()  # "." has no name
    partial = place.parent / f"{place.name}.partial"
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
