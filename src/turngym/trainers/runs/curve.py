"""The learning curve of a run as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from turngym.rollouts.evaluation.evaluate import Evaluation

Rows = Sequence[Mapping[str, Any]]


def draw_curve(
    path: Path,
    rows: Rows,
    *,
    title: str,
    held_out: Mapping[int, Evaluation] | None = None,
) -> None:
    """Draw success against updates: training episodes, validation with its band, held-out points.

    Args:
        path: The picture to write.
        rows: Rows of ``metrics.jsonl``.
        title: Above the picture.
        held_out: Sampled success on the test split by update.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4))
    figure.subplots_adjust(left=0.09, right=0.98, bottom=0.13, top=0.92)
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    training = [(r["step"], r["rollout/success"]) for r in rows if "rollout/success" in r]
    if training:
        axes.plot(*zip(*training, strict=True), color="0.7", linewidth=1, label="training episodes")
    checked = [r for r in rows if "validation/success" in r]
    if checked:
        steps = [r["step"] for r in checked]
        axes.fill_between(
            steps,
            [r["validation/success_low"] for r in checked],
            [r["validation/success_high"] for r in checked],
            alpha=0.2,
            linewidth=0,
        )
        means = [r["validation/success"] for r in checked]
        axes.plot(steps, means, marker="o", label="validation tasks, 95 % interval")
    for number, (step, found) in enumerate(sorted((held_out or {}).items())):
        if found.success is not None and found.success_ci95 is not None:
            low, high = found.success_ci95
            axes.errorbar(
                [step],
                [found.success],
                yerr=[[max(0.0, found.success - low)], [max(0.0, high - found.success)]],
                fmt="s",
                color="C3",
                capsize=4,
                label="held-out tasks, sampled" if number == 0 else None,
            )
    axes.set(title=title, xlabel="update", ylabel="success", ylim=(-0.02, 1.02))
    axes.grid(visible=True, alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower right")
    partial = path.with_name(path.name + ".partial")
    figure.savefig(partial, format="png", dpi=120, metadata={"Software": None})
    partial.replace(path)
