"""Measure the rollout scheduler: against the best schedule, and against itself with barriers.

    scheduler.py                 everything, about ten minutes on a quiet machine
    scheduler.py --quick         the bound with 256 slots, the modes at sigma 1, costs; a minute
    scheduler.py --quick --json  the same as JSON; wall_over_bound is on top
    scheduler.py --only modes,memory

    bound    real time: 256 and 1,024 slots, log-normal latencies, ledger on
    modes    virtual time: rollout, batch and turn on the very same 10,240 episodes
    cost     processor time per turn with 1,000 episodes alive, no latency, ledger on
    memory   10,000 episodes of 1,500 tokens, packed and spilled; growth over 100,000 episodes
    text     real text episodes on the local engine, with latencies, in the three modes
    peers    the same episodes on GEM's and Gymnasium's asynchronous vectors, and what faults do

``modes`` takes no real time, so it measures what barriers cost, not what our code costs; ``bound``
and ``cost`` measure that. The exit status is 0 when everything ran, whatever the numbers.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what all parts share

from harness import machine
from turngym.agents.policy import EpisodeContext
from turngym.rollouts.scheduler.config import Barrier, Capacity, InOrder, SchedulerConfig
from turngym.rollouts.scheduler.groups import (
    GroupRequest,
    Member,
    ReadyGroup,
    UniformSelection,
    group_seed,
    store,
)
from turngym.rollouts.scheduler.ledger import Ledger
from turngym.rollouts.scheduler.metrics import ListSchedule, Timeline
from turngym.rollouts.simulation.simulate import (
    Scenario,
    SimEngine,
    SimEnv,
    SimPolicy,
    SimProfile,
    SimResult,
    SimSession,
    play_scenario,
    simulate,
)
from turngym.seeding import derive_seed
from turngym.tasks.base import Task, procedural_task
from turngym.types import Message, StopReason, TokenSpan, Trajectory, Turn

Numbers = dict[str, Any]
GROUP = 4


def one_pass(
    episodes: int, slots: int, profile: SimProfile, *, barrier: Barrier = "none", seed: int = 0
) -> Scenario:
    """Return a scenario that plays so many episodes once, with nothing held back."""
    groups = episodes // GROUP
    return Scenario(
        seed=seed,
        steps=1,
        group_size=GROUP,
        groups=groups,
        update_s=0.0,
        profile=profile,
        scheduler=SchedulerConfig(
            barrier=barrier,
            concurrency=slots,
            groups_per_step=groups,
            admission=InOrder(),
            watchdog_s=None,
        ),
    )


def policy_seed(scenario: Scenario, index: int, member: int) -> int:
    """Return the policy seed of one episode of a scenario."""
    seed = group_seed(scenario.seed, index, scenario.scheduler.groups_per_step)
    task = procedural_task("simulated", "train", index)
    return derive_seed(seed, task.id, "policy", member)


def ideal_durations(scenario: Scenario) -> list[float]:
    """Return how long each episode would take with nothing in its way, in order of begin."""
    assert scenario.groups is not None
    durations = []
    for index in range(scenario.groups):
        for member in range(scenario.group_size):
            seed = policy_seed(scenario, index, member)
            session = SimSession(SimEngine(), scenario.profile, seed)
            total, end = 0.0, "on"
            while end == "on":
                text, _, _ = session._decide()
                seconds, _, end = text.partition(" ")
                total += scenario.profile.policy_s + float(seconds)
            durations.append(total)
    return durations


class Reader(UniformSelection):
    """Notes when the last group was ordered: until then every slot had work."""

    def __init__(self, groups: int) -> None:
        super().__init__(task, group_size=GROUP, count=groups)
        self.ran_dry: float | None = None

    def propose(self, index: int) -> Task | None:
        if self.count is not None and index == self.count - 1:
            self.ran_dry = asyncio.get_running_loop().time()
        return super().propose(index)


def task(index: int) -> Task:
    return procedural_task("simulated", "train", index)


async def with_ledger(
    scenario: Scenario, *, selection: Reader | None = None, timeline: Timeline | None = None
) -> SimResult:
    """Play in the running loop with a ledger in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        async with Ledger(Path(folder) / "ledger.sqlite") as ledger:
            return await play_scenario(
                scenario, ledger=ledger, selection=selection, timeline=timeline
            )


