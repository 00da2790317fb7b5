"""Learning while episodes go on: the bound holds, runs resume, nothing is trained on twice."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from helpers import custom_credit
from helpers.signals import SIGNALS, register_for_a_while
from helpers.train_process import stop_at
from turngym.config import load_config, to_toml
from turngym.errors import ConfigError
from turngym.rollouts.scheduler.pool import EnvPool, Lease
from turngym.trainers.loop import train
from turngym.trainers.metrics import read_metrics
from turngym.trainers.settings.train import TrainConfig

SETTINGS: dict[str, Any] = {
    "env": {"id": SIGNALS, "num_train_tasks": 24},
    "model": {"hidden": 32, "layers": 1, "heads": 2, "context": 64, "vocab_size": 280},
    "warm_start": {
        "episodes": 64,
        "max_steps": 120,
        "evaluate_every": 120,
        "lr": 3e-3,
        "lr_warmup_steps": 10,
        "target_success": 1.0,
    },
    "algo": "decoupled_ppo",
    "learner": {"lr": 2e-3, "num_minibatches": 2},
    "rollout": {
        "mode": "overlap",
        "staleness": 2,
        "groups_per_step": 4,
        "group_size": 4,
        "concurrency": 16,
        "max_new_tokens": 6,
    },
    "evaluation": {"every": 3, "validation_tasks": 6, "held_out_tasks": 6},
    "run": {"steps": 6, "checkpoint_every": 2, "tensorboard": False},
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
    assert [row["step"] for row in steps(out)] == list(range(6))


def test_episodes_go_on_while_credit_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second group steps only while credit of the first is computed, which waits for that."""
    meeting = custom_credit.Meeting()
    monkeypatch.setattr(custom_credit, "meeting", meeting)
    reset, step, leases = Lease.reset, Lease.step, list[Lease]()

    def note(lease: Lease, **options: Any) -> Any:
        if type(lease._pool) is EnvPool:  # of training, not of an evaluation
            leases.append(lease)
        return reset(lease, **options)

    async def step_later(lease: Lease, action: str) -> Any:
        is_later = lease in leases[SETTINGS["rollout"]["group_size"] :]
        while is_later and not meeting.credit_began.is_set():
            await asyncio.sleep(0.001)
        answer = await step(lease, action)
        if is_later:
            meeting.stepped.set()
        return answer

    monkeypatch.setattr(Lease, "reset", note)
    monkeypatch.setattr(Lease, "step", step_later)
    advantage = {"type": "custom", "function": "helpers.custom_credit:waiting"}
    algo = {"name": "mine", "rewards": [{"type": "env"}], "advantage": advantage}
    alone = {"groups_per_step": 1, "stale": "drop", "admission": "in_order"}
    few = {"steps": 2, "checkpoint_every": 2, "tensorboard": False}
    settings = {**SETTINGS, "algo": algo, "rollout": {**SETTINGS["rollout"], **alone}, "run": few}
    train(load_config(TrainConfig, [settings, "learner.num_minibatches=1"]), tmp_path)
    assert meeting.met == [True]
    assert len(steps(tmp_path)) == 2


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
        (["algo=ppo"], "wanted rollout.stale='drop' or"),
        (["algo.loss.old_policy=current", "learner.num_minibatches=1",
          'algo.loss.correction={"weight": "none", "reject": []}'], "lets older weights sample"),
        (["rollout.group.late=carry"], "Input should be 'drop'"),
        (["rollout.group.quorum=9"], "wanted group.quorum <= group_size, got 9 > 4"),
    ],
)  # fmt: skip
def test_settings_that_cannot_overlap_are_refused(
    tmp_path: Path, overrides: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        train(load_config(TrainConfig, [SETTINGS, *overrides]), tmp_path)
