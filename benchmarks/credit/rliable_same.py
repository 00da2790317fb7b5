"""Compare the statistics of ``turngym report`` with rliable's on the same numbers.

    benchmarks/setup.sh rliable
    PYTHONPATH=src benchmarks/.venv/rliable/bin/python benchmarks/credit/rliable_same.py

Point values must be equal; ends of intervals, sampled with other random numbers, near. The exit
status is 1 where they are not.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from rliable import library, metrics

from turngym.reports.overall import LEVELS, overall
from turngym.reports.runs import FinishedRun

SEEDS, ENVS = 10, ("a", "b", "c")
NEAR = 0.02
"""Of an end of an interval, in units of success; 2,000 resamples here, 20,000 there."""


def run(env: str, algo: str, seed: int, held_out: float) -> FinishedRun:
    """Return a run that has nothing but its held-out success."""
    none, numbers = np.zeros(1), {"before": 0.0, "greedy": 0.0, "seconds": 0.0, "credit_share": 0.0}
    return FinishedRun(
        folder=Path(), env=env, algo=algo, seed=seed, episodes_P=none, tokens_P=none,
        success_P=none, held_out=held_out, updates=0, faults=0, **numbers,
    )  # fmt: skip


def main() -> int:
    random = np.random.default_rng(0)
    scores = {algo: random.beta(a, 2, (SEEDS, len(ENVS))).round(2) for algo, a in
              (("grpo", 2.0), ("quick", 3.0))}  # fmt: skip
    runs = [
        run(env, algo, seed, float(table[seed, place]))
        for algo, table in scores.items()
        for seed in range(SEEDS)
        for place, env in enumerate(ENVS)
    ]
    found = overall(runs, "grpo")
    assert found is not None
    ours = {entry.algo: entry for entry in found.entries}

    def measure(table: Any) -> Any:
        return np.array([metrics.aggregate_iqm(table)])

    points, intervals = library.get_interval_estimates(scores, measure, reps=20_000)
    profiles, _ = library.create_performance_profile(scores, LEVELS, reps=100)
    chance = metrics.probability_of_improvement(scores["quick"], scores["grpo"])
    better = ours["quick"].better
    assert better is not None
    rows = [("chance to be better", better.mean, chance, 1e-9)]
    for algo, entry in ours.items():
        rows += [
            (f"{algo}: interquartile mean", entry.iqm.mean, points[algo][0], 1e-9),
            (f"{algo}: its lower end", entry.iqm.low, intervals[algo][0, 0], NEAR),
            (f"{algo}: its upper end", entry.iqm.high, intervals[algo][1, 0], NEAR),
            (f"{algo}: profile, largest gap", abs(entry.profile_L - profiles[algo]).max(), 0, 1e-9),
        ]
    for name, own, theirs, _ in rows:
        print(f"{name:32} {own:8.4f} {float(theirs):8.4f}")
    return int(any(abs(own - float(theirs)) > most for _, own, theirs, most in rows))


if __name__ == "__main__":
    sys.exit(main())
