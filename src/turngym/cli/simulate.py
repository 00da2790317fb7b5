"""``turngym simulate``: play a whole run of the scheduler from one file, without a model."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from turngym.cli.output import print_json, say, table


def simulate(
    scenario: Annotated[
        list[str], typer.Argument(metavar="SCENARIO.toml [KEY=VALUE]...", help="The run.")
    ],
    real: Annotated[
        bool, typer.Option("--real", help="In real time, with a live view, instead of virtual.")
    ] = False,
    ledger: Annotated[Path | None, typer.Option(help="Keep the ledger in this file.")] = None,
    timeline: Annotated[
        Path | None, typer.Option(help="Write a trace for Perfetto to this file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Play a simulated run of the rollout scheduler; in virtual time always the same."""
    from contextlib import nullcontext

    from turngym.cli.live import live_view
    from turngym.config import load_config
    from turngym.rollouts.scheduler.ledger import Ledger
    from turngym.rollouts.scheduler.timeline import Timeline
    from turngym.rollouts.simulation.simulate import (
        Scenario,
        SimResult,
        play_scenario,
        run_virtually,
    )

    config = load_config(Scenario, scenario)
    trace = Timeline() if timeline is not None else None

    async def play() -> SimResult:
        book = Ledger(ledger, threaded=real) if ledger is not None else nullcontext()
        async with book as account:
            watching = live_view if real else None
            return await play_scenario(config, ledger=account, timeline=trace, watching=watching)

    result = asyncio.run(play()) if real else run_virtually(play())
    if trace is not None and timeline is not None:
        trace.save(timeline)
        say(f"timeline: {timeline}; open it at https://ui.perfetto.dev")
    if as_json:
        print_json(result.to_json())
        return
    rows = [[name, f"{value:.4g}"] for name, value in sorted(result.metrics.items())]
    print(table(["METRIC", "VALUE"], rows))
    print(f"\n{result.steps} updates in {result.wall_s:.2f} s of its own time")
    print(f"digest of everything trained on: {result.digest}")
