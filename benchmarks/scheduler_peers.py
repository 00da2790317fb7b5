"""The same episodes on the asynchronous vectors of Gymnasium and GEM, and on our scheduler.

Each environment sleeps as long as its plan says. A peer steps all of its environments and waits for
the slowest; the policy takes the same time for every vector step. ``scheduler.py --only peers``
starts this script once for each peer and each trouble, under the interpreter that has the peer:

    scheduler_peers.py PEER PLAN.json TROUBLE       PEER: gymnasium or gem
                                                    TROUBLE: none, raise (2 % of steps), hang

A run that a trouble ends says so and how many episodes it had finished.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

Plan = list[list[float]]
"""Seconds of each step of each episode."""

SLOTS, EPISODES, POLICY_S = 16, 64, 0.05
HANG_S, DEADLINE_S = 5.0, 1.0
LIMIT_S = 120


class Troubled(RuntimeError):
    """A step that was told to break."""


class Steps:
    """What one environment of a peer does, without any library."""

    def __init__(self, slot: int, plan: Plan, trouble: str) -> None:
        self.episodes = [plan[number] for number in range(slot, len(plan), SLOTS)]
        self.slot, self.trouble = slot, trouble
        self.episode, self.turn, self.count = -1, 0, 0

    def reset(self) -> None:
        self.episode += 1
        self.turn = 0

    def step(self) -> bool:
        """Take a turn; True at the end of the episode. With no episode left nothing is done."""
        if self.episode >= len(self.episodes):
            return False
        self.count += 1
        seconds = self.episodes[self.episode][self.turn]
        if self.trouble == "raise" and (self.slot * 7919 + self.count * 104729) % 50 == 0:
            raise Troubled("told to break")
        if self.trouble == "hang" and self.slot == 3 and self.count == 5:
            seconds = HANG_S
        time.sleep(seconds)
        self.turn += 1
        return self.turn == len(self.episodes[self.episode])


def gymnasium_vector(plan: Plan, trouble: str) -> Any:
    import gymnasium
    from gymnasium.vector import AsyncVectorEnv, AutoresetMode

    class Env(gymnasium.Env[Any, Any]):
        observation_space = gymnasium.spaces.Discrete(2)
        action_space = gymnasium.spaces.Discrete(2)

        def __init__(self, slot: int) -> None:
            self.steps = Steps(slot, plan, trouble)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            self.steps.reset()
            return 0, {}

        def step(self, action: Any) -> Any:
            return 0, 0.0, self.steps.step(), False, {}

    makers = [lambda slot=slot: Env(slot) for slot in range(SLOTS)]
    return AsyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)


def gem_vector(plan: Plan, trouble: str) -> Any:
    from gem.core import Env as GemEnv
    from gem.vector.async_vector_env import AsyncVectorEnv

    class Env(GemEnv):  # type: ignore[misc]
        def __init__(self, slot: int) -> None:
            self.steps = Steps(slot, plan, trouble)

        def reset(self, seed: int | None = None) -> Any:
            self.steps.reset()
            return "", {}

        def step(self, action: Any) -> Any:
            return "", 0.0, self.steps.step(), False, {}

        def sample_random_action(self) -> str:
            return ""

    makers = [lambda slot=slot: Env(slot) for slot in range(SLOTS)]
    return AsyncVectorEnv(["sleep"] * SLOTS, makers)


def play_peer(peer: str, plan: Plan, trouble: str) -> dict[str, Any]:
    """Play all episodes on a vector of a peer."""
    vector = (gymnasium_vector if peer == "gymnasium" else gem_vector)(plan, trouble)
    actions = [0] * SLOTS if peer == "gymnasium" else [""] * SLOTS
    vector.reset()
    finished = turns = 0
    started, cpu = time.perf_counter(), time.process_time()
    ended = ""
    try:
        while finished < len(plan):
            time.sleep(POLICY_S)
            _, _, terminated, _, _ = vector.step(actions)
            finished += int(sum(terminated))
            turns += SLOTS
    except Exception as error:  # noqa: BLE001 - whatever the peer makes of it
        ended = f"{type(error).__name__}: {error}".splitlines()[0]
    wall = time.perf_counter() - started
    cpu = time.process_time() - cpu
    if peer == "gymnasium":
        vector.close(terminate=True)
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu += children.ru_utime + children.ru_stime
    return {
        "wall_s": wall,
        "cpu_us_per_turn": 1e6 * cpu / max(turns, 1),
        "finished": finished,
        "ended_by": ended,
    }


def measure(quick: bool) -> dict[str, Any]:
    """Play the plan on every peer that is installed and on our scheduler."""
    from harness import child_environment, peer_python
    from turngym.rollouts.oracle import list_schedule

    plan = make_plan()
    best = list_schedule([sum(steps) + POLICY_S * len(steps) for steps in plan], SLOTS)
    rows: list[dict[str, Any]] = []
    pythons = {"gymnasium": Path(sys.executable), "gem": peer_python("gem")}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "plan.json"
        file.write_text(json.dumps(plan))
        for trouble in ("none",) if quick else ("none", "raise", "hang"):
            rows.append({"who": "turngym", "trouble": trouble, **ours(trouble)})
            for peer, python in pythons.items():
                if python is None:
                    rows.append({"who": peer, "trouble": "NOT RUN: benchmarks/setup.sh gem"})
                    continue
                done = subprocess.run(
                    [str(python), __file__, peer, str(file), trouble],
                    env=child_environment(),
                    capture_output=True,
                    text=True,
                    timeout=LIMIT_S,
                    check=False,
                )
                found = json.loads(done.stdout.splitlines()[-1]) if done.stdout else {}
                found = found or {"ended_by": done.stderr.strip().splitlines()[-1:]}
                rows.append({"who": peer, "trouble": trouble, **found})
    for row in rows:
        if "wall_s" in row:
            row["wall_over_oracle"] = row["wall_s"] / best
    return {"rows": rows, "oracle_s": best, "slots": SLOTS, "episodes": EPISODES}


def profile(trouble: str) -> Any:
    from turngym.rollouts.simulation import SimProfile

    return SimProfile(
        policy_s=POLICY_S,
        env_median_s=0.1,
        env_sigma=1.0,
        max_turns=8,
        raise_share=0.02 if trouble == "raise" else 0.0,
        hang_share=0.004 if trouble == "hang" else 0.0,
    )


def make_plan() -> Plan:
    """Return the steps of the simulated episodes, in order of begin."""
    from turngym.rollouts.orders import member_policy_seed
    from turngym.rollouts.simulation import SimEngine, SimSession

    plan: Plan = []
    for number in range(EPISODES):
        seed = member_policy_seed(0, number // 4, number % 4, 0)
        session, steps, end = SimSession(SimEngine(), profile("none"), seed), [], "on"
        while end == "on":
            seconds, _, end = session._decide()[0].partition(" ")
            steps.append(float(seconds))
        plan.append(steps)
    return plan


def ours(trouble: str) -> dict[str, Any]:
    """Play the same episodes on our scheduler, with the ledger on."""
    import asyncio

    from scheduler import one_pass, with_ledger

    scenario = one_pass(EPISODES, SLOTS, profile(trouble))
    deadlines = scenario.scheduler.deadlines.model_copy(update={"step_s": DEADLINE_S})
    if trouble == "hang":
        config = scenario.scheduler.model_copy(update={"deadlines": deadlines})
        scenario = scenario.model_copy(update={"scheduler": config})
    asyncio.run(with_ledger(one_pass(8, 8, profile("none"))))  # what is done once per process
    cpu = time.process_time()
    result = asyncio.run(with_ledger(scenario))
    cpu = time.process_time() - cpu
    return {
        "wall_s": result.wall_s,
        "cpu_us_per_turn": 1e6 * cpu / (result.metrics["sched/turns_per_s"] * result.wall_s),
        "finished": int(result.metrics["sched/episodes"]),
        "ended_by": "",
    }


if __name__ == "__main__":
    sys.stdout.write(
        json.dumps(play_peer(sys.argv[1], json.loads(Path(sys.argv[2]).read_text()), sys.argv[3]))
        + "\n"
    )
