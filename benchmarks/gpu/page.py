"""Write what one H200 gave, as it is stored, into docs/gpu_results.md."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what all parts share

import numpy as np

from harness import RESULTS, ROOT, put_section
from turngym.rollouts.evaluation.statistics import Estimate

FOLDER, PAGE = RESULTS / "gpu", ROOT / "docs" / "gpu_results.md"
Row = dict[str, Any]


def main() -> None:
    """Write the section."""
    parts = {name: json.loads((FOLDER / f"{name}.json").read_text("utf-8")) for name in TABLES}
    found = parts["language"]
    versions = ", ".join(f"{name} {of}" for name, of in sorted(found["versions"].items()))
    gpu, cores = found["gpu"].partition(",")[0], found["machine"]["cores"]
    lines = [f"{found['date']}, {gpu}, {cores} cores; {versions}."]
    for name, table in TABLES.items():
        lines += ["", *table(parts[name]["rows"])]
    put_section(PAGE, "h200", "\n".join(lines))


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def smoke(rows: Sequence[Row]) -> list[str]:
    """Return how far log-probs of vLLM are from torch's."""
    heads = ("update with requests under way", "seconds", "crossed it", *_SIDES)
    cells = (
        (
            row["case"].replace("-", ", "),
            f"{row['publish_s']:.2f}",
            f"{row['crossed']} of 16",
            *(_gap(row[key]) for key in ("gap_before", "gap_after")),
        )
        for row in rows
    )
    return table(heads, cells)


_SIDES = ("gap to torch before: mean, largest", "after")


def _gap(found: Row) -> str:
    return f"{found['mean']:.1e}, {found['max']:.1e}"


def learner(rows: Sequence[Row]) -> list[str]:
    """Return what the learner did."""
    heads = ("model", "micro-batch", "trained tokens a second", "share of 790 TFLOP/s", "peak GiB")
    return table(heads, (_trained(row) for row in rows))


def _trained(row: Row) -> Sequence[str]:
    what = f", adapters of rank {row['lora_rank']}" if row["lora_rank"] else ""
    what += "" if row["recompute"] else ", activations kept"
    return (
        row["shape"] + what,
        f"{row['microbatch_tokens']:,}",
        f"{row['tokens_per_s']:,.0f}",
        f"{100 * row['mfu']:.0f} %",
        f"{row['peak_gib']:.0f}",
    )


def rollout(rows: Sequence[Row]) -> list[str]:
    """Return how fast engines sampled, and how long new weights took."""
    heads = ("model", "engine", "episodes at once", "sampled tokens a second", "s to publish")
    published = {(r["shape"], r["engine"]): r["publish_s"] for r in rows if "publish_s" in r}
    lines = []
    for key in dict.fromkeys((row["shape"], row["engine"]) for row in rows):
        took = f"{statistics.median(published[key]):.1f}" if key in published else ""
        speeds = [r for r in rows if (r["shape"], r["engine"]) == key and "tokens_per_s" in r]
        for row in speeds or [{}]:
            cells = (str(row["concurrency"]), f"{row['tokens_per_s']:,.0f}") if row else ("", "")
            lines.append([*key, *cells, took])
            took = ""
    return table(heads, lines)


def language(rows: Sequence[Row]) -> list[str]:
    """Return what SmolLM2 learned: method by method where seeds are the same, and run by run."""
    heads = ("run", "seed", "imitation alone", *_CURVE, "held out after", *_COSTS)
    methods = _compared(rows, ("grpo", "igpo", "filtered_bc"))
    return [*methods, "", *table(heads, (_run(row) for row in rows))]


def seeds(rows: Sequence[Row]) -> list[str]:
    """Return what methods made of the same imitated models, seed by seed."""
    found = _by_method(rows, _SEEDED)
    heads = ("seed", "imitation alone", *(f"{name}: area, held out after" for name in found))
    lines = [
        [str(seed), _percent([_numbers(found["grpo"][seed])[0]])]
        + [
            ", ".join(_percent([of]) or "cut off" for of in _numbers(found[name][seed])[1:])
            for name in _SEEDED
        ]
        for seed in sorted(found["grpo"])
    ]
    return [*_compared(rows, _SEEDED), "", *table(heads, lines)]


