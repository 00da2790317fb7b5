"""``turngym envs``: which environments there are, what each needs and whether it runs here."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from turngym import registry
from turngym.cli.output import print_json, table
from turngym.registry import EnvEntry


def envs(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the environments: id, family, snapshot kind, needs, and whether each runs here."""
    found = registry.entries()
    if as_json:
        print_json([_record(entry) for entry in found])
        return
    headers = ["NAME", "ID", "FAMILY", "SNAPSHOT", "MAX TURNS", "NEEDS", "RUNS HERE"]
    print(table(headers, [_row(entry) for entry in found]))


def _record(entry: EnvEntry) -> dict[str, Any]:
    missing = entry.missing()
    return {
        "id": entry.id,
        "name": entry.short_name,
        "family": entry.family,
        "snapshot_kind": entry.snapshot_kind,
        "max_turns": entry.max_turns,
        "provides": sorted(entry.provides),
        "needs": {
            "extra": entry.extra,
            "modules": list(entry.modules),
            "programs": list(entry.programs),
        },
        "runs_here": not missing,
        "missing": missing,
    }


def _row(entry: EnvEntry) -> list[str]:
    needs = [entry.extra, *entry.programs] if entry.extra else list(entry.programs)
    missing = entry.missing()
    return [
        entry.short_name,
        entry.id,
        entry.family,
        entry.snapshot_kind,
        str(entry.max_turns),
        ", ".join(need for need in needs if need) or "-",
        f"no: {'; '.join(missing)}" if missing else "yes",
    ]
