"""Which turn credit is right: its correlation with Monte-Carlo values as a policy learns.

    python benchmarks/credit/truth.py --seeds 3             # stop it any time, it resumes
    python benchmarks/credit/truth.py --games city --seeds 3
    python benchmarks/credit/truth.py --page                # docs/results.md from what is there

At some updates of a run one group of attempts with successes and failures is taken apart: from each
of its states the policy of that moment plays on, half of the continuations apart from the others.
``r + V(next) - V`` is what a turn was worth. The credit that the method gave the same turns is
correlated with it: over all turns, and within episodes, where what it says of the whole attempt
does not count. What the two halves have in common is the most that any credit can reach. The
continuations cost episodes, which are counted and which the run itself does not see.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what all parts share

from comparisons import (
    ALONE,
    ARCHER_8,
    ARCHER_MAIL,
    ARCHER_WEAK,
    GIGPO,
    IGPO_PAPER,
    SPA_CITY,
    SPA_MAIL,
    SPA_SHORT,
    SPA_TURN,
    WEAK,
)

from harness import put_section
from results import PAGE
from turngym.reports.tables import COLOURS, saved, tidy, written
from turngym.reports.texts import markdown_table
from turngym.rollouts.evaluation.statistics import Estimate
from turngym.rollouts.replay import FloatArray, turn_values
from turngym.seeding import derive_seed
from turngym.tasks.base import Task, parse_task_id
from turngym.trainers.credit.base import Credit
from turngym.trainers.loop import train
from turngym.trainers.runs.comparison import ComparedAlgo, plan
from turngym.trainers.runs.run import Run
from turngym.types import Trajectory, TrajectoryGroup

RESULTS = Path(__file__).resolve().parents[1] / "results" / "credit_truth.jsonl"
CONTINUATIONS = 8
"""Of each state."""
SPA_WEAK = ("algo.rewards.0.demonstrations=256",)


@dataclass(frozen=True, kw_only=True)
class Game:
    """Whose credit is measured where."""

    title: str
    config: str
    episodes: int
    arms: tuple[ComparedAlgo, ...]
    shared: tuple[str, ...] = ()
    """``key=value`` of all arms."""

    @property
    def points(self) -> list[int]:
        """Training episodes after which the next group that differs is taken apart."""
        return [self.episodes * quarter // 4 for quarter in range(4)]


GAMES = {
    "maze": Game(
        title="the small maze",
        config="credit_ablations",
        episodes=640,
        arms=(
            ComparedAlgo(name="grpo", algo="grpo"),
            ComparedAlgo(name="gigpo", algo="gigpo", settings=GIGPO),
            ComparedAlgo(name="ppo", algo="ppo"),
            ComparedAlgo(name="spa", algo="spa", settings=SPA_SHORT),
            ComparedAlgo(name="spa_offline", algo="spa_offline"),
            ComparedAlgo(name="archer-8", algo="archer", settings=ARCHER_8),
            ComparedAlgo(name="archer_demos", algo="archer_demos", settings=ALONE),
            ComparedAlgo(name="potential", algo="potential"),
        ),
    ),
    "weak": Game(
        title="the small maze after a weak player",
        config="credit_ablations",
        shared=WEAK,
        episodes=640,
        arms=(
            ComparedAlgo(name="grpo", algo="grpo"),
            ComparedAlgo(name="spa", algo="spa", settings=SPA_SHORT),
            ComparedAlgo(name="spa_offline", algo="spa_offline", settings=SPA_WEAK),
            ComparedAlgo(name="archer_demos", algo="archer_demos", settings=ARCHER_WEAK),
        ),
    ),
    "city": Game(
        title="the game of cities",
        config="credit_city",
        episodes=1920,
        arms=(
            ComparedAlgo(name="grpo", algo="grpo"),
            ComparedAlgo(name="gigpo", algo="gigpo", settings=GIGPO),
            ComparedAlgo(name="igpo", algo="igpo"),
            ComparedAlgo(name="igpo-paper", algo="igpo", settings=IGPO_PAPER),
            ComparedAlgo(name="infopo", algo="infopo"),
            ComparedAlgo(name="spa", algo="spa", settings=SPA_CITY),
        ),
    ),
    "mail": Game(
        title="the mail room",
        config="credit_mailroom",
        episodes=1024,
        arms=(
            ComparedAlgo(name="grpo", algo="grpo"),
            ComparedAlgo(name="spa", algo="spa", settings=SPA_MAIL),
            ComparedAlgo(name="spa-turn", algo="spa_offline", settings=SPA_TURN),
            ComparedAlgo(name="archer", algo="archer", settings=ARCHER_MAIL),
        ),
    ),
}


def correlation(one: FloatArray, other: FloatArray) -> float | None:
    """Return the correlation of two arrays; None where one of them never varies."""
    if len(one) < 2 or min(np.ptp(one), np.ptp(other)) < 1e-9:
        return None
    return float(np.corrcoef(one, other)[0, 1])


def compared(credits: Sequence[FloatArray], truths: Sequence[FloatArray]) -> dict[str, Any]:
    """Return how credit agrees with the truth, over all turns and within episodes.

    Args:
        credits: One array [T] for each episode.
        truths: Their advantages, one array [2, T] for each.
    """
    found: dict[str, Any] = {}
    for name, centred in (("turns", False), ("within", True)):
        own, halves = (
            np.concatenate([x - x.mean(axis=-1, keepdims=True) * centred for x in arrays], axis=-1)
            for arrays in (credits, truths)
        )
        found[name] = correlation(own, halves.mean(axis=0))
        agree = correlation(halves[0], halves[1])
        # Spearman and Brown: what the mean of both halves has of the truth, from half of it.
        share = None if agree is None else max(0.0, 2 * agree / (1 + agree))
        found[f"{name}_most"] = None if share is None else float(np.sqrt(share))
    return found


@contextmanager
def metered(game: str, arm: str, seed: int) -> Iterator[None]:
    """Take groups apart while a run of ``arm`` trains inside the block.

    A run that was stopped and goes on has the lines of its first part.
    """
    wanted = game, arm, seed
    there = sum((r["game"], r["arm"], r["seed"]) == wanted for r in read_rows())
    assign, due = Run.assign_credit, GAMES[game].points[there:]

    async def measured(run: Run, chosen: Any) -> Credit:
        credit = await assign(run, chosen)
        mixed = [g for g in chosen.groups if len({t.is_success for t in g.usable}) > 1]
        if due and run.state.episodes >= due[0] and mixed:
            due.pop(0)
            row = await _taken_apart(run, mixed[0], credit)
            row |= {"game": game, "seed": seed, "arm": arm, "episodes": run.state.episodes}
            with RESULTS.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        return credit

    Run.assign_credit = measured  # type: ignore[method-assign]  # for as long as the run lasts
    try:
        yield
    finally:
        Run.assign_credit = assign  # type: ignore[method-assign]


async def _taken_apart(run: Run, group: TrajectoryGroup, credit: Credit) -> dict[str, Any]:
    given = {
        (t.task_id, t.policy_seed): row
        for t, row in zip(credit.trajectories, credit.advantages, strict=True)
    }
    episodes = [t for t in group.usable if t.turns]
    found = await turn_values(
        run.runner.make_env[run.runner.env_id],
        run.sampled,
        episodes,
        [_task_of(t) for t in episodes],
        attempts=CONTINUATIONS,
        seed=derive_seed(run.config.run.seed, "truth", run.state.step),
    )
    credits = [given.get((t.task_id, t.policy_seed), np.zeros(len(t.turns))) for t in episodes]
    row = compared(credits, found.advantages(episodes))
    return {**row, "turns_judged": sum(map(len, credits)), "spent": found.episodes}


def _task_of(trajectory: Trajectory) -> Task:
    return parse_task_id(trajectory.task_id.rsplit("/", 2)[0], trajectory.task_id)


def measure(name: str, seeds: int, out: Path, names: Sequence[str]) -> None:
    """Train what is missing, from one start for each seed, and append a line for each group."""
    game = GAMES[name]
    sources = [game.config, *game.shared, "evaluation.every=1000", "evaluation.held_out_tasks=32"]
    arms = [arm for arm in game.arms if not names or arm.name in names]
    heats = plan(
        [], arms, sources=sources, seeds=range(seeds), budget_episodes=game.episodes, out=out
    )
    for heat in heats:
        assert heat.warm_start is not None
        train(heat.warm_start.config, heat.warm_start.folder)
        heat.keep_start()
        for run in heat.runs:
            if not run.is_done:
                with metered(name, run.name, run.seed):
                    train(run.config, run.folder)
                print(run.label, flush=True)


def read_rows() -> list[dict[str, Any]]:
    """Return what was measured."""
    if not RESULTS.exists():
        return []
    return [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]


def section(game: Game, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of the rows of a game, one line for each arm."""
    by_arm: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        by_arm[row["arm"]].append(row)
    lines = []
    for arm, own in sorted(by_arm.items(), key=lambda pair: -_over_seeds(pair[1], "within").mean):
        early = [r for r in own if r["episodes"] < game.episodes / 2]
        late = [r for r in own if r["episodes"] >= game.episodes / 2]
        lines.append(
            [arm, str(len({r["seed"] for r in own}))]
            + [_shown(part, "within") for part in (own, early, late)]
            + [_shown(own, "turns"), _shown(own, "within_most")]
            + [str(sum(r["turns_judged"] for r in own)), str(sum(r["spent"] for r in own))]
        )
    headers = ["method", "seeds", "within episodes", "first half", "second half"]
    headers += ["all turns", "most possible", "turns", "episodes spent"]
    return "\n".join([f"In {game.title}:", "", *markdown_table(headers, lines)])


