"""The fault drill: a trainer is killed again and again, and its account stays right.

Two kills by default; ``PART=drill`` (TURNGYM_DRILL=full) makes it 50, and prints what it measured.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest

import turngym
from turngym.rollouts.scheduler.audit import AuditReport, audit

FULL = os.environ.get("TURNGYM_DRILL") == "full"
KILLS = 50 if FULL else 2
PROCESS = Path(__file__).parent.parent / "helpers" / "drill_process.py"
RESTART_S = 5.0


def start(folder: Path, steps: int, isolation: str) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(turngym.__file__).parents[1]),
        "TURNGYM_DRILL_MARK": str(folder),
    }
    command = [sys.executable, "-P", str(PROCESS), str(folder), str(steps), isolation]
    with (folder / "stderr.txt").open("ab") as log:
        return subprocess.Popen(command, env=environment, stderr=log)


def lines(file: Path) -> list[list[str]]:
    return [line.split() for line in file.read_text().splitlines()] if file.exists() else []


def kill_while_it_plays(folder: Path, steps: int, isolation: str, rng: random.Random) -> None:
    """Start the trainer and kill it at a random moment after its first drawn action."""
    process = start(folder, steps, isolation)
    deadline = time.monotonic() + 600
    while not any(line[0] == str(process.pid) for line in lines(folder / "starts.txt")):
        assert process.poll() is None, (folder / "stderr.txt").read_text()
        assert time.monotonic() < deadline, "the trainer drew nothing"
        time.sleep(0.01)
    time.sleep(rng.uniform(0.0, 0.6))
    process.send_signal(signal.SIGKILL)
    process.wait()


def left_over(folder: Path) -> list[str]:
    """Return the processes of the drill that are still there."""
    mark, found = f"TURNGYM_DRILL_MARK={folder}".encode(), []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (place / "environ").read_bytes().split(b"\0"):
                found.append(place.name)
        except OSError:
            continue
    return found


def no_process_is_left(folder: Path) -> bool:
    deadline = time.monotonic() + 300  # those that were just starting have to come so far first
    while left_over(folder) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not left_over(folder)


def most_redone(folder: Path) -> int:
    """Return the most turns that any process drew again of one episode."""
    drawn: dict[str, set[int]] = defaultdict(set)
    redone: dict[tuple[str, str], int] = defaultdict(int)
    for process, seed, turn in lines(folder / "draws.txt"):
        if int(turn) in drawn[seed]:
            redone[process, seed] += 1
        drawn[seed].add(int(turn))
    return max(redone.values(), default=0)


def drill(folder: Path, *, kills: int, steps: int, isolation: str) -> AuditReport:
    rng = random.Random(11)
    for _ in range(kills):
        kill_while_it_plays(folder, steps, isolation, rng)
        report = audit(folder)
        assert report.problems == []
    process = start(folder, steps, isolation)
    assert process.wait(timeout=2400) == 0, (folder / "stderr.txt").read_text()
    return audit(folder)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_trainer_that_is_killed_again_and_again_loses_nothing(tmp_path: Path) -> None:
    steps = 12 * KILLS
    report = drill(tmp_path, kills=KILLS, steps=steps, isolation="inline")
    assert report.problems == []
    assert report.steps["checkpointed"] == steps
    assert report.lineages == KILLS + 1
    assert report.tries["error_env"] + report.tries["error_policy"] > 0
    assert report.tries["resumed"] > 0  # and none of a killed process counts as running
    assert report.tokens["lost"] <= 16 * 16 * KILLS  # of a turn that was being played
    assert most_redone(tmp_path) <= 2  # one on its way to the disk, and the next, not carried out
    weights: dict[str, set[str]] = defaultdict(set)
    for step, digest in lines(tmp_path / "updates.txt"):
        weights[step].add(digest)
    assert len(weights) == steps
    assert all(len(digests) == 1 for digests in weights.values())  # the same batch, to the token
    restarts = sorted(float(seconds) for _, seconds in lines(tmp_path / "starts.txt"))
    if FULL:
        print(report.equation)
        print(f"restart to first new token: median {restarts[len(restarts) // 2]:.2f} s, ")
        print(f"worst {restarts[-1]:.2f} s; tries {dict(report.tries)}")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_no_environment_process_outlives_a_killed_trainer(tmp_path: Path) -> None:
    rng = random.Random(5)
    for _ in range(5 if FULL else 1):
        kill_while_it_plays(tmp_path, 10**6, "process", rng)
        assert no_process_is_left(tmp_path)
    assert audit(tmp_path).problems == []
