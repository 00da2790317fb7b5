"""The same episodes on vectors of Gymnasium and GEM, in TRL, Agent Lightning and our scheduler.

Each environment sleeps as long as its plan says. A vector steps all of its environments and waits
for the slowest. TRL's ``GRPOTrainer`` plays batches of as many episodes with its
``environment_factory``, its generation replaced by the text of a tool call; all else is its own:
templates, parsing, the tool loop, rewards. Agent Lightning's runners, one per slot, take episodes
from its store in memory, which holds all of them from the start; they trace nothing. The policy
takes the same time for every vector step, batch of TRL or turn of a runner.
``scheduler.py --only peers`` starts this script once for each peer and each trouble, under the
interpreter that has the peer:

    scheduler_peers.py PEER PLAN.json TROUBLE       PEER: gymnasium, gem, trl, agent-lightning
                                                    TROUBLE: none, raise (2 % of steps), hang

A run that a trouble ends says so and how many episodes it had finished.
"""

from __future__ import annotations

import contextlib
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


def play_trl(plan: Plan, trouble: str) -> dict[str, Any]:
    """Play all episodes in batches of TRL's trainer."""
    from datasets import Dataset  # type: ignore[import-not-found]
    from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found]
    from trl.chat_template_utils import qwen3_chat_template  # type: ignore[import-not-found]

    from turngym.agents.engine.config import TinyModelConfig
    from turngym.agents.engine.models import build_tiny_model
    from turngym.agents.engine.small_tokenizer import train_tokenizer

    made: list[Env] = []

    class Env:
        def __init__(self) -> None:
            self._steps, self._is_over = Steps(len(made), plan, trouble), False
            made.append(self)

        def reset(self, **_: Any) -> None:
            self._steps.reset()
            self._is_over = False

        def step(self) -> str:
            """Take one turn."""
            self._is_over = self._steps.step()
            return "over" if self._is_over else "go on"

        def get_reward(self) -> float:
            return float(self._is_over)

    tokenizer = train_tokenizer(["take one turn, go on until it is over"], 300)
    tokenizer.chat_template = qwen3_chat_template
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.eos_token = "<|im_end|>"
    size = TinyModelConfig(hidden=16, layers=1, heads=2, context=8192, vocab_size=len(tokenizer))
    prompt = [{"role": "user", "content": "take turns"}]
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=build_tiny_model(size, tokenizer, seed=0),
            processing_class=tokenizer,
            train_dataset=Dataset.from_list([{"prompt": prompt}] * SLOTS),
            environment_factory=Env,
            args=GRPOConfig(
                output_dir=folder,
                per_device_train_batch_size=SLOTS,
                num_generations=SLOTS,
                max_completion_length=8000,
                use_cpu=True,
                report_to="none",
            ),
        )
    call = '<tool_call>\n{"name": "step", "arguments": {}}\n</tool_call><|im_end|>'
    texts = {over: tokenizer.encode("over<|im_end|>" if over else call) for over in (True, False)}
    turns = 0

    def generate(prompt_ids: Any, *_: Any, **__: Any) -> Any:
        nonlocal turns
        time.sleep(POLICY_S)
        over = [env._is_over for env in playing]
        playing[:] = [env for env in playing if not env._is_over]
        turns += len(playing)
        return [texts[one] for one in over], None

    trainer._generate_single_turn = generate
    started, cpu = time.perf_counter(), time.process_time()
    finished, ended = 0, ""
    try:
        for _ in range(0, len(plan), SLOTS):
            while len(made) < SLOTS:  # they are pooled and used again
                trainer._environment_pool[None].append(Env())
            playing = made[:SLOTS]
            trainer._generate_and_score_completions([{"prompt": prompt}] * SLOTS)
            finished += sum(env._is_over for env in made)
    except Exception as error:  # noqa: BLE001 - whatever the peer makes of it
        ended = f"{type(error).__name__}: {error}".splitlines()[0]
    return {
        "wall_s": time.perf_counter() - started,
        "cpu_us_per_turn": 1e6 * (time.process_time() - cpu) / max(turns, 1),
        "finished": finished,
        "ended_by": ended,
    }


