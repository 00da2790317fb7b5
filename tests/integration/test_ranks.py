"""A learner on several ranks is the learner on one, but for rounding; and it ends as one.

``make proof PART=ranks`` (TURNGYM_RANKS=full) takes two and three ranks, every loss and more kills.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.cli import COMMAND, SOURCE
from helpers.rank_process import CASES, QUICK, learner_of, ranks, samples_of, warm_ranks
from turngym.cli.main import main
from turngym.config import load_config
from turngym.errors import ConfigError
from turngym.trainers.distributed.launch import free_port, rank_environment
from turngym.trainers.distributed.sharding import check_shards, read_shards
from turngym.trainers.loop import train
from turngym.trainers.metrics import read_metrics
from turngym.trainers.runs.checkpoints import latest_checkpoint, load_checkpoint
from turngym.trainers.settings.optimizer import ComputeConfig
from turngym.trainers.settings.train import TrainConfig
from turngym.trainers.update.compute import place

PATHS = os.pathsep.join([SOURCE, str(Path(__file__).parents[1])])
FULL = os.environ.get("TURNGYM_RANKS") == "full"
SIZES = (2, 3) if FULL else (2,)
ROUNDING = {"bfloat16": 2e-2}
"""How far weights may be apart, as a share of how far they moved; the others are equal."""
NAMES = list(CASES if FULL else QUICK)


def said(number: int, folder: Path, *arguments: str | Path) -> Any:
    """Return what rank 0 of a group says, which ends well."""
    done = warm_ranks(number, folder, *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])  # Gloo of torch 2.9 prints before it


@pytest.mark.slow
@pytest.mark.parametrize("number", SIZES)
def test_ranks_change_no_weight_by_a_bit(number: int, tmp_path: Path) -> None:
    found = said(number, tmp_path, "compare", "imitation", *NAMES)
    for name, case in found.items():
        rounding = ROUNDING.get(name, 0.0)
        one, several = case["metrics"]
        for wanted, given in zip(one, several, strict=True):
            assert given.keys() == wanted.keys(), name
            for key, value in wanted.items():
                near = pytest.approx(value, rel=max(1e-6, rounding), abs=1e-6)
                assert given[key] == near, (name, key)
        assert case["apart"] <= rounding, name


@pytest.mark.slow
def test_moments_of_two_ranks_are_read_by_any_number(tmp_path: Path) -> None:
    wanted = said(2, tmp_path, "write", tmp_path)
    assert len(list((tmp_path / "learner").glob("*.distcp"))) == 2
    _, model, make = learner_of("grpo")
    model.load_state_dict(torch.load(tmp_path / "weights.pt"), strict=False)
    alone = make(model=place(model, ComputeConfig(device="cpu")))
    moments = read_shards(alone.optimizer, tmp_path / "learner")
    alone.load_state(moments, updates=2, steps=4)
    torch.save(alone.state(), tmp_path / "whole.pt")
    found = [alone.update(samples_of("grpo")), said(3, tmp_path, "read", tmp_path)]
    (tmp_path / "whole.pt").unlink()
    found += [said(3, tmp_path, "read", tmp_path)] if FULL else []
    for given in found:
        for key in ("train/loss", "train/grad_norm", "train/clip_fraction", "train/learning_rate"):
            assert given[key] == pytest.approx(wanted[key], rel=1e-5, abs=1e-6), key


# When a rank fails.


@pytest.mark.slow
def test_an_error_on_one_rank_is_known_to_all_before_they_wait_again(tmp_path: Path) -> None:
    found = said(2, tmp_path, "fail", "raise")
    assert found["error"] == "rank 1 of the learner: ValueError: no such loss"
    assert found["same"]
    assert found["after"] == pytest.approx(found["after"])


@pytest.mark.slow
def test_a_rank_that_dies_within_a_step_ends_the_others() -> None:
    began = time.monotonic()
    done = ranks(2, "fail", "die")  # new processes: how Python itself ends is half of it
    assert done.returncode == 7
    assert "a rank of the learner is gone" in json.loads(done.stdout.splitlines()[-1])["error"]
    assert time.monotonic() - began < 300  # and not the half hour after which a rank is stuck


# Whole runs.

RUN = """
algo = "grpo"

[env]
id = "helpers.signals:ToldSignalsEnv"

[model]
hidden = 32
layers = 2
heads = 2
context = 64
vocab_size = 280

