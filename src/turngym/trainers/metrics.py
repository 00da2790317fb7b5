"""Numbers of a run: how they add up over pieces, and where they are written.

Names are ``area/quantity``. No file here holds a clock, except TensorBoard's own.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from turngym.errors import RecordError
from turngym.records import GrowingFile


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


class MetricsLogger(Protocol):
    """Receives the numbers of one step."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write ``metrics``; a value that is not finite is left out."""

    def close(self) -> None:
        """Write what is pending. Safe to call twice."""


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


class TensorBoardLogger:
    """TensorBoard event files.

    Args:
        folder: Where they go; each process writes one of its own.
    """

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write each finite value of ``metrics`` as a scalar."""
        for name, value in metrics.items():
            if math.isfinite(value):
                self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush and close."""
        self._writer.close()


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
