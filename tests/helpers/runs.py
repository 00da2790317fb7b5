"""Folders that look like finished runs, with curves written by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def write_run(
    folder: Path,
    success: Sequence[float],
    *,
    algo: str,
    seed: int,
    env: str = "turngym/Maze-v0",
    episodes_per_step: int = 100,
    tokens_per_step: int = 1000,
    drawn_by_credit: int = 0,
    held_out: float | None = None,
    updates: int | None = None,
    finished: bool = True,
) -> Path:
    """Write a run that was validated before its first update and after each.

    Args:
        folder: Where it goes.
        success: One number for each validation.
        algo: Name.
        seed: Of the run.
        env: Id.
        episodes_per_step: Episodes of one update.
        tokens_per_step: Tokens of one update.
        drawn_by_credit: Tokens that the credit method drew in one update.
        held_out: Success on the test split afterwards; the last of ``success`` by default.
        updates: What the summary says; one less than ``success`` by default.
        finished: Write ``summary.json``.
    """
    folder.mkdir(parents=True)
    (folder / ".lock").touch()
    (folder / "config.json").write_text("{}")
    rows: list[dict[str, Any]] = []
    for step, share in enumerate(success):
        rows.append({"step": step, "validation/success": share})
        training = {"rollout/episodes": episodes_per_step, "rollout/tokens": tokens_per_step}
        if drawn_by_credit:
            training["credit/sampled_tokens"] = drawn_by_credit
        rows.append({"step": step, **training})
    timings = [
        {"phase": "before", "step": 0, "seconds": 9.0, "held_out_s": 9.0},
        {"phase": "train", "step": 0, "seconds": 10, "rollout_s": 5, "credit_s": 2, "update_s": 3},
    ]
    write_lines(folder / "metrics.jsonl", rows[:-1])
    write_lines(folder / "timings.jsonl", timings)
    if finished:
        last = success[-1] if held_out is None else held_out
        summary = {
            "env": env,
            "algo": algo,
            "seed": seed,
            "updates": len(success) - 1 if updates is None else updates,
            "faults": 0,
            "seconds": 120.0,
            "before": {"sampled": {"success": success[0]}},
            "after": {"sampled": {"success": last}, "greedy": {"success": last}},
        }
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def write_lines(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write one JSON object a line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
