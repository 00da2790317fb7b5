"""What it costs a step that one of two engine servers is killed in the middle of it.

A small game whose environment waits before it answers (``scheduler/overlap.py`` has it), two of
our policy servers, training in turns. Of three updates the second loses a server at a random
moment, and the third is left for it to come back; the first is the measure. No episode may be lost
by it.

    kill_cost.py              twelve kills, some minutes
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

import numpy as np
from overlap import GAME, LIGHTS, SETTINGS, Waits

import turngym
from harness import machine
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
KILLED, CLEAN = 1, 0
"""Places of an update among three."""


class Killer(Silent):
    """Kills a server of this process in the middle of each second of three updates."""

    def __init__(self) -> None:
        self.step_s, self.killed, self._began = 5.0, list[int](), 0.0
        self._rng = np.random.default_rng(3)

    def phase(self, name: str, total: int | None) -> None:
        """Let environments wait in reinforcement alone."""
        Waits.mean_s = LATENCY_S if name == "reinforcement" else 0.0
        self._began = time.monotonic()

    def advance(self, done: int, metrics: Mapping[str, float]) -> None:
        """Note how long a clean update takes, and kill in the next."""
        now = time.monotonic()
        if Waits.mean_s and done % 3 == KILLED:  # the clean one is over, the next begins
            self.step_s = now - self._began
            wait_s = self.step_s * self._rng.uniform(0.2, 0.8)
            threading.Timer(wait_s, self._kill, [done]).start()
        self._began = now

    def _kill(self, step: int) -> None:
        found = servers_of_ours()
        if len(found) == 2:
            os.kill(int(self._rng.choice(found)), signal.SIGKILL)
            self.killed.append(step)


def servers_of_ours() -> list[int]:
    """Return the processes that this one started as policy servers."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text().rpartition(")")[2].split()
            line = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if int(stat[1]) == os.getpid() and stat[0] != "Z" and b"--weights" in line:
            found.append(int(folder.name))
    return found


def measure(kills: int, folder: Path) -> dict[str, Any]:
    """Train, and return the seconds of steps with and without a kill."""
    killer = Killer()
    config = load_config(TrainConfig, [SETTINGS, OWN, {"run": {"steps": 3 * kills}}])
    result = train(config, folder, progress=killer)
    rows = [json.loads(line) for line in (folder / "timings.jsonl").read_text().splitlines()]
    steps = {
        row["step"]: sum(row.get(name, 0.0) for name in ("rollout_s", "credit_s", "update_s"))
        for row in rows
        if row["phase"] == "train"
    }
    # Those that began with both servers; so the first, which warms up, is none.
    metrics = [row for row in read_metrics(folder / "metrics.jsonl") if "engine/serving" in row]
    unscored = sum(row["rollout/unscored"] for row in metrics)
    if result.faults or unscored:
        raise RuntimeError(f"{result.faults} faults, {unscored} unscored episodes: wanted none")
    whole = {row["step"] + 1 for row in metrics if row["engine/serving"] == 2}
    killed = {step: steps[step] for step in killer.killed if step in whole}
    clean = {step: steps[step] for step in steps if step % 3 == CLEAN and step in whole}
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
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--json", type=Path, help="also write every step here")
    arguments = parser.parse_args()
    turngym.register(GAME, "overlap:LightsEnv", family="bench", max_turns=LIGHTS + 1)
    made = EpisodeRunner.__init__

    def waiting(runner: EpisodeRunner, config: TrainConfig) -> None:
        made(runner, config)
        makers = runner.make_env.items()
        runner.make_env = {env_id: partial(Waits, make) for env_id, make in makers}

    EpisodeRunner.__init__ = waiting  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        found = measure(arguments.kills, Path(folder))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for name in ("clean_s", "killed_s"):
        median = statistics.median(found[name].values())
        print(f"{name}: median {median:.2f} of {len(found[name])}")
    print(f"ratio {found['ratio']:.3f}, wanted at most 1.15; {found['faults']} faults")
    return 0 if found["ratio"] <= 1.15 else 1


if __name__ == "__main__":
    raise SystemExit(main())
