"""Play every kind of desktop and phone task; write the table into docs/desktop.md.

Usage: desktop_table.py [--episodes 3] [--only FIRST:LAST] [--out RESULTS.jsonl]
       desktop_table.py --render RESULTS.jsonl...

The expert, silence and chance on held-out tasks. Every kind and agent is one line of the results,
and what is there already is not played again, so the work may be done in parts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what all parts share

from harness import put_section
from turngym.agents.scripted import ExpertPolicy, NoopPolicy, RandomPolicy
from turngym.environments.desktop.names import PHONE_TASK_TYPES, TASK_TYPES
from turngym.environments.gym.hosts import make_async
from turngym.rollouts.episode import group_specs
from turngym.rollouts.evaluation.evaluate import collect
from turngym.rollouts.evaluation.statistics import summarize
from turngym.tasks.base import procedural_task

AGENTS = {"expert": ExpertPolicy, "noop": NoopPolicy, "random": RandomPolicy}
NAMES = [f"desktop/{kind}" for kind in TASK_TYPES] + [f"phone/{kind}" for kind in PHONE_TASK_TYPES]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "desktop.md"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=3)
    parser.add_argument("--agents", default="expert,noop,random")
    parser.add_argument("--only", default=":")
    parser.add_argument("--out", type=Path, default=Path("runs/desktop_table.jsonl"))
    parser.add_argument("--render", nargs="*", type=Path)
    options = parser.parse_args()
    if options.render is not None:
        lines = [json.loads(line) for file in options.render for line in file.open()]
        put_section(PAGE, "table", render(lines))
        return 0
    options.out.parent.mkdir(parents=True, exist_ok=True)
    asyncio.run(play_all(options))
    return 0


async def play_all(options: argparse.Namespace) -> None:
    """Play what is missing in the results, one kind after the other."""
    done = Counter()
    if options.out.exists():
        done.update((row["name"], row["agent"]) for row in map(json.loads, options.out.open()))
    first, _, last = options.only.partition(":")
    for name in NAMES[int(first or 0) : int(last or len(NAMES))]:
        for agent in options.agents.split(","):
            if not done[name, agent]:
                line = await play(name, agent, options.episodes)
                with options.out.open("a") as out:
                    out.write(json.dumps(line) + "\n")


async def play(name: str, agent: str, episodes: int) -> dict[str, Any]:
    """Play one kind with one agent, each episode up to the kind's limit of turns."""
    family, kind = name.split("/")
    specs = [
        spec
        for index in range(episodes)
        for spec in group_specs(
            f"turngym/{kind}-v0",
            procedural_task(f"{family}-{kind}", "test", index),
            seed=0,
            group_size=1,
        )
    ]
    played = await collect(
        lambda: make_async(name), AGENTS[agent](), specs, concurrency=1, timeout_s=300
    )
    found = summarize(played)
    return {
        "name": name, "agent": agent, "episodes": found.episodes, "solved": found.solved,
        "turns": found.mean_turns, "faults": found.faults,
    }  # fmt: skip


def render(lines: list[dict[str, Any]]) -> str:
    """Return the Markdown table by group of kinds, with the kinds that chance solves."""
    groups: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for line in lines:
        family, kind = line["name"].split("/")
        group = f"{kind.split('-')[0]}-*" if family == "desktop" else "phone/*"
        groups.setdefault(group, {}).setdefault(line["agent"], []).append(line)
    rows = ["| kinds | turns of the expert | expert | silence | chance |", "|---|---|---|---|---|"]
    rows += [row(f"`{group}`", agents) for group, agents in sorted(groups.items())]
    every = {agent: [one for one in lines if one["agent"] == agent] for agent in AGENTS}
    rows.append(row("all", every))
    lucky = sorted({one["name"] for one in every["random"] if one["solved"]})
    note = f"Chance solved something in {', '.join(lucky)}." if lucky else ""
    faults = sum(one["faults"] for one in lines)
    return (
        "Episodes solved, on held-out tasks; silence says nothing until the turns are over, chance "
        f"picks from the menu of actions. {faults} episodes ended by a fault.\n\n"
        "    python benchmarks/web/desktop_table.py --agents expert\n"
        "    python benchmarks/web/desktop_table.py --agents noop,random --episodes 1\n"
        "    python benchmarks/web/desktop_table.py --render runs/desktop_table.jsonl\n\n"
        + "\n".join(rows)
        + f"\n\n{note}"
    )


def row(name: str, agents: dict[str, list[dict[str, Any]]]) -> str:
    """Return one row of the table."""
    turns = [one["turns"] for one in agents.get("expert", ()) if one["turns"] is not None]
    cells = [name, f"{sum(turns) / len(turns):.1f}" if turns else "–"]
    for agent in AGENTS:
        found = agents.get(agent, [])
        solved, episodes = (sum(one[key] for one in found) for key in ("solved", "episodes"))
        cells.append(f"{solved}/{episodes}" if found else "–")
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
