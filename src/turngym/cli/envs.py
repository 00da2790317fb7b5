"""``turngym envs``: which environments there are, whether they run here, and their options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from turngym import registry
from turngym.cli.arguments import Json
from turngym.cli.output import print_json, say, table
from turngym.errors import unknown_name
from turngym.registry import EnvEntry, program_name


def envs(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[FAMILY|ENV]", help="A family, or one environment in full."),
    ] = None,
    family: Annotated[str | None, typer.Option(help="A family, as the argument.")] = None,
    as_json: Json = False,
) -> None:
    """List the families; of one family its environments; of one environment what can be set.

    With --json and without a name, every environment.
    """
    known = registry.entries()
    families = sorted({entry.family for entry in known})
    if family is not None and family not in families:
        raise unknown_name("family", family, families)
    wanted = family or name
    if wanted is None:
        found = known
    elif wanted in families:
        found = [entry for entry in known if entry.family == wanted]
    else:
        found = registry.match(wanted)
    is_one = wanted is not None and wanted not in families and len(found) == 1
    if as_json:
        print_json([_record(entry, with_options=is_one) for entry in found])
    elif is_one:
        _print_one(found[0])
    elif wanted is None:
        _print_families(families, known)
    else:
        headers = ["NAME", "SNAPSHOT", "MAX TURNS", "RUNS HERE"]
        print(table(headers, [_row(entry) for entry in found]))


def _print_families(families: Sequence[str], known: Sequence[EnvEntry]) -> None:
    rows = []
    for family in families:
        mine = [entry for entry in known if entry.family == family]
        ready = [entry for entry in mine if not entry.missing()]
        lacks = sorted({hint for entry in mine for hint in entry.missing()})
        example = min(ready or mine, key=lambda entry: len(entry.short_name)).short_name
        rest = f"; the rest: {'; '.join(lacks)}" if lacks else ""
        rows.append([family, str(len(mine)), f"{len(ready)}{rest}", example])
    print(table(["FAMILY", "ENVIRONMENTS", "RUN HERE", "FOR EXAMPLE"], rows))
    say("'turngym envs FAMILY' lists a family, 'turngym envs ENV' says what can be set")


def _print_one(entry: EnvEntry) -> None:
    record = _record(entry, with_options=True)
    needs = [entry.extra, *(program_name(need) for need in entry.programs)]
    rows = [
        ["id", entry.id],
        ["made by", str(entry.entry_point)],
        ["snapshots", entry.snapshot_kind],
        ["gives credit", ", ".join(record["provides"]) or "rewards only"],
        ["needs", ", ".join(need for need in needs if need) or "-"],
        ["runs here", "yes" if record["runs_here"] else f"no: {'; '.join(record['missing'])}"],
    ]
    print(table([entry.short_name, ""], rows), end="\n\n")
    if record["options"] is None:
        print("options: can be listed once it runs here")
        return
    options = [[o["name"], _shown(o["default"]), o["help"]] for o in record["options"]]
    print(table(["OPTION", "DEFAULT", "WHAT IT IS"], options))
    say("set one by --env-option KEY=VALUE, in [env.options] of a run, or in make(ENV, KEY=VALUE)")


def _shown(value: Any) -> str:
    return "-" if value is None else str(value)


def _record(entry: EnvEntry, *, with_options: bool) -> dict[str, Any]:
    missing = entry.missing()
    record = {
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
    return {**record, "options": _options(entry)} if with_options else record


def _options(entry: EnvEntry) -> list[dict[str, Any]] | None:
    from turngym.environments.options import options_of

    if entry.missing():
        return None
    return [
        {"name": option.name, "default": option.default, "help": option.help}
        for option in options_of(entry)
    ]


def _row(entry: EnvEntry) -> list[str]:
    missing = entry.missing()
    ready = f"no: {'; '.join(missing)}" if missing else "yes"
    return [entry.short_name, entry.snapshot_kind, str(entry.max_turns), ready]
