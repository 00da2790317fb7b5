"""Small environments for tests: a ladder that is climbed, copied, replayed or awaited.

Its rungs are random (from the task), it slips at random (from the environment's generator), and it
can be told to break. Everything here can be pickled by name, so it works in child processes.
"""

from __future__ import annotations

import asyncio
import copy
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import gymnasium
import numpy as np

from turngym import registry
from turngym.environments.core.actions import Action, Commands
from turngym.environments.core.env import AsyncTurnEnv, Outcome, SnapshotKind, TurnEnv
from turngym.environments.gym.face import as_gym
from turngym.registry import register
from turngym.tasks.base import Task

FORMAT = Commands(
    {"up": "up", "jump": "jump {rungs:int}", "break": "break {how...}"}, keep_case=False
)


class Ladder:
    """The rules, without any environment around them."""

    def __init__(self, task: Task, top: int) -> None:
        rng = np.random.default_rng(task.seed)
        self.number = 2 * int(rng.integers(10**9)) + (task.split == "test")
        self.top = top
        self.height = 0
        self.falls = 0

    def describe(self) -> str:
        return f"ladder {self.number}: rung {self.height} of {self.top}"

    def climb(self, rungs: int, rng: np.random.Generator, slip: float) -> Outcome:
        if not 1 <= rungs <= 3:
            return Outcome(text=self.describe(), invalid_action="You can jump 1 to 3 rungs.")
        if rng.random() < slip:
            self.falls += 1
            return Outcome(text="you slip. " + self.describe(), info={"slipped": True})
        self.height = min(self.top, self.height + rungs)
        parts = {"climbed": 1, "tired": -0.5 * (rungs - 1)}
        return Outcome(
            text=self.describe(),
            reward=0.5 * (3 - rungs),
            terminated=self.height == self.top,
            info={"reward_parts": parts, "usage": {"seconds": time.perf_counter()}},
        )


class LadderEnv(TurnEnv):
    """Climb to the top."""

    name = "ladder"
    rules = "Climb the ladder."
    snapshot_kind: ClassVar[SnapshotKind] = "exact"
    action_format = FORMAT

    def __init__(self, *, top: int = 6, slip: float = 0.3, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        self.top = top
        self.slip = slip
        self.closed = 0

    def begin(self, task: Task) -> Outcome:
        self.ladder = Ladder(task, self.top)
        return Outcome(text=self.ladder.describe(), info={"ground_truth": f"T{task.seed}"})

    def turn(self, action: Action) -> Outcome:
        if action.name == "break":
            misbehave(action.arguments["how"])
            return Outcome(text="nothing broke")
        rungs = action.arguments.get("rungs", 1)
        return self.ladder.climb(rungs, self.np_random, self.slip)

    def score(self) -> float:
        return self.ladder.height / self.ladder.top

    def legal_actions(self) -> list[str]:
        return ["up", "jump 2", "jump 3"]

    def state_key(self) -> str:
        return f"{self.ladder.number} {self.ladder.height}"

    def expert_action(self) -> str:
        return "jump 3"

    def get_state(self) -> Any:
        return copy.deepcopy(self.ladder)

    def set_state(self, state: Any) -> None:
        self.ladder = copy.deepcopy(state)

    def thread(self) -> int:
        """Return the thread that this runs in."""
        return threading.get_ident()

    def process(self) -> int:
        """Return the process that this runs in."""
        return os.getpid()

    def close(self) -> None:
        self.closed += 1


class ReplayLadderEnv(LadderEnv):
    """The same, copied by replay."""

    snapshot_kind = "replay"


class AsyncLadderEnv(AsyncTurnEnv):
    """The same with coroutines."""

    name = "ladder"
    rules = "Climb the ladder."
    snapshot_kind: ClassVar[SnapshotKind] = "exact"
    action_format = FORMAT

    def __init__(self, *, top: int = 6, slip: float = 0.3, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        self.top = top
        self.slip = slip
        self.closed = 0
        self.loops: set[asyncio.AbstractEventLoop] = set()

    async def begin(self, task: Task) -> Outcome:
        await self.wait()
        self.ladder = Ladder(task, self.top)
        return Outcome(text=self.ladder.describe())

    async def turn(self, action: Action) -> Outcome:
        await self.wait()
        if action.name == "break":
            how = action.arguments["how"]
            if how == "hang":
                await asyncio.sleep(60)
            misbehave(how)
        rungs = action.arguments.get("rungs", 1)
        return self.ladder.climb(rungs, self.np_random, self.slip)

    async def wait(self) -> None:
        self.loops.add(asyncio.get_running_loop())
        await asyncio.sleep(0)

    def score(self) -> float:
        return self.ladder.height / self.ladder.top

    def legal_actions(self) -> list[str]:
        return ["up", "jump 2", "jump 3"]

    def expert_action(self) -> str:
        return "jump 3"

    async def get_state(self) -> Any:
        await self.wait()
        return copy.deepcopy(self.ladder)

    async def set_state(self, state: Any) -> None:
        await self.wait()
        self.ladder = copy.deepcopy(state)

    async def close(self) -> None:
        self.closed += 1


class AsyncReplayLadderEnv(AsyncLadderEnv):
    """The same, copied by replay."""

    snapshot_kind = "replay"


class OddError(Exception):
    """An exception whose arguments cannot rebuild it from a pickle."""

    def __init__(self, *, code: int) -> None:
        super().__init__(f"odd {code}")
        self.code = code


def misbehave(how: str) -> None:
    """Break in the way that ``how`` says."""
    if how == "fork" and os.fork() == 0:
        time.sleep(600)
        os._exit(0)
    if how == "value":
        raise ValueError("broke by order")
    if how == "timeout":
        raise TimeoutError("the server did not answer")
    if how == "stop":
        next(iter(()))
    if how == "odd":
        raise OddError(code=3)
    if how == "die":
        os._exit(7)
    if how.startswith("sleep"):
        time.sleep(float(how.split()[1]))


def make_ladder() -> gymnasium.Env[Any, Any]:
    """Return a ladder; can be sent to a process."""
    return LadderEnv()


def make_async_ladder() -> gymnasium.Env[Any, Any]:
    """Return a ladder whose rungs are awaited, for Gymnasium."""
    return as_gym(AsyncLadderEnv())


@contextmanager
def registered(id: str, entry_point: str, **options: Any) -> Iterator[str]:
    """Register an environment for the length of a test."""
    options = {"family": "helpers", "max_turns": 12, "snapshot_kind": "exact", **options}
    register(id, entry_point, **options)
    try:
        yield id
    finally:
        registry._entries.pop(id)
        gymnasium.registry.pop(id)
