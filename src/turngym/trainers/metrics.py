"""Numbers of a run: how they add up over pieces, what episodes give, where they are written.

Names are ``area/quantity``. No file here holds a clock, except TensorBoard's own.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turngym.errors import RecordError
from turngym.records import GrowingFile
from turngym.rollouts.evaluation.statistics import Evaluation, summarize
from turngym.types import Trajectory, TrajectoryGroup


class MetricSums:
    """Means and maxima over pieces of a batch, kept as sum and count until they are read."""

    def __init__(self) -> None:
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._counts: defaultdict[str, float] = defaultdict(float)
        self._maxima: dict[str, float] = {}
        self._values: defaultdict[str, list[NDArray[np.float64]]] = defaultdict(list)

    def add_mean(self, name: str, total: float, count: float) -> None:
        """Add ``count`` values that sum to ``total``."""
        self._sums[name] += total
        self._counts[name] += count

    def add_max(self, name: str, value: float) -> None:
        """Add a value of which the largest counts; NaN wins."""
        old = self._maxima.get(name, -math.inf)
        self._maxima[name] = value if math.isnan(value) else max(old, value)

    def add(self, other: MetricSums) -> None:
        """Add what ``other`` holds."""
        for name, count in other._counts.items():
            self.add_mean(name, other._sums[name], count)
        for name, value in other._maxima.items():
            self.add_max(name, value)
        for name, parts in other._values.items():
            self._values[name] += parts

    def add_gaps(self, name: str, log_ratios_N: NDArray[np.float64]) -> None:
        """Add differences between two log-probs of the same sampled tokens, new less old.

        Of all of them together come ``_mean``, ``_p99`` and ``_max`` of their size, and ``_kl``,
        the estimate k3 of the divergence from what sampled to the new policy.

        Source:
            Schulman 2020, "Approximating KL divergence".
        """
        if len(log_ratios_N):
            self._values[name].append(log_ratios_N)

    def result(self) -> dict[str, float]:
        """Return the mean and the maximum of everything that was added."""
        found = {name: self._sums[name] / n for name, n in self._counts.items() if n}
        found |= self._maxima
        for name, parts in self._values.items():
            ratios_N = np.concatenate(parts)
            gaps_N = np.abs(ratios_N)
            found[f"{name}_mean"], found[f"{name}_max"] = float(gaps_N.mean()), float(gaps_N.max())
            found[f"{name}_p99"] = float(np.quantile(gaps_N, 0.99))
            found[f"{name}_kl"] = float((np.expm1(ratios_N) - ratios_N).mean())
        return found


def rollout_metrics(
    groups: Sequence[TrajectoryGroup],
    *,
    advantages: Sequence[NDArray[np.float64]] = (),
    dropped: Mapping[str, int] | None = None,
    chosen: int | None = None,
) -> dict[str, float]:
    """Return ``rollout/*`` of one step.

    Args:
        groups: What was played.
        advantages: Those of credit, one array [T] per trajectory.
        dropped: Groups that are not trained on, by reason.
        chosen: How many groups credit was assigned to; None for all that were played.
    """
    trajectories = [t for group in groups for t in group.trajectories]
    usable = [t for group in groups for t in group.usable]
    found = summarize(trajectories, interval=False)
    unused = dropped or {}
    groups_used = (len(groups) if chosen is None else chosen) - sum(unused.values())
    # While a critic warms up it judges what nothing is trained on.
    flat = np.concatenate(advantages) if len(advantages) and groups_used else np.zeros(0)
    turns = max(1, sum(len(t.own_turns) for t in usable))
    metrics = {
        "rollout/episodes": float(found.episodes),
        "rollout/faults": float(found.faults),
        "rollout/unscored": float(found.unscored),
        "rollout/truncated_fraction": found.truncated / max(1, len(usable)),
        "rollout/invalid_action_fraction": found.invalid_actions / turns,
        "rollout/tokens": float(sum(t.num_sampled_tokens for t in usable)),
        "rollout/groups_used": float(groups_used),
        "rollout/groups_zero_spread": float(unused.get("zero_spread", 0)),
        "rollout/groups_too_small": float(unused.get("too_small", 0)),
        "rollout/groups_filtered": float(unused.get("filtered", 0)),
        "rollout/advantage_abs_mean": float(np.abs(flat).mean()) if flat.size else 0.0,
    }
    stops = Counter(t.stop_reason for t in trajectories if t.stop_reason.is_error)
    metrics |= {f"rollout/dropped_{reason.value}": float(n) for reason, n in stops.items()}
    means = {
        "rollout/return_mean": found.mean_return,
        "rollout/success": found.success,
        "rollout/turns_mean": found.mean_turns,
    }
    metrics |= success_by_env("rollout", trajectories)
    return metrics | {name: value for name, value in means.items() if value is not None}


def success_by_env(prefix: str, trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return ``<prefix>/success/<environment>`` where several environments were played."""
    by_env: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        by_env.setdefault(trajectory.env_id, []).append(trajectory)
    if len(by_env) < 2:
        return {}
    found = {
        f"{prefix}/success/{env_id}": summarize(ts, interval=False).success
        for env_id, ts in by_env.items()
    }
    return {name: value for name, value in found.items() if value is not None}


def evaluation_metrics(prefix: str, found: Evaluation) -> dict[str, float]:
    """Return an evaluation as ``<prefix>/success`` with its interval, return, turns and faults."""
    low, high = found.success_ci95 or (None, None)
    values = {
        "success": found.success,
        "success_low": low,
        "success_high": high,
        "return_mean": found.mean_return,
        "turns_mean": found.mean_turns,
        "faults": float(found.faults),
    }
    return {f"{prefix}/{name}": value for name, value in values.items() if value is not None}


class JsonLinesLogger:
    """One JSON object a line. The bytes depend on the numbers alone.

    Args:
        path: The file; created if missing.
        offset: Bytes to keep of what is there, the rest is cut off; None keeps all whole lines.

    Raises:
        RecordError: There are less than ``offset`` bytes.
    """

    def __init__(self, path: Path, *, offset: int | None = None) -> None:
        size = path.stat().st_size if path.exists() else 0
        if offset is not None and size < offset:
            raise RecordError(f"{path}: is cut off, {size} bytes of {offset} are left")
        self._file = GrowingFile(path, offset)

    @property
    def offset(self) -> int:
        """Bytes written so far, flushed to the disk."""
        self._file.flush()
        return self._file.size

    @property
    def sha256(self) -> str:
        """Digest of everything written so far."""
        return self._file.sha256

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one line of ``metrics``."""
        row = {name: value for name, value in metrics.items() if math.isfinite(value)}
        self._file.append(json.dumps({"step": step, **row}))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def log_scalars(writer: Any, step: int, metrics: Mapping[str, float]) -> None:
    """Write each finite value of ``metrics`` by a ``SummaryWriter`` of TensorBoard."""
    for name, value in metrics.items():
        if math.isfinite(value):
            writer.add_scalar(name, value, step)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a metrics file; a last line that was cut off is left out.

    Raises:
        RecordError: Another line is damaged; the message names the file and the line.
    """
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
        if not line.endswith(b"\n"):
            break
        try:
            rows.append(dict(json.loads(line)))
        except (ValueError, TypeError) as error:
            raise RecordError(f"{path}:{number}: is not a row of numbers ({error})") from error
    return rows
