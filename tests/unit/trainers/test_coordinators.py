"""Several coordinators of one run: their parts, what they give to an update, their ledgers."""

from __future__ import annotations

import asyncio
import pickle
import re
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.scheduling import member_of, open_group, run_audited, scenario
from turngym.cli.main import main
from turngym.config import load_config
from turngym.errors import ConfigError, TrainingError
from turngym.rollouts.scheduler.audit import audit
from turngym.rollouts.scheduler.config import Capacity, SchedulerConfig
from turngym.rollouts.scheduler.groups import Batch, ReadyGroup, UniformSelection
from turngym.rollouts.scheduler.ledger import PART_FOLDER, Ledger
from turngym.rollouts.scheduler.metrics import SchedulerMetrics
from turngym.rollouts.scheduler.packing import pack_turn
from turngym.rollouts.scheduler.pool import EnvPool
from turngym.rollouts.scheduler.scheduler import RolloutScheduler
from turngym.rollouts.simulation.simulate import SimEngine, SimEnv, SimPolicy, run_virtually
from turngym.tasks.base import procedural_task
from turngym.trainers.runs import coordinators
from turngym.trainers.runs.coordinator import Failed, Held, PackedTaken, Take
from turngym.trainers.runs.group_source import Taken, joined
from turngym.trainers.runs.needs import check_change
from turngym.trainers.settings.train import TrainConfig

TWO: dict[str, Any] = {
    "env": {"id": "text/maze"},
    "algo": "decoupled_ppo",
    "engine": {"type": "vllm", "server": "turngym"},
    "rollout": {
        "mode": "overlap",
        "coordinators": 2,
        "groups_per_step": 6,
        "concurrency": 13,
        "buffer_groups": 20,
    },
}


def group(index: int) -> ReadyGroup:
    opened = open_group(size=2, index=index)
    members = tuple(
        replace(one, packed=tuple(map(pack_turn, one.trajectory.turns)))
        for one in (member_of(0, 0.0, 1.0), member_of(1, 0.0))
    )
    return ReadyGroup(index=index, request=opened.request, members=members, start_version=0)


def taken(*indices: int, is_over: bool = False, **stats: Any) -> Taken:
    groups = tuple(map(group, indices))
    measured = SchedulerMetrics(4, 0.0)
    for name, value in stats.items():
        setattr(measured, name, value)
    return Taken(
        groups=groups,
        extra=(),
        played=groups,
        is_over=is_over,
        faults=Counter(error_env=len(indices)),
        next_index=max(indices, default=0) + 2,
        closed=indices,
        blamed=dict.fromkeys(map(str, indices), 1),
        counts={"sched/running": 3.0},
        stats=measured,
        selection={},
    )


# Settings.


