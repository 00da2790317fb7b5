"""Servers that are killed in the middle of a run: no episode notices, and no token is lost."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.servers import servers_of_ours
from helpers.signals import OVERLAPPED, register_for_a_while
from turngym.cli.output import exit_code
from turngym.config import load_config
from turngym.errors import EnginesLost
from turngym.rollouts.scheduler.audit import audit
from turngym.trainers.loop import train
from turngym.trainers.metrics import read_metrics
from turngym.trainers.runs.progress import Silent
from turngym.trainers.settings.train import TrainConfig

KILLS = 20 if os.environ.get("TURNGYM_ENGINES") == "full" else 3
LOST = r"no engine is left: .*(was ended by SIGKILL|[Cc]onnect|write request body|[Pp]ayload)"
"""The watch of the process may see it first, or a request that is on its way."""
NOTICED = r"^engine http://127.0.0.1:\d+: .*(SIGKILL|[Cc]onnect|write request body|[Pp]ayload)"
SETTINGS: dict[str, Any] = {
    **OVERLAPPED,
    "engine": {"type": "vllm", "server": "turngym", "restarts": 1000},
}


class Killer(Silent):
    """Kills a server of this process at a random moment of each update."""

    def __init__(self, kills: int) -> None:
        self.left, self.killed, self._phase = kills, 0, ""
        self.is_over = False
        """Servers that are started from now on are not meant."""
        self._rng = np.random.default_rng(7)

    def phase(self, name: str, total: int | None) -> None:
        self._phase = name
        self.advance(0, {})

    def advance(self, done: int, metrics: Mapping[str, float]) -> None:
        if self._phase == "reinforcement" and self.left:
            self.left -= 1
            threading.Thread(target=self._kill, args=(self._rng.uniform(0, 0.2),)).start()

    def _kill(self, after_s: float) -> None:
        time.sleep(after_s)
        until = time.monotonic() + 120
        while not (found := servers_of_ours()) and time.monotonic() < until:
            time.sleep(0.05)  # the other one has just been killed, too
        if found and not self.is_over:
            os.kill(self._rng.choice(found), signal.SIGKILL)
            self.killed += 1


@pytest.mark.slow
def test_killed_servers_cost_no_episode_and_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    register_for_a_while(monkeypatch)
    killer = Killer(KILLS)
    overrides = [f"run.steps={KILLS + 1}", "engine.replicas=2"]
    result = train(load_config(TrainConfig, [SETTINGS, *overrides]), tmp_path, progress=killer)
    rows = [row for row in read_metrics(tmp_path / "metrics.jsonl") if "train/tokens" in row]
    assert killer.killed == KILLS
    # Where updates are fast the last row is written before the first kill is noticed.
    said = [record.getMessage() for record in caplog.records]
    assert any(re.search(NOTICED, text) for text in said)
    assert sum(bool(re.search(r"starts, .*engine-[01]\.log$", text)) for text in said) >= 2
    assert result.updates == len(rows) == KILLS + 1
    assert result.faults == 0
    assert sum(row["rollout/unscored"] for row in rows) == 0
    assert max(row.get("mismatch/fresh_max", 0.0) for row in rows) < 1e-4
    assert all(row["lag/violations"] == 0 for row in rows)
    found = audit(tmp_path)
    assert found.is_clean, found.problems
    print(found.equation)
    assert not servers_of_ours()


@pytest.mark.slow
def test_a_run_without_any_server_left_is_saved_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_for_a_while(monkeypatch)
    settings = [SETTINGS, "run.steps=8", "engine.restarts=0"]  # not all sampled at the kill
    killer = Killer(3)
    with pytest.raises(EnginesLost, match=LOST) as caught:
        train(load_config(TrainConfig, settings), tmp_path, progress=killer)
    killer.is_over = True
    assert exit_code(caught.value) == 4
    assert "\n" not in str(caught.value)
    result = train(load_config(TrainConfig, settings), tmp_path)
    assert result.updates == 8
    assert result.faults == 0
    rows = [row for row in read_metrics(tmp_path / "metrics.jsonl") if "train/tokens" in row]
    assert [row["step"] for row in rows] == list(range(8))
    assert audit(tmp_path).is_clean
