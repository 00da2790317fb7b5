"""``turngym check``: proof that a part keeps its promises."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from turngym import registry
from turngym.cli.output import print_json, progress
from turngym.errors import ConfigError
from turngym.imports import import_attribute

app = typer.Typer(help="Prove that a part keeps its promises.")


@app.callback()
def _group() -> None:
    """Keep ``env`` a command of its own, though it is the only one."""


@app.command("env")
def check_environment(
    env: Annotated[
        str, typer.Argument(metavar="ENV", help="Id, short name, or module:Class of your own.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check an environment and its snapshots: pass, fail or not-run for each promise.

    Exit code 1 when a promise is broken, or a required check could not run.
    """
    target = _target(env)
    from turngym.environments.checks import check_fork, check_turn_env

    with progress(f"checking {env}", 2) as advance:
        first = check_turn_env(target)
        advance(1, "")
        reports = [first, check_fork(target)]
        advance(2, "")
    is_ok = all(report.is_ok for report in reports)
    if as_json:
        print_json({"subject": env, "ok": is_ok, "reports": [r.to_json() for r in reports]})
    else:
        print("\n\n".join(map(str, reports)))
    if not is_ok:
        raise typer.Exit(1)


def _target(env: str) -> Any:  # an id, or a class that makes environments
    if ":" not in env:
        entry = registry.find(env)
        entry.require()
        return entry.id
    found = import_attribute("environment", env)
    if not callable(found):
        raise ConfigError(f"environment {env!r}: wanted a class, found a {type(found).__name__}")
    return found
