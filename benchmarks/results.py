"""Train a small policy with five seeds, study by study; write tables and curves into the docs.

    make results                      # some hours on 2 cores; stop it any time, it resumes
    make results ARGS="--studies swe --seeds 2"

Every run is ``turngym train <config> run.seed=S``, so any row can be made again alone.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from harness import put_section
from turngym.rollouts.evaluation.statistics import half_width

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "results.md"
CASES = tuple((when, how) for how in ("sampled", "greedy") for when in ("before", "after"))


# To copy a name takes longer to imitate than what to do with it: more imitation, of a noisier
# expert.
TYPED = ("expert_noise=0.85", "evaluate_from=200", "evaluate_every=10")
MINIWOB = {
    "click-test-2": (),
    "focus-text-2": (),
    "enter-text": tuple(f"warm_start.{setting}" for setting in TYPED),
}


@dataclass(frozen=True, kw_only=True)
class Study:
    """One or more configs, what they show, and where that is told."""

    configs: dict[str, str]
    """Name in the table to name of the config."""
    settings: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Name in the table to what is set on top of its config, as ``key.path=value``."""
    text: str
    page: Path
    section: str
    """Name of the page's marks."""
    plot: str
    title: str = ""
    control: bool = False
    """Also run seed 0 of the first config with learning rate 0."""
    chance: float | None = None
    """Success of choosing blindly."""
    first_seed: int = 0
    """Above those with which its settings were found."""


