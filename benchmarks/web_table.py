"""Play MiniWoB with the experts, with silence and at random, and print the table of docs/web.md.

Usage: python benchmarks/web_table.py [--episodes 5] [--only FIRST:LAST] [--out RESULTS.jsonl]
       python benchmarks/web_table.py --render RESULTS.jsonl...

Held-out tasks. Every task of an agent is one line of the results, so the work may be done in parts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from turngym.agents.scripted import NoopPolicy, OraclePolicy, RandomPolicy
from turngym.environments.web.browser import BrowserHost
from turngym.environments.web.miniwob.env import MiniWobEnv
from turngym.environments.web.miniwob.experts import experts
from turngym.environments.web.miniwob.names import LONG, MAX_TURNS, TASKS
from turngym.rollouts.collect import collect, group_specs
from turngym.rollouts.evaluation import summarize
from turngym.tasks.base import procedural_task

AGENTS = {"oracle": OraclePolicy, "noop": NoopPolicy, "random": RandomPolicy}
AT_ONCE = 4


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=5)
    parser.add_argument("--agents", default="oracle,noop,random")
    parser.add_argument("--only", default=":")
    parser.add_argument("--out", type=Path, default=Path("runs/web_table.jsonl"))
    parser.add_argument("--render", nargs="*", type=Path)
    options = parser.parse_args()
    if options.render is not None:
        print(render([json.loads(line) for file in options.render for line in file.open()]))
        return 0
    options.out.parent.mkdir(parents=True, exist_ok=True)
    asyncio.run(play_all(options))
    return 0


async def play_all(options: argparse.Namespace) -> None:
    first, _, last = options.only.partition(":")
    tasks = TASKS[int(first or 0) : int(last or len(TASKS))]
    host = BrowserHost.lease()
    gate = asyncio.Semaphore(AT_ONCE)
    with options.out.open("a") as out:
        async with asyncio.TaskGroup() as group:
            for task in tasks:
                for agent in options.agents.split(","):
                    if agent != "oracle" or task in experts():
                        group.create_task(play(task, agent, options.episodes, gate, out))
    host.release()


async def play(task: str, agent: str, episodes: int, gate: asyncio.Semaphore, out: Any) -> None:
    """Play one task with one agent, each episode up to the task's turn limit."""
    specs = [
        spec
        for index in range(episodes)
        for spec in group_specs(
            f"turngym/miniwob-{task}-v0",
            procedural_task(f"miniwob-{task}", "test", index),
            seed=0,
            group_size=1,
        )
    ]
    async with gate:
        played = await collect(
            lambda: Limited(task=task), AGENTS[agent](), specs, concurrency=1, timeout_s=120
        )
    found = summarize(played)
    failed = [t.task_id for t in played if not t.is_success] if agent == "oracle" else []
    line = {
        "task": task, "agent": agent, "episodes": found.episodes, "solved": found.solved,
        "turns": found.mean_turns, "faults": found.faults, "failed": failed,
    }  # fmt: skip
    out.write(json.dumps(line) + "\n")
    out.flush()


class Limited(MiniWobEnv):
    """The task with its turn limit, as ``gymnasium.make`` gives it, without a thread of its own."""

    async def step(self, action: str) -> Any:
        result = await super().step(action)
        self._turns += 1
        observation, reward, terminated, _, info = result
        if terminated or self._turns < LONG.get(self._miniwob_task, MAX_TURNS):
            return result
        info |= {"stop_reason": "truncated_turns", "score": 0.0, "legal_actions": []}
        return observation, reward, False, True, info

    async def reset(self, **kwargs: Any) -> Any:
        self._turns = 0
        return await super().reset(**kwargs)


def render(lines: list[dict[str, Any]]) -> str:
    """Return the Markdown table."""
    by_task: dict[str, dict[str, Any]] = {}
    for line in lines:
        by_task.setdefault(line["task"], {})[line["agent"]] = line
    rows = ["| task | turns of the expert | expert | noop | random |", "|---|---|---|---|---|"]
    for task, agents in sorted(by_task.items()):
        turns = agents.get("oracle", {}).get("turns")
        cells = [f"`{task}`", "–" if turns is None else f"{turns:.1f}"]
        for agent in AGENTS:
            found = agents.get(agent)
            cells.append("–" if found is None else f"{found['solved']}/{found['episodes']}")
        rows.append(f"| {' | '.join(cells)} |")
    for agent in AGENTS:
        found = [agents[agent] for agents in by_task.values() if agent in agents]
        solved, episodes = (sum(one[key] for one in found) for key in ("solved", "episodes"))
        if episodes:
            rows.append(f"\n{agent}: {solved} of {episodes} ({100 * solved / episodes:.1f} %)")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
