"""Success against episodes and against sampled tokens, one line for each algorithm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from turngym.reports.comparison import Curve, Ranking, RankingEntry

# Colours that people of every kind of colour vision can distinguish: Okabe and Ito 2008.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
DASHES = ("-", "--", "-.", ":")
_LEAST_GAP = 0.045
"""Between two names at the ends of lines, in units of success."""


def draw(ranking: Ranking, path: Path) -> list[Path]:
    """Draw a ranking as PNG and as SVG.

    Args:
        ranking: One environment.
        path: Without suffix.

    Returns:
        What was written.
    """
    with saved(path, (11, 4.2)) as figure:
        axes = figure.subplots(1, 2, sharey=True)
        entries = sorted(ranking.entries, key=lambda s: s.algo)
        _panel(axes[0], entries, [s.by_episodes for s in entries], "training episodes")
        _panel(axes[1], entries, [s.by_tokens for s in entries], "tokens sampled for training")
        axes[0].set_ylabel("success on validation tasks, sampled")
        figure.suptitle(f"{ranking.env}: mean over seeds and 95 % interval")
    return written(path)


@contextmanager
def saved(path: Path, size: tuple[float, float]) -> Iterator[Any]:
    """Yield a matplotlib figure, which is written as PNG and SVG after the block.

    Args:
        path: Without suffix.
        size: Width and height in inches.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.hashsalt": "turngym", "svg.fonttype": "none"}):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        yield figure
        png, svg = written(path)
        figure.savefig(png, dpi=120, metadata={"Software": None})
        figure.savefig(svg, metadata={"Date": None})


def written(path: Path) -> list[Path]:
    """Return the files that ``saved`` writes."""
    return [path.with_name(f"{path.name}.png"), path.with_name(f"{path.name}.svg")]


def tidy(axes: Any) -> None:
    """Give axes a faint grid and take away the frame above and on the right."""
    axes.grid(visible=True, alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def label_heights(ends: Sequence[float], gap: float = _LEAST_GAP) -> list[float]:
    """Return where names stand beside the ends of lines, at least ``gap`` apart, order kept.

    Names that would touch form a block around the mean of their lines.
    """
    blocks: list[list[int]] = []

    def middle(block: Sequence[int]) -> float:
        return sum(ends[i] for i in block) / len(block)

    for index in sorted(range(len(ends)), key=lambda i: ends[i]):
        blocks.append([index])
        while len(blocks) > 1 and (
            middle(blocks[-1]) - middle(blocks[-2])
            < gap * (len(blocks[-1]) + len(blocks[-2])) / 2 - 1e-9
        ):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    heights = {
        index: middle(block) + gap * (place - (len(block) - 1) / 2)
        for block in blocks
        for place, index in enumerate(block)
    }
    return [heights[index] for index in range(len(ends))]


def _panel(
    axes: Any, entries: Sequence[RankingEntry], curves: Sequence[Curve], label: str
) -> None:  # a matplotlib Axes, which has no types
    heights = label_heights([float(curve.mean_P[-1]) for curve in curves])
    right = max(float(curve.x_P[-1]) for curve in curves)
    for number, (entry, curve) in enumerate(zip(entries, curves, strict=True)):
        colour = COLOURS[number % len(COLOURS)]
        dashes = DASHES[(number // len(COLOURS) + number) % len(DASHES)]
        axes.fill_between(curve.x_P, curve.low_P, curve.high_P, color=colour, alpha=0.12, lw=0)
        axes.plot(curve.x_P, curve.mean_P, color=colour, linestyle=dashes, lw=1.8)
        axes.annotate(
            entry.algo,
            xy=(float(curve.x_P[-1]), float(curve.mean_P[-1])),
            xytext=(right * 1.03, heights[number]),
            color=colour,
            fontsize=8,
            va="center",
            arrowprops={"arrowstyle": "-", "color": colour, "lw": 0.5, "alpha": 0.6},
            annotation_clip=False,
        )
    axes.set(xlabel=label, ylim=(-0.02, 1.02), xlim=(0, right * 1.25))
    tidy(axes)
