"""Real text episodes with a local engine, in the three modes of the scheduler, in real time.

The engine draws for a limited number of sessions at once and its work is real; the environment is
``text/maze-easy`` behind a log-normal latency, as a remote one would have. The model is small and
untrained: what it says does not matter here.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

from turngym.agents.chat.agent import ChatAgent, EngineModel
from turngym.agents.chat.prompting import PlainPrompting
from turngym.agents.engine.config import TinyModelConfig
from turngym.agents.engine.local import LocalEngine
from turngym.agents.engine.models import build_tiny_model
from turngym.agents.engine.protocol import Sampling
from turngym.agents.engine.small_tokenizer import train_tokenizer
from turngym.agents.rendering import Renderer
from turngym.environments.gym.registration import make
from turngym.rollouts.scheduler.config import BudgetConfig, SchedulerConfig
from turngym.rollouts.scheduler.groups import UniformSelection
from turngym.rollouts.scheduler.pool import EnvPool
from turngym.rollouts.scheduler.scheduler import RolloutScheduler

ENV = "text/maze"
SLOTS, GROUP = 16, 4
MEDIAN_S, SIGMA = 0.15, 1.0


class Slow:
    """A text game that answers as late as a remote environment."""

    def __init__(self) -> None:
        self.env = make(ENV)
        self.rng = random.Random(0)

    async def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.rng = random.Random(seed)
        return self.env.reset(seed=seed, options=options)

    async def step(self, action: str) -> Any:
        await asyncio.sleep(self.rng.lognormvariate(0.0, SIGMA) * MEDIAN_S)
        return self.env.step(action)

    def score(self) -> float | None:
        found: float | None = self.env.get_wrapper_attr("score")()
        return found

    async def close(self) -> None:
        self.env.close()


def measure(quick: bool) -> dict[str, Any]:
    """Return wall times of the modes on the same episodes, and their ratios."""
    groups = 8 if quick else 24
    walls = {barrier: play(barrier, groups) for barrier in ("none", "batch", "turn")}
    best = walls["none"]["wall_s"]
    rows = [
        {"barrier": barrier, **found, "over_rollout": found["wall_s"] / best}
        for barrier, found in walls.items()
    ]
    return {"rows": rows, "env": ENV, "slots": SLOTS, "episodes": groups * GROUP}


def play(barrier: Any, groups: int) -> dict[str, float]:
    """Play all groups once in ``barrier``."""
    tokenizer = train_tokenizer(("go north", "you see a door. exits: north, east.") * 4, 290)
    config = TinyModelConfig(hidden=32, layers=2, heads=2, context=1024)
    model = build_tiny_model(config, tokenizer, seed=1)
    engine = LocalEngine(model, tokenizer, max_sessions=SLOTS)
    chat = EngineModel(engine, Renderer(tokenizer), sampling=Sampling(max_new_tokens=8))
    policy = ChatAgent(chat, prompting=PlainPrompting(instructions=False))
    catalogue = make(ENV)
    task = catalogue.get_wrapper_attr("task")
    schedule = SchedulerConfig(
        barrier=barrier,
        concurrency=SLOTS,
        groups_per_step=groups,
        budget=BudgetConfig(max_turns=10),
        watchdog_s=None,
    )

    async def run() -> dict[str, float]:
        selection = UniformSelection(lambda i: task("train", i), group_size=GROUP, count=groups)
        scheduler = RolloutScheduler(
            EnvPool(Slow, size=SLOTS), policy, selection, schedule, env_id=ENV, seed=3
        )
        started = time.perf_counter()
        async with scheduler:
            await scheduler.take()
            metrics = scheduler.metrics()
        return {
            "wall_s": time.perf_counter() - started,
            "slots_busy_share": metrics["sched/slot_share"],
            "turns_per_s": metrics["sched/turns_per_s"],
        }

    try:
        return asyncio.run(run())
    finally:
        catalogue.close()