def _over_seeds(rows: Sequence[Mapping[str, Any]], key: str) -> Estimate:
    """Return the mean over seeds of each seed's mean; no credit at all agrees with nothing."""
    by_seed: defaultdict[int, list[float]] = defaultdict(list)
    for row in rows:
        by_seed[row["seed"]].append(row[key] or 0.0)
    return Estimate.of(np.array([np.mean(values) for values in by_seed.values()]))


def _shown(rows: Sequence[Mapping[str, Any]], key: str) -> str:
    if not rows:
        return "–"
    found = _over_seeds(rows, key)
    interval = "" if found.low is None else f" [{found.low:.2f}, {found.high:.2f}]"
    return f"{found.mean:.2f}{interval}"


def draw(game: Game, rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the correlation within episodes over training, one line for each arm."""
    with saved(path, (7.5, 4.2)) as figure:
        axes = figure.subplots()
        for number, arm in enumerate(sorted({row["arm"] for row in rows})):
            own = [row for row in rows if row["arm"] == arm]
            ends = [*game.points, game.episodes]
            parts = [[r for r in own if a <= r["episodes"] < b] for a, b in pairwise(ends)]
            there = [
                (a, _over_seeds(part, "within").mean)
                for a, part in zip(ends, parts, strict=False)
                if part
            ]
            axes.plot(
                *zip(*there, strict=True), "o-", color=COLOURS[number % len(COLOURS)], label=arm
            )
        axes.set(xlabel="training episodes", ylabel="correlation with the truth, within episodes")
        axes.axhline(0, color="0.7", lw=0.8)
        axes.legend(fontsize=7, frameon=False)
        tidy(axes)
    written(path)


def main() -> int:
    """Measure what is missing, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--games", nargs="+", choices=GAMES, default=list(GAMES))
    parser.add_argument("--arms", nargs="+", default=[], help="these alone")
    parser.add_argument("--out", type=Path, default=Path("runs/truth"))
    parser.add_argument("--page", action="store_true", help="write the page and measure nothing")
    arguments = parser.parse_args()
    for name in arguments.games:
        game = GAMES[name]
        if not arguments.page:
            measure(name, arguments.seeds, arguments.out / name, arguments.arms)
        rows = [row for row in read_rows() if row["game"] == name]
        if not rows:
            continue
        print(section(game, rows))
        if arguments.page:
            plot = PAGE.parent / "assets" / f"credit-truth-{name}"
            draw(game, rows, plot)
            image = f"![Truth of turn credit in {game.title}](assets/{plot.name}.png)"
            put_section(PAGE, f"credit-truth-{name}", f"{section(game, rows)}\n\n{image}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
