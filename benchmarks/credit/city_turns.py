"""Say what the models of a comparison do in each kind of turn of guesscity.

    python benchmarks/credit/city_turns.py    # after make learning ARGS="--tasks gains-again"
    python benchmarks/credit/city_turns.py --run igpo-paper    # what became of it
    python benchmarks/credit/city_turns.py --run random

Which part of the game is still to be learned decides whether credit for questions can help. Turns
count from the first answer on.
"""

from __future__ import annotations

import argparse
import asyncio
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from turngym.agents.policy import Policy
from turngym.agents.scripted import ExpertPolicy
from turngym.config import load_config
from turngym.trainers.runs.episode_runner import EpisodeRunner
from turngym.trainers.runs.policies import load_policy
from turngym.trainers.settings.train import TrainConfig
from turngym.types import Trajectory

ROOT = Path(__file__).resolve().parents[2]
CONFIG = "credit_city"
LEFT = re.compile(r"left (.+)\. differ (.+)\.")
USEFUL = "questions that tell who is left apart"
ONLY = re.compile(r"only (\w+)\.")


def main() -> None:
    """Play validation tasks with each seed's model and print shares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "learning" / "gains-again")
    parser.add_argument(
        "--run",
        default="warm-start",
        help="folder of the model below each seed; random for questions drawn at random",
    )
    parser.add_argument("--episodes", type=int, default=200, help="for each seed")
    arguments = parser.parse_args()
    counts: Counter[str | tuple[str, str]] = Counter()
    folders = sorted((arguments.out / "text-guesscity").glob("seed-*"))
    if not folders:
        parser.error(
            f"{arguments.out}: holds no comparison of text/guesscity; run make learning "
            'ARGS="--tasks gains-again" first, or give its folder with --out'
        )
    for folder in folders:
        size = f"evaluation.validation_tasks={arguments.episodes}"
        runner = EpisodeRunner(
            load_config(TrainConfig, [CONFIG, f"run.seed={folder.name[5:]}", size])
        )
        if arguments.run == "random":
            policy: Policy = ExpertPolicy(1.0, ["ask"])
        else:
            policy = load_policy(folder / arguments.run, greedy=False)
        counts += count(asyncio.run(runner.validation_episodes(policy, "turns")))
        runner.close()
    for what, of in (
        ("success", "episodes"),
        (USEFUL, "questions while several are left"),
        ("guesses", "turns with several left"),
        ("guesses", "turns with one left"),
        ("right guesses", "guesses with one left"),
    ):
        share = counts[what, of] / max(1, counts[of])
        print(f"{what}: {share:.0%} of {counts[of]} {of}, {len(folders)} seeds")


def count(episodes: Iterable[Trajectory]) -> Counter[str | tuple[str, str]]:
    """Return how often each situation came up, and (what, situation) was done in it."""
    found: Counter[str | tuple[str, str]] = Counter()

    def add(what: str, of: str, is_so: bool) -> None:
        found[of] += 1
        found[what, of] += is_so

    for episode in episodes:
        add("success", "episodes", episode.score == 1)
        for turn in episode.turns:
            seen = turn.observation[-1].content
            verb, _, rest = turn.action.content.partition(" ")
            if left := LEFT.search(seen):
                add("guesses", "turns with several left", verb == "guess")
                if verb == "ask":
                    add(USEFUL, "questions while several are left", rest in left[2].split())
            if only := ONLY.search(seen):
                add("guesses", "turns with one left", verb == "guess")
                if verb == "guess":
                    add("right guesses", "guesses with one left", rest == only[1])
    return found


if __name__ == "__main__":
    main()
