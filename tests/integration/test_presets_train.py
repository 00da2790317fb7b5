"""``turngym train demo algo=NAME`` for every preset: one small update, or one line.

The recipe ``tools``, where actions are calls in the way of the chat template, for one of each kind.
"""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import pytest

from turngym.cli.main import main
from turngym.config import toml_files
from turngym.records import read_trajectories
from turngym.trainers.metrics import read_metrics

LACK = ("igpo", "sweet")
"""They need the true answer, which the maze does not give."""
PRESETS = sorted(set(toml_files(files("turngym.trainers") / "presets")) - set(LACK))
FEW = [
    "rollout.groups_per_step=2",
    "rollout.group_size=4",
    "evaluation.validation_tasks=1",
    "evaluation.held_out_tasks=1",
    "rollout.max_new_tokens=4",
    "run.tensorboard=false",
]
"""Makes a run of the demo short; the method and its optimizer steps stay as they are."""
WARM_UP = ("archer", "archer_demos", "digi_q", "offline_archer")
"""Their critics learn for updates of fifty steps before the first one: here for one of five."""
PLAYS_ON = "vineppo"
"""Its values come from eight episodes for each state: here from two."""
TRIES_FIRST = "a_star_po"
"""It tries every task before it trains: here two tasks, and a second update."""
TAUGHT = "opd"
"""It learns from a teacher: here from what it begins as."""
SHOWN = {"archer_demos": "advantage.critic", "spa_offline": "rewards.0"}
"""They learn from 64 episodes of the expert: here from four."""
CALLING = ("archer", "gigpo", "infopo")
"""A critic, states that come back, questions put to the policy."""


def imitated(recipe: str, out: Path, *settings: str) -> Path:
    """Return the model with which every method begins."""
    short = ["model.layers=1", "model.heads=1", "warm_start.episodes=8", "run.steps=0"]
    assert main(["train", recipe, *FEW, *short, *settings, "--out", str(out)]) == 0
    return next(out.glob("**/model.safetensors")).parent


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tiny = ["model.hidden=16", "model.vocab_size=270", "warm_start.max_steps=3"]
    return imitated("demo", tmp_path_factory.mktemp("start"), *tiny)


@pytest.fixture(scope="module")
def calling(tmp_path_factory: pytest.TempPathFactory) -> Path:
    small = ["model.hidden=48", "warm_start.max_steps=40", "warm_start.target_success=1"]
    return imitated("tools", tmp_path_factory.mktemp("calling"), *small, "warm_start.lr=4e-3")


def shorter(name: str) -> list[str]:
    """Return what makes a critic of its own learn for less long."""
    critic = "algo.advantage.critic"
    short = [f"algo.{SHOWN[name]}.demonstrations=4"] if name in SHOWN else []
    short += [f"{critic}.pretrain_steps=5"] if name == "archer_demos" else []
    short += ["algo.advantage.continuations=2"] if name == PLAYS_ON else []
    short += ["env.num_train_tasks=3", "run.steps=2"] if name == TRIES_FIRST else []
    return short + (
        [f"{critic}.warmup_updates=1", f"{critic}.steps_per_update=5"] if name in WARM_UP else []
    )


def begun(recipe: str, name: str, start: Path, out: Path) -> list[str]:
    begin = ["model.type=pretrained", f"model.path={start}", "model.context=512"]
    short = ["warm_start.episodes=0", "run.steps=1", *shorter(name)]
    short += [f"algo.teacher={start}"] if name == TAUGHT else []
    return ["train", recipe, f"algo={name}", *FEW, *begin, *short, "--out", str(out)]


@pytest.mark.parametrize("name", CALLING)
def test_actions_may_be_calls_in_the_way_of_the_chat_template(
    name: str, calling: Path, tmp_path: Path
) -> None:
    command = begun("tools", name, calling, tmp_path)
    assert main([*command, "rollout.max_new_tokens=12", "run.steps=2"]) == 0
    played = read_trajectories(tmp_path / "trajectories" / "train-000000.jsonl")
    turns = [turn for episode in played for turn in episode.turns]
    assert any(turn.action.tool_calls for turn in turns)
    assert any("train/loss" in row for row in read_metrics(tmp_path / "metrics.jsonl"))


@pytest.mark.parametrize("name", PRESETS)
def test_the_demo_trains_with_the_preset_alone(name: str, start: Path, tmp_path: Path) -> None:
    assert main(begun("demo", name, start, tmp_path)) == 0
    assert json.loads((tmp_path / "config.json").read_text())["config"]["algo"]["name"] == name
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert any("rollout/turns_mean" in row for row in rows)
    assert name != TRIES_FIRST or any("train/loss" in row for row in rows)


@pytest.mark.parametrize("name", LACK)
def test_what_the_demo_cannot_give_is_named_in_one_line_that_offers_a_command(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "demo", f"algo={name}", "--out", str(tmp_path / "run")]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "'text/maze' does not give" in line
    assert "the true answer" in line
    assert not (tmp_path / "run").exists()
    words = line.partition("For example: turngym ")[2].split()
    assert words == ["train", "guesscity", f"algo={name}"]
    tiny = ["model.hidden=16", "model.layers=1", "model.heads=1", "model.vocab_size=270"]
    short = ["warm_start.episodes=8", "warm_start.max_steps=1", "run.steps=1"]
    assert main([*words, *FEW, *tiny, *short, "--out", str(tmp_path / "run")]) == 0
