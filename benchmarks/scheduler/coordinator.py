"""Measure the coordinator: one process, 4,000 live episodes, 8 simulated replicas, ledger on.

    coordinator.py                       turns per second and what bounds it, about two minutes
    coordinator.py --json                the same as JSON
    coordinator.py --write               also results/coordinator.json and docs/scheduler.md
    coordinator.py --ledger off --episodes 1000 --replicas 2 --turns 20
    coordinator.py --processes 2         one process beside two that share everything (split.py)

All that a real run goes through is real: the scheduler, the pool, the episode loop, the chat agent
with its template and tokenizer, an awaited environment with ``EpisodeCore``, token ids, log-probs
and versions, the ledger on the disk, updates that take groups and publish versions. Simulated are
the replicas, objects in this process that answer after a latency with text that was encoded
before; so no wire and no forward pass are measured. The update itself takes no time.

A window is so many seconds of processor time. Turns are counted by wall time, by the processor
time of this process, and by that of its event loop's thread: a shared machine disturbs the first
most. Beside it, by the same tasks: ``bare``, the same episodes as plain asyncio tasks (the same
session and environment; no scheduler, no ledger, no boundaries); ``replicas``, their simulation
alone. After the run ``audit`` reads the ledger: the exit status is 1 when the account is not right.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import sys
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what all parts share

from turn_costs import Numbers, Sampler, Windows

from harness import RESULTS, ROOT, machine, put_section, versions
from turngym.agents.chat.agent import ChatAgent, EngineModel
from turngym.agents.engine.protocol import Generation, OnToken, Sampling
from turngym.agents.engine.small_tokenizer import train_tokenizer
from turngym.agents.policy import ContextOverflow, EpisodeContext
from turngym.agents.rendering import Renderer
from turngym.environments.core.actions import Action, Commands
from turngym.environments.core.env import AsyncTurnEnv, Outcome
from turngym.environments.core.limits import TurnLimit
from turngym.rollouts.scheduler.audit import audit
from turngym.rollouts.scheduler.config import Capacity, SchedulerConfig
from turngym.rollouts.scheduler.groups import UniformSelection
from turngym.rollouts.scheduler.ledger import Ledger
from turngym.rollouts.scheduler.pool import EnvPool
from turngym.rollouts.scheduler.scheduler import RolloutScheduler
from turngym.seeding import derive_seed
from turngym.tasks.base import Task, procedural_task

ENV_ID = "turngym/Counter-v0"
GROUP, GROUPS_PER_STEP = 8, 64
LATENCY_S, CONTEXT = 0.05, 4096
THOUGHTS = [
    *("the", "sum", "is", "still", "short", "of", "its", "goal", "so", "more", "is", "needed"),
    *("and", "one", "step", "of", "this", "will", "do"),
]
WANTED = 20_000


class CounterEnv(AsyncTurnEnv):
    """Adds up numbers until the goal of the task is reached; its steps wait for nothing.

    Action: ``add {amount:int}``. Observation: the sum and the goal. Reward: 1 at the goal.
    Start: sum 0. End: terminated at the goal, truncated by the limit of turns.
    """

    name = "counter"
    rules = "You add up numbers. Reach the goal: add from 1 to 9 at a time."
    action_format = Commands({"add": "add {amount:int}"})

    def __init__(self, turns: int) -> None:
        super().__init__()
        self.turns, self.sum, self.goal = turns, 0, 0
        self.episode_limits = [TurnLimit(4 * turns)]

    async def begin(self, task: Task) -> Outcome:
        # Five a turn on average, so episodes have about half to one and a half of ``turns``.
        self.sum, self.goal = 0, int(5 * self.turns * self.np_random.uniform(0.5, 1.5))
        return Outcome(text=self._text())

    async def turn(self, action: Action) -> Outcome:
        self.sum += int(action.arguments["amount"])
        over = self.sum >= self.goal
        return Outcome(text=self._text(), reward=float(over), terminated=over)

    def score(self) -> float:
        return float(self.sum >= self.goal)

    def state_key(self) -> str:
        return f"{self.sum}/{self.goal}"

    def _text(self) -> str:
        return (
            f"The sum is {self.sum}. The goal is {self.goal}. {self.goal - self.sum} are missing."
        )


class SimReplica:
    """Answers each request after a latency, with one of many texts that were encoded before."""

    def __init__(self, answers: Sequence[tuple[int, ...]], seed: int) -> None:
        self.version = 0
        self.in_flight = 0
        self._answers = answers
        self._rng = random.Random(seed)

    def ask(self) -> asyncio.Future[tuple[tuple[int, ...], int]]:
        """Return a future of ids, and of the version that sampled them."""
        loop, rng = asyncio.get_running_loop(), self._rng
        answer: asyncio.Future[tuple[tuple[int, ...], int]] = loop.create_future()
        self.in_flight += 1
        ids = self._answers[int(rng.random() * len(self._answers))]
        loop.call_later(LATENCY_S * (0.5 + rng.random()), self._answer, answer, ids)
        return answer

    def _answer(self, answer: asyncio.Future[Any], ids: tuple[int, ...]) -> None:
        self.in_flight -= 1
        if not answer.done():
            answer.set_result((ids, self.version))


class SimFleet:
    """An ``Engine`` on several replicas; sessions keep their ids, as those on real servers do."""

    context = 4_096

    def __init__(self, replicas: int, answers: Sequence[tuple[int, ...]]) -> None:
        self.replicas = [SimReplica(answers, seed) for seed in range(replicas)]
        self.sampled_tokens = 0
        rng = random.Random(0)
        # Like float32: what a server's model computes in.
        self.logprobs = tuple(-rng.randrange(1, 1 << 20) / (1 << 18) for _ in range(1 << 12))

    def open(self, seed: int) -> SimSession:
        return SimSession(self, seed)

    def load(self, version: int) -> None:
        for replica in self.replicas:
            replica.version = version


class SimSession:
    """One episode's ids in the fleet; it stays with the replica that has read them."""

    def __init__(self, fleet: SimFleet, seed: int) -> None:
        self._fleet = fleet
        self._place = seed % 4000
        self._ids: list[int] = []
        self._replica = min(fleet.replicas, key=lambda one: one.in_flight)

    async def generate(
        self, new_ids: Sequence[int], sampling: Sampling, *, on_token: OnToken | None = None
    ) -> Generation:
        prompt = [*self._ids, *new_ids]
        if len(prompt) >= CONTEXT:
            raise ContextOverflow(f"conversation of {len(prompt)} tokens")
        ids, version = await self._replica.ask()
        count, place = len(ids), self._place
        self._fleet.sampled_tokens += count
        self._place = (place + count) % 4000
        self._ids = [*prompt, *ids]
        answer = Generation(
            token_ids=ids,
            logprobs=self._fleet.logprobs[place : place + count],
            versions=(version,) * count,
            finish="end",
        )
        answer.report(on_token)
        return answer

    def read(self, token_ids: Sequence[int], *, sampled: int) -> None:
        self._ids.extend(token_ids)

    def reseed(self, seed: int) -> None:
        self._place = seed % 4000

    def close(self) -> None:
        pass