def play_agent_lightning(plan: Plan, trouble: str) -> dict[str, Any]:
    """Play all episodes with runners of Agent Lightning in one event loop."""
    import asyncio
    import os
    import threading

    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would ask the network at import
    import agentlightning  # type: ignore[import-not-found]
    from agentlightning.tracer import DummyTracer  # type: ignore[import-not-found]

    class NoTracer(DummyTracer):  # type: ignore[misc]
        @contextlib.asynccontextmanager
        async def trace_context(self, *_: Any, **__: Any) -> Any:
            yield self

        def get_last_trace(self) -> list[Any]:
            return []

    stop = threading.Event()
    begun, finished, turns, wall = 0, 0, 0, 0.0

    class Sleeper(agentlightning.LitAgent):  # type: ignore[misc]
        async def rollout_async(self, task: int, resources: Any, rollout: Any) -> float:
            nonlocal begun, finished, turns, wall
            begun += 1
            try:
                for turn, seconds in enumerate(plan[task]):
                    await asyncio.sleep(POLICY_S)
                    turns += 1
                    if trouble == "raise" and (task * 7919 + turn * 104729) % 50 == 0:
                        raise Troubled("told to break")
                    hangs = trouble == "hang" and task == 3 and turn == 0
                    await asyncio.sleep(HANG_S if hangs else seconds)
                finished += 1
                return 1.0
            finally:
                wall = time.perf_counter() - started
                if begun == len(plan):
                    stop.set()

    async def play() -> None:
        nonlocal started
        store = agentlightning.InMemoryLightningStore()
        await store.add_resources({})
        for number in range(len(plan)):
            await store.enqueue_rollout(number)
        runners = [agentlightning.LitAgentRunner(NoTracer()) for _ in range(SLOTS)]
        for number, runner in enumerate(runners):
            runner.init(Sleeper())
            runner.init_worker(number, store)
        started = time.perf_counter()
        await asyncio.gather(*(runner.iter(event=stop) for runner in runners))

    started, cpu = time.perf_counter(), time.process_time()
    asyncio.run(play())
    return {
        "wall_s": wall,
        "cpu_us_per_turn": 1e6 * (time.process_time() - cpu) / max(turns, 1),
        "finished": finished,
        "ended_by": "",
    }


def play_peer(peer: str, plan: Plan, trouble: str) -> dict[str, Any]:
    """Play all episodes with a peer."""
    if peer == "trl":
        return play_trl(plan, trouble)
    if peer == "agent-lightning":
        return play_agent_lightning(plan, trouble)
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


def measure(quick: bool, one_pass: Any, with_ledger: Any) -> dict[str, Any]:
    """Play the plan on every peer that is installed and on our scheduler."""
    from harness import child_environment, peer_python
    from turngym.rollouts.scheduler.metrics import ListSchedule

    plan = make_plan()
    best = ListSchedule(SLOTS, [sum(steps) + POLICY_S * len(steps) for steps in plan]).wall
    rows: list[dict[str, Any]] = []
    pythons = {"gymnasium": Path(sys.executable)}
    pythons |= {peer: peer_python(peer) for peer in ("gem", "trl", "agent-lightning")}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "plan.json"
        file.write_text(json.dumps(plan))
        for trouble in ("none",) if quick else ("none", "raise", "hang"):
            rows.append(
                {"who": "turngym", "trouble": trouble, **ours(trouble, one_pass, with_ledger)}
            )
            for peer, python in pythons.items():
                if python is None:
                    rows.append({"who": peer, "trouble": f"NOT RUN: benchmarks/setup.sh {peer}"})
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
            row["wall_over_bound"] = row["wall_s"] / best
    return {"rows": rows, "bound_s": best, "slots": SLOTS, "episodes": EPISODES}


def profile(trouble: str) -> Any:
    from turngym.rollouts.simulation.simulate import SimProfile

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
    from turngym.rollouts.simulation.simulate import SimEngine, SimSession
    from turngym.seeding import derive_seed

    plan: Plan = []
    for number in range(EPISODES):
        seed = derive_seed(0, "group", number // 4, "policy", number % 4)
        session, steps, end = SimSession(SimEngine(), profile("none"), seed), [], "on"
        while end == "on":
            seconds, _, end = session._decide()[0].partition(" ")
            steps.append(float(seconds))
        plan.append(steps)
    return plan


def ours(trouble: str, one_pass: Any, with_ledger: Any) -> dict[str, Any]:
    """Play the same episodes on our scheduler, with the ledger on."""
    import asyncio

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
