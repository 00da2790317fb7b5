"""The coordinator's benchmark in several processes: ``coordinator.py --processes N``.

Each process has its part of the episodes and of the simulated replicas, a scheduler and a ledger of
its own, and plays every Nth group. This one takes its part of each step from all of them, unpacks
it and publishes versions, as a run with ``rollout.coordinators`` does.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import socket
import statistics
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from coordinator import ENV_ID, GROUP, GROUPS_PER_STEP, CounterEnv, make_policy, warm_up
from turn_costs import Numbers, Windows

from turngym.rollouts.scheduler.audit import audit
from turngym.rollouts.scheduler.config import Capacity, SchedulerConfig
from turngym.rollouts.scheduler.groups import UniformSelection
from turngym.rollouts.scheduler.ledger import PART_FOLDER, Ledger
from turngym.rollouts.scheduler.pool import EnvPool
from turngym.rollouts.scheduler.scheduler import RolloutScheduler
from turngym.tasks.base import procedural_task
from turngym.trainers.runs.coordinator import (
    Channel,
    Checkpointed,
    PackedTaken,
    Publish,
    Published,
    Take,
    obey,
)
from turngym.trainers.runs.group_source import GroupSource, RecordingSelection


class Recording(RecordingSelection):
    """Every task in turn."""

    def __init__(self, share: argparse.Namespace) -> None:
        plain: Any = UniformSelection(
            lambda index: procedural_task("counter", "train", index), group_size=GROUP
        )
        super().__init__(plain, group_size=GROUP, most=1 << 40)

    def metrics(self) -> dict[str, float]:
        return {}


def child(end: socket.socket, options: argparse.Namespace, number: int, folder: Path) -> None:
    asyncio.run(_child(end, options, number, folder))


async def _child(
    end: socket.socket, options: argparse.Namespace, number: int, folder: Path
) -> None:
    channel, count = await Channel.of(end), options.processes
    share = argparse.Namespace(**vars(options))
    share.episodes, share.replicas = options.episodes // count, options.replicas // count
    policy, fleet = make_policy(share.replicas)
    groups = GROUPS_PER_STEP // count
    config = SchedulerConfig(
        concurrency=share.episodes,
        groups_per_step=groups,
        admission=Capacity(staleness=-(-share.episodes // (GROUP * groups))),
    )
    pool = EnvPool(lambda: CounterEnv(options.turns), size=share.episodes)
    selection, windows = Recording(share), Windows(options.window_s, options.windows)
    async with Ledger(folder / f"{PART_FOLDER}{number}" / "ledger.sqlite") as ledger:
        ledger.mark_share(f"{number}/{count}")
        await ledger.flush()
        scheduler = RolloutScheduler(
            pool,
            policy,
            selection,
            config,
            env_id=ENV_ID,
            seed=0,
            first_group=number,
            stride=count,
            ledger=ledger,
        )
        async with scheduler:
            source = GroupSource(scheduler, selection)

            async def work() -> None:
                while True:
                    await obey(await channel.receive(), source, channel, channel.receive)
                    fleet.load(scheduler.version)

            working = asyncio.create_task(work())
            await windows.watch(lambda: scheduler.stats.turns, after=warm_up(share))
            channel.send((windows.rows, scheduler.metrics()["lag/violations"]))
            with suppress(EOFError):
                await working
    await channel.close()


def measure_split(options: argparse.Namespace) -> Numbers:
    """Return what ``options.processes`` coordinators do together, and what the trainer's costs."""
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        found = asyncio.run(_measure(options, Path(name)))
        report = audit(Path(name))
        found["audit"] = {
            "right": report.is_clean and report.tokens["trained"] > 0,
            "equation": report.equation,
            "problems": report.problems,
        }
    return found


async def _measure(options: argparse.Namespace, folder: Path) -> Numbers:
    context, count = multiprocessing.get_context("spawn"), options.processes
    channels, processes, answers = [], [], [asyncio.Queue[Any]() for _ in range(count)]
    for number in range(count):
        ours, theirs = socket.socketpair()
        with theirs:
            process = context.Process(target=child, args=(theirs, options, number, folder))
            process.start()
        processes.append(process)
        channels.append(await Channel.of(ours))
    results: list[Any] = []

    async def listen(number: int) -> None:
        with suppress(EOFError, OSError):
            while True:
                message = await channels[number].receive()
                (results.append if isinstance(message, tuple) else answers[number].put_nowait)(
                    message
                )

    async def say(message: object, *, answered: bool = True) -> list[Any]:
        for channel in channels:
            channel.send(message)
        return [await queue.get() for queue in answers] if answered else []

    listening = [asyncio.create_task(listen(number)) for number in range(count)]
    version, before = 0, (time.perf_counter(), time.process_time())
    while len(results) < count:  # a process that is done plays on beside the others
        for part in await say(Take(serial=version)):
            await asyncio.to_thread(PackedTaken.unpack, part)
        version += 1
        await say(Publish(serial=version, version=version))
        await say(Published(), answered=False)
        await say(Checkpointed(version=version), answered=False)
    wall, own = time.perf_counter() - before[0], time.process_time() - before[1]
    for channel in channels:
        await channel.flush()
    await asyncio.wait(listening)
    for process in processes:
        await asyncio.to_thread(process.join)
    rows = [one[0] for one in results]
    turns = sum(row["turns"] for part in rows for row in part)
    cpu = sum(row["turns"] / row["turns_per_cpu_s"] for part in rows for row in part)
    return {
        "processes": count,
        "turns_per_wall_s": sum(
            statistics.median(row["turns_per_wall_s"] for row in part) for part in rows
        ),
        "turns_per_cpu_s": turns / cpu,
        "trainer_cpu_share": own / wall,
        "updates": version,
        "lag_violations": sum(one[1] for one in results),
        "load": statistics.median(row["load"] for part in rows for row in part),
        "windows": rows,
    }


def table(found: list[Numbers]) -> str:
    """Return the result as Markdown."""
    lines = [
        "| processes | turns a second | of their processor time | the trainer's process |",
        "| --- | --- | --- | --- |",
    ]
    for one in found:
        trainer = "the same"
        if "trainer_cpu_share" in one:
            trainer = f"{one['trainer_cpu_share']:.0%} of a core"
        lines.append(
            f"| {one.get('processes', 1)} | {one['turns_per_wall_s']:,.0f} | "
            f"{one['turns_per_cpu_s']:,.0f} | {trainer} |"
        )
    return "\n".join(lines)
