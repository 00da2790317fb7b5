"""A run in several processes that play: the tasks of one, nothing lost, whichever process dies."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from helpers.servers import children_with, servers_of_ours
from helpers.signals import OVERLAPPED
from helpers.train_process import stop_at
from turngym.config import load_config, to_toml
from turngym.rollouts.episode import group_specs
from turngym.rollouts.scheduler.audit import AuditReport, audit, find_ledgers
from turngym.rollouts.scheduler.groups import group_seed
from turngym.rollouts.scheduler.ledger import task_from_json
from turngym.trainers.loop import train
from turngym.trainers.metrics import read_metrics
from turngym.trainers.runs.coordinators import SplitBatches
from turngym.trainers.runs.episode_runner import EpisodeRunner
from turngym.trainers.runs.placement import COORDINATOR
from turngym.trainers.runs.progress import Silent
from turngym.trainers.settings.train import TrainConfig

STEPS = 4
SETTINGS: dict[str, Any] = {
    **OVERLAPPED,
    "env": {"id": "helpers.signals:SignalsEnv", "num_train_tasks": 24},
    "engine": {"type": "vllm", "server": "turngym"},
    "warm_start": {"episodes": 0},
    "rollout": {**OVERLAPPED["rollout"], "admission": "in_order", "coordinators": 2},
    "evaluation": {"every": 100, "validation_tasks": 1, "held_out_tasks": 1},
    "run": {"steps": STEPS, "checkpoint_every": 2, "tensorboard": False},
}


def coordinators() -> list[int]:
    """Return the processes that this one started as coordinators."""
    return children_with(b"spawn_main")


class Killer(Silent):
    """Sends one coordinator what Ctrl-C and SIGTERM send to all, and later kills another."""

    numbers: Mapping[int, tuple[int, ...]] = {
        1: (signal.SIGINT, signal.SIGTERM),
        2: (signal.SIGKILL,),
    }
    """By update, of which the remainder modulo 2 is the coordinator."""
    sent, name = 0, ""
    resident = 0
    """Most bytes of main memory that one had."""

    def phase(self, name: str, total: int | None) -> None:
        self.name = name

    def advance(self, done: int, metrics: Mapping[str, float]) -> None:
        for process in coordinators():
            pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
            self.resident = max(self.resident, pages * os.sysconf("SC_PAGE_SIZE"))
        for number in self.numbers.get(done, ()) if self.name == "reinforcement" else ():
            os.kill(coordinators()[done % 2], number)
            self.sent += 1


def sound(run: Path) -> AuditReport:
    """Return the account of a run whose every update trained on whole groups, once."""
    rows = [row for row in read_metrics(run / "metrics.jsonl") if "train/tokens" in row]
    assert [row["step"] for row in rows] == list(range(STEPS))
    assert all(row["lag/violations"] == 0 for row in rows)
    assert all(0 <= row["train/policy_lag"] <= 2 for row in rows)
    assert sum(row["rollout/unscored"] for row in rows) == 0
    found = audit(run)
    assert found.is_clean, found.problems
    assert len(found.parts) == 2
    assert found.steps == {"checkpointed": STEPS}
    assert found.episodes["checkpointed"] == 16 * STEPS
    assert not coordinators()
    assert not servers_of_ours()
    return found


def check_groups(run: Path, config: TrainConfig) -> None:
    """Compare task, seeds and place of all groups with those that one process gives them."""
    runner = EpisodeRunner(config)
    groups, size = config.rollout.groups_per_step, config.rollout.group_size
    steps: dict[int, list[int]] = {}
    for number, path in enumerate(find_ledgers(run)):
        with closing(sqlite3.connect(path)) as db, db:
            for index, text, env_seed in db.execute("SELECT id, task, env_seed FROM groups"):
                assert index % 2 == number
                task = runner.pool.task(index % 23)
                specs = group_specs(
                    runner.env_id,
                    task,
                    seed=group_seed(config.run.seed, index, groups),
                    group_size=size,
                )
                assert task_from_json(text) == task
                assert env_seed == specs[0].env_seed
                tries = "SELECT policy_seed FROM tries WHERE grp = ? AND retry = 0 ORDER BY member"
                seeds = [seed for (seed,) in db.execute(tries, (index,))]
                assert seeds == [spec.policy_seed for spec in specs][: len(seeds)]
            for step, index in db.execute("SELECT DISTINCT step, grp FROM uses"):
                steps.setdefault(step, []).append(index)
    runner.close()
    assert {len(found) for found in steps.values()} == {groups}


@pytest.mark.slow
def test_two_coordinators_play_the_groups_of_one_and_one_may_die(tmp_path: Path) -> None:
    config, killer = load_config(TrainConfig, [SETTINGS]), Killer()
    result = train(config, tmp_path, progress=killer)
    assert killer.sent == 3
    assert result.faults == 0
    assert killer.resident == pytest.approx(COORDINATOR, rel=0.3)
    sound(tmp_path)
    assert sorted(audit(path).lineages for path in find_ledgers(tmp_path)) == [1, 2]
    check_groups(tmp_path, config)
    last = [row for row in read_metrics(tmp_path / "metrics.jsonl") if "train/tokens" in row][-1]
    assert last["sched/running"] > 0
    assert last["sched/version"] == STEPS - 1


@pytest.mark.slow
def test_a_run_is_resumed_by_the_same_command_and_one_may_die_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(TrainConfig, [SETTINGS])
    file, out = tmp_path / "run.toml", tmp_path / "run"
    file.write_text(to_toml(config))
    for line, number in (("reinforcement 2", signal.SIGKILL), ("reinforcement 3", signal.SIGINT)):
        # It reads to the end of the output, so what is left behind holds it until the time limit.
        done = stop_at(out, [str(file)], line=line, number=number)
        assert done.returncode != 0
        assert audit(out).is_clean
    mark = SplitBatches.mark_checkpointed

    def deadly(batches: SplitBatches, version: int) -> None:
        if version == STEPS:
            os.kill(coordinators()[0], signal.SIGKILL)
        mark(batches, version)

    monkeypatch.setattr(SplitBatches, "mark_checkpointed", deadly)
    assert train(config, out).updates == STEPS
    assert sound(out).lineages in (3, 4)  # whether it was started again or not
