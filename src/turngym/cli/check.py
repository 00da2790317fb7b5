"""``turngym check``: proof that a part keeps its promises."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from turngym import registry
from turngym.cli.arguments import Env, Json, counted, key_values
from turngym.cli.output import print_json, progress
from turngym.errors import unknown_name
from turngym.plugins import import_attribute
from turngym.tasks.base import SPLITS

app = typer.Typer(help="Prove that a part keeps its promises.")


@app.callback()
def _group() -> None:
    """Each kind of thing has a command of its own."""


@app.command("env")
def check_environment(env: Env, as_json: Json = False) -> None:
    """Check an environment and its snapshots: pass, fail or not-run for each promise.

    Exit code 1 when a promise is broken, or a required check could not run.
    """
    entry = registry.find(env)
    entry.require()
    from turngym.environments.checks.check import check_fork, check_turn_env

    with progress(f"checking {env}", 2) as advance:
        first = check_turn_env(entry.id)
        advance(1, "")
        reports = [first, check_fork(entry.id)]
        advance(2, "")
    is_ok = all(report.is_ok for report in reports)
    if as_json:
        print_json({"subject": env, "ok": is_ok, "reports": [r.to_json() for r in reports]})
    else:
        print("\n\n".join(map(str, reports)))
    if not is_ok:
        raise typer.Exit(1)


@app.command("sandbox")
def check_a_sandbox(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A back end, or module:Class of your own.")
    ],
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="KEY=VALUE", help="For the back end; may be repeated."),
    ] = None,
    only: Annotated[str, typer.Option("--only", help="Only checks whose name holds this.")] = "",
    as_json: Json = False,
) -> None:
    """Check a sandbox back end and attack it: pass, fail or not-run for each promise.

    Exit code 1 when a promise is broken, an attack gets through, or a required check could not run.
    """
    from turngym.sandbox.backends.catalogue import backend_names
    from turngym.sandbox.checks.check import check_sandbox

    if ":" not in name and name not in backend_names():
        raise unknown_name("sandbox", name, backend_names())
    target = import_attribute("sandbox", name) if ":" in name else name
    options: dict[str, Any] = {**key_values("--option", option or [])}
    with progress(f"checking {name}", None) as advance:
        report = check_sandbox(target, only=only, on_result=counted(advance), **options)
    if as_json:
        print_json({"subject": name, "ok": report.is_ok, "reports": [report.to_json()]})
    else:
        print(report)
    if not report.is_ok:
        raise typer.Exit(1)


@app.command("task")
def check_a_task(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="An environment (swe/bugs-sample), one task of it (swe/bugs-sample/test/0), or a "
            "file or folder that 'turngym tasks make-swe' made.",
        ),
    ],
    episodes: Annotated[
        int | None, typer.Option("--episodes", min=1, help="Most tasks of each split; default all.")
    ] = None,
    parallel: Annotated[int, typer.Option(min=1, help="Tasks at once.")] = 1,
    as_json: Json = False,
) -> None:
    """Check that tasks are sound: the expert solves each, and doing nothing solves none.

    Exit code 1 when a task is not.
    """
    import time

    from turngym.environments.checks.task import check_tasks, find_tasks

    make_env, wanted = _task_target(target)
    env = make_env()
    try:
        if wanted is not None:
            tasks = [env.get_wrapper_attr("task")(*wanted)]
        else:
            tasks = find_tasks(env, episodes)
    finally:
        env.close()
    started = time.perf_counter()
    with progress(f"checking {target}", len(tasks)) as advance:
        report = check_tasks(
            make_env, tasks, subject=target, parallel=parallel, on_task=counted(advance)
        )
    seconds = time.perf_counter() - started
    valid = len(report.results) - len(report.failures)
    if as_json:
        rate = {"valid": valid, "seconds": seconds, "per_minute": 60 * valid / seconds}
        print_json({"subject": target, "ok": report.is_ok, **rate, "reports": [report.to_json()]})
    else:
        for failure in report.failures:
            print(failure)
        print(
            f"{target}: {valid} of {len(report.results)} tasks are sound, {seconds:.0f} s, "
            f"{60 * valid / seconds:.1f} a minute"
        )
    if not report.is_ok:
        raise typer.Exit(1)


def _task_target(target: str) -> tuple[Callable[[], Any], tuple[Any, int] | None]:
    """Return what makes the environment of ``target``, and the task that it names, if one."""
    from turngym.environments.gym.registration import make

    parts = target.rsplit("/", 2)
    if not Path(target).exists() and len(parts) == 3 and parts[1] in SPLITS and parts[2].isdigit():
        return partial(make, parts[0]), (parts[1], int(parts[2]))
    return partial(make, target), None