def long(rows: Sequence[Row]) -> list[str]:
    """Return validation by episodes, in all seeds, and what ArCHer is beside GRPO."""
    heads = ("method", "seeds", "imitation alone", *(f"{n} episodes" for n in _EPISODES))
    lines, found = [], {}
    for name in ("grpo", "archer_demos"):
        of = sorted((row for row in rows if row["case"] == f"maze, {name}"), key=_seed)
        held = [[e[_HELD] for e in row["evaluations"] if _HELD in e] for row in of]
        valid = np.array([[e[_VALID] for e in row["evaluations"] if _VALID in e] for row in of])
        found[name] = valid[:, 1]
        cells = [_estimate(values) for values in valid.T[1:]]
        cells += [""] * (len(_EPISODES) - len(cells))
        ended = [h[1] for h in held if len(h) > 1]
        ends = _estimate(ended) if ended else "cut off"
        gain = "" if name == "grpo" else _estimate(valid[:, 1] - found["grpo"])
        first = _estimate([h[0] for h in held])
        lines.append([name, str(len(of)), first, *cells, ends, gain])
    return table((*heads, "held out after", f"{_EPISODES[0]} episodes, minus GRPO"), lines)


def _seed(row: Row) -> int:
    return int(row["seed"])


_EPISODES = (96, 192, 288)
"""When validation tasks were played."""
_SEEDED = ("grpo", "igpo-paper", "igpo")


def _by_method(rows: Sequence[Row], names: Sequence[str]) -> dict[str, dict[int, Row]]:
    return {
        name: {row["seed"]: row for row in rows if row["case"] == f"guesscity, {name}"}
        for name in names
    }


def _compared(rows: Sequence[Row], names: Sequence[str]) -> list[str]:
    """Return GuessCity's methods, each beside GRPO with the seeds that both have to the end.

    A run that solved all of its validation tasks after ten updates ended there: ten are compared.
    """
    found = _by_method(rows, names)
    lines = []
    for name, of in found.items():
        both = sorted(set(of) & set(found["grpo"]))
        pairs = np.array([[_numbers(o[seed]) for seed in both] for o in (of, found["grpo"])])
        pairs = pairs[:, ~np.isnan(pairs).any(axis=(0, 2))]
        cells = [_estimate(values) for values in pairs[0].T]
        gains = pairs[0] - pairs[1]
        cells += [_estimate(values) if name != "grpo" else "" for values in gains.T[1:]]
        lines.append([name, str(len(gains)), *cells])
    minus = ("area, minus GRPO", "held out, minus GRPO")
    heads = ("method", "seeds", "imitation alone", "area of ten updates", "held out after", *minus)
    return table(heads, lines)


def _numbers(row: Row) -> list[float]:
    """Return success after imitation, its mean over ten updates, and at the end; NaN: cut off."""
    before, after = (*(e[_HELD] for e in row["evaluations"] if _HELD in e), np.nan)[:2]
    return [before, float(np.mean([u["rollout/success"] for u in row["updates"][:10]])), after]


def _estimate(values: Any) -> str:
    found = Estimate.of(100 * np.asarray(values))
    return f"{found.mean:.1f} [{found.low:.1f}, {found.high:.1f}]"


_CURVE = ("validation", "after 5 updates", "10", "14")
_COSTS = ("s to play", "s to train", "of these to publish", "largest gap")


def _run(row: Row) -> Sequence[str]:
    by_step = {e["step"]: e[_VALID] for e in row["evaluations"] if _VALID in e}
    held = [e[_HELD] for e in row["evaluations"] if _HELD in e]
    timings = [t for t in row["timings"] if t["phase"] == "train"]
    published = [u["engine/publish_s"] for u in row["updates"]]
    gaps = [u["train/behaviour_gap_max"] for u in row["updates"] if "train/behaviour_gap_max" in u]
    costs = (
        statistics.median(t["rollout_s"] for t in timings if "rollout_s" in t),
        statistics.median(t["update_s"] for t in timings if "update_s" in t),
        (published[-1] - published[0]) / max(1, len(published) - 1),
    )
    return (
        row["case"] + (" ¹" if row.get("is_first_day") else ""),
        str(row["seed"]),
        _percent(held[:1]),
        *(_percent([by_step[step]] if step in by_step else []) for step in (0, 5, 10, 14)),
        _percent(held[1:]),
        *(f"{cost:.1f}" for cost in costs),
        f"{max(gaps):.2g}",
    )


_HELD, _VALID = "held_out/sampled/success", "validation/success"


def _percent(found: Sequence[float]) -> str:
    return f"{100 * found[0]:.0f} %" if found and not np.isnan(found[0]) else ""


TABLES = {
    "language": language,
    "seeds": seeds,
    "long": long,
    "smoke": smoke,
    "learner": learner,
    "rollout": rollout,
}

if __name__ == "__main__":
    main()
