"""A trainer process for the fault drill: real clock, simulated episodes, real faults, a checkpoint.

    python drill_process.py FOLDER STEPS ISOLATION

Takes up what is in FOLDER. Its weights are a digest of everything it trained on. Three journals are
appended to line by line, so that a kill leaves them whole:

    draws.txt    process, policy seed, turn: every action that was drawn
    updates.txt  step, weights after it
    starts.txt   process, seconds from its start to its first drawn action
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium

from turngym.agents.policy import EpisodeContext, PolicyTurn
from turngym.environments.core.env import AsyncTurnEnv
from turngym.environments.gym.face import as_gym
from turngym.rollouts.scheduler.config import (
    Capacity,
    DeadlineConfig,
    FailureConfig,
    RetryConfig,
    SchedulerConfig,
)
from turngym.rollouts.scheduler.groups import UniformSelection
from turngym.rollouts.scheduler.ledger import LEDGER_FILE, Ledger
from turngym.rollouts.scheduler.pool import EnvPool
from turngym.rollouts.scheduler.scheduler import RolloutScheduler
from turngym.rollouts.simulation.simulate import (
    SimEngine,
    SimEnv,
    SimPolicy,
    SimProfile,
    SimSession,
)
from turngym.tasks.base import procedural_task
from turngym.types import Turn

PROFILE = SimProfile(
    policy_s=0.004,
    env_median_s=0.006,
    env_sigma=1.0,
    max_turns=10,
    tokens_per_turn=16,
    raise_share=0.02,
    hang_share=0.002,
    engine_error_share=0.01,
)
CONFIG = SchedulerConfig(
    concurrency=16,
    groups_per_step=2,
    admission=Capacity(staleness=1),
    deadlines=DeadlineConfig(step_s=1.0),
    retry=RetryConfig(max_tries=8, quarantine_after=40),
    failures=FailureConfig(fraction=0.5),
    watchdog_s=None,
)
CHECKPOINT_EVERY = 3


class Journal:
    """Appends whole lines to a file at once."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, *words: object) -> None:
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())


class JournalPolicy(SimPolicy):
    """Writes down every drawn action before anybody else hears of it."""

    def __init__(self, engine: SimEngine, folder: Path, process: str) -> None:
        super().__init__(engine, PROFILE)
        self.draws = Journal(folder / "draws.txt")
        self.starts = Journal(folder / "starts.txt")
        self.process = process
        self.drew = False

    def start(self, context: EpisodeContext) -> SimSession:
        return JournalSession(self, context.seed)


class JournalSession(SimSession):
    """One episode of ``JournalPolicy``."""

    def __init__(self, policy: JournalPolicy, seed: int) -> None:
        super().__init__(policy.engine, policy.profile, seed)
        self.policy = policy
        self.seed = seed
        self.turns = 0

    async def act(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> PolicyTurn:
        turn = await super().act(observation, info)
        policy = self.policy
        policy.draws.write(policy.process, self.seed, self.turns)
        if not policy.drew:
            policy.drew = True
            policy.starts.write(policy.process, f"{seconds_since_start():.3f}")
        self.turns += 1
        return turn

    def replay(self, observation: Mapping[str, Any], info: Mapping[str, Any], turn: Turn) -> None:
        super().replay(observation, info, turn)
        self.turns += 1


class _Async(AsyncTurnEnv):
    """``SimEnv`` as an ``AsyncTurnEnv``, for ``as_gym``."""

    def __init__(self) -> None:
        super().__init__()
        self.sim = SimEnv(PROFILE)

    async def begin(self, task: Any) -> Any:
        raise NotImplementedError

    async def turn(self, action: Any) -> Any:
        raise NotImplementedError

    async def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return await self.sim.reset(seed=seed, options=options)

    async def step(self, action: str) -> Any:
        return await self.sim.step(action)


def make_process_env() -> gymnasium.Env[Any, Any]:
    """Return a simulated environment for a child process."""
    return as_gym(_Async())


def seconds_since_start() -> float:
    """Return the age of this process in seconds."""
    ticks = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    return uptime - ticks / os.sysconf("SC_CLK_TCK")


def read_checkpoint(folder: Path) -> tuple[int, str]:
    """Return version and weights of the newest checkpoint."""
    file = folder / "checkpoint.json"
    if not file.exists():
        return 0, "fresh"
    content = json.loads(file.read_text())
    return content["version"], content["weights"]


def save_checkpoint(folder: Path, version: int, weights: str) -> None:
    """Replace the checkpoint in one go."""
    partial = folder / "checkpoint.partial"
    partial.write_text(json.dumps({"version": version, "weights": weights}))
    partial.replace(folder / "checkpoint.json")


async def train(folder: Path, steps: int, isolation: Any) -> None:
    """Train until ``steps`` updates are done."""
    version, weights = read_checkpoint(folder)
    engine = SimEngine()
    engine.load(version)
    make = make_process_env if isolation == "process" else partial(SimEnv, PROFILE)
    pool = EnvPool(make, size=CONFIG.concurrency, isolation=isolation, deadlines=CONFIG.deadlines)
    selection = UniformSelection(lambda i: procedural_task("drill", "train", i), group_size=4)
    updates = Journal(folder / "updates.txt")
    policy = JournalPolicy(engine, folder, str(os.getpid()))
    async with (
        Ledger(folder / LEDGER_FILE, checkpoints=1) as ledger,
        RolloutScheduler(
            pool,
            policy,
            selection,
            CONFIG,
            env_id="turngym/Drill-v0",
            seed=7,
            version=version,
            ledger=ledger,
        ) as scheduler,
    ):
        while version < steps:
            batch = await scheduler.take()
            assert batch is not None
            digest = hashlib.sha256(weights.encode())
            for group in [*batch.groups, *batch.extra]:
                for member in group.members:
                    digest.update(repr((member.number, member.retry, member.trained)).encode())
            weights = digest.hexdigest()[:16]
            await asyncio.sleep(0.02)
            updates.write(version, weights)
            version += 1
            await scheduler.publish(version, load=partial(engine.load, version))
            if version % CHECKPOINT_EVERY == 0 or version == steps:
                save_checkpoint(folder, version, weights)
                scheduler.mark_checkpointed(version)


if __name__ == "__main__":
    asyncio.run(train(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
