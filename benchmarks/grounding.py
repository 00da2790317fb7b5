"""Train the small policy to point, five seeds; write table and curve into docs/desktop.md.

    make grounding                    # about three minutes a seed; stop it any time, it resumes
    make grounding ARGS="--seeds 2"

Every run is ``turngym train configs/grounding.toml run.seed=S``; any row can be made again alone.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from harness import put_section
from results import curve, interval

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "desktop.md"
PLOT = "grounding_learning.png"


def main() -> int:
    """Train what is missing, then write the section."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "grounding")
    parser.add_argument("--no-page", action="store_true", help="train and print, write no page")
    arguments = parser.parse_args()
    for seed in range(arguments.seeds):
        if code := train(arguments.out, seed):
            print(f"grounding: seed {seed} failed; see its .log", file=sys.stderr)
            return code
    runs = [arguments.out / f"seed-{seed}" for seed in range(arguments.seeds)]
    found = [json.loads((run / "summary.json").read_text(encoding="utf-8")) for run in runs]
    text = section(found)
    print(text)
    if not arguments.no_page:
        draw(runs)
        put_section(PAGE, "grounding", text)
    return 0


def train(out: Path, seed: int) -> int:
    """Train one seed unless it is done, or go on with it; return the exit code."""
    target = out / f"seed-{seed}"
    if (target / "summary.json").exists():
        return 0
    out.mkdir(parents=True, exist_ok=True)
    config = str(ROOT / "configs" / "grounding.toml")
    command = [sys.executable, "-m", "turngym", "train", config, f"run.seed={seed}"]
    with target.with_suffix(".log").open("a") as log:
        return subprocess.run(
            [*command, "--out", str(target)], stdout=log, stderr=log, check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        ).returncode  # fmt: skip


def section(found: list[dict[str, Any]]) -> str:
    """Return command, table over seeds and rows of single runs."""
    rows = [
        "| | before, sampled | after, sampled | before, greedy | after, greedy | updates | min |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        row(f"mean of {len(found)} seeds, 95 % t interval", found),
        *(row(f"seed {seed}", [run]) for seed, run in enumerate(found)),
    ]
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    return f"""Measured on {date.today().isoformat()}: {machine} with other work
on them, one torch thread, no GPU, Python {platform.python_version()}. Success on {HELD_OUT}
held-out tasks; chance is one in six.

    make grounding      # or one run: turngym train configs/grounding.toml run.seed=3

{chr(10).join(rows)}

![Success on validation tasks against updates](assets/{PLOT})

Thin lines are seeds, the thick line is their mean, the dashed line is chance."""


HELD_OUT = 256


def row(name: str, runs: list[dict[str, Any]]) -> str:
    """Return one row of the table."""
    cells = [
        interval([run[when][how]["success"] for run in runs])
        for how in ("sampled", "greedy")
        for when in ("before", "after")
    ]
    updates = spread([run["updates"] for run in runs], "d")
    minutes = spread([run["seconds"] / 60 for run in runs], ".1f")
    return f"| {name} | {' | '.join(cells)} | {updates} | {minutes} |"


def spread(values: list[Any], form: str) -> str:
    """Return the smallest and the largest value, or the one there is."""
    low, high = format(min(values), form), format(max(values), form)
    return low if low == high else f"{low}–{high}"


def draw(runs: list[Path]) -> None:
    """Draw validation success against updates."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(5.2, 3.2))
    curves = [curve(run) for run in runs]
    grid = np.arange(max(max(steps) for steps, _ in curves) + 1)
    # A run that reached its target early keeps its last value: it was stopped because of it.
    values = np.array([np.interp(grid, steps, success) for steps, success in curves])
    for line in values:
        axis.plot(grid, line, color="tab:blue", alpha=0.3, linewidth=1)
    axis.plot(grid, values.mean(0), color="tab:blue", linewidth=2.2)
    axis.axhline(1 / 6, color="tab:gray", linestyle="--", linewidth=1)
    axis.set(xlabel="updates", ylabel="validation success, sampled", ylim=(0, 1))
    axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(PAGE.parent / "assets" / PLOT, dpi=110)


if __name__ == "__main__":
    sys.exit(main())
