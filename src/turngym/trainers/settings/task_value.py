"""Settings of credit that compares an attempt with what is known of its task."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from turngym.config import StrictModel
from turngym.trainers.settings.group import BatchScale
from turngym.trainers.settings.rewards import AdvantageSettings, Need


class BetaValue(StrictModel):
    """The chance of success at a task: the mean of a Beta distribution that forgets (SPO, MSSR).

    With a the successes and b the failures so far the value is ``a / (a + b)``. An attempt makes of
    them ``kept * a + r`` and ``kept * b + 1 - r``, with r 1 for a success and 0 for a failure. The
    reward of an attempt is r as well.
    """

    type: Literal["beta"] = "beta"
    kept: float = Field(default=0.875, gt=0, le=1)
    """rho: part of what is known that stays when an attempt is added."""
    prior: float = Field(default=0.5, ge=0, le=1)
    """Value of a task that was never tried."""
    prior_attempts: float = Field(default=8.0, gt=0)
    """a + b of a task that was never tried."""
    above: float = 0.5
    """An attempt whose return is more than this is a success."""


class OptimalValue(StrictModel):
    """``beta * log mean exp(r / beta)`` of the first attempts at a task, kept for good (A*-PO).

    Those attempts are not trained on. So all tasks are tried before the policy learns, and what is
    estimated is the best value under a KL term of weight beta from the policy as it began.
    """

    type: Literal["optimal"]
    beta: float = Field(default=0.5, gt=0)
    """More of it comes closer to the mean, less to the best attempt."""


class TaskValue(AdvantageSettings):
    """Compares each attempt with what earlier attempts at its task have shown, and not with others.

    Source:
        A*-PO: arXiv:2505.20686. SPO: arXiv:2509.13232. MSSR: arXiv:2512.18215.
    """

    builder: ClassVar[str] = "turngym.trainers.credit.group.task_value:TaskValueCredit"
    needs: ClassVar[frozenset[Need]] = frozenset()
    keeps_groups: ClassVar[bool] = True
    returns_to_tasks: ClassVar[bool] = True

    type: Literal["task_value"]
    rewards: tuple[str, ...] = Field(default=("env",), min_length=1)
    """Reward sources, by ``type``, that are added up over the episode."""
    value: Annotated[BetaValue | OptimalValue, Field(discriminator="type")] = BetaValue()
    batch: BatchScale | None = None

    @property
    def compares_attempts(self) -> bool:
        """Whether one attempt alone says nothing of a task."""
        return self.value.type == "optimal"

    @property
    def is_per_episode(self) -> bool:
        """Always."""
        return True