def make_policy(replicas: int) -> tuple[ChatAgent[EngineModel[SimFleet]], SimFleet]:
    """Return the agent and its engine, few of whose actions are alike."""
    rng = random.Random(1)
    texts = [
        f"{' '.join(rng.choices(THOUGHTS, k=12))}.\nadd {rng.randint(1, 9)}" for _ in range(4_000)
    ]
    env = CounterEnv(10)
    env.sum, env.goal = 17, 52
    tokenizer = train_tokenizer([*texts[:500], env._text(), env.instructions], 600)
    renderer = Renderer(tokenizer)
    fleet = SimFleet(replicas, [renderer.action(text) for text in texts])
    return ChatAgent(EngineModel(fleet, renderer, sampling=Sampling())), fleet


def warm_up(options: argparse.Namespace) -> int:
    """Return the turns after which slots were filled again and updates have trained."""
    return int(1.5 * options.episodes * options.turns)


async def play_scheduled(
    options: argparse.Namespace, ledger: Ledger | None, sampler: Sampler | None, windows: Windows
) -> Numbers:
    """Play through the scheduler until the windows are full; return its own metrics."""
    policy, fleet = make_policy(options.replicas)
    steps_ahead = -(-options.episodes // (GROUP * GROUPS_PER_STEP))
    config = SchedulerConfig(
        concurrency=options.episodes,
        groups_per_step=GROUPS_PER_STEP,
        admission=Capacity(staleness=steps_ahead),
    )
    pool = EnvPool(lambda: CounterEnv(options.turns), size=options.episodes)
    selection = UniformSelection(
        lambda index: procedural_task("counter", "train", index), group_size=GROUP
    )
    scheduler = RolloutScheduler(
        pool, policy, selection, config, env_id=ENV_ID, seed=0, ledger=ledger
    )
    async with scheduler:

        async def train() -> None:
            while (batch := await scheduler.take()) is not None:
                version = batch.step + 1
                await scheduler.publish(version, load=partial(fleet.load, version))
                scheduler.mark_checkpointed(version)

        trainer = asyncio.create_task(train())
        with sampler.running() if sampler is not None else nullcontext():
            await windows.watch(lambda: scheduler.stats.turns, after=warm_up(options))
        found = scheduler.metrics()
        trainer.cancel()
        await asyncio.wait({trainer})
        if not trainer.cancelled() and (error := trainer.exception()) is not None:
            raise error
    return found


def measure(options: argparse.Namespace, *, sampled: bool) -> Numbers:
    """Return the medians of one run through the scheduler, its windows and what was counted."""
    windows = Windows(options.window_s, options.windows)
    sampler = Sampler() if sampled else None

    async def run(folder: Path) -> Numbers:
        if options.ledger == "off":
            return await play_scheduled(options, None, sampler, windows)
        async with Ledger(folder / "ledger.sqlite") as ledger:
            return await play_scheduled(options, ledger, sampler, windows)

    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        metrics = asyncio.run(run(Path(name)))
        found = {**windows.summary(), "windows": windows.rows}
        found["lag_violations"] = metrics["lag/violations"]
        found["updates"] = int(metrics["sched/version"])
        if sampler is not None:
            loop_us = found["loop_us_per_turn"]
            found["us_per_turn_by_part"] = sampler.seconds_by_part(loop_us)
            total = sampler.places.total()
            found["places"] = {k: n / total for k, n in sampler.places.most_common(25)}
        if options.ledger == "on":
            report = audit(Path(name))
            # An account in which nothing was trained on would be right whatever went wrong.
            is_right = report.is_clean and report.tokens["trained"] > 0
            found["audit"] = {"right": is_right, "equation": report.equation}
            found["audit"]["problems"] = report.problems
    gc.collect()
    return found


def measure_plain(options: argparse.Namespace, *, replicas_only: bool) -> Numbers:
    """Return the medians of the same episodes in plain tasks, or of their requests alone."""
    policy, fleet = make_policy(options.replicas)
    windows = Windows(options.window_s, options.windows)
    done = 0

    async def episodes(number: int) -> None:
        nonlocal done
        env = CounterEnv(options.turns)
        while True:
            number += options.episodes
            seed, index = derive_seed(0, "policy", number), number // GROUP
            task = procedural_task("counter", "train", index)
            observation, info = await env.reset(seed=index, options={"task": task})
            context = EpisodeContext(
                env_id=ENV_ID,
                task_id=task.id,
                seed=seed,
                instructions=info["instructions"],
            )
            session, over = policy.start(context), False
            while not over:
                turn = await session.act(observation, info)
                observation, _, over, cut, info = await env.step(turn.action.content)
                over = over or cut
                done += 1
            session.close()

    async def requests(number: int) -> None:
        nonlocal done
        while True:
            session = fleet.open(number)
            for _ in range(options.turns):
                await session.generate([1, 2, 3], Sampling())
                done += 1

    async def run() -> None:
        play: Callable[[int], Coroutine[Any, Any, None]] = requests if replicas_only else episodes
        tasks = [asyncio.create_task(play(number)) for number in range(options.episodes)]
        await windows.watch(lambda: done, after=warm_up(options))
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    asyncio.run(run())
    gc.collect()
    return {**windows.summary(), "windows": windows.rows}


def run(options: argparse.Namespace) -> Numbers:
    """Measure everything."""
    scheduled = measure(options, sampled=False)
    profile = measure(options, sampled=True)
    bare = measure_plain(options, replicas_only=False)
    replicas = measure_plain(options, replicas_only=True)
    whole = scheduled["turns_per_cpu_s"]
    settings = ("episodes", "replicas", "turns", "ledger", "windows", "window_s")
    return {
        "machine": machine(),
        "versions": versions("transformers", "tokenizers", "torch"),
        "settings": {name: getattr(options, name) for name in settings},
        "turns_per_s": scheduled["turns_per_wall_s"],
        "turns_per_cpu_s": whole,
        "turns_per_loop_cpu_s": scheduled["turns_per_loop_cpu_s"],
        "cpu_over_bare": bare["turns_per_cpu_s"] / whole,
        "wanted_turns_per_s": WANTED,
        "us_per_turn_by_part": {
            **profile["us_per_turn_by_part"],
            "ledger's thread": profile["other_threads_us_per_turn"],
        },
        "audits": [one["audit"] for one in (scheduled, profile) if "audit" in one],
        "scheduled": scheduled,
        "profile": profile,
        "bare": bare,
        "replicas": replicas,
    }


def table(found: Numbers) -> str:
    """Return the result as Markdown."""
    settings, made = found["settings"], found["machine"]
    reached = found["turns_per_cpu_s"]
    rows = [
        "## One coordinator, many episodes",
        "",
        f"`benchmarks/scheduler/coordinator.py`, {settings['episodes']:,} live episodes of about "
        f"{settings['turns']} turns, {settings['replicas']} simulated replicas, ledger "
        f"{settings['ledger']}; {made['cpu']}, {made['cores']} cores, a shared machine at load "
        f"{found['scheduled']['load']:.1f}, medians of {settings['windows']} windows of "
        f"{settings['window_s']:g} s. The processor time is that of all threads, the "
        "loop's that of the event loop alone.",
        "",
        "| turns a second | of wall time | of processor time | of the loop's processor time |",
        "| --- | --- | --- | --- |",
    ]
    for name, title in (
        ("scheduled", "the coordinator"),
        ("bare", "the same episodes in plain tasks"),
        ("replicas", "the simulated replicas alone"),
    ):
        kinds = ("turns_per_wall_s", "turns_per_cpu_s", "turns_per_loop_cpu_s")
        rows.append(f"| {title} | " + " | ".join(f"{found[name][k]:,.0f}" for k in kinds) + " |")
    if reached < found["wanted_turns_per_s"]:
        rows += ["", f"The goal of {WANTED:,} turns a second is missed: {reached:,.0f} a core."]
    rows += ["", "| microseconds of processor time a turn | |", "| --- | --- |"]
    rows += [f"| {part} | {us:.1f} |" for part, us in found["us_per_turn_by_part"].items()]
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=4000, help="alive at once")
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--turns", type=int, default=10, help="of an episode, on average")
    parser.add_argument("--ledger", choices=("on", "off"), default="on")
    parser.add_argument("--windows", type=int, default=7)
    parser.add_argument("--window-s", type=float, default=3.0)
    parser.add_argument("--processes", type=int, default=1, help="coordinators, beside one")
    parser.add_argument("--folder", default=None, help="where the ledger is written")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if options.processes > 1:
        from split import measure_split
        from split import table as split_table

        both = [measure(options, sampled=False), measure_split(options)]
        print(json.dumps(both, indent=2) if options.json else split_table(both))
        sys.exit(0 if all(one["audit"]["right"] for one in both) else 1)
    found = run(options)
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        print(table(found))
        print("\nmost sampled places of the event loop's thread")
        for place, share in found["profile"]["places"].items():
            print(f"{share:7.1%}  {place}")
        for one in found["audits"]:
            print(f"\naudit: {'right' if one['right'] else one['problems']}: {one['equation']}")
    if options.write:
        text = json.dumps(found, indent=2) + "\n"
        (RESULTS / "coordinator.json").write_text(text, encoding="utf-8")
        put_section(ROOT / "docs" / "scheduler.md", "coordinator", table(found))
    sys.exit(0 if all(one["right"] for one in found["audits"]) else 1)


if __name__ == "__main__":
    main()
