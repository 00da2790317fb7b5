"""Where a run stands, as its checkpoints keep it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Phase = Literal["warm_start", "before", "train", "after", "done"]


@dataclass(slots=True, kw_only=True)
class RunState:
    """Where a run stands. With the weights and the optimizer, all that a resumption needs."""

    phase: Phase = "warm_start"
    warm_steps: int = 0
    warm_success: float | None = None
    step: int = 0
    """Updates done; also the version of the weights."""
    validated: int = -1
    """Step of the phase that was validated last."""
    optimizer_steps: int = 0
    reached_target: bool = False
    groups: int = 0
    """Groups begun for reinforcement; the running number of the next."""
    episodes: int = 0
    faults: int = 0
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    metrics_bytes: int = 0
    """Length of ``metrics.jsonl``; what a killed process wrote after that is cut off."""
    metrics_sha256: str | None = None
    """Digest of these bytes; None in checkpoints of earlier versions."""
