"""SmolLM2-135M on two games, several runs at once on one GPU: a part of ``h200.py``."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from harness import child_environment
from turngym.trainers.metrics import read_metrics

OVERLAP = ("rollout.mode=overlap", "rollout.staleness=1", "algo=decoupled_ppo")
LANGUAGE = Path(__file__).parent / "smollm2.toml"
KEPT = (
    *("rollout/success", "rollout/tokens", "rollout/turns_mean", "train/tokens", "train/entropy"),
    *("train/behaviour_gap_mean", "train/behaviour_gap_max", "engine/publish_s"),
    *("mismatch/fresh_mean", "mismatch/fresh_p99", "mismatch/fresh_max", "mismatch/fresh_kl"),
)
"""Of each update."""
END_S = 12.0
Row = dict[str, Any]


def language(arguments: argparse.Namespace, flags: Sequence[str]) -> Iterator[Row]:
    """Train SmolLM2-135M on two games, all runs at once on one GPU.

    Args:
        arguments: Of the command.
        flags: Of each run's vLLM.
    """
    served = ["engine.type=vllm", "engine.server=turngym"]
    if arguments.python:
        served = ["engine.type=vllm", f"engine.python={arguments.python}"]
        if not arguments.dry:
            served += ["engine.gpus=1", "engine.first_gpu=0", "engine.gpu_memory=0.05"]
            served += [f"engine.args={json.dumps(list(flags))}", "engine.restarts=0"]
            served += ["learner.microbatch_tokens=4096"]
    cases = {
        "maze, grpo": ["demo", "algo=grpo"],
        "guesscity, grpo": ["guesscity", "algo=grpo"],
        "guesscity, igpo": ["guesscity", "algo=igpo"],
        "maze, grpo, float32": ["demo", "engine.dtype=float32", "learner.dtype=float32"],
        "maze, grpo, overlapped": ["demo", *OVERLAP],
        "maze, grpo, ipc": ["demo", "engine.weights=ipc"],
    }
    started = {
        (name, seed): _start(arguments, recipe, [*served, *settings, f"run.seed={seed}"])
        for name, (recipe, *settings) in cases.items()
        if re.search(arguments.only, name)
        for seed in range(arguments.seeds if name.count(",") == 1 else 1)
    }
    until = time.monotonic() + arguments.seconds
    for process, _ in started.values():
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.terminate()  # it saves itself
    for (name, seed), (process, folder) in started.items():
        yield {"case": name, "seed": seed, **_finished(process, folder)}


def _start(
    arguments: argparse.Namespace, recipe: str, settings: Sequence[str]
) -> tuple[subprocess.Popen[bytes], Path]:
    """Start a run with a folder of its own."""
    folder = Path(tempfile.mkdtemp(dir=arguments.work))
    short = ["run.tensorboard=false"] if arguments.dry else [str(LANGUAGE)]
    if arguments.dry:
        short += ["run.steps=2", "warm_start.max_steps=2", "evaluation.validation_tasks=4"]
        short += ["rollout.groups_per_step=2", "rollout.group_size=4"]
        short += ["evaluation.held_out_tasks=4"]
    command = [sys.executable, "-m", "turngym", "train", recipe, *short, *settings]
    command += ["--out", str(folder / "run")]
    with (folder / "engine-run.log").open("wb") as log:  # named so that it is kept
        process = subprocess.Popen(command, env=child_environment(), stdout=log, stderr=log)
    return process, folder / "run"


def _finished(process: subprocess.Popen[bytes], folder: Path) -> Row:
    """Return what a run gave that has ended, or ends now."""
    try:
        code = process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        code = process.wait()
    metrics = folder / "metrics.jsonl"
    found = read_metrics(metrics) if metrics.exists() else []
    rows = [row for row in found if "train/tokens" in row]
    if not rows:
        last = (folder.parent / "engine-run.log").read_text(errors="replace").strip().splitlines()
        return {"not_run": f"exit code {code}: {last[-1] if last else 'it said nothing'}"}
    timings = folder / "timings.jsonl"
    return {
        "evaluations": [
            {key: value for key, value in row.items() if not key.startswith(("train", "rollout"))}
            for row in found
            if any(key.endswith("/success") for key in row) and "train/tokens" not in row
        ],
        "updates": [{key: row[key] for key in KEPT if key in row} for row in rows],
        "timings": list(read_metrics(timings)) if timings.exists() else [],
    }