def measure_bound(quick: bool) -> Numbers:
    """Wall time against the lower bound's, in real time with the ledger on.

    From the begin of the first episode to the end of the last.
    """
    profile = SimProfile(
        policy_s=0.1, env_median_s=0.25, env_sigma=1.0, max_turns=8, tokens_per_turn=64
    )
    rows = []
    for slots in (256,) if quick else (256, 1024):
        for seed in range(1 if quick else 3):
            scenario = one_pass(8 * slots, slots, profile, seed=seed)
            best = ListSchedule(slots, ideal_durations(scenario)).wall
            timeline, reader = Timeline(), Reader(8 * slots // GROUP)
            cpu = time.process_time()
            result = asyncio.run(with_ledger(scenario, selection=reader, timeline=timeline))
            cpu = time.process_time() - cpu
            turns = result.metrics["sched/turns_per_s"] * result.wall_s
            spans = [span for span in timeline._spans if span[2] > 0]
            wall = max(span[4] for span in spans) - min(span[3] for span in spans)
            rows.append(
                {
                    "slots": slots,
                    "seed": seed,
                    "episodes": 8 * slots,
                    "wall_s": wall,
                    "bound_s": best,
                    "wall_over_bound": wall / best,
                    "cpu_us_per_turn": 1e6 * cpu / turns,
                    "refill_ms_p50": result.metrics["sched/refill_ms_p50"],
                    "refill_ms_p99": result.metrics["sched/refill_ms_p99"],
                    "slots_busy_share": busy_share(timeline, reader.ran_dry, slots),
                }
            )
    return {"rows": rows, "load": os.getloadavg()[0]}


def busy_share(timeline: Timeline, ran_dry: float | None, slots: int) -> float:
    """Return the share of slot time that was spent in environment or policy, while work waited."""
    spans = [span for span in timeline._spans if span[2] > 0]
    start = min(span[3] for span in spans)
    end = ran_dry if ran_dry is not None else max(span[4] for span in spans)
    busy = sum(max(0.0, min(span[4], end) - max(span[3], start)) for span in spans)
    return busy / (slots * (end - start))


def measure_modes(quick: bool) -> Numbers:
    """What barriers cost, in virtual time, on the very same episodes."""
    rows = []
    for sigma in (1.0,) if quick else (0.5, 1.0, 1.5):
        profile = SimProfile(
            policy_s=0.2, env_median_s=0.5, env_sigma=sigma, max_turns=16, tokens_per_turn=1
        )
        walls = {}
        episodes = 2048 if quick else 10240
        for barrier in ("none", "batch", "turn"):
            walls[barrier] = simulate(one_pass(episodes, 256, profile, barrier=barrier)).wall_s
        ideal = ideal_durations(one_pass(episodes, 256, profile))
        full = sum(ideal) / 256  # without the tail, in which slots run dry
        rows.append(
            {
                "sigma": sigma,
                "episodes": episodes,
                **{f"{barrier}_s": wall for barrier, wall in walls.items()},
                **{f"{barrier}_over_full_slots": wall / full for barrier, wall in walls.items()},
                "none_over_bound": walls["none"] / ListSchedule(256, ideal).wall,
                "batch_over_rollout": walls["batch"] / walls["none"],
                "turn_over_rollout": walls["turn"] / walls["none"],
            }
        )
    return {"rows": rows, "slots": 256}


def measure_cost(quick: bool) -> Numbers:
    """Processor time of all threads per turn: 1,000 episodes alive, no latency, ledger on.

    Less what the simulated episodes take without any scheduler, which is told apart.
    """
    profile = SimProfile(
        policy_s=0.0, env_median_s=0.0, env_sigma=0.0, max_turns=8, tokens_per_turn=64
    )
    values, bare_values = [], []
    for seed in range(1 if quick else 5):
        scenario = Scenario(
            seed=seed,
            steps=10 if quick else 40,
            group_size=GROUP,
            update_s=0.0,
            profile=profile,
            scheduler=SchedulerConfig(
                concurrency=1000,
                groups_per_step=50,
                admission=Capacity(staleness=5),
                watchdog_s=None,
            ),
        )
        started = time.process_time()
        result = asyncio.run(with_ledger(scenario))
        spent = time.process_time() - started
        whole = 1e6 * spent / (result.metrics["sched/turns_per_s"] * result.wall_s)
        bare_values.append(1e6 * bare_seconds_per_turn(one_pass(2000, 1000, profile, seed=seed)))
        values.append(whole - bare_values[-1])
    return {
        "cpu_us_per_turn": sorted(values)[len(values) // 2],
        "values": values,
        "simulated_episodes_alone_us": sorted(bare_values)[len(bare_values) // 2],
    }


def bare_seconds_per_turn(scenario: Scenario) -> float:
    """Return the processor seconds of such episodes in plain tasks, with nothing around them.

    That is what the simulated policy, engine and environment take, and the switches of the event
    loop that they cause.
    """
    policy = SimPolicy(SimEngine(), scenario.profile)
    assert scenario.groups is not None

    turns = 0

    async def episode(seed: int) -> None:
        nonlocal turns
        env, info = SimEnv(scenario.profile), {}
        context = EpisodeContext(env_id="e", task_id="t", seed=seed, instructions="")
        session, over = policy.start(context), False
        observation, _ = await env.reset(seed=0, options={"task": SHARED_TASK})
        while not over:
            turn = await session.act(observation, info)
            observation, _, over, _, _ = await env.step(turn.action.content)
            turns += 1

    async def play() -> None:
        seeds = [
            policy_seed(scenario, index, member)
            for index in range(scenario.groups or 0)
            for member in range(scenario.group_size)
        ]
        for first in range(0, len(seeds), 1000):
            await asyncio.gather(*map(episode, seeds[first : first + 1000]))

    started = time.process_time()
    asyncio.run(play())
    return (time.process_time() - started) / turns


def measure_memory(quick: bool) -> Numbers:
    """10,000 episodes of 1,500 tokens while they wait; growth over 100,000 episodes."""
    count = 1000 if quick else 10_000
    tracemalloc.start()
    kept = []
    for index in range(count):
        kept.append(store(waiting_group(index), closed=index))
        kept[-1].pack()
    gc.collect()
    packed, _ = tracemalloc.get_traced_memory()
    for stored in kept:
        stored.spill()
    gc.collect()
    spilled, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    scale = 10_000 / count
    found: Numbers = {
        "packed_mb_per_10k": packed * scale / 1e6,
        "spilled_mb_per_10k": spilled * scale / 1e6,
        "content_mb_per_10k": 1500 * 8 * 10_000 / 1e6,
        "episodes": count,
    }
    del kept
    if not quick:
        found |= growth(100_000)
    return found


def growth(episodes: int) -> Numbers:
    """Return how memory grew between a fifth of the episodes and all of them, ledger on."""
    profile = SimProfile(
        policy_s=0.1, env_median_s=0.1, max_turns=2, tokens_per_turn=16, env_sigma=0.5
    )
    steps = episodes // (GROUP * 64)
    scenario = Scenario(
        steps=steps,
        group_size=GROUP,
        update_s=0.0,
        profile=profile,
        scheduler=SchedulerConfig(concurrency=256, groups_per_step=64, watchdog_s=None),
    )
    seen: list[int] = []

    class Watcher(UniformSelection):
        def replay(self, step: int, groups: Any) -> Any:
            seen.append(resident())
            return ()

    async def play() -> None:
        with tempfile.TemporaryDirectory() as folder:
            async with Ledger(Path(folder) / "l.sqlite", threaded=False) as ledger:
                watcher = Watcher(task, group_size=GROUP)
                await play_scenario(scenario, ledger=ledger, selection=watcher)

    from turngym.rollouts.simulation.simulate import run_virtually

    run_virtually(play())
    early, last = seen[len(seen) // 5], seen[-1]
    return {"grown_episodes": episodes, "growth_share": (last - early) / early}


def waiting_group(index: int) -> ReadyGroup:
    """Return a finished group of one episode of 1,500 drawn tokens."""
    ids = tuple((index * 7919 + n) % 151_936 for n in range(1500))
    drawn = TokenSpan(token_ids=ids, sampled=True, logprobs=(-0.5,) * 1500, policy_version=0)
    turn = Turn(observation=(), action=Message(role="assistant", content="x"), spans=(drawn,))
    trajectory = Trajectory(
        env_id="e",
        task_id="t",
        env_seed=0,
        policy_seed=index,
        turns=(turn,),
        stop_reason=StopReason.TERMINATED,
        score=1.0,
    )
    member = Member(
        number=0,
        retry=0,
        trajectory=trajectory,
        first_turn=0,
        end_turn=1,
        versions=(0,),
        start_version=0,
    )
    request = GroupRequest(task=SHARED_TASK, size=1)
    return ReadyGroup(index=index, request=request, members=(member,), start_version=0)


SHARED_TASK = procedural_task("simulated", "train", 0)


def resident() -> int:
    """Return the bytes that this process holds in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def measure_text(quick: bool) -> Numbers:
    """Real text episodes, local engine; imported late, it needs torch."""
    from scheduler_text import measure

    return measure(quick)


def measure_peers(quick: bool) -> Numbers:
    """GEM and Gymnasium on the same episodes."""
    from scheduler_peers import measure

    return measure(quick, one_pass, with_ledger)


PARTS: dict[str, Callable[[bool], Numbers]] = {
    "bound": measure_bound,
    "modes": measure_modes,
    "cost": measure_cost,
    "memory": measure_memory,
    "text": measure_text,
    "peers": measure_peers,
}
QUICK = ("bound", "modes", "cost", "memory")


def goals(found: Numbers) -> list[Numbers]:
    """Return what was promised beside what came out."""
    rows: list[Numbers] = []

    def goal(name: str, value: float, limit: float, *, at_least: bool = False) -> None:
        met = value >= limit if at_least else value <= limit
        sign = "at least" if at_least else "at most"
        rows.append({"name": name, "value": value, "wanted": f"{sign} {limit:g}", "met": met})

    for row in found.get("bound", {}).get("rows", ()):
        name = f"{row['slots']} slots, seed {row['seed']}"
        goal(f"wall / lower bound, {name}", row["wall_over_bound"], 1.05)
        goal(f"refill p50 in ms, {name}", row["refill_ms_p50"], 1.0)
        goal(f"refill p99 in ms, {name}", row["refill_ms_p99"], 10.0)
        goal(f"slots busy, {name}", row["slots_busy_share"], 0.95, at_least=True)
    if "cost" in found:
        goal("processor time per turn in us", found["cost"]["cpu_us_per_turn"], 150.0)
    if "memory" in found:
        memory = found["memory"]
        goal("10,000 episodes packed in MB", memory["packed_mb_per_10k"], 150.0)
        goal("10,000 episodes spilled in MB", memory["spilled_mb_per_10k"], 20.0)
        if "growth_share" in memory:
            goal("growth over 100,000 episodes", memory["growth_share"], 0.05)
    return rows


def run(parts: Iterable[str], quick: bool) -> Numbers:
    """Measure ``parts`` and return everything, the headline first."""
    found: Numbers = {}
    for name in parts:
        sys.stderr.write(f"{name} ...\n")
        found[name] = PARTS[name](quick)
    head: Numbers = {}
    if "bound" in found:
        ratios = [row["wall_over_bound"] for row in found["bound"]["rows"]]
        head["wall_over_bound"] = sorted(ratios)[len(ratios) // 2]
    return head | {"machine": machine(), "quick": quick, "goals": goals(found), **found}


def show(found: Numbers) -> None:
    """Print the goals and the rows."""
    for goal in found["goals"]:
        mark = "met   " if goal["met"] else "MISSED"
        print(f"{mark}  {goal['name']}: {goal['value']:.4g} ({goal['wanted']})")
    for part in PARTS:
        if part in found:
            print(f"\n{part}")
            for row in found[part].get("rows", [found[part]]):
                print("  " + ", ".join(f"{k} {_short(v)}" for k, v in row.items()))


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", default=None, help="parts, with commas between them")
    arguments = parser.parse_args()
    parts = arguments.only.split(",") if arguments.only else QUICK if arguments.quick else PARTS
    if unknown := set(parts) - set(PARTS):
        parser.error(f"unknown part {sorted(unknown)[0]!r}; choose from: {', '.join(PARTS)}")
    found = run(parts, arguments.quick)
    if arguments.json:
        print(json.dumps(found, indent=2))
    else:
        show(found)


if __name__ == "__main__":
    main()
