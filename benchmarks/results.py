"""Train three games with five seeds each; write table and curves into docs/results.md.

    make results                      # about an hour on 2 cores; stop it any time, it resumes
    make results ARGS="--seeds 2 --games maze"

Every run is ``turngym train configs/<game>.toml run.seed=S``, so any row can be made again alone.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from harness import put_section

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "results.md"
GAMES = {"maze": "demo", "taxi": "taxi", "guesscity": "guesscity"}
"""Name in the table to name of the config."""
CONTROL = "learner.lr=0"
T_975 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
"""97.5 % points of Student's t by degrees of freedom."""


def main() -> int:
    """Train what is missing, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--games", nargs="+", choices=GAMES, default=list(GAMES))
    parser.add_argument("--jobs", type=int, default=max(1, min(2, os.cpu_count() or 1)))
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "results")
    parser.add_argument("--no-page", action="store_true", help="train and print, write no page")
    arguments = parser.parse_args()
    runs = [(game, seed, ()) for game in arguments.games for seed in range(arguments.seeds)]
    runs.append((arguments.games[0], 0, (CONTROL,)))
    with ThreadPoolExecutor(arguments.jobs) as pool:
        codes = list(pool.map(lambda run: train(*run, out=arguments.out), runs))
    if any(codes):
        print("results: a run failed; its log is in the run folder's .log", file=sys.stderr)
        return 1
    table, details = report(arguments.games, arguments.seeds, arguments.out)
    print(table)
    if not arguments.no_page:
        draw(arguments.games, arguments.seeds, arguments.out)
        put_section(PAGE, "games", page(table, details, arguments.seeds))
    return 0


def folder(game: str, seed: int, overrides: tuple[str, ...], out: Path) -> Path:
    """Return the run folder of one run."""
    return out / (f"{game}-control" if overrides else f"{game}-{seed}")


def train(game: str, seed: int, overrides: tuple[str, ...], *, out: Path) -> int:
    """Train one run, or go on with it; return the exit code."""
    target = folder(game, seed, overrides, out)
    target.parent.mkdir(parents=True, exist_ok=True)
    config = str(ROOT / "configs" / f"{GAMES[game]}.toml")
    command = [sys.executable, "-m", "turngym.cli", "train", config, f"run.seed={seed}"]
    command += [*overrides, "--out", str(target)]
    with target.with_suffix(".log").open("a") as log:
        code = subprocess.run(
            command, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False
        ).returncode
    print(f"{target.name}: {'done' if code == 0 else f'exit {code}'}", file=sys.stderr, flush=True)
    return code


def read(game: str, seed: int, overrides: tuple[str, ...], out: Path) -> dict[str, Any]:
    """Return a finished run's summary."""
    path = folder(game, seed, overrides, out) / "summary.json"
    summary: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return summary


def interval(values: list[float]) -> str:
    """Return ``mean [low, high]`` in percent: a 95 % t interval over seeds."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return f"{mean:.1%}"
    half = T_975[len(values) - 1] * float(np.std(values, ddof=1)) / len(values) ** 0.5
    return f"{mean:.1%} [{max(0.0, mean - half):.1%}, {min(1.0, mean + half):.1%}]"


def report(games: list[str], seeds: int, out: Path) -> tuple[str, str]:
    """Return the table over seeds, and the table of single runs."""
    lines = [
        "| game | before, sampled | after, sampled | before, greedy | after, greedy | updates | "
        "wall minutes |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    rows = [
        "| run | warm-start steps | before, sampled | after, sampled | before, greedy | "
        "after, greedy | updates | episodes |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for game in games:
        found = [read(game, seed, (), out) for seed in range(seeds)]
        control = [read(game, 0, (CONTROL,), out)] if game == games[0] else []
        cells = [
            interval([run[when][how]["success"] for run in found])
            for how in ("sampled", "greedy")
            for when in ("before", "after")
        ]
        updates = [run["updates"] for run in found]
        minutes = [run["seconds"] / 60 for run in found]
        lines.append(
            f"| {game} | {' | '.join(cells)} | {min(updates)}–{max(updates)} | "
            f"{min(minutes):.1f}–{max(minutes):.1f} |"
        )
        for name, run in [
            *((f"{game}, seed {seed}", run) for seed, run in enumerate(found)),
            *((f"{game}, control", run) for run in control),
        ]:
            scores = [
                f"{run[when][how]['success']:.1%}"
                for how in ("sampled", "greedy")
                for when in ("before", "after")
            ]
            rows.append(
                f"| {name} | {run['warm_start_steps']} | {' | '.join(scores)} | "
                f"{run['updates']} | {run['episodes']} |"
            )
    return "\n".join(lines), "\n".join(rows)


def draw(games: list[str], seeds: int, out: Path) -> None:
    """Draw validation success against updates: every seed thin, their mean thick."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(games), figsize=(4.2 * len(games), 3.2), sharey=True)
    for axis, game in zip(np.atleast_1d(axes), games, strict=True):
        curves = [curve(folder(game, seed, (), out)) for seed in range(seeds)]
        longest = max(max(steps) for steps, _ in curves)
        grid = np.arange(longest + 1)
        # A run that reached its target early keeps its last value: it was stopped because of it.
        values = np.array([np.interp(grid, steps, success) for steps, success in curves])
        for row in values:
            axis.plot(grid, row, color="tab:blue", alpha=0.3, linewidth=1)
        axis.plot(grid, values.mean(0), color="tab:blue", linewidth=2.2)
        if game == games[0]:
            control = curve(folder(game, 0, (CONTROL,), out))
            axis.plot(*control, color="tab:gray", linestyle="--", linewidth=1.2, label="lr 0")
        axis.set_title(game)
        axis.set_xlabel("updates")
        axis.set_ylim(0, 1)
        axis.grid(alpha=0.3)
    np.atleast_1d(axes)[0].set_ylabel("validation success, sampled")
    np.atleast_1d(axes)[0].legend(loc="lower right")
    figure.tight_layout()
    (PAGE.parent / "assets").mkdir(exist_ok=True)
    figure.savefig(PAGE.parent / "assets" / "learning.png", dpi=110)


def curve(path: Path) -> tuple[list[int], list[float]]:
    """Return steps and success of the validations during reinforcement."""
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    found = [
        (row["step"], row["validation/success"]) for row in rows if "validation/success" in row
    ]
    return [step for step, _ in found], [success for _, success in found]


def page(table: str, details: str, seeds: int) -> str:
    """Return the section about the games."""
    machine = f"{platform.machine()}, {os.cpu_count()} cores, two runs at a time"
    return f"""## Three games, {seeds} seeds each

    make results        # or one run: turngym train configs/taxi.toml run.seed=3

Measured on {date.today().isoformat()}: {machine}, one torch thread each, no GPU, Python
{platform.python_version()}.

A model of a third of a million parameters starts from random weights. It imitates a small number
of episodes of a noisy expert until it solves about a fifth of its validation tasks; then GRPO takes
over, with a reward only at the end. *Held-out* tasks are from the test split, which shares no
problem with training, validation or imitation. Success is the mean over seeds with a 95 % t
interval; *sampled* is at temperature 1, the policy that is trained, *greedy* takes the likeliest
token. The control is the first game with learning rate 0 (seed 0).

{table}

![Validation success against updates](assets/learning.png)

Thin lines are seeds, the thick line is their mean, the dashed line is the control. A run stops when
it reaches its target on validation tasks. Wall minutes are those of a machine with other work to
do: a run alone takes one to three.

### Every run

{details}"""


if __name__ == "__main__":
    sys.exit(main())
