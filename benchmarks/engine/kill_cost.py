"""What it costs a step that one of two engine servers is killed in the middle of it.

A small game whose environment waits before it answers (``scheduler/overlap.py`` has it), two of our
policy servers, training in turns. Where both servers are there when a step begins, a server is
killed in every second such step at a random moment; the others are the measure. No episode may be
lost by it.

    kill_cost.py              sixty steps, some minutes
    kill_cost.py --json FILE  also write every step

Goal: a step with a kill takes at most 1.15 times a step without, by the medians.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what all parts share
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scheduler"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

import numpy as np
from overlap import GAME, LIGHTS, SETTINGS, Waits

import turngym
from harness import machine
from helpers.servers import servers_of_ours
from turngym.config import load_config
from turngym.trainers.loop import train
from turngym.trainers.metrics import read_metrics
from turngym.trainers.runs.episode_runner import EpisodeRunner
from turngym.trainers.runs.progress import Silent
from turngym.trainers.settings.train import TrainConfig

LATENCY_S = 0.6
OWN: dict[str, Any] = {
    "engine": {"type": "vllm", "server": "turngym", "replicas": 2, "restarts": 1000},
    "algo": "grpo",
    "warm_start": {"max_steps": 20, "evaluate_every": 20},
    "rollout": {"groups_per_step": 24, "concurrency": 96},
    "evaluation": {"held_out_tasks": 16},
}


class Killer(Silent):
    """Kills a server of this process in every second step that begins with both.

    Args:
        folder: Of the run.
    """

    def __init__(self, folder: Path) -> None:
        self.clean: list[int] = []
        self.killed: list[int] = []
        self._folder, self._began, self._step_s = folder, 0.0, 5.0
        self._rng = np.random.default_rng(3)

    def phase(self, name: str, total: int | None) -> None:
        """Let environments wait in reinforcement alone."""
        Waits.mean_s = LATENCY_S if name == "reinforcement" else 0.0

    def advance(self, done: int, metrics: Mapping[str, float]) -> None:
        """Decide what becomes of the step that begins now, which is number ``done``."""
        if not Waits.mean_s:
            return
        now = time.monotonic()
        if self.clean[-1:] == [done - 1]:
            self._step_s = now - self._began
        self._began = now
        rows = read_metrics(self._folder / "metrics.jsonl")
        serving = [row["engine/serving"] for row in rows if "engine/serving" in row]
        if serving[-1:] != [2.0]:
            return
        if len(self.clean) <= len(self.killed):
            self.clean.append(done)
        else:
            self.killed.append(done)
            wait_s = self._step_s * self._rng.uniform(0.2, 0.8)
            threading.Timer(wait_s, self._kill).start()

    def _kill(self) -> None:
        os.kill(int(self._rng.choice(servers_of_ours())), signal.SIGKILL)


def measure(steps: int, folder: Path) -> dict[str, Any]:
    """Train, and return the seconds of steps with and without a kill."""
    killer = Killer(folder)
    config = load_config(TrainConfig, [SETTINGS, OWN, {"run": {"steps": steps}}])
    result = train(config, folder, progress=killer)
    rows = [json.loads(line) for line in (folder / "timings.jsonl").read_text().splitlines()]
    seconds = {
        row["step"]: sum(row.get(name, 0.0) for name in ("rollout_s", "credit_s", "update_s"))
        for row in rows
        if row["phase"] == "train"
    }
    metrics = [row for row in read_metrics(folder / "metrics.jsonl") if "rollout/unscored" in row]
    unscored = sum(row["rollout/unscored"] for row in metrics)
    if result.faults or unscored:
        raise RuntimeError(f"{result.faults} faults, {unscored} unscored episodes: wanted none")
    killed = {step: seconds[step] for step in killer.killed if step in seconds}
    clean = {step: seconds[step] for step in killer.clean if step in seconds}
    ratio = statistics.median(killed.values()) / statistics.median(clean.values())
    return {
        "machine": machine(),
        "latency_s": LATENCY_S,
        "turns": LIGHTS,
        "clean_s": clean,
        "killed_s": killed,
        "ratio": ratio,
        "episodes": result.episodes,
        "faults": result.faults,
        "load": os.getloadavg()[0],
    }


def main() -> int:
    """Measure, and say whether the goal is met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--json", type=Path, help="also write every step here")
    arguments = parser.parse_args()
    turngym.register(GAME, "overlap:LightsEnv", family="bench", max_turns=LIGHTS + 1)
    made = EpisodeRunner.__init__

    def waiting(runner: EpisodeRunner, *arguments: Any) -> None:
        made(runner, *arguments)
        makers = runner.make_env.items()
        runner.make_env = {env_id: partial(Waits, make) for env_id, make in makers}

    EpisodeRunner.__init__ = waiting  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        found = measure(arguments.steps, Path(folder))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for name in ("clean_s", "killed_s"):
        median = statistics.median(found[name].values())
        print(f"{name}: median {median:.2f} of {len(found[name])}")
    print(f"ratio {found['ratio']:.3f}, wanted at most 1.15; {found['faults']} faults")
    return 0 if found["ratio"] <= 1.15 else 1


if __name__ == "__main__":
    raise SystemExit(main())
