"""A run chooses its data: what is dropped is accounted for, and a stopped run ends the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from helpers.signals import SIGNALS, register_for_a_while
from turngym.config import load_config
from turngym.errors import ConfigError
from turngym.trainers.loop import train
from turngym.trainers.metrics import read_metrics
from turngym.trainers.runs.checkpoints import find_model
from turngym.trainers.settings.train import TrainConfig

SETTINGS: dict[str, Any] = {
    "env": {"id": SIGNALS, "num_train_tasks": 18},
    "model": {"hidden": 32, "layers": 1, "heads": 2, "context": 64, "vocab_size": 280},
    "warm_start": {
        "episodes": 64,
        "max_steps": 120,
        "evaluate_every": 120,
        "lr": 3e-3,
        "lr_warmup_steps": 10,
        "target_success": 1.0,
    },
    "algo": "grpo",
    "learner": {"lr": 1e-3},
    "rollout": {"groups_per_step": 4, "group_size": 4, "max_new_tokens": 6},
    "evaluation": {"every": 4, "validation_tasks": 6, "held_out_tasks": 6},
    "run": {"steps": 4, "checkpoint_every": 1, "tensorboard": False},
}
CHOICES: dict[str, dict[str, Any]] = {
    "bandit": {"sampler": {"type": "bandit"}, "filter": {"spread": True, "max_rounds": 3}},
    "thompson": {
        "sampler": {"type": "thompson"},
        "budget": {"type": "variance"},
        "replay": {"type": "successes"},
    },
    "imitation": {
        "budget": {"type": "confidence"},
        "replay": {"type": "imitation", "warmup": 2},
        "keep_attempts": 2,
    },
}


@pytest.fixture(autouse=True)
def games(monkeypatch: pytest.MonkeyPatch) -> None:
    register_for_a_while(monkeypatch)


class BreaksOff:
    """Raises after some update, when nothing more is written."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.name = ""

    def phase(self, name: str, total: int | None) -> None:
        self.name = name

    def advance(self, done: int, metrics: Any) -> None:
        if (self.name, done) == ("reinforcement", self.step):
            raise ConnectionAbortedError("broken off")

    def note(self, text: str) -> None:
        pass


def rows(folder: Path) -> list[dict[str, Any]]:
    return [r for r in read_metrics(folder / "metrics.jsonl") if "train/tokens" in r]


@pytest.mark.parametrize("name", CHOICES)
def test_a_run_that_chooses_ends_the_same_wherever_it_was_broken_off(
    tmp_path: Path, name: str
) -> None:
    config = load_config(TrainConfig, [SETTINGS, {"selection": CHOICES[name]}])
    train(config, tmp_path / "straight")
    with pytest.raises(ConnectionAbortedError):
        train(config, tmp_path / "broken", progress=BreaksOff(2))
    train(config, tmp_path / "broken")
    for file in ("metrics.jsonl",):
        assert (tmp_path / "broken" / file).read_bytes() == (
            tmp_path / "straight" / file
        ).read_bytes()
    weights = [
        (find_model(tmp_path / run) / "model.safetensors").read_bytes()
        for run in ("straight", "broken")
    ]
    assert weights[0] == weights[1]


def test_dropped_groups_are_replaced_and_counted(tmp_path: Path) -> None:
    config = load_config(TrainConfig, [SETTINGS, {"selection": CHOICES["bandit"]}])
    train(config, tmp_path)
    for row in rows(tmp_path):
        played, dropped = row["selection/groups_played"], row.get("selection/dropped_no_spread", 0)
        assert played == row["rollout/episodes"] / 4
        assert row["rollout/groups_used"] == played - dropped <= 4
        assert row["rollout/groups_zero_spread"] == 0
        assert played - dropped == 4 or played == 12
    assert sum(row.get("selection/dropped_no_spread", 0) for row in rows(tmp_path)) > 0


def test_no_choice_is_the_loop_as_it_was(tmp_path: Path) -> None:
    """A belief that nobody reads changes nothing."""
    for name, selection in (("plain", {}), ("idle", {"decay": 0.5})):
        train(load_config(TrainConfig, [SETTINGS, {"selection": selection}]), tmp_path / name)
    metrics = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("plain", "idle")]
    assert metrics[0] == metrics[1]


def test_an_environment_joins_a_mix_at_its_update_however_many_groups_are_dropped(
    tmp_path: Path,
) -> None:
    """Updates were counted by groups begun, and dropped ones made them pass too fast."""
    mix = {"mix": [{"id": SIGNALS}, {"id": "text/guessnumber", "from_step": 2}]}
    own = {"env": mix, "selection": {"filter": CHOICES["bandit"]["filter"]}}
    settings = {key: value for key, value in SETTINGS.items() if key != "env"}
    overrides = ["model.context=256", "warm_start.max_steps=30"]
    config = load_config(TrainConfig, [settings, own, *overrides])
    train(config, tmp_path / "straight")
    joined = [any("GuessNumber" in name for name in row) for row in rows(tmp_path / "straight")]
    assert joined == [False, False, True, True]
    with pytest.raises(ConnectionAbortedError):
        train(config, tmp_path / "broken", progress=BreaksOff(3))
    train(config, tmp_path / "broken")
    assert rows(tmp_path / "broken") == rows(tmp_path / "straight")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (['selection.sampler={"type": "thompson"}'], "set env.num_train_tasks"),
        (['selection.replay={"type": "successes"}'], "set env.num_train_tasks"),
        (["selection.keep_attempts=9"], "keep_attempts=9 is more than rollout.group_size=8"),
        (["algo=ppo", "selection.keep_attempts=2"], "need advantage.type='group_relative'"),
        (
            ['selection.budget={"type": "variance", "most": 4}', "env.num_train_tasks=99"],
            "group_size=8 must lie between least=2 and most=4",
        ),
        (['selection.budget={"type": "variance", "least": 9, "most": 4}'], "must not be more than"),
        (
            [
                'selection.budget={"type": "variance"}',
                "env.num_train_tasks=99",
                "rollout.group.quorum=4",
            ],
            "quorum <= group_size, got 4 > 2 of the smallest group",
        ),
        (["selection.filter={\"mean_low\": 0.8, \"mean_high\": 0.2}"], "must not be more than"),
        (
            ['selection.replay={"type": "imitation"}', "algo.loss.aggregation=prompt_mean"],
            "wanted no loss.aggregation='prompt_mean'",
        ),
    ],
)  # fmt: skip
def test_choices_that_cannot_work_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(TrainConfig, ["env.id=text/maze", *overrides])
