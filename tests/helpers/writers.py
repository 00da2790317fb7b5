"""What child processes of tests do: several of them write to one file of trajectories."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path

from helpers.envs import LadderEnv
from helpers.trajectories import episode, turn
from turngym.environments.core.limits import TurnLimit
from turngym.environments.gym.wrappers import RecordTurns, limited
from turngym.records import append_trajectory

NUM_EPISODES = 12


def append_long_lines(path: str, number: int) -> None:
    """Append episodes whose lines are longer than a pipe or a buffer."""
    for attempt in range(NUM_EPISODES):
        task_id = "made/" + str(number) * 9000
        made = episode([turn()], member=number * 100 + attempt, task_id=task_id)
        append_trajectory(Path(path), made)


def record_ladders(path: str, number: int) -> None:
    """Play recorded episodes of long actions."""
    env = RecordTurns(limited(LadderEnv(), TurnLimit(3)), path)
    for attempt in range(NUM_EPISODES):
        env.reset(seed=number * 100 + attempt)
        for _ in range(3):
            env.step("x" * 3000)


def at_once(write: Callable[[str, int], None], path: Path, num_processes: int) -> list[int]:
    """Run ``write`` in several processes and return the numbers that they should have left."""
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=write, args=(str(path), n)) for n in range(num_processes)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * num_processes
    return [n * 100 + attempt for n in range(num_processes) for attempt in range(NUM_EPISODES)]
