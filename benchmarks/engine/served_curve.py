"""Learning on an engine that serves over HTTP, beside the engine in the process that trains.

Within a seed all engines begin with one model and meet the same tasks in the same order
(``turngym compare``); what they sample differs, because servers claim no determinism.

    served_curve.py                             five seeds, half an hour; stop it any time
    served_curve.py --vllm /opt/vllm/bin/python three engines: vLLM, too
    served_curve.py --page                      also write the table into docs/gpu_results.md

A line of JSON for each run goes to ``results/served_curve.jsonl``, with its whole curve.
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

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what all parts share

from harness import RESULTS, ROOT, child_environment, put_section
from turngym.reports.comparison import Ranking, rank
from turngym.reports.runs import FinishedRun, find_runs
from turngym.rollouts.evaluation.statistics import Estimate
from turngym.trainers.metrics import read_metrics

FILE = RESULTS / "served_curve.jsonl"
PAGE = ROOT / "docs" / "gpu_results.md"
LOCAL, SERVED, VLLM = "local", "policy-server", "vllm"
START = ("warm_start.evaluate_from=40", "warm_start.evaluate_every=10")
"""The recipe evaluates after every second step; a policy that knows nothing plays long episodes."""
GAP = "train/behaviour_gap_max"


def main() -> int:
    """Train what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=15, help="the recipe has 55")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--held-out", type=int, default=64, help="tasks before and after")
    parser.add_argument("--vllm", default="", help="interpreter of an environment with vLLM")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "served")
    parser.add_argument("--page", action="store_true", help="write docs/gpu_results.md")
    arguments = parser.parse_args()
    command = [sys.executable, "-m", "turngym", "compare", *settings(arguments)]
    code = subprocess.run(command, env=child_environment(), check=False).returncode
    if code:
        return code
    runs, _ = find_runs([arguments.out])
    write(runs)
    [ranking] = rank(runs, reference=LOCAL)
    print(table(ranking, runs))
    if arguments.page:
        put_section(PAGE, "served", section(ranking, runs))
    return 0


def settings(arguments: argparse.Namespace) -> list[str]:
    """Return the arguments of ``turngym compare``."""
    engines = {
        SERVED: ["type=vllm", "server=turngym"],
        VLLM: ["type=vllm", f"python={arguments.vllm}"],
    }
    if not arguments.vllm:
        del engines[VLLM]
    words = ["demo", "--algos", ",".join(f"{name}=grpo" for name in (LOCAL, *engines))]
    for name, own in engines.items():
        for setting in own:
            words += ["--set", f"{name}:engine.{setting}"]
    words += [f"evaluation.held_out_tasks={arguments.held_out}", "run.tensorboard=false", *START]
    words += ["--budget-episodes", str(128 * arguments.updates), "--seeds", str(arguments.seeds)]
    words += ["--jobs", str(arguments.jobs)]
    return [*words, "--reference", LOCAL, "--out", str(arguments.out)]


def write(runs: list[FinishedRun]) -> None:
    """Write a line for each run."""
    lines = [json.dumps(row(run)) for run in sorted(runs, key=lambda r: (r.seed, r.algo))]
    FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")


def row(run: FinishedRun) -> dict[str, Any]:
    """Return what is kept of a run."""
    updates = [row for row in read_metrics(run.folder / "metrics.jsonl") if GAP in row]
    spent = [r for r in read_metrics(run.folder / "timings.jsonl") if r["phase"] == "train"]
    return {
        "engine": run.algo,
        "seed": run.seed,
        "episodes": run.episodes_P.tolist(),
        "validation": run.success_P.tolist(),
        "before": run.before,
        "held_out": run.held_out,
        "greedy": run.greedy,
        "faults": run.faults,
        "gap_max": max(row[GAP] for row in updates),
        "retried": updates[-1].get("engine/retried_requests", 0.0),
        "rollout_s": sum(row.get("rollout_s", 0.0) for row in spent) / len(updates),
    }


def table(ranking: Ranking, runs: list[FinishedRun]) -> str:
    """Return the means over seeds with their intervals, and differences by seed."""
    lines = [
        "| engine | seeds | before | after, sampled | after, greedy | area under the curve "
        "| after, minus local | area, minus local | largest gap | faults |",
        "| --- " * 10 + "|",
    ]
    for one in sorted(ranking.entries, key=lambda one: one.algo != LOCAL):
        gap = max(row(run)["gap_max"] for run in runs if run.algo == one.algo)
        cells = [one.algo, str(len(one.seeds))]
        cells += [shown(x) for x in (one.before, one.held_out, one.greedy, one.area)]
        cells += ["" if x is None else shown(x) for x in (one.held_out_gain, one.area_gain)]
        lines.append(f"| {' | '.join([*cells, f'{gap:.1e}', str(one.faults)])} |")
    return "\n".join(lines)


def shown(found: Estimate) -> str:
    """Return a share in percent with its interval."""
    text = f"{100 * found.mean:.1f}"
    if found.low is None or found.high is None:
        return text
    return f"{text} [{100 * found.low:.1f}, {100 * found.high:.1f}]"


def section(ranking: Ranking, runs: list[FinishedRun]) -> str:
    """Return what stands on the page."""
    curves = ["| updates | " + " | ".join(one.algo for one in ranking.entries) + " |"]
    curves.append("| --- " * (1 + len(ranking.entries)) + "|")
    points = runs[0].episodes_P
    for place, episodes in enumerate(points):
        heights = [
            Estimate.of(np_row([r.success_P[place] for r in runs if r.algo == one.algo]))
            for one in ranking.entries
        ]
        curves.append(f"| {episodes / 128:.0f} | " + " | ".join(map(shown, heights)) + " |")
    vllm = any(one.algo == VLLM for one in ranking.entries)
    return f"""{date.today().isoformat()}, {os.cpu_count()} busy cores.

    python benchmarks/engine/served_curve.py {"--vllm /opt/vllm/bin/python " * vllm}--page

{table(ranking, runs)}

{chr(10).join(curves)}"""


def np_row(values: list[float]) -> Any:
    """Return ``values`` as the statistics take them."""
    import numpy as np

    return np.array(values, dtype=np.float64)


if __name__ == "__main__":
    sys.exit(main())