STUDIES = {
    "games": Study(
        configs={"maze": "demo", "taxi": "taxi", "guesscity": "guesscity"},
        title="## Three games, {seeds} seeds each",
        text="""\
A model of a third of a million parameters starts from random weights. It imitates a small number of
episodes of a noisy expert until it solves about a fifth of its validation tasks; then GRPO takes
over, with a reward only at the end. *Held-out* tasks are from the test split, which shares no
problem with training, validation or imitation; *sampled* is at temperature 1, the policy that is
trained, *greedy* takes the likeliest token. The control is the first game with learning rate 0.""",
        page=PAGE,
        section="games",
        plot="learning.png",
        control=True,
    ),
    "pictures": Study(
        configs={"lake": "lake", "blind": "lake"},
        settings={"blind": ("model.image_size=0",)},
        title="## Frozen lakes that are seen, {seeds} seeds",
        text="""\
A lake is a picture of 4 × 4 squares, and the text says no more than that there is one. A model from
random weights, its part that sees included, imitates a noisy expert for 300 steps; then GRPO takes
over, with a reward for the goal alone. *Blind* is the same run of a model that is shown no picture
(`model.image_size=0`): what can be had without looking. Settings were found on seed 0, which is not
among these. Lakes of training are solved five times in six at the end: of this size there are few,
and what is learned on them does not carry over whole, so the likeliest token is as good before.""",
        page=PAGE,
        section="pictures",
        plot="pictures-learning.png",
        first_seed=1,
    ),
    "calls": Study(
        configs={"calls": "tools"},
        title="## The maze by tool calls, {seeds} seeds",
        text="""\
The maze of the first table, played by calls of a tool, in the way of the chat template:
`[go(direction="north")]` and what it returns, where `demo` says `go north`. The settings are those
of `demo` with room for longer answers, and were not searched.""",
        page=PAGE,
        section="calls",
        plot="calls-learning.png",
    ),
    "swe": Study(
        configs={"bugs-mini": "bugs_mini"},
        text="""\
A model of a third of a million parameters imitates a noisy expert until it mends about a quarter of
its validation tasks; then GRPO takes over, with the verdict of the tests as its only reward.""",
        page=ROOT / "docs" / "swe.md",
        section="learning",
        plot="swe-learning.png",
    ),
    "web": Study(
        configs=dict.fromkeys(MINIWOB, "miniwob"),
        settings={
            task: (f"env.id=web/miniwob-{task}", *settings) for task, settings in MINIWOB.items()
        },
        text="""\
A model of a third of a million parameters imitates a noisy expert in a real Chromium until it
solves three in ten of its validation tasks, which are first counted after 45 steps (`enter-text`:
200, with more noise); then GRPO takes over, paid for success alone.""",
        page=ROOT / "docs" / "web.md",
        section="WEB LEARNING",
        plot="web-learning.png",
    ),
    "desktop": Study(
        configs={"grounding": "grounding"},
        text="""\
A model of a third of a million parameters imitates a noisy expert until it finds three in ten of
the elements it is told to click; then GRPO takes over. Chance is one in six.""",
        page=ROOT / "docs" / "desktop.md",
        section="grounding",
        plot="grounding-learning.png",
        chance=1 / 6,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Training:
    """One run of a study."""

    study: str
    name: str
    seed: int
    is_control: bool = False

    @property
    def label(self) -> str:
        """What a table calls it."""
        return f"{self.name}, {'control' if self.is_control else f'seed {self.seed}'}"

    def folder(self, out: Path) -> Path:
        """Return where it is kept."""
        return out / f"{self.name}-{'control' if self.is_control else self.seed}"

    def train(self, out: Path) -> int:
        """Train it, or go on with it, unless it is done; return the exit code."""
        target = self.folder(out)
        if (target / "summary.json").exists():
            return 0
        target.parent.mkdir(parents=True, exist_ok=True)
        config = STUDIES[self.study].configs[self.name]
        command = [sys.executable, "-m", "turngym", "train", config, f"run.seed={self.seed}"]
        command += STUDIES[self.study].settings.get(self.name, ())
        command += ["learner.lr=0"] * self.is_control + ["--out", str(target)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with target.with_suffix(".log").open("a") as log:
            code = subprocess.run(
                command, stdout=log, stderr=log, env=environment, check=False
            ).returncode
        state = "done" if code == 0 else f"exit {code}, see {target}.log"
        print(f"{target.name}: {state}", file=sys.stderr, flush=True)
        return code

    def read(self, out: Path) -> dict[str, Any]:
        """Return the summary of the finished run."""
        path = self.folder(out) / "summary.json"
        summary: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return summary


def main() -> int:
    """Train what is missing, then write the pages."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--studies", nargs="+", choices=STUDIES, default=list(STUDIES))
    parser.add_argument("--jobs", type=int, default=max(1, min(2, os.cpu_count() or 1)))
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "results")
    parser.add_argument("--no-page", action="store_true", help="train and print, write no page")
    arguments = parser.parse_args()
    for name in arguments.studies:
        runs = trainings(name, arguments.seeds)
        with ThreadPoolExecutor(arguments.jobs) as pool:
            codes = list(pool.map(lambda run: run.train(arguments.out), runs))
        if any(codes):
            return 1
        text = section(name, runs, arguments.out, seeds=arguments.seeds, jobs=arguments.jobs)
        print(text)
        if not arguments.no_page:
            study = STUDIES[name]
            draw(study, runs, arguments.out)
            put_section(study.page, study.section, text)
    return 0


def trainings(name: str, seeds: int) -> list[Training]:
    """Return the runs of a study."""
    study = STUDIES[name]
    runs = [
        Training(study=name, name=config, seed=seed)
        for config in study.configs
        for seed in range(study.first_seed, study.first_seed + seeds)
    ]
    if study.control:
        runs.append(Training(study=name, name=next(iter(study.configs)), seed=0, is_control=True))
    return runs


def section(name: str, runs: list[Training], out: Path, *, seeds: int, jobs: int) -> str:
    """Return the text, the table over seeds, and the table of single runs."""
    study = STUDIES[name]
    last, config = list(study.configs.items())[-1]
    words = " ".join([config, *study.settings.get(last, ()), "run.seed=3"])
    means = [mean_row(game, runs, out) for game in study.configs]
    number = "two runs" if jobs == 2 else f"{jobs} runs" if jobs > 1 else "one run"
    control = ", the dashed line is the control" if study.control else ""
    chance = ", the dotted line is chance" if study.chance is not None else ""
    return f"""{study.title.format(seeds=seeds)}

    make results ARGS="--studies {name}"
    turngym train {words}        # any run alone

Measured on {date.today().isoformat()}: {platform.machine()}, {os.cpu_count()} cores, {number} at a
time, one torch thread each, no GPU, Python {platform.python_version()}. Means over {seeds} seeds
with a 95 % t interval, on held-out tasks.

{study.text}

| | before, sampled | after, sampled | before, greedy | after, greedy | updates | wall minutes |
| --- | --- | --- | --- | --- | --- | --- |
{chr(10).join(means)}

![Validation success against updates](assets/{study.plot})

Thin lines are seeds, the thick line is their mean{control}{chance}. A run stops when it reaches its
target on validation tasks. Wall minutes are those of a machine with other work to do.

| run | warm start | before, sampled | after, sampled | before, greedy | after, greedy | updates |
| --- | --- | --- | --- | --- | --- | --- |
{chr(10).join(run_row(run, out) for run in runs)}""".strip("\n")


def mean_row(game: str, runs: list[Training], out: Path) -> str:
    """Return the row of a config over its seeds."""
    found = [run.read(out) for run in runs if run.name == game and not run.is_control]
    cells = [interval([run[when][how]["success"] for run in found]) for when, how in CASES]
    updates = [run["updates"] for run in found]
    minutes = [run["seconds"] / 60 for run in found]
    return (
        f"| {game} | {' | '.join(cells)} | {min(updates)}–{max(updates)} | "
        f"{min(minutes):.1f}–{max(minutes):.1f} |"
    )


def run_row(run: Training, out: Path) -> str:
    """Return the row of one run."""
    found = run.read(out)
    scores = " | ".join(f"{found[when][how]['success']:.1%}" for when, how in CASES)
    return f"| {run.label} | {found['warm_start_steps']} steps | {scores} | {found['updates']} |"


def interval(values: list[float]) -> str:
    """Return ``mean [low, high]`` in percent: a 95 % t interval over seeds."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return f"{mean:.1%}"
    half = half_width(len(values), float(np.std(values, ddof=1)))
    return f"{mean:.1%} [{max(0.0, mean - half):.1%}, {min(1.0, mean + half):.1%}]"


def draw(study: Study, runs: list[Training], out: Path) -> None:
    """Draw validation success against updates: every seed thin, their mean thick."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    games = list(study.configs)
    figure, axes = plt.subplots(
        1, len(games), figsize=(max(5.0, 4.2 * len(games)), 3.2), sharey=True, squeeze=False
    )
    for axis, game in zip(axes[0], games, strict=True):
        mine = [run for run in runs if run.name == game]
        curves = [curve(run.folder(out)) for run in mine if not run.is_control]
        grid = np.arange(max(max(steps) for steps, _ in curves) + 1)
        # A run that reached its target early keeps its last value: it was stopped because of it.
        values = np.array([np.interp(grid, steps, success) for steps, success in curves])
        for row in values:
            axis.plot(grid, row, color="tab:blue", alpha=0.3, linewidth=1)
        axis.plot(grid, values.mean(0), color="tab:blue", linewidth=2.2)
        for run in mine:
            if run.is_control:
                axis.plot(*curve(run.folder(out)), color="tab:gray", linestyle="--", linewidth=1.2)
        if study.chance is not None:
            axis.axhline(study.chance, color="tab:gray", linestyle=":", linewidth=1.2)
        axis.set(title=game, xlabel="updates", ylim=(0, 1))
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("validation success, sampled")
    figure.tight_layout()
    (study.page.parent / "assets").mkdir(exist_ok=True)
    figure.savefig(study.page.parent / "assets" / study.plot, dpi=110)


def curve(path: Path) -> tuple[list[int], list[float]]:
    """Return steps and success of the validations during reinforcement."""
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    found = [
        (row["step"], row["validation/success"]) for row in rows if "validation/success" in row
    ]
    return [step for step, _ in found], [success for _, success in found]


if __name__ == "__main__":
    sys.exit(main())
