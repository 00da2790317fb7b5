"""Train the small policy on one-line bugs, five seeds; write curve and table into docs/swe.md.

    make learning-swe                     # stop it any time, it resumes
    swe_learning.py --seeds 2 --no-page

Every run is ``turngym train configs/bugs_mini.toml run.seed=S``, so any of them can be made again
alone.
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

from harness import ROOT, SOURCE, put_section
from results import curve, interval

PAGE = ROOT / "docs" / "swe.md"
CONFIG = "configs/bugs_mini.toml"
CASES = tuple((when, how) for how in ("sampled", "greedy") for when in ("before", "after"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "swe_learning")
    parser.add_argument("--no-page", action="store_true", help="train and print, write no page")
    arguments = parser.parse_args()
    folders = [arguments.out / str(seed) for seed in range(arguments.seeds)]
    arguments.out.mkdir(parents=True, exist_ok=True)
    for seed, folder in enumerate(folders):
        if code := train(seed, folder):
            print(f"swe_learning: seed {seed} ended with {code}; see {folder}.log", file=sys.stderr)
            return 1
    text = page([json.loads((folder / "summary.json").read_text()) for folder in folders])
    print(text)
    if not arguments.no_page:
        draw(folders)
        put_section(PAGE, "learning", text)
    return 0


def train(seed: int, folder: Path) -> int:
    """Train one seed, or go on with it; return the exit code."""
    if (folder / "summary.json").exists():
        return 0
    command = [sys.executable, "-m", "turngym", "train", str(ROOT / CONFIG)]
    command += [f"run.seed={seed}", "--out", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE)}
    with folder.with_suffix(".log").open("a") as log:
        return subprocess.run(
            command, stdout=log, stderr=log, env=environment, check=False
        ).returncode


def draw(folders: list[Path]) -> None:
    """Draw validation success against updates: every seed thin, their mean thick."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    curves = [curve(folder) for folder in folders]
    grid = np.arange(1 + max(max(steps) for steps, _ in curves))
    # A run that reached its target early keeps its last value: it was stopped because of it.
    values = np.array([np.interp(grid, steps, success) for steps, success in curves])
    figure, axis = plt.subplots(figsize=(5.0, 3.2))
    for row in values:
        axis.plot(grid, row, color="tab:blue", alpha=0.3, linewidth=1)
    axis.plot(grid, values.mean(0), color="tab:blue", linewidth=2.2)
    axis.set(xlabel="updates", ylabel="validation success, sampled", ylim=(0, 1))
    axis.grid(alpha=0.3)
    figure.tight_layout()
    (PAGE.parent / "assets").mkdir(exist_ok=True)
    figure.savefig(PAGE.parent / "assets" / "swe-learning.png", dpi=110)


def page(runs: list[dict[str, Any]]) -> str:
    """Return the section."""
    means = [interval([run[when][how]["success"] for run in runs]) for when, how in CASES]
    rows = [
        f"| {seed} | {run['warm_start_steps']} | "
        + " | ".join(f"{run[when][how]['success']:.1%}" for when, how in CASES)
        + f" | {run['updates']} | {run['episodes']} | {run['seconds'] / 60:.1f} |"
        for seed, run in enumerate(runs)
    ]
    head = (
        "| seed | warm-start steps | before, sampled | after, sampled | before, greedy | "
        "after, greedy | updates | episodes | wall minutes |"
    )
    return "\n".join(
        [
            f"    make learning-swe        # or one run: turngym train {CONFIG} run.seed=3",
            "",
            f"Measured on {date.today().isoformat()}: {platform.machine()}, one torch thread, no "
            "GPU, on a machine with other work to do. Success on held-out tasks, with a 95 % t "
            f"interval over {len(runs)} seeds: sampled from {means[0]} to {means[1]}, greedy from "
            f"{means[2]} to {means[3]}.",
            "",
            "![Validation success against updates](assets/swe-learning.png)",
            "",
            "Thin lines are seeds, the thick line is their mean.",
            "",
            head,
            "|" + " --- |" * 9,
            *rows,
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
