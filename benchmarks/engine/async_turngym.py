"""turngym's side of ``async_peer.py``: an overlapped run whose engine is a vLLM server.

    async_turngym.py --model DIR --output FILE --vllm PYTHON --steps N --warm-up N --kill-at N

runs in this process; turngym starts the server, and after a kill starts it again.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what all parts share
sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
from async_work import (
    ACTION,
    CONTEXT,
    GROUP,
    GROUPS,
    LEARNING_RATE,
    LONGEST,
    ROWS,
    STALENESS,
    TURNS,
    Measured,
    Order,
    kill_engine,
    observation,
    opening,
    order_of,
    score,
    server_counts,
)

import turngym
from turngym.agents.engine.vllm.children import HOST, free_port
from turngym.config import load_config
from turngym.environments.core.actions import Action, Commands
from turngym.environments.core.env import Outcome
from turngym.environments.text.base import TextGame
from turngym.rollouts.scheduler.audit import audit
from turngym.trainers.loop import train
from turngym.trainers.metrics import read_metrics
from turngym.trainers.runs.progress import Silent
from turngym.trainers.settings.train import TrainConfig

GAME = "bench/Words-v0"


class AnyText(Commands):
    """Every text is an action, the empty one too."""

    def __init__(self) -> None:
        super().__init__({"say": "say {text...:raw}"})

    def parse(self, text: str) -> Action:
        """Return ``text`` as what is said."""
        return Action(name="say", arguments={"text": text})


class WordsEnv(TextGame):
    """Words, and the same words in another order after each action.

    Action: any text.
    Observation: words.
    Reward: after the last turn, the share of characters with an even code.
    Start: random words.
    End: terminated after ``TURNS`` turns.
    """

    name = "words"
    rules = "Say anything."
    commands = AnyText()
    state: tuple[str, list[str]]

    def new_game(self, rng: np.random.Generator) -> tuple[str, list[str]]:
        """Choose the words."""
        return opening(int(rng.integers(2**31))), []

    def describe(self) -> str:
        """Return the words."""
        first, said = self.state
        return observation(first, len(said))

    def turn(self, action: Action) -> Outcome:
        """Take what was said, and show the words again."""
        said = self.state[1]
        said.append(action.arguments["text"])
        is_over = len(said) == TURNS
        return Outcome(
            text=self.describe(), reward=score(said) if is_over else 0.0, terminated=is_over
        )

    def score(self) -> float:
        """Return the reward of what was said."""
        return score(self.state[1])

    def legal_actions(self) -> list[str]:
        """Return one."""
        return ["go"]

    def expert_action(self) -> str:
        """Return it."""
        return "go"


def settings(order: Order, port: int) -> dict[str, Any]:
    """Return the settings of the run."""
    return {
        "env": {"id": GAME},
        "model": {"type": "pretrained", "path": str(order.model), "context": CONTEXT},
        "engine": {"type": "vllm", "python": order.vllm, "port": port},
        "warm_start": {"episodes": 0},
        "algo": {
            "name": "grpo",
            "loss": {"old_policy": "behaviour", "aggregation": "token_mean"},
        },
        "learner": {"lr": LEARNING_RATE, "microbatch_tokens": ROWS * LONGEST},
        "rollout": {
            "mode": "overlap",
            "staleness": STALENESS,
            "groups_per_step": GROUPS,
            "group_size": GROUP,
            "concurrency": GROUPS * GROUP * STALENESS,
            "max_new_tokens": ACTION,
        },
        "evaluation": {"every": 1000, "validation_tasks": 1, "held_out_tasks": 1},
        "run": {"steps": order.steps, "checkpoint_every": 1000, "tensorboard": False},
    }


class Watch(Silent):
    """Notes when steps end, and what the server counted; kills it where that is wanted."""

    def __init__(self, order: Order, url: str) -> None:
        self.ends: list[float] = []
        self.counts: list[dict[str, float]] = []
        self._order, self._url, self._phase = order, url, ""

    def phase(self, name: str, total: int | None) -> None:
        """Note the phase."""
        self._phase = name

    def advance(self, done: int, metrics: Mapping[str, float]) -> None:
        """Note the end of step number ``done``, counted from 1."""
        if self._phase != "reinforcement":
            return
        self.ends.append(time.perf_counter())
        print("step", done, time.time(), flush=True)
        if done in (self._order.warm_up, self._order.steps) and not self._order.kill_at:
            self.counts.append(server_counts(self._url))
        if done == self._order.kill_at:
            step_s = self.ends[-1] - self.ends[-2]
            threading.Timer(step_s / 2, self._kill).start()

    def _kill(self) -> None:
        print("killed", kill_engine(os.getpid()), time.time(), flush=True)


def run(order: Order, folder: Path) -> Measured:
    """Train, and return what was measured."""
    turngym.register(GAME, f"{__name__}:WordsEnv", family="bench", max_turns=TURNS + 1)
    port = free_port(0)
    watch = Watch(order, f"http://{HOST}:{port}")
    config = load_config(TrainConfig, [{"algo": "grpo"}, settings(order, port)])
    result = train(config, folder, progress=watch)
    laps = [r for r in read_metrics(folder / "timings.jsonl") if "rollout_s" in r]
    rows = [r for r in read_metrics(folder / "metrics.jsonl") if "train/tokens" in r]
    found, skipped = audit(folder), order.warm_up
    more = {
        "updates": result.updates,
        "faults": result.faults,
        "episodes": result.episodes,
        "audit": found.equation,
        "audit_is_clean": found.is_clean,
        "restarts": rows[-1]["engine/restarts"],
        "gap_max": max(row["train/behaviour_gap_max"] for row in rows),
        "update_s": [row["update_s"] for row in laps[order.warm_up :]],
        "lag_mean": rows[-1]["lag/tokens_mean"],
    }
    steps = [b - a for a, b in pairwise(watch.ends[skipped - 1 :])]
    publish = np.diff([row["engine/publish_s"] for row in rows])[skipped - 1 :].tolist()
    measured = Measured(
        side="turngym",
        step_s=steps,
        waited_s=[row["rollout_s"] for row in laps[skipped:]],
        publish_s=publish,
        trained=[row["train/tokens"] for row in rows[skipped:]],
        more=more,
    )
    if len(watch.counts) == 2:
        measured.sampled, measured.prompted = (
            watch.counts[1][name] - watch.counts[0][name] for name in ("sampled", "prompted")
        )
    return measured


def main() -> None:
    """Run, and write what was measured."""
    order = order_of()
    with tempfile.TemporaryDirectory() as folder:
        measured = run(order, Path(folder) / "run")
    order.output.write_text(json.dumps(asdict(measured)), encoding="utf-8")


if __name__ == "__main__":
    main()