[warm_start]
episodes = 64
max_steps = 60
evaluate_every = 60
lr = 3e-3
target_success = 1.0

[learner]
lr = 1e-3
num_minibatches = 1
microbatch_tokens = 256

[rollout]
groups_per_step = 4
group_size = 4
max_new_tokens = 6

[evaluation]
every = 3
validation_tasks = 6
held_out_tasks = 6

[run]
steps = 3
checkpoint_every = 1
tensorboard = false
"""
CRITIC = "algo.advantage.critic"
SHORT = [
    f"{CRITIC}.steps_per_update=8",
    f"{CRITIC}.batch_turns=32",
    "algo.advantage.actor_turns=96",
]
"""An eighth of what a critic of utterances does; every kind of step is there."""
METHODS = {
    "archer": ["algo=archer", f"{CRITIC}.warmup_updates=1", *([] if FULL else SHORT)],
    "grpo": [],
    "igpo": ["algo=igpo"],
    "infopo": ["algo=infopo"],
    "spa": ["algo=spa", "algo.rewards.0.warmup_updates=1"],
    "turn_ppo": ["algo=turn_ppo", f"{CRITIC}.warmup_updates=1"],
}


def run(out: Path, *settings: str, ranks: int = 1) -> list[dict[str, float]]:
    """Train, several ranks in processes of their own, and return the metrics."""
    command = ["train", str(recipe(out)), *settings, f"learner.ranks={ranks}", "--out", str(out)]
    if ranks == 1:
        assert main(command) == 0
    else:
        done = subprocess.run(
            [*COMMAND, *command],
            env=os.environ | {"PYTHONPATH": PATHS},
            text=True,
            capture_output=True,
            timeout=900,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    return read_metrics(out / "metrics.jsonl")


def recipe(out: Path) -> Path:
    file = out.with_suffix(".toml")
    file.write_text(RUN)
    return file


def assert_same(found: Path, wanted: Path) -> None:
    """Compare two runs, of which one had other ranks; what the learner says are sums of shares."""
    rows, others = (read_metrics(out / "metrics.jsonl") for out in (found, wanted))
    assert len(rows) == len(others)
    for given, row in zip(rows, others, strict=True):
        for key, value in row.items():
            if key.startswith(("train/", "mismatch/", "warm_start/")):
                value = pytest.approx(value, rel=1e-5, abs=1e-9)
            assert given[key] == value, (row["step"], key)
    assert policy(found) == policy(wanted)


def policy(out: Path) -> bytes:
    newest = latest_checkpoint(out / "checkpoints") or out
    return (newest / "model" / "model.safetensors").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS if FULL else ["archer"])
def test_a_whole_run_is_the_same_to_the_bit_on_several_ranks(method: str, folder: Path) -> None:
    """A difference in rounding would change a sampled token, sooner or later, and then all."""
    settings = METHODS[method]
    metrics = run(folder / "1", *settings)
    assert any(abs(row.get("train/loss", 0.0)) > 0 for row in metrics)
    for number in (2, 3) if FULL else (3,):
        run(folder / f"{number}", *settings, ranks=number)
        assert_same(folder / f"{number}", folder / "1")


@pytest.mark.slow
def test_torchrun_starts_the_ranks_on_one_node_and_on_two(folder: Path) -> None:
    few = "run.steps=1"
    run(folder / "1", few)
    port = str(free_port())
    nodes = ["--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "127.0.0.1"]
    starts = {
        "node": [["--standalone", "--nproc-per-node", "2"]],
        "nodes": [[*nodes, "--master-port", port, "--node-rank", n] for n in "01"],
    }
    for name, commands in starts.items():
        out = folder / name
        trained = ["train", str(recipe(out)), few, "learner.ranks=2", "--out", str(out)]
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", *flags, "-m", "turngym", *trained],
                env=os.environ | {"PYTHONPATH": PATHS},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for flags in commands
        ]
        errors = "".join(process.communicate(timeout=900)[1] for process in processes)
        assert [process.returncode for process in processes] == [0] * len(commands), errors
        assert_same(out, folder / "1")


@pytest.mark.slow
def test_a_killed_rank_ends_the_run_and_the_same_command_resumes_it(folder: Path) -> None:
    out, settings = folder / "killed", ["algo=igpo", "run.steps=4"]
    run(folder / "whole", *settings)
    began = ["train", str(recipe(out)), *settings, "learner.ranks=2", "--out", str(out)]
    process = subprocess.Popen(
        [*COMMAND, *began],
        env=os.environ | {"PYTHONPATH": PATHS},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for_checkpoint(out, "train-2", process)
    os.kill(rank_one_of(process.pid), signal.SIGKILL)
    _, errors = process.communicate(timeout=900)
    assert process.returncode == 1
    assert "rank 1 of the learner was ended by SIGKILL; the same command resumes" in errors
    assert "Traceback" not in errors
    newest = load_checkpoint(latest_checkpoint(out / "checkpoints") or out)
    assert any(name.startswith("learner/") for name in newest.files)
    # One and three ranks go on from it too.
    for number in (2, 1, 3) if FULL else (1, 3):
        copied = folder / f"resumed-{number}"
        subprocess.run(["cp", "-r", str(out), str(copied)], check=True)
        run(copied, *settings, ranks=number)
        assert_same(copied, folder / "whole")


def wait_for_checkpoint(out: Path, label: str, process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 600
    while not any(path.name.endswith(label) for path in (out / "checkpoints").glob("0*")):
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.05)


def rank_one_of(launcher: int) -> int:
    """Return the process that a launcher started as rank 1."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            environment = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if parent == launcher and b"RANK=1" in environment:
            return int(folder.name)
    raise AssertionError("no rank 1")


