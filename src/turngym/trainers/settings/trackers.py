"""Settings of experiment trackers: which of them get a copy of a run's metrics."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal

from pydantic import Field, JsonValue

from turngym.config import StrictModel


class TrackerConfig(StrictModel):
    """Base of the settings of a tracker. A bare name stands for one with its defaults."""

    bare_key: ClassVar[str | None] = "type"
    builder: ClassVar[str]
    """``module:Class``, called as ``Class(config)``; it is a ``Tracker``."""
    module: ClassVar[str | None] = None
    """Package that must be installed, by the extra of the same name as ``type``."""

    @property
    def spec(self) -> str:
        """The class that is the tracker, one of your own where it is named."""
        return str(getattr(self, "tracker", "") or self.builder)

    @property
    def name(self) -> str:
        """What it is called in files and messages."""
        return re.sub(r"[^\w.-]+", "_", self.module or self.spec)


class WandbTracker(TrackerConfig):
    """Weights & Biases. Without an account: ``WANDB_MODE=offline``, and ``wandb sync`` later."""

    builder: ClassVar[str] = "turngym.trainers.trackers.wandb:Wandb"
    module: ClassVar[str | None] = "wandb"

    type: Literal["wandb"]
    project: str | None = None
    """None for ``WANDB_PROJECT``, or ``turngym``."""


class TrackioTracker(TrackerConfig):
    """Trackio: a database on this machine, or a Space where ``TRACKIO_SPACE_ID`` names one."""

    builder: ClassVar[str] = "turngym.trainers.trackers.trackio:Trackio"
    module: ClassVar[str | None] = "trackio"

    type: Literal["trackio"]
    project: str = "turngym"
    """Runs of one project are shown together."""


class MlflowTracker(TrackerConfig):
    """MLflow: a server, or ``mlflow.db`` in the working folder; ``MLFLOW_TRACKING_URI`` decides."""

    builder: ClassVar[str] = "turngym.trainers.trackers.mlflow:Mlflow"
    module: ClassVar[str | None] = "mlflow"

    type: Literal["mlflow"]
    experiment: str | None = None
    """None for ``MLFLOW_EXPERIMENT_NAME``, or ``turngym``."""


class CustomTracker(TrackerConfig):
    """A tracker of your own."""

    type: Literal["custom"]
    tracker: str
    """``module:Class`` or ``file.py:Class``, called as ``Class(config)``; it is a ``Tracker`` of
    ``turngym.trainers.trackers.base``."""
    settings: dict[str, JsonValue] = Field(default_factory=dict)
    """What it likes; ``config.settings``."""


AnyTracker = Annotated[
    WandbTracker | TrackioTracker | MlflowTracker | CustomTracker, Field(discriminator="type")
]
