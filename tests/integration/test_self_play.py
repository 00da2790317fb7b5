"""A policy that is trained as every player of a game, or as one of them against an opponent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import turngym
from turngym.config import load_config
from turngym.errors import ConfigError
from turngym.records import read_trajectories
from turngym.reports.export import table
from turngym.trainers.loop import train
from turngym.trainers.metrics import read_metrics
from turngym.trainers.settings.train import TrainConfig

SMALL: dict[str, Any] = {
    "env": {"id": "text/tictactoe"},
    "model": {"hidden": 32, "layers": 1, "heads": 2, "context": 256, "vocab_size": 300},
    "warm_start": {
        "episodes": 48,
        "expert_noise": 0.8,
        "max_steps": 200,
        "evaluate_every": 200,
        "target_success": 1.0,
        "lr": 3e-3,
    },
    "rollout": {"groups_per_step": 4, "group_size": 4, "max_new_tokens": 6},
    "evaluation": {"every": 1, "validation_tasks": 6, "held_out_tasks": 6},
    "run": {"steps": 2, "tensorboard": False},
}


def config(*overrides: str) -> TrainConfig:
    return load_config(TrainConfig, [SMALL, *overrides])


def sides(folder: Path, step: int) -> list[Any]:
    return [*read_trajectories(folder / "trajectories" / f"train-{step:06d}.jsonl")]


def losses(folder: Path) -> list[float]:
    rows = read_metrics(folder / "metrics.jsonl")
    names = "train/loss", "train/grad_norm", "rollout/return_mean"
    return [r[name] for r in rows if "train/loss" in r for name in names]


def test_a_policy_is_trained_as_both_players(tmp_path: Path) -> None:
    result = train(config("algo=reinforce_pp"), tmp_path)
    assert result.episodes == 2 * 4 * 4
    rows = [r for r in read_metrics(tmp_path / "metrics.jsonl") if "rollout/tokens" in r]
    for step, row in enumerate(rows):
        found = sides(tmp_path, step)
        assert {one.player for one in found} <= {"X", "O"}
        for one in found:
            assert {turn.player for turn in one.turns} == {one.player}
            assert all(turn.num_sampled_tokens for turn in one.turns)
            assert f"you are {one.player}." in one.turns[0].observation[-1].content
        assert row["train/tokens"] == row["rollout/tokens"]  # those of both are trained
    assert {one.player for step in (0, 1) for one in sides(tmp_path, step)} == {"X", "O"}
    held_out = [*read_trajectories(tmp_path / "trajectories" / "best-held_out-000002.jsonl")]
    assert all(one.player in ("X", "O") for one in held_out)  # against chance
    exported = [*table(tmp_path / "trajectories" / "train-000000.jsonl", "turns")]
    assert {row["player"] for row in exported} == {"X", "O"}


def test_against_an_opponent_one_player_is_trained(tmp_path: Path) -> None:
    train(config("algo=reinforce_pp", "rollout.opponent=random"), tmp_path / "chance")
    (row, *_) = [
        r for r in read_metrics(tmp_path / "chance" / "metrics.jsonl") if "rollout/tokens" in r
    ]
    found = sides(tmp_path / "chance", 0)
    assert len({one.player for one in found}) == 1  # of one task
    assert row["train/tokens"] == row["rollout/tokens"]
    pool = f"rollout.opponent={tmp_path / 'chance'}, self"
    train(config(pool, "run.steps=1"), tmp_path / "next")
    (one, *_) = sides(tmp_path / "next", 0)
    assert {turn.player for turn in one.turns} == {one.player}


def test_a_run_that_goes_on_is_the_run_that_was_not_stopped(tmp_path: Path) -> None:
    train(config(), tmp_path / "straight")
    train(config("run.steps=1"), tmp_path / "stopped")
    train(config(), tmp_path / "stopped")
    assert losses(tmp_path / "stopped") == losses(tmp_path / "straight")


def test_in_turns_is_overlap_without_staleness(tmp_path: Path) -> None:
    shared = "algo=decoupled_ppo", "rollout.concurrency=8"
    train(config(*shared), tmp_path / "sync")
    overlap = ("rollout.mode=overlap", "rollout.staleness=0", "rollout.admission=in_order")
    train(config(*shared, *overlap), tmp_path / "overlap")
    assert losses(tmp_path / "overlap") == pytest.approx(losses(tmp_path / "sync"), rel=1e-5)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("rollout.opponent=stockfish",), "stockfish"),
        (("rollout.opponent=random,stockfish",), "stockfish"),
        (("evaluation.opponent=stockfish",), "stockfish"),
        (("env.id=text/maze", "rollout.opponent=random"), "has one player"),
        (("env.id=text/maze", "evaluation.opponent=expert"), "evaluation.opponent='expert'.* one"),
        (("algo=vineppo",), "several players"),
        (
            ("algo=ppo", "rollout.mode=overlap", "rollout.stale=train_partial"),
            "several players, and rollout.stale='train_partial'",
        ),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, overrides: tuple[str, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        train(config(*overrides), tmp_path)


def test_who_the_opponent_is_can_be_said_in_python() -> None:
    settings: dict[str, Any] = {"episodes": 40, "split": "train"}
    chance = turngym.evaluate("text/fourinarow", "expert", **settings)
    expert = turngym.evaluate("text/fourinarow", "expert", opponent="expert", **settings)
    assert chance.success is not None
    assert expert.success is not None
    assert chance.success > 0.9 > expert.success
    with pytest.raises(ConfigError, match="opponent: unknown agent 'stockfish'"):
        turngym.evaluate("text/fourinarow", "expert", opponent="stockfish")
    with pytest.raises(ConfigError, match="opponent='expert': there is one player in text/maze"):
        turngym.evaluate("text/maze", "expert", opponent="expert")
    seen: set[tuple[str, str]] = set()

    def first(observation: Any, info: Any) -> str:
        seen.add((info["player"], observation["text"][-2]))
        return str(info["legal_actions"][0])

    turngym.rollout("text/fourinarow", first, episodes=4, opponent="self")
    assert seen == {("X", "X"), ("O", "O")}
