"""Play every SWE task and hundreds of terminal jobs with the expert and with nobody.

    PART=swe                              # besides, checks every task and plays the cheats
    swe_tasks.py --out runs/swe           # goes on where it was
    swe_tasks.py --publish                # also rewrites the section of docs/swe.md

The expert must solve all, who does nothing none: the exit status is 1 where that is not so.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what all parts share

from harness import ROOT, SOURCE, put_section

PAGE = ROOT / "docs" / "swe.md"
ENVS = {"swe/bugs": 10_000, "swe/bugs-sample": 10_000, "terminal/shell": 300}
"""Environment to episodes of each split; a set with fewer tasks is played whole."""
WANTED = {"expert": 1.0, "noop": 0.0}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "swe")
    parser.add_argument("--envs", nargs="+", choices=ENVS, default=list(ENVS))
    parser.add_argument("--publish", action="store_true")
    arguments = parser.parse_args()
    rows = [
        played(env, agent, split, arguments.out)
        for env in arguments.envs
        for split in ("train", "test")
        for agent in WANTED
    ]
    if arguments.publish:
        put_section(PAGE, "tasks", report(rows))
    return int(any(row["success"] != WANTED[row["agent"]] or row["faults"] for row in rows))


def played(env: str, agent: str, split: str, out: Path) -> dict[str, Any]:
    """Return the summary of one evaluation; one that is there already is read back."""
    folder = out / f"{env.replace('/', '-')}-{split}-{agent}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable, "-m", "turngym", "eval", env, "--agent", agent, "--split", split,
        "--episodes", str(ENVS[env]), "--concurrency", "2", "--out", str(folder), "--json",
    ]  # fmt: skip
    begun = time.perf_counter()
    run = subprocess.run(
        command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(SOURCE)}, check=False
    )
    if run.returncode:
        raise SystemExit(f"swe_tasks: {' '.join(command[2:])} ended with {run.returncode}")
    found: dict[str, Any] = json.loads(run.stdout)[env]
    seconds = time.perf_counter() - begun
    print(f"{env} {split} {agent}: {found['solved']} of {found['episodes']}, {seconds:.0f} s")
    return {"env": env, "split": split, "agent": agent, **found}


def report(rows: list[dict[str, Any]]) -> str:
    """Return the table."""
    lines = [
        f"`make proof PART=swe`, {date.today().isoformat()}.",
        "",
        "| tasks | split | expert | nobody | turns of the expert |",
        "|---|---|---|---|---|",
    ]
    for expert, nobody in zip(rows[::2], rows[1::2], strict=True):
        cells = [f"{row['solved']} of {row['episodes']}" for row in (expert, nobody)]
        lines.append(
            f"| `{expert['env']}` | {expert['split']} | {cells[0]} | {cells[1]} | "
            f"{expert['mean_turns']:.1f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
