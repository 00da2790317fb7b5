"""A browser, a sandbox and a game in one run: trained on and evaluated together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import turngym
from turngym.config import load_config
from turngym.environments.web import chromium
from turngym.records import read_trajectories
from turngym.registry import find
from turngym.trainers.loop import train
from turngym.trainers.metrics import read_metrics
from turngym.trainers.settings.train import TrainConfig

MIX = ("web/miniwob-focus-text-2", "swe/bugs-mini", "text/guessnumber")
SETTINGS: dict[str, Any] = {
    "env": {"mix": [{"id": name, "options": {"max_turns": 3}} for name in MIX]},
    "model": {"hidden": 16, "layers": 1, "heads": 1, "context": 512, "vocab_size": 400},
    "warm_start": {"episodes": 6, "max_steps": 2},
    "algo": "ppo",  # its critic teaches the policy although no attempt succeeds
    "rollout": {"groups_per_step": 3, "group_size": 2, "concurrency": 6, "max_new_tokens": 8},
    "evaluation": {"every": 2, "validation_tasks": 3, "held_out_tasks": 3},
    "run": {"steps": 2, "checkpoint_every": 2, "tensorboard": False},
}


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.extra("playwright", "miniwob", chromium.NEED)
@pytest.mark.extra("bwrap")
@pytest.mark.parametrize("mode", ["sync", "overlap"])
def test_web_swe_and_text_train_and_evaluate_in_one_run(tmp_path: Path, mode: str) -> None:
    own = [f"rollout.mode={mode}", "algo.advantage.critic.warmup_updates=0"]
    own += ["rollout.admission=in_order"] if mode == "overlap" else []  # slow groups count, too
    result = train(load_config(TrainConfig, [SETTINGS, *own]), tmp_path)
    assert (result.updates, result.faults) == (2, 0)
    rows = read_metrics(tmp_path / "metrics.jsonl")
    logged = {name for row in rows for name in row}
    ids = {find(name).id for name in MIX}
    for measured in ("rollout", "validation", "held_out/sampled"):
        assert {f"{measured}/success/{env_id}" for env_id in ids} <= logged
    assert result.after.sampled.faults == 0
    assert sum(row.get("train/tokens", 0.0) for row in rows) > 0
    expert = read_trajectories(tmp_path / "trajectories" / "expert.jsonl")
    assert {episode.env_id for episode in expert} == ids
    for name in MIX:
        found = turngym.evaluate(name, f"run:{tmp_path}", episodes=1, max_turns=2)
        assert (found.episodes, found.faults) == (1, 0)
