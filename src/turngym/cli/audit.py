"""``turngym audit``: prove that a run used every episode once and lost nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turngym.cli.arguments import Json
from turngym.cli.errors import FAILED
from turngym.cli.output import print_json, table

if TYPE_CHECKING:
    from turngym.rollouts.scheduler.audit import AuditReport


def audit(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, or a ledger.")],
    as_json: Json = False,
) -> None:
    """Account for every episode and every token of a run."""
    from turngym.rollouts.scheduler.audit import audit as read

    report = read(run)
    if as_json:
        print_json(report.to_json())
    else:
        _print(report)
    if not report.is_clean:
        raise typer.Exit(FAILED)


def _print(report: AuditReport) -> None:
    rows = [
        [what, name, str(count)]
        for what, counts in (
            ("updates", report.steps),
            ("groups", report.groups),
            ("episodes", report.episodes),
            ("dropped, why", report.drops),
            ("tries", report.tries),
            ("dropped tokens", report.dropped_tokens),
        )
        for name, count in sorted(counts.items())
    ]
    print(table(["WHAT", "STATE", "COUNT"], rows))
    print(f"\ntokens: {report.equation}")
    print(f"resumed after a stop or crash: {report.lineages - 1} times")
    for problem in report.problems:
        print(f"PROBLEM: {problem}")
    if report.num_problems > len(report.problems):
        print(f"and {report.num_problems - len(report.problems)} more")
    if report.is_clean:
        print("clean: every episode was used once, or dropped for a reason, or is still open")