# What is asked for in vain.


def test_ranks_without_a_launcher_are_one_line(tmp_path: Path) -> None:
    config = load_config(TrainConfig, ["demo", "learner.ranks=2"])
    with pytest.raises(ConfigError, match="start it with 'turngym train', or with torchrun"):
        train(config, tmp_path / "run")


@pytest.mark.parametrize(("wanted", "started"), [(2, "1"), (2, "3"), (1, "2")])
def test_another_number_of_processes_than_ranks_is_one_line(
    wanted: int, started: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", started)
    config = load_config(TrainConfig, ["demo", f"learner.ranks={wanted}"])
    line = (
        f"^learner.ranks={wanted}, and {started} processes were started, by WORLD_SIZE: make them "
        "equal, or unset that$"
    )
    with pytest.raises(ConfigError, match=line):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("missing", ["RANK", "MASTER_ADDR", "MASTER_PORT"])
def test_a_size_without_a_place_in_it_is_one_line(
    missing: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A batch script or a pod had set WORLD_SIZE alone."""
    for name, value in rank_environment(0, 2, 1).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv(missing)
    assert main(["train", "demo", "learner.ranks=2", "--out", str(tmp_path / "run")]) == 2
    assert f"WORLD_SIZE, as in a rank that torchrun started, and no {missing}: unset" in (
        capsys.readouterr().err
    )


def test_one_process_has_nothing_to_offload_from() -> None:
    with pytest.raises(ConfigError, match="offload=true is for the ranks of a learner: wanted"):
        load_config(TrainConfig, ["demo", "learner.offload=true"])


def test_fewer_gpus_than_ranks_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert main(["train", "demo", "learner.ranks=3", "--out", str(tmp_path / "run")]) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert "learner.device='auto': torch" in line
    assert "finds 2 GPUs, and process 2 of this node wants one of its own" in line
    assert not (tmp_path / "run").exists()


def test_a_model_without_layers_to_spread_is_refused() -> None:
    model: Any = torch.nn.Linear(2, 2)
    with pytest.raises(ConfigError, match=r"^learner\.ranks: Linear has no layers to spread"):
        check_shards(model)


def test_more_ranks_than_memory_are_refused_before_one_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    many = ["train", "demo", "learner.ranks=9999", "learner.device=cpu"]
    assert main([*many, "--out", str(tmp_path / "run")]) == 2
    assert "learner.ranks=9999: so many processes take" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_first_rank_that_waits_for_the_others_ends_with_its_launcher() -> None:
    reader, writer = os.pipe()
    waits = (  # as torch does, where no handler of Python's runs
        "import signal, time; from turngym.trainers.distributed import launch; "
        "launch._GRACE_S = 0.1; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "launch.rank_here(); time.sleep(600)"
    )
    pipe = {"TURNGYM_LAUNCHER": str(reader), "PYTHONPATH": PATHS}
    with subprocess.Popen(
        [sys.executable, "-c", waits],
        env=os.environ | rank_environment(0, 2, 1) | pipe,
        pass_fds=[reader],
    ) as rank:
        os.close(reader)
        os.close(writer)
        assert rank.wait(300) == 1
