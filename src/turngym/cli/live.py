"""A live view of a scheduler on a terminal: what is busy, how far from the best, what is wasted."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from turngym.rollouts.scheduler.scheduler import RolloutScheduler

_REFRESH_S = 0.25

_SHARES = (
    ("efficiency", "sched/efficiency"),
    ("slots busy", "sched/slot_share"),
    ("environment", "sched/env_share"),
    ("policy", "sched/policy_share"),
    ("learner", "sched/learner_share"),
    ("learner waits", "sched/starved_share"),
    ("tokens wasted", "waste/share"),
)
_NUMBERS = (
    ("version", "sched/version", 0),
    ("episodes running", "sched/running", 0),
    ("groups running", "sched/groups_running", 0),
    ("groups ready", "sched/groups_ready", 0),
    ("turns per second", "sched/turns_per_s", 1),
    ("refill p99 ms", "sched/refill_ms_p99", 2),
    ("straggler ratio", "sched/straggler_ratio", 1),
    ("lag mean", "lag/tokens_mean", 2),
    ("lag most", "lag/tokens_max", 0),
    ("lag violations", "lag/violations", 0),
)
_BAR = 24


@asynccontextmanager
async def live_view(scheduler: RolloutScheduler) -> AsyncIterator[None]:
    """Show ``scheduler`` on stderr while the block runs; nothing where there is no terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as screen:

        async def draw() -> None:
            while True:
                screen.update(panel(scheduler.metrics()), refresh=True)
                await asyncio.sleep(_REFRESH_S)

        task = asyncio.create_task(draw())
        try:
            yield
        finally:
            task.cancel()


def panel(metrics: Mapping[str, float]) -> Table:
    """Return the numbers as a table: shares with bars, counts, and the largest kinds of waste."""
    from rich.table import Table

    table = Table(box=None, show_header=False, padding=(0, 1))
    for label, name in _SHARES:
        share = min(1.0, max(0.0, metrics.get(name, 0.0)))
        table.add_row(label, f"{100 * share:5.1f} %", "█" * round(_BAR * share))
    for label, name, digits in _NUMBERS:
        if name in metrics:
            table.add_row(label, f"{metrics[name]:.{digits}f}", "")
    waste = {k: v for k, v in metrics.items() if k.startswith("waste/") and k != "waste/share"}
    for name, tokens in sorted(waste.items(), key=lambda item: -item[1])[:5]:
        if tokens:
            table.add_row(name, f"{tokens:.0f}", "tokens")
    return table
