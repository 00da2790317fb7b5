"""Part c: one GRPO update of turngym against one of TRL's GRPOTrainer.

Both start from the same weights, see and draw the same number of tokens and make one optimizer step
a batch of 128 episodes: clipped surrogate, no KL term, advantages by the group's mean and spread,
fp32, AdamW, 8 sequences at a time, one thread, no logging. No episode can end early.

Two kinds of batch: ``one-turn``, a prompt and an answer, all of one length, where both run nearly
the same torch operations; and ``multi-turn``, episodes of 4 to 14 turns, where turngym keeps its
caches and sorts sequences by length, while TRL pads all to the longest. The promise of twice the
speed is about the second.

An update counts as a whole, and without its rollout: what is left is credit, samples, loss,
gradient and optimizer step and, for turngym, the hand-over of the weights to the engine.

TRL recomputes activations by default ("gradient checkpointing"), which saves memory and costs time.
The comparison has it off, as turngym does not; TRL with its default is measured beside it.

Every measured value comes from a fresh process (``vs_trl.py``), which makes a few updates and
reports the median of all but the first, and the peak of its resident memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what all parts share

from vs_trl import BATCHES, GROUP, PROMPTS, ROWS, SIDES, UPDATES

from episodes import SHAPES, VOCABULARY, make_model, make_tokenizer
from harness import (
    Clock,
    Measurement,
    NotRun,
    PartResult,
    child_environment,
    clock_name,
    ratio_goal,
    run_part,
    versions,
)
from turngym.agents.engine.models import save_model_dir

QUANTITIES = {
    "update_s": ("update with rollout", "s"),
    "without_rollout_s": ("update without rollout", "s"),
    "peak_mb": ("peak memory", "MB"),
    "growth_mb": ("growth of memory during the updates", "MB"),
}
WANTED = {"one-turn": 1.0, "multi-turn": 2.0}
"""How many times our time TRL should need at least; of memory, as much."""


def measure(repeats: int, clock: Clock) -> PartResult:
    """Run all sides in turn, each in a fresh process."""
    result = PartResult(
        part="c",
        title="One GRPO update",
        settings={
            "tasks": PROMPTS,
            "attempts": GROUP,
            "sequences_at_once": ROWS,
            "batches": {name: str(batch) for name, batch in BATCHES.items()},
            "updates_per_process": UPDATES,
            "vocabulary": VOCABULARY,
            "dtype": "float32",
            "threads": 1,
        },
        versions=versions("torch", "transformers", "trl", "datasets", "numpy"),
    )
    sides = SIDES if "trl" in result.versions else SIDES[:1]
    if len(sides) == 1:
        reason = "TRL is not installed for this interpreter"
        result.not_run.append(NotRun(name="TRL", reason=reason, remedy="benchmarks/setup.sh trl"))
    with tempfile.TemporaryDirectory(prefix="turngym-bench-") as folder:
        for shape in SHAPES:
            model_dir = Path(folder) / shape
            save_model_dir(make_model(shape), make_tokenizer(), model_dir)
            for batch in BATCHES:
                of_batch = sides if batch == "one-turn" else sides[:2]
                runs: dict[str, list[dict[str, float]]] = {side: [] for side in of_batch}
                for number in range(repeats):
                    turn = number % len(of_batch)
                    for side in of_batch[turn:] + of_batch[:turn]:
                        found = _in_fresh_process(side, batch, model_dir, clock)
                        runs[side].append(found)
                _add(result, shape, batch, runs)
    return result


def _add(
    result: PartResult, shape: str, batch: str, runs: dict[str, list[dict[str, float]]]
) -> None:
    name = f"{shape}, {batch}"
    for key, (what, unit) in QUANTITIES.items():
        values = {side: tuple(run[key] for run in of_side) for side, of_side in runs.items()}
        result.measurements += [
            Measurement(name=f"{name}: {side}, {what}", unit=unit, values=of_side)
            for side, of_side in values.items()
        ]
        if "TRL" in values and key != "growth_mb":
            result.goals.append(
                ratio_goal(
                    f"{name}: TRL / turngym, {what}",
                    values["TRL"],
                    values["turngym"],
                    at_least=WANTED[batch] if unit == "s" else 1.0,
                )
            )


def _in_fresh_process(side: str, batch: str, model_dir: Path, clock: Clock) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="turngym-bench-") as folder:
        output = Path(folder) / "found.json"
        command = [sys.executable, str(Path(__file__).with_name("vs_trl.py"))]
        command += ["--side", side, "--batch", batch, "--model", str(model_dir)]
        command += ["--output", str(output), "--clock", clock_name(clock)]
        done = subprocess.run(
            command,
            env=child_environment(),
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{side} ended with {done.returncode}:\n{done.stderr[-3000:]}")
        found: dict[str, float] = json.loads(output.read_text())
        return found


if __name__ == "__main__":
    run_part(measure, default_repeats=3)
