"""Run one part of turngym under a trace for ``measure_house.py``; the last line printed is JSON.

    PYTHONPATH=CHECKOUT/src python scripts/house_trace.py update|turn|step SCRATCH_FOLDER

It has to run with the source of older commits too, so it tries the names that they had.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import statistics
import sys
import threading
import time
import types
from pathlib import Path
from typing import Any

import turngym

SOURCE = str(Path(turngym.__file__).parent)
ROUNDS, STEPS = 5, 1000


class Trace:
    """Functions of turngym that are called while it is on, their threads and their event loops."""

    def __init__(self) -> None:
        self.is_on = False
        self.codes: set[types.CodeType] = set()
        self.threads: set[int] = set()
        self.loops: set[int] = set()
        threading.setprofile(self._watch)

    def switch(self, is_on: bool) -> None:
        self.is_on = is_on
        sys.setprofile(self._watch if is_on else None)

    def _watch(self, frame: types.FrameType, event: str, argument: Any) -> None:
        if self.is_on and event == "call" and frame.f_code.co_filename.startswith(SOURCE):
            self.codes.add(frame.f_code)
            self.threads.add(threading.get_ident())
            loop = asyncio._get_running_loop()
            if loop is not None:
                self.loops.add(id(loop))


def first(*names: str) -> Any:
    """Return the first of ``module:attribute`` that exists."""
    for name in names:
        module, _, attribute = name.partition(":")
        try:
            return getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError):
            continue
    raise SystemExit(f"none of {names}")


def update(folder: str) -> list[tuple[str, int]]:
    """Return file and first line of each function that the second of three updates calls."""
    from turngym.config import load_config
    from turngym.trainers.loop import train

    trace = Trace()

    class Between:
        total: int | None = None

        def phase(self, name: str, total: int | None) -> None:
            self.total = total

        def advance(self, done: int, metrics: Any) -> None:
            if self.total == 3:
                trace.switch(done == 1)

        def note(self, text: str) -> None:
            pass

    # A short warm start, so that some groups differ; nothing is validated between updates.
    settings = {
        "run": {"steps": 3, "checkpoint_every": 400},
        "warm_start": {"max_steps": 60, "evaluate_from": 400, "evaluate_every": 400},
        "evaluation": {
            "every": 400,
            "validation_tasks": 16,
            "held_out_tasks": 2,
            "target_success": 1.0,
        },
        "rollout": {"groups_per_step": 8},
    }
    recipe = next(Path(SOURCE).rglob("demo.toml"))
    config_type = first(
        "turngym.trainers.settings.train:TrainConfig", "turngym.trainers.config:TrainConfig"
    )
    train(load_config(config_type, [recipe, settings]), f"{folder}/run", progress=Between())
    named = [code for code in trace.codes if not code.co_name.startswith("<")]
    return [(code.co_filename[len(SOURCE) + 1 :], code.co_firstlineno) for code in named]


TRACE: Trace | None = None
CALLS = 0


def act(observation: Any, info: Any) -> str:
    """Agent of the web turn: what lies between its first and second call is one turn."""
    global CALLS
    CALLS += 1
    if TRACE is not None:
        TRACE.is_on = CALLS == 1
    return str((info.get("legal_actions") or ["click 1"])[0])


async def act_async(observation: Any, info: Any) -> str:
    """Act the same, without the thread that a plain function gets where coroutines are known."""
    return act(observation, info)


def turn(folder: str) -> tuple[int, int]:
    """Return how many threads and event loops run our code in one turn of a web task."""
    from turngym.cli.main import main

    global TRACE
    TRACE = Trace()
    TRACE.switch(True)
    TRACE.is_on = False
    sys.modules["house_trace"] = sys.modules["__main__"]
    knows_coroutines = importlib.util.find_spec("turngym.agents.scripted") is not None
    agent = f"house_trace:{'act_async' if knows_coroutines else 'act'}"
    main(["eval", "web/miniwob-login-user", "--agent", agent, "--episodes", "1"])
    TRACE.switch(False)
    return len(TRACE.threads), len(TRACE.loops)


class Empty(turngym.AsyncTurnEnv):
    """A coroutine environment that does nothing."""

    rules = "Say go."
    action_format = turngym.Commands({"go": "go"})

    async def begin(self, task: Any) -> Any:
        return turngym.Outcome(text="go")

    async def turn(self, action: Any) -> Any:
        return turngym.Outcome(text="go")


def empty() -> Any:
    """Return it as older commits registered such a one."""
    adapters = ("turngym.environments.gym.adapters", "turngym.environments.adapters")
    return first(*(f"{module}:as_sync" for module in adapters))(Empty)


def step(folder: str) -> float:
    """Return the microseconds of an awaited step, as rollouts get it."""
    module = types.ModuleType("measured_empty")
    vars(module).update(Empty=Empty, empty=empty)
    Empty.__module__ = module.__name__
    sys.modules[module.__name__] = module
    made = first(
        "turngym:make_async",
        "turngym.environments.gym.adapters:as_async",
        "turngym.environments.adapters:as_async",
    )
    name = "Empty" if made.__name__ == "make_async" else "empty"
    identity = "measure/Empty-v0"
    turngym.register(identity, f"measured_empty:{name}", family="measure", max_turns=10**6)
    return asyncio.run(_step(made(identity)))


async def _step(env: Any) -> float:
    rounds = []
    await env.reset(seed=1)
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(STEPS):
            await env.step("go")
        rounds.append(1e6 / STEPS * (time.perf_counter() - began))
    await env.close()
    return statistics.median(rounds)


if __name__ == "__main__":
    part, scratch = sys.argv[1:]
    found = {"update": update, "turn": turn, "step": step}[part](scratch)
    print(json.dumps(found))
