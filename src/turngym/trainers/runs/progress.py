"""What a run reports while it goes on, and what it returns."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from turngym.rollouts.evaluation.statistics import Evaluation

logger = logging.getLogger(__name__)


class Progress(Protocol):
    """Watches a run. Called between steps, never at the same time."""

    def phase(self, name: str, total: int | None) -> None:
        """Begin a phase, for example ``"warm start"``, of at most ``total`` steps."""

    def advance(self, done: int, metrics: Mapping[str, float]) -> None:
        """Report that ``done`` steps of the phase are done, and the newest ``metrics``."""

    def note(self, text: str) -> None:
        """Report one line that a person should see."""


class Silent:
    """Watches and says nothing, except that what a person should see is logged as a warning."""

    def phase(self, name: str, total: int | None) -> None:
        """Do nothing."""

    def advance(self, done: int, metrics: Mapping[str, float]) -> None:
        """Do nothing."""

    def note(self, text: str) -> None:
        """Log the line."""
        logger.warning(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """How a policy does on the test split."""

    sampled: Evaluation
    """At the temperature of training."""
    greedy: Evaluation
    """Always the likeliest token."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {"sampled": self.sampled.to_json(), "greedy": self.greedy.to_json()}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Return what ``to_json`` described."""
        return cls(
            sampled=Evaluation.from_json(content["sampled"]),
            greedy=Evaluation.from_json(content["greedy"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """What came of a run; ``summary.json`` holds the same."""

    folder: Path
    env: str
    algo: str
    seed: int
    updates: int
    episodes: int
    """Played for reinforcement, broken ones included."""
    faults: int
    """Of these, ended by an error and left out."""
    warm_start_steps: int
    warm_start_success: float | None
    """Sampled success on the validation tasks; None without a warm start."""
    reached_target: bool
    """Training ended early because validation success reached its target."""
    before: HeldOut
    """Held-out tasks, after the warm start."""
    after: HeldOut
    """Held-out tasks, after reinforcement."""
    seconds: float
    """Wall-clock time of all steps and evaluations, over every resumption."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values, without the folder."""
        content = {name: getattr(self, name) for name in self.__slots__ if name != "folder"}
        return content | {"before": self.before.to_json(), "after": self.after.to_json()}

    @classmethod
    def from_json(cls, folder: Path, content: Mapping[str, Any]) -> Self:
        """Return what ``to_json`` described."""
        parts = {name: HeldOut.from_json(content[name]) for name in ("before", "after")}
        return cls(**{**content, **parts, "folder": folder})
