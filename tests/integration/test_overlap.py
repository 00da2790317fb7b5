"""Learning while episodes go on: the bound holds, runs resume, nothing is trained on twice."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.signals import OVERLAPPED, register_for_a_while
from helpers.train_process import stop_at
from turngym.agents.engine.local import LocalEngine
from turngym.config import load_config, to_toml
from turngym.errors import ConfigError
from turngym.rollouts.scheduler.audit import audit
from turngym.rollouts.scheduler.ledger import LEDGER_FILE
from turngym.rollouts.scheduler.pool import EnvPool, Lease
from turngym.trainers.loop import train
from turngym.trainers.metrics import read_metrics
from turngym.trainers.runs.checkpoints import save_checkpoint
from turngym.trainers.runs.group_source import Chosen
from turngym.trainers.runs.run import Run
from turngym.trainers.settings.train import TrainConfig
from turngym.trainers.update.optimizer import full_state
from turngym.types import TrajectoryGroup

SETTINGS: dict[str, Any] = {
    **OVERLAPPED,
    "warm_start": {
        **OVERLAPPED["warm_start"],
        "max_steps": 120,
        "evaluate_every": 120,
        "lr_warmup_steps": 10,
        "target_success": 1.0,
    },
    "learner": {"lr": 2e-3, "num_minibatches": 2},
    "evaluation": {**OVERLAPPED["evaluation"], "every": 3},
    "run": {**OVERLAPPED["run"], "steps": 6},
}


@pytest.fixture(autouse=True)
def games(monkeypatch: pytest.MonkeyPatch) -> None:
    register_for_a_while(monkeypatch)


def steps(folder: Path) -> list[Mapping[str, float]]:
    return [r for r in read_metrics(folder / "metrics.jsonl") if "train/tokens" in r]


@pytest.mark.parametrize("interruption", ["continue_partial", "drain", "abort_requeue"])
def test_an_overlapped_run_learns_within_its_bound(tmp_path: Path, interruption: str) -> None:
    config = load_config(TrainConfig, [SETTINGS, f"rollout.interruption={interruption}"])
    result = train(config, tmp_path)
    rows = steps(tmp_path)
    assert result.updates == len(rows) == 6
    assert all(0 <= row["train/policy_lag"] <= 2 for row in rows if row["train/tokens"])
    assert max(row["train/policy_lag"] for row in rows if row["train/tokens"]) > 0
    assert rows[-1]["lag/violations"] == 0
    assert sum(row["train/tokens"] for row in rows) > 0


def test_without_staleness_everything_is_on_policy(tmp_path: Path) -> None:
    config = load_config(
        TrainConfig, [SETTINGS, "rollout.staleness=0", "rollout.admission=in_order"]
    )
    train(config, tmp_path)
    rows = [row for row in steps(tmp_path) if row["train/tokens"]]
    assert [row["train/policy_lag"] for row in rows] == [0.0] * len(rows)
    assert max(row["train/behaviour_gap_max"] for row in rows) < 1e-3


def test_an_interrupted_run_goes_on_where_it_was_saved(tmp_path: Path) -> None:
    config = load_config(TrainConfig, [SETTINGS])
    file, out = tmp_path / "run.toml", tmp_path / "run"
    file.write_text(to_toml(config))
    for line, number in (("reinforcement 2", signal.SIGKILL), ("reinforcement 4", signal.SIGINT)):
        done = stop_at(out, [str(file)], line=line, number=number)
        assert done.returncode != 0
        assert not (out / "summary.json").exists()
    result = train(config, out)
    assert result.updates == 6
    rows = steps(out)
    assert [row["step"] for row in rows] == list(range(6))
    assert trained_episodes(out) <= sum(row["rollout/episodes"] for row in rows) <= episodes(out)


def trained_episodes(folder: Path) -> int:
    """Return how many episodes a run trained on, by its ledger."""
    return count(folder, "SELECT COUNT(*) FROM (SELECT DISTINCT grp, member FROM uses)")


def episodes(folder: Path) -> int:
    """Return how many episodes closed groups have, by the ledger of the run."""
    return count(
        folder,
        "SELECT COUNT(*) FROM samples s JOIN groups g ON s.grp = g.id WHERE g.state <> 'open'",
    )


def count(folder: Path, query: str) -> int:
    """Return the one number that the ledger of a run answers."""
    with closing(sqlite3.connect(folder / LEDGER_FILE)) as db:
        found: int = db.execute(query).fetchone()[0]
        return found


DECODED = 3
"""Decode steps without which the first credit of a run does not end."""


class Trace:
    """What happened in which order: decode steps, and credit as it begins and ends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[str] = []
        self.credit_began, self.enough = threading.Event(), threading.Event()
        self.weights: dict[str, Tensor] = {}
        """What the engine samples with."""
        advance, load = LocalEngine._advance, LocalEngine.load_weights

        def note_step(engine: LocalEngine, *args: Any) -> None:
            advance(engine, *args)
            self.events.append("decode")
            if self.events[-DECODED:] == ["decode"] * DECODED and self.credit_began.is_set():
                self.enough.set()

        def note_weights(engine: LocalEngine, weights: Mapping[str, Tensor], version: int) -> None:
            self.weights = {name: tensor.clone() for name, tensor in weights.items()}
            load(engine, weights, version)

        monkeypatch.setattr(LocalEngine, "_advance", note_step)
        monkeypatch.setattr(LocalEngine, "load_weights", note_weights)

    def held_up(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``call``, which the first time waits for decode steps of episodes that go on."""

        def wait(*args: Any, **kwargs: Any) -> Any:
            if self.credit_began.is_set():
                return call(*args, **kwargs)
            self.events.append("credit begins")
            self.credit_began.set()
            self.enough.wait(60)
            found = call(*args, **kwargs)
            self.events.append("credit ends")
            return found

        return wait


@pytest.mark.parametrize(
    ("algo", "part"),
    [
        ("igpo", "turngym.trainers.credit.sources.branches.TreeScorer.__call__"),
        ("archer", "turngym.trainers.credit.critics.utterance_critic.ReplayedCritic.train"),
        ("mine", "helpers.custom_credit.summed"),
    ],
)
def test_no_decode_step_waits_for_credit(
    algo: str, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later groups answer only while credit of the first is computed, which waits for their tokens.

    In the event loop credit would wait in vain.
    """
    trace, leases = Trace(monkeypatch), list[Lease]()
    monkeypatch.setattr(part, trace.held_up(resolve_name(part)))
    reset, step, assign = Lease.reset, Lease.step, Run.assign_credit

    def note(lease: Lease, **options: Any) -> Any:
        if type(lease._pool) is EnvPool:  # of training, not of an evaluation
            leases.append(lease)
        return reset(lease, **options)

    async def step_later(lease: Lease, action: str) -> Any:
        while lease in leases[4:] and not trace.credit_began.is_set():
            await asyncio.sleep(0.001)
        return await step(lease, action)

    async def assign_with_newest(run: Run, chosen: Any) -> Any:
        scoring = full_state(run.model)
        assert all(torch.equal(scoring[name], trace.weights[name]) for name in trace.weights)
        credit = await assign(run, chosen)
        assert run.engine.version == run.state.step  # nothing was published meanwhile
        return credit

    monkeypatch.setattr(Lease, "reset", note)
    monkeypatch.setattr(Lease, "step", step_later)
    monkeypatch.setattr(Run, "assign_credit", assign_with_newest)
    advantage = {"type": "custom", "function": "helpers.custom_credit:summed"}
    settings = {
        **SETTINGS,
        "env": {"id": "text/guessnumber"},
        "model": {**SETTINGS["model"], "context": 512},
        "warm_start": {"episodes": 0},
        "algo": {"name": "mine", "advantage": advantage} if algo == "mine" else algo,
        "learner": {},
        "rollout": {**SETTINGS["rollout"], "groups_per_step": 1, "stale": "drop"},
        "run": {"steps": 2, "checkpoint_every": 2, "tensorboard": False},
    }
    train(load_config(TrainConfig, [settings]), tmp_path)
    during = trace.events[trace.events.index("credit begins") : trace.events.index("credit ends")]
    assert during.count("decode") >= DECODED
    assert len(steps(tmp_path)) == 2


def test_no_episode_waits_for_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later groups step only while the first update is written, and that waits for a step."""
    writing, stepped, leases = threading.Event(), threading.Event(), list[Lease]()
    reset, step = Lease.reset, Lease.step
    went_on = list[bool]()

    def note(lease: Lease, **options: Any) -> Any:
        if type(lease._pool) is EnvPool:  # of training, not of an evaluation
            leases.append(lease)
        return reset(lease, **options)

    async def step_later(lease: Lease, action: str) -> Any:
        while lease in leases[4:] and not writing.is_set():
            await asyncio.sleep(0.001)
        if writing.is_set():
            stepped.set()
        return await step(lease, action)

    def write(folder: Path, label: str, **parts: Any) -> Path:
        if label == "train-1":
            writing.set()
            went_on.append(stepped.wait(60))
        return save_checkpoint(folder, label, **parts)

    monkeypatch.setattr(Lease, "reset", note)
    monkeypatch.setattr(Lease, "step", step_later)
    monkeypatch.setattr("turngym.trainers.runs.run.save_checkpoint", write)
    rollout = {"groups_per_step": 1, "stale": "drop"}
    run = {"steps": 2, "checkpoint_every": 1}
    train(load_config(TrainConfig, [SETTINGS, {"rollout": rollout, "run": run}]), tmp_path)
    assert went_on == [True]
    assert len(steps(tmp_path)) == 2


class Straggler:
    """Holds one step of one episode until a batch that satisfies a condition has been taken."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, lease: int, step: int) -> None:
        self.batches: list[Chosen] = []
        self.until: Callable[[Chosen], bool] = lambda chosen: True
        leases: list[Lease] = []
        steps: Counter[Lease] = Counter()
        old_reset, old_step, assign = Lease.reset, Lease.step, Run.assign_credit

        def note(one: Lease, **options: Any) -> Any:
            if type(one._pool) is EnvPool:  # of training, not of an evaluation
                leases.append(one)
            return old_reset(one, **options)

        async def slowly(one: Lease, action: str) -> Any:
            steps[one] += 1
            is_slow = one in leases[lease : lease + 1] and steps[one] == step
            while is_slow and not any(map(self.until, self.batches)):
                await asyncio.sleep(0.001)
            return await old_step(one, action)

        async def see(run: Run, chosen: Chosen) -> Any:
            self.batches.append(chosen)
            return await assign(run, chosen)

        monkeypatch.setattr(Lease, "reset", note)
        monkeypatch.setattr(Lease, "step", slowly)
        monkeypatch.setattr(Run, "assign_credit", see)

    @property
    def groups(self) -> list[TrajectoryGroup]:
        """All groups that were trained on."""
        return [group for chosen in self.batches for group in chosen.groups]


def test_late_members_are_trained_beside_the_group_that_closed_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Straggler(monkeypatch, lease=3, step=1)
    slow.until = lambda chosen: any(len(group.trajectories) == 3 for group in chosen.groups)
    group = {"quorum": 3, "patience": 0.01, "late": "carry"}
    rollout = {"staleness": 4, "groups_per_step": 1, "concurrency": 8, "group": group}
    train(load_config(TrainConfig, [SETTINGS, {"rollout": rollout}]), tmp_path)
    trained = [[t.num_sampled_tokens > 0 for t in one.trajectories] for one in slow.groups]
    assert [True] * 3 in trained
    assert [False] * 3 + [True] in trained
    assert steps(tmp_path)[-1]["group/late_members"] >= 1
    assert audit(tmp_path).problems == []


def test_turns_of_an_episode_that_still_runs_are_trained_before_they_get_too_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Straggler(monkeypatch, lease=0, step=2)
    slow.until = lambda chosen: any(map(is_partial, chosen.groups))
    rollout = {"staleness": 1, "groups_per_step": 1, "group_size": 2, "stale": "train_partial"}
    settings = {"algo": "ppo", "rollout": {**rollout, "concurrency": 6}}
    train(load_config(TrainConfig, [SETTINGS, settings]), tmp_path)
    [[part]] = [one.trajectories for one in slow.groups if is_partial(one)]
    assert [turn.num_sampled_tokens > 0 for turn in part.turns] == [True]
    # What a critic says of its last state goes by what the environment said of it.
    assert part.final_observation
    assert part.final_observation != part.turns[0].observation
    rows = steps(tmp_path)
    assert rows[-1]["lag/violations"] == 0
    assert rows[-1]["group/partial"] == 1
    assert audit(tmp_path).problems == []


def is_partial(group: TrajectoryGroup) -> bool:
    """Return whether a group is the first turns of one episode."""
    return any(trajectory.metadata.get("partial") for trajectory in group.trajectories)


@pytest.mark.parametrize("admission", ["ready_first", "in_order"])
def test_in_turns_is_staleness_0_to_the_bit(tmp_path: Path, admission: str) -> None:
    shared = {"filter": {"spread": True, "max_rounds": 2}, "sampler": {"type": "thompson"}}
    for mode in ("sync", "overlap"):
        settings = {
            **SETTINGS,
            "selection": shared,
            "warm_start": {"episodes": 0},
            "rollout": {
                **SETTINGS["rollout"],
                "mode": mode,
                "staleness": 0,
                "admission": admission,
            },
            "run": {"steps": 3, "checkpoint_every": 3, "tensorboard": False},
        }
        train(load_config(TrainConfig, [settings]), tmp_path / mode)
    in_turns, overlapped = (steps(tmp_path / mode) for mode in ("sync", "overlap"))
    assert len(in_turns) == 3
    for row, other in zip(in_turns, overlapped, strict=True):
        compared = row.keys() - {"credit/sampled_tokens", "credit/drawn_tokens"}  # of one mode only
        assert {name: row[name] for name in compared} == {name: other[name] for name in compared}
    weights = [weights_of(tmp_path / mode) for mode in ("sync", "overlap")]
    assert weights[0] == weights[1]


def weights_of(folder: Path) -> bytes:
    """Return the weights of a run's newest checkpoint."""
    newest = max((folder / "checkpoints").iterdir())
    return (newest / "model" / "model.safetensors").read_bytes()


def test_prefixes_of_successes_are_played_and_never_trained(tmp_path: Path) -> None:
    config = load_config(
        TrainConfig,
        [
            SETTINGS,
            {
                "algo": "grpo",
                "rollout": {"staleness": 0, "admission": "in_order"},
                "selection": {"condition": {"type": "prefix", "share": 1.0, "below": 1.0}},
                "env": {"num_train_tasks": 10},
            },
        ],
    )
    train(config, tmp_path)
    rows = steps(tmp_path)
    assert sum(row.get("selection/conditioned_groups", 0.0) for row in rows) > 0
    assert max(r["train/behaviour_gap_max"] for r in rows if r["train/tokens"]) < 1e-3


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algo=seeupo", "learner.num_minibatches=1"], "wanted rollout.mode='sync'"),
        (["algo=grpo", "rollout.stale=train_partial"], "'group_relative' cannot judge"),
        (["algo=archer", "algo.advantage.critic.bootstrap_truncated=false",
          "learner.num_minibatches=1", "rollout.stale=train_partial"], "'archer' cannot judge"),
        (["rollout.freshest=true"], "belong to admission='windowed'"),
        (["algo.loss.old_policy=current", "learner.num_minibatches=1",
          'algo.loss.correction={"weight": "none", "reject": []}'], "lets older weights sample"),
        (["rollout.group.late=carry", "rollout.staleness=0"], "staleness of 1 or more"),
        (["rollout.group.late=carry", "rollout.mode=sync"], "staleness of 1 or more"),
        (["rollout.group.quorum=9"], "wanted group.quorum <= group_size, got 9 > 4"),
    ],
)  # fmt: skip
def test_settings_that_cannot_overlap_are_refused(
    tmp_path: Path, overrides: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        train(load_config(TrainConfig, [SETTINGS, *overrides]), tmp_path)
