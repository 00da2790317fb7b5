"""``turngym report``: tables and plots of runs that are done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turngym.cli.needs import need_train_extra
from turngym.cli.output import print_json, say, table, writable_folder

if TYPE_CHECKING:
    from turngym.reports.runs import FinishedRun

REFERENCE_HELP = "Algorithm that the others are measured against; grpo, or else the first."


def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Folders that hold runs, at any depth.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder of the report; the first DIR by default.")
    ] = None,
    reference: Annotated[str | None, typer.Option(help=REFERENCE_HELP)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write tables and plots of all finished runs in some folders."""
    need_train_extra("'turngym report'")
    from turngym.reports.runs import find_runs, read_settings

    done, unfinished = find_runs(folders)
    notes = [f"not finished, left out: {path}" for path in unfinished]
    for note in notes:
        say(note)
    tell(
        done,
        out or folders[0],
        settings=read_settings(folders),
        reference=reference,
        notes=notes,
        as_json=as_json,
    )


def tell(
    runs: Sequence[FinishedRun],
    out: Path,
    *,
    settings: Mapping[str, Sequence[str]],
    reference: str | None,
    notes: Sequence[str],
    as_json: bool,
) -> None:
    """Write a report and print what matters of it.

    Args:
        runs: Finished runs.
        out: Where the report goes.
        settings: What each algorithm had of its own.
        reference: Whom the others are measured against.
        notes: What a reader must see first.
        as_json: Print JSON instead of a table.
    """
    from turngym.reports.comparison import rank
    from turngym.reports.tables import episodes, percent
    from turngym.reports.write import write_report

    rankings = rank(runs, reference=reference, settings=settings)
    page = write_report(rankings, writable_folder(out), notes=notes)
    if as_json:
        print_json({"notes": list(notes), "envs": [ranking.to_json() for ranking in rankings]})
    else:
        for ranking in rankings:
            headers = ["ALGORITHM", "SEEDS", "HELD-OUT [95 %]", "AREA [95 %]"]
            headers.append(f"EPISODES TO {ranking.reference.upper()}")
            rows = [
                [
                    standing.algo,
                    str(len(standing.seeds)),
                    percent(standing.held_out),
                    percent(standing.area),
                    episodes(standing.reach, ranking.budget),
                ]
                for standing in ranking.standings
            ]
            print(f"{ranking.env}, {ranking.budget:.0f} episodes\n{table(headers, rows)}\n")
    say(f"report: {page}")
