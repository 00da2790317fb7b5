"""Play what ``make learning ARGS="--tasks self-play"`` trained against an expert and each other.

    python benchmarks/credit/opponents.py [FOLDER]

Greedy, on 256 held-out positions for each seed. A score is 1 for a win and a half for a draw.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import turngym

ARMS = "start", "grpo", "grpo-chance", "grpo-expert"
ROOT = Path(__file__).resolve().parents[2] / "runs" / "learning" / "self-play" / "text-tictactoe"


def score(agent: str, opponent: str) -> float:
    """Return the mean score of one agent against another."""
    found = turngym.evaluate(
        "text/tictactoe", agent, opponent=opponent, episodes=256, concurrency=64
    )
    assert found.mean_score is not None
    return found.mean_score


def shown(values: list[float]) -> str:
    """Return a mean over seeds with its bootstrapped 95 % interval."""
    rows = np.random.default_rng(0).choice(values, (10_000, len(values)))
    low, high = np.quantile(rows.mean(axis=1), [0.025, 0.975])
    return f"{np.mean(values):.3f} [{low:.3f}, {high:.3f}]"


def main() -> None:
    """Print a line for each arm against the expert, then itself against chance."""
    seeds = sorted(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT).glob("seed-*"))
    for arm in ARMS:
        kind = "hf" if arm == "start" else "run"
        print(arm, "expert", shown([score(f"{kind}:{s / arm}", "expert") for s in seeds]))
    found = [score(f"run:{s / 'grpo'}", f"run:{s / 'grpo-chance'}") for s in seeds]
    print("grpo", "grpo-chance", shown(found))


if __name__ == "__main__":
    main()
