"""``turngym config``: what a run would do, before it does it."""

from __future__ import annotations

from typing import Annotated

import typer

from turngym.cli.arguments import SOURCES, SOURCES_HELP
from turngym.cli.output import print_json, table

app = typer.Typer(help="Look at the settings of runs.")


@app.command()
def recipes() -> None:
    """List the training runs that ship: 'turngym train NAME' starts one."""
    from turngym.trainers.settings.train import recipes as shipped

    print(table(["RECIPE", "WHAT IT TRAINS"], [list(row) for row in shipped().items()]))


@app.command()
def show(
    sources: Annotated[list[str], typer.Argument(metavar=SOURCES, help=SOURCES_HELP)],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, which also has what is unset.")
    ] = False,
) -> None:
    """Print every setting of a training run, defaults included, as TOML that can be used again."""
    from turngym.config import load_config, to_toml
    from turngym.trainers.runs.needs import check_needs
    from turngym.trainers.settings.train import TrainConfig

    config = load_config(TrainConfig, sources)
    check_needs(config)
    if as_json:
        print_json(config.model_dump(mode="json"))
    else:
        print(to_toml(config), end="")
