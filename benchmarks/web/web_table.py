"""Play every web task with the experts, with silence and at random, and write docs/web.md's tables.

Usage: python benchmarks/web/web_table.py [--episodes 5] [--only 'tracker-*'] [--seconds 200]
       python benchmarks/web/web_table.py --render

Held-out tasks. Every task of an agent is one line of the results, and what has a line is not played
again, so the work may be done in parts: ``--seconds`` is the time after which no more is begun.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what all parts share

from harness import ROOT, put_section
from turngym.agents.scripted import ExpertPolicy, NoopPolicy, RandomPolicy
from turngym.environments.web import SITES
from turngym.environments.web.base import WebEnv
from turngym.environments.web.browser import BrowserHost
from turngym.environments.web.miniwob.env import MiniWobEnv
from turngym.environments.web.miniwob.experts import EXPERTS
from turngym.environments.web.miniwob.names import LONG, MAX_TURNS, TASKS
from turngym.environments.web.sites.catalogue import env_class
from turngym.rollouts.episode import group_specs
from turngym.rollouts.evaluation.evaluate import collect
from turngym.rollouts.evaluation.statistics import summarize
from turngym.tasks.base import procedural_task

AGENTS = {"expert": ExpertPolicy, "noop": NoopPolicy, "random": RandomPolicy}
UNSOLVABLE = {
    f"miniwob-click-pie/test/{number}": "the wanted item is the wheel's selected one, which moves "
    "itself in the document whenever the pointer is on it, so that no real click reaches it"
    for number in (1, 2)
}
"""Held-out tasks that nobody can solve, and why."""
AT_ONCE = 1
SITE_TURNS = 30


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=5)
    parser.add_argument("--agents", default="expert,noop,random")
    parser.add_argument("--only", default="*", help="pattern of names such as miniwob-click-*")
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--out", type=Path, default=ROOT / "runs/web_table.jsonl")
    parser.add_argument("--render", action="store_true")
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    if options.render:
        lines = [json.loads(line) for line in options.out.open()]
        put_section(ROOT / "docs/web.md", "WEB SITES", render(lines, is_site=True))
        put_section(ROOT / "docs/web.md", "WEB MINIWOB", render(lines, is_site=False))
        return 0
    asyncio.run(play_all(options))
    return 0


def all_tasks() -> dict[str, tuple[Callable[[], WebEnv], int, bool]]:
    """Return name to how its environment is made, its turn limit, and whether it has an expert."""
    found: dict[str, tuple[Callable[[], WebEnv], int, bool]] = {}
    for site, kinds in SITES.items():
        for kind in kinds:
            cls = limited(env_class(site), SITE_TURNS)
            found[f"{site}-{kind}"] = (partial(cls, kind=kind), SITE_TURNS, True)
    for task in TASKS:
        turns = LONG.get(task, MAX_TURNS)
        make = partial(limited(MiniWobEnv, turns), task=task)
        found[f"miniwob-{task}"] = (make, turns, task in EXPERTS)
    return found


async def play_all(options: argparse.Namespace) -> None:
    done = set()
    if options.out.exists():
        lines = [json.loads(line) for line in options.out.open()]
        done = {(line["task"], line["agent"]) for line in lines}
    until = time.monotonic() + options.seconds
    host = BrowserHost.lease()
    gate = asyncio.Semaphore(AT_ONCE)
    with options.out.open("a") as out:

        async def begin(task: str, agent: str, make: Callable[[], WebEnv]) -> None:
            async with gate:
                if time.monotonic() < until:
                    await play(task, agent, make, options.episodes, out)

        async with asyncio.TaskGroup() as group:
            for agent in options.agents.split(","):
                for task, (make, _, has_expert) in all_tasks().items():
                    is_wanted = fnmatch(task, options.only) and (task, agent) not in done
                    if is_wanted and (agent != "expert" or has_expert):
                        group.create_task(begin(task, agent, make))
    host.release()


async def play(task: str, agent: str, make: Callable[[], WebEnv], episodes: int, out: Any) -> None:
    """Play one task with one agent, each episode up to the task's turn limit."""
    site, _, kind = task.partition("-")
    env_id = f"turngym/{task}-v0" if site == "miniwob" else f"turngym/{site.capitalize()}-{kind}-v0"
    specs = [
        spec
        for index in range(episodes)
        for spec in group_specs(env_id, procedural_task(task, "test", index), seed=0, group_size=1)
    ]
    played = await collect(make, AGENTS[agent](), specs, concurrency=1, timeout_s=300)
    found = summarize(played)
    failed = [t.task_id for t in played if not t.is_success] if agent == "expert" else []
    line = {
        "task": task, "agent": agent, "episodes": found.episodes, "solved": found.solved,
        "turns": found.mean_turns, "faults": found.faults, "failed": failed,
    }  # fmt: skip
    out.write(json.dumps(line) + "\n")
    out.flush()


def limited(cls: type[WebEnv], max_turns: int) -> type[WebEnv]:
    """Return the class with a turn limit, as ``gymnasium.make`` sets it, without its own thread."""

    class Limited(cls):  # type: ignore[misc, valid-type]
        async def step(self, action: str) -> Any:
            result = await super().step(action)
            self._turns += 1
            observation, reward, terminated, _, info = result
            if terminated or self._turns < max_turns:
                return result
            info |= {"stop_reason": "truncated_turns", "score": 0.0, "legal_actions": []}
            return observation, reward, False, True, info

        async def reset(self, **kwargs: Any) -> Any:
            self._turns = 0
            return await super().reset(**kwargs)

    return Limited


def render(lines: list[dict[str, Any]], *, is_site: bool) -> str:
    """Return one Markdown table, and what each agent solved in all."""
    by_task: dict[str, dict[str, Any]] = {}
    for line in lines:
        if (line["task"].split("-")[0] != "miniwob") == is_site:
            by_task.setdefault(line["task"], {})[line["agent"]] = line
    rows = ["| task | turns of the expert | expert | noop | random |", "|---|---|---|---|---|"]
    for task, agents in sorted(by_task.items()):
        turns = agents.get("expert", {}).get("turns")
        cells = [f"`{task}`", "–" if turns is None else f"{turns:.1f}"]
        for agent in AGENTS:
            found = agents.get(agent)
            cells.append("–" if found is None else f"{found['solved']}/{found['episodes']}")
        rows.append(f"| {' | '.join(cells)} |")
    for agent in AGENTS:
        found = [agents[agent] for agents in by_task.values() if agent in agents]
        solved, episodes, faults = (
            sum(one[key] for one in found) for key in ("solved", "episodes", "faults")
        )
        if episodes:
            rows.append(
                f"\n{agent}: {solved} of {episodes} ({100 * solved / episodes:.1f} %), "
                f"{len(found)} tasks, {faults} faults"
            )
    missed = [
        one for agents in by_task.values() for one in agents.get("expert", {}).get("failed", ())
    ]
    rows += [
        f"\n`{one}` was not solved: {UNSOLVABLE.get(one, 'why is unknown')}." for one in missed
    ]
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
