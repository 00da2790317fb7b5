"""Train configs/miniwob.toml with several seeds; write table and curve into docs/web.md.

    make web-learning                     # stop it any time, it resumes
    make web-learning ARGS="--seeds 2"

One policy learns three tasks; afterwards it is evaluated on each of them. Every run is ``turngym
train configs/miniwob.toml run.seed=S``, so any row can be made again alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

import results
from harness import ROOT, put_section

TASKS = ("click-color", "enter-text", "focus-text-2")
EPISODES = 40
"""Per task and seed, of the test split."""


def main() -> int:
    """Train what is missing, evaluate, then write the section."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "miniwob")
    arguments = parser.parse_args()
    results.GAMES["miniwob"] = "miniwob"
    out: Path = arguments.out
    for seed in range(arguments.seeds):
        if results.train("miniwob", seed, (), out=out):
            print(f"web_learning: seed {seed} failed; its log is in {out}", file=sys.stderr)
            return 1
    folders = [results.folder("miniwob", seed, (), out) for seed in range(arguments.seeds)]
    draw(folders)
    put_section(ROOT / "docs/web.md", "WEB LEARNING", section(folders))
    return 0


def evaluate(folder: Path) -> dict[str, float]:
    """Return task to success of the trained policy; measured once."""
    path = folder / "tasks.json"
    if not path.exists():
        names = [f"web/miniwob-{task}" for task in TASKS]
        command = [sys.executable, "-m", "turngym", "eval", *names, "--agent", f"run:{folder}"]
        command += ["--episodes", str(EPISODES), "--seed", "0", "--json"]
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        path.write_text(found, encoding="utf-8")
    by_name = json.loads(path.read_text(encoding="utf-8"))
    return {task: by_name[f"web/miniwob-{task}"]["success"] for task in TASKS}


def draw(folders: list[Path]) -> None:
    """Draw validation success against updates: every seed thin, their mean thick."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    curves = [results.curve(folder) for folder in folders]
    grid = np.arange(max(max(steps) for steps, _ in curves) + 1)
    values = np.array([np.interp(grid, steps, success) for steps, success in curves])
    figure, axis = plt.subplots(figsize=(5.2, 3.2))
    for row in values:
        axis.plot(grid, row, color="tab:blue", alpha=0.3, linewidth=1)
    axis.plot(grid, values.mean(0), color="tab:blue", linewidth=2.2)
    axis.set(xlabel="updates", ylabel="validation success, sampled", ylim=(0, 1))
    axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(ROOT / "docs/assets/web_learning.png", dpi=110)


def section(folders: list[Path]) -> str:
    """Return the table over seeds, as Markdown."""
    runs: list[dict[str, Any]] = [json.loads((one / "summary.json").read_text()) for one in folders]
    rows = ["| held out | before | after |", "|---|---|---|"]
    for how in ("sampled", "greedy"):
        cells = [
            results.interval([run[when][how]["success"] for run in runs])
            for when in ("before", "after")
        ]
        rows.append(f"| all three, {how} | {' | '.join(cells)} |")
    by_task = [evaluate(folder) for folder in folders]
    rows += [
        f"| `{task}` | | {results.interval([one[task] for one in by_task])} |" for task in TASKS
    ]
    table = "\n".join(rows)
    updates = sorted(run["updates"] for run in runs)
    minutes = sorted(run["seconds"] / 60 for run in runs)
    took = f"{updates[0]}–{updates[-1]} updates, {minutes[0]:.1f}–{minutes[-1]:.1f} minutes"
    one_run = "turngym train configs/miniwob.toml run.seed=3"
    return f"""    make web-learning        # or one run: {one_run}

{len(runs)} seeds, mean with a 95 % t interval; {took}
on one of {os.cpu_count()} cores, {date.today().isoformat()}.

{table}

![Validation success against updates](assets/web_learning.png)"""


if __name__ == "__main__":
    sys.exit(main())
