"""``turngym compare``: train algorithms from equal starts at equal episodes, and rank them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turngym import __version__
from turngym.api.needs import need_train_extra
from turngym.cli.arguments import SOURCES_HELP, Json, complete_recipe
from turngym.cli.output import print_json, progress, say, writable_folder
from turngym.cli.report import REFERENCE_HELP, print_report
from turngym.errors import ConfigError, unknown_name
from turngym.records import write_json

if TYPE_CHECKING:
    from turngym.trainers.runs.comparison import ComparedAlgo

_NAME = re.compile(r"^[\w.-]+$")
_RESERVED = ("start", "warm-start")


def compare(
    algos: Annotated[
        str, typer.Option(help="Presets or TOML files, a,b,c; NAME=PRESET gives another name.")
    ],
    budget_episodes: Annotated[int, typer.Option(min=1, help="Training episodes of each run.")],
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RECIPE|FILE.toml] [key.path=value]...",
            help=SOURCES_HELP,
            autocompletion=complete_recipe,
        ),
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option(help="Environments, a,b or again and again.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each: seeds 0, 1, ...")] = 5,
    own: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME:key.path=value", help="A setting of one algorithm."),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time, one thread each.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder of the comparison.")] = Path("runs/compare"),
    reference: Annotated[str | None, typer.Option(help=REFERENCE_HELP)] = None,
    as_json: Json = False,
) -> None:
    """Train algorithms from equal starts, at equal episodes, and write a table and plots.

    The settings are those of the recipe or file, or the shipped ones for the environment.
    The same command again resumes what was stopped.
    Exit code 1 when a run failed.
    """
    need_train_extra("'turngym compare'")
    from turngym.api.jobs import run_heats
    from turngym.reports.runs import COMPARISON_FILE, read_run
    from turngym.trainers.runs.comparison import plan

    compared = compared_algos(algos, own or [])
    names = [one.name for one in compared]
    if reference is not None and reference not in names:
        raise unknown_name("--reference", reference, names)
    heats = plan(
        [name for part in env or [] for name in part.split(",") if name],
        compared,
        sources=sources or [],
        seeds=seeds,
        budget_episodes=budget_episodes,
        out=out,
    )
    settings = {c.name: list(c.settings) for c in compared if c.settings}
    content = {"turngym": __version__, "budget_episodes": budget_episodes, "settings": settings}
    write_json(writable_folder(out) / COMPARISON_FILE, content)
    runs = [run for heat in heats for run in heat.runs]
    with progress("updates", sum(run.config.run.steps for run in runs)) as advance:
        failures = run_heats(heats, jobs=jobs, advance=advance)
    notes = [f"failed: {label}: {reason}" for label, reason in failures.items()]
    for note in notes:
        say(note)
    done = [read_run(run.folder) for run in runs if run.is_done]
    if done:
        print_report(
            done, out, settings=settings, reference=reference, notes=notes, as_json=as_json
        )
    elif as_json:
        print_json({"notes": notes, "envs": []})
    if failures:
        raise typer.Exit(1)


def compared_algos(algos: str, own: Sequence[str]) -> list[ComparedAlgo]:
    """Return the algorithms of ``--algos`` with the settings of ``--set``.

    Args:
        algos: ``"grpo,mine=path/to/mine.toml"``.
        own: ``"grpo:learner.lr=1e-4"``, each.

    Raises:
        ConfigError: An algorithm is there twice or has no good name; a setting has no algorithm.
    """
    from turngym.trainers.runs.comparison import ComparedAlgo

    chosen: dict[str, str] = {}
    for part in filter(None, algos.split(",")):
        alias, equals, algo = part.partition("=")
        name, algo = (alias, algo) if equals else (Path(part).stem, part)
        if not _NAME.match(name) or name in _RESERVED or not algo:
            raise ConfigError(f"--algos {part!r}: wanted PRESET, FILE.toml or NAME=PRESET")
        if name in chosen:
            raise ConfigError(f"--algos: {name!r} is there twice; NAME=PRESET gives another name")
        chosen[name] = algo
    if not chosen:
        raise ConfigError("--algos: wanted at least one")
    settings: dict[str, list[str]] = {name: [] for name in chosen}
    for part in own:
        name, colon, setting = part.partition(":")
        if not colon or "=" not in setting:
            raise ConfigError(f"--set {part!r}: wanted NAME:key.path=value")
        if name not in settings:
            raise unknown_name(f"algorithm in --set {part!r},", name, settings)
        settings[name].append(setting)
    return [
        ComparedAlgo(name=name, algo=algo, settings=tuple(settings[name]))
        for name, algo in chosen.items()
    ]