def test_the_parts_add_up_to_the_whole() -> None:
    rollout = load_config(TrainConfig, [TWO]).rollout
    parts = [rollout.share(number) for number in range(2)]
    assert [part.concurrency for part in parts] == [7, 6]
    assert [part.groups_per_step for part in parts] == [3, 3]
    assert [part.buffer_groups for part in parts] == [10, 10]
    assert [part.failures.window for part in parts] == [100, 100]
    assert {part.admission for part in parts} == {rollout.schedule().admission}
    alone = load_config(TrainConfig, ["env.id=text/maze"]).rollout
    assert alone.share(0) == alone.schedule()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"engine": {"type": "local"}}, "engine.type='vllm', servers that all can reach"),
        ({"rollout": {"mode": "sync"}}, "rollout.mode='overlap'"),
        ({"rollout": {"groups_per_step": 5}}, "rollout.groups_per_step, a multiple of 2"),
        ({"rollout": {"concurrency": 1}}, "rollout.concurrency of 2 or more"),
        ({"rollout": {"isolation": "ray"}}, "another rollout.isolation than 'ray'"),
        ({"rollout": {"buffer_groups": 11}}, "needs buffer_groups >= .* got 5"),
        ({"agent": {"reflection": 1}}, "agent.reflection=0"),
        ({"run": {"opentelemetry": True}}, "run.opentelemetry=false"),
        (
            {
                "selection": {"sampler": {"type": "thompson"}},
                "env": {"id": "text/maze", "num_train_tasks": 99},
            },
            "a selection that does not adapt",
        ),
    ],
)
def test_what_cannot_be_split_is_refused_in_one_line(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        load_config(TrainConfig, [TWO, change])
    assert "\n" not in str(caught.value)


def test_a_run_keeps_its_number_and_one_of_an_earlier_version_has_one() -> None:
    run = Path("run")
    one, two = {"rollout": {"coordinators": 1}}, {"rollout": {"coordinators": 2}}
    assert check_change(run, {"rollout": {}}, one)
    for before, now in ((one, two), (two, one), ({"rollout": {}}, two)):
        with pytest.raises(ConfigError, match=r"rollout\.coordinators="):
            check_change(run, before, now)


def test_a_coordinator_imports_no_torch() -> None:
    code = "import sys, turngym.trainers.runs.coordinator; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# Batches.


def run_of() -> Any:
    config = load_config(TrainConfig, [TWO])
    return SimpleNamespace(config=config, state=SimpleNamespace(groups=0, step=0))


async def test_an_update_takes_groups_in_the_order_of_their_numbers() -> None:
    batch = joined([taken(0, 2, 4), taken(1, 3)], step=0, measures=True)
    ids = [group.group_id.partition("#")[2] for group in batch.chosen.groups]
    assert ids == ["0", "1", "2", "3", "4"]
    assert len(batch.played) == 5
    assert batch.faults == {"error_env": 5}
    assert batch.next_index == 6
    assert batch.closed == [0, 2, 4, 1, 3]
    assert batch.metrics["sched/running"] == 6
    assert batch.metrics["sched/version"] == 0
    with pytest.raises(TrainingError, match="update 3: the selection has no task left to play"):
        joined([taken(0), taken(is_over=True)], step=3, measures=True)


def test_what_is_sent_comes_back_as_it_was() -> None:
    sent = taken(0, 2)
    found = pickle.loads(pickle.dumps(PackedTaken.of(sent, serial=1))).unpack()
    assert found.groups == sent.groups
    assert found.played == sent.played
    same = zip(found.groups, found.played, strict=True)
    assert all(a.trajectories[0] is b.trajectories[0] for a, b in same)
    assert replace(found, stats=sent.stats) == sent


class Handle(coordinators._Child):
    """A coordinator without a process; the test answers for it."""

    async def _tend(self) -> None:
        self.said: list[object] = []

    def send(self, message: object) -> None:
        self.said.append(message)


async def test_a_late_answer_of_a_process_that_died_is_none_to_a_new_order() -> None:
    run: Any = run_of()
    handle = Handle(run, run, 0)
    asked = asyncio.create_task(handle.take())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    [order] = handle.said
    assert order == Take(serial=1)
    first = PackedTaken.of(taken(0), serial=1)
    handle._hear(first)
    assert await asked is first
    held = asyncio.create_task(handle.hold(1))
    await asyncio.sleep(0)
    handle._hear(Held(serial=2))
    await held
    # It dies now, and the next process is asked both again, when the version has been published.
    handle.published(1)
    handle._hear(first)
    asked = asyncio.create_task(handle.take())
    await asyncio.sleep(0)
    handle._hear(Held(serial=2))
    await asyncio.sleep(0)
    assert not asked.done()
    second = PackedTaken.of(taken(2), serial=3)
    handle._hear(second)
    assert await asked is second
    handle._hear(Failed(error=TrainingError("too many faults")))
    with pytest.raises(TrainingError, match="too many faults"):
        await handle.take()


def test_metrics_of_several_are_those_of_one() -> None:
    parts, whole = [SchedulerMetrics(4, 10.0), SchedulerMetrics(4, 11.0)], SchedulerMetrics(8, 10.0)
    for number, part in enumerate(parts):
        for target in (part, whole):
            for duration in (1.0 + number, 2.0):
                target.ended(duration)
            target.dropped("stale", tokens=10 * number, turns=2, slow=True)
            target.kept(3)
            target.faults["error_env"] += 1
            target.lags.tokens[number] += 30
            target.lags.oldest[number] += 1
            target.tokens += 100
            target.turns += 5 + number
            target.env_s += 2.0
        part.learner_s = part.starved_s = 3.0
    whole.learner_s = whole.starved_s = 3.0
    whole.bound.wall = max(part.bound.wall for part in parts)
    assert SchedulerMetrics.merged(parts).metrics(20.0) == whole.metrics(20.0)
    assert parts[0].drops == {"stale": 1}  # of one process, it stays as it is


# Ledgers.


def two_ledgers(folder: Path) -> Path:
    """Play a run twice, and number its groups as two coordinators would."""
    for number in range(2):
        path = folder / f"{PART_FOLDER}{number}" / "ledger.sqlite"
        path.parent.mkdir()
        run_audited(scenario(steps=2, profile={"raise_share": 0.05}, seed=number), path)
        with closing(sqlite3.connect(path)) as db, db:
            for table in ("groups", "samples", "tries", "turns", "uses"):
                name = "id" if table == "groups" else "grp"
                db.execute(f"UPDATE {table} SET {name} = -(2 * {name} + {number}) - 1")
                db.execute(f"UPDATE {table} SET {name} = -{name} - 1")
            db.execute("INSERT INTO meta VALUES ('share', ?)", (f"{number}/2",))
    return folder


def test_audit_adds_the_ledgers_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = two_ledgers(tmp_path)
    parts = [audit(run / f"{PART_FOLDER}{number}") for number in range(2)]
    found = audit(run)
    assert found.is_clean, found.problems
    assert found.generated == sum(part.generated for part in parts) == found.tokens.total()
    assert found.episodes == parts[0].episodes + parts[1].episodes
    assert found.steps == {"checkpointed": 2}
    assert main(["audit", str(run), "--json"]) == 0
    assert "coordinator-1/ledger.sqlite" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("DELETE FROM uses WHERE step = 1 AND place = 0", "coordinator-1: .* no update has it"),
        ("UPDATE groups SET id = 1000 WHERE id = 1", "coordinator-1: 1 groups are of other"),
        ("UPDATE meta SET value = '0/2' WHERE key = 'share'", "is ledger 0/2, wanted 1/2"),
    ],
)
def test_audit_finds_what_is_wrong_in_one_of_them(
    tmp_path: Path, statement: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = two_ledgers(tmp_path)
    with closing(sqlite3.connect(run / "coordinator-1" / "ledger.sqlite")) as db, db:
        assert db.execute(statement).rowcount == 1
    assert main(["audit", str(run)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(re.search(words, line) for line in lines), lines


def test_audit_misses_a_ledger_that_is_gone(tmp_path: Path) -> None:
    run = two_ledgers(tmp_path)
    shutil.rmtree(run / "coordinator-1")
    assert audit(run).problems == ["coordinator-0: is ledger 0/2, wanted 0/1"]


@asynccontextmanager
async def opened(ledger: Ledger, version: int) -> AsyncIterator[tuple[RolloutScheduler, SimEngine]]:
    """Yield the second of two coordinators at ``version``, and its engine."""
    profile, engine = scenario().profile, SimEngine()
    engine.version = version
    config = SchedulerConfig(
        concurrency=12, groups_per_step=3, admission=Capacity(staleness=1), watchdog_s=None
    )
    async with RolloutScheduler(
        EnvPool(lambda: SimEnv(profile), size=12),
        SimPolicy(engine, profile),
        UniformSelection(lambda n: procedural_task("simulated", "train", n), group_size=4),
        config,
        env_id="turngym/Simulated-v0",
        seed=0,
        version=version,
        first_group=1,
        stride=2,
        ledger=ledger,
    ) as scheduler:
        yield scheduler, engine


async def play(path: Path, version: int, kept: int | None, updates: int) -> list[Batch]:
    """Take ``updates`` batches from a ledger and publish after all but the last one."""
    found: list[Batch] = []
    async with Ledger(path, threaded=False) as ledger:
        ledger.kept = kept
        async with opened(ledger, version) as (scheduler, engine):
            while len(found) < updates:
                if found:
                    engine.version = scheduler.version + 1
                    await scheduler.publish(engine.version)
                batch = await scheduler.take()
                assert batch is not None
                found.append(batch)
    assert audit(path).is_clean, audit(path).problems
    return found


def test_a_coordinator_that_died_alone_keeps_what_a_later_crash_takes_back(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"

    def numbers(batches: list[Batch]) -> list[list[int]]:
        return [[group.index for group in batch.groups] for batch in batches]

    def states() -> list[tuple[int, str]]:
        with closing(sqlite3.connect(path)) as db, db:
            return db.execute("SELECT step, state FROM steps ORDER BY step").fetchall()

    first = run_virtually(play(path, 0, None, 2))  # no checkpoint; killed while update 1 trains
    again = run_virtually(play(path, 1, 0, 2))
    assert numbers(again)[0] == numbers(first)[1]
    assert states() == [(0, "applied"), (1, "applied"), (2, "reserved")]
    assert all(index % 2 == 1 for batch in [*first, *again] for index in numbers([batch])[0])
    back = run_virtually(
        play(path, 0, None, 3)
    )  # the whole run is killed, and its weights are lost
    assert numbers(back) == [*numbers(first), numbers(again)[1]]


def test_an_update_of_no_group_leaves_no_gap(tmp_path: Path) -> None:
    """A part of the groups may all be dropped by a filter, while others of the step are there."""
    path = tmp_path / "ledger.sqlite"

    async def begin() -> None:
        async with (
            Ledger(path, threaded=False) as ledger,
            opened(ledger, 0) as (scheduler, engine),
        ):
            await scheduler.publish(1)
            engine.version = 1
            assert await scheduler.take() is not None

    run_virtually(begin())
    assert audit(path).is_clean, audit(path).problems
    assert audit(path).steps == {"applied": 1, "reserved": 1}
    assert run_virtually(play(path, 0, None, 2))[0].groups == ()
