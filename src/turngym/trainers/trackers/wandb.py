"""Weights & Biases."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from typing import Any

from turngym.plugins import import_extra
from turngym.trainers.settings.trackers import WandbTracker
from turngym.trainers.trackers.base import End, TrackedRun, Tracker


class Wandb(Tracker):
    """A run of Weights & Biases; ``WANDB_*`` variables say all that the settings do not.

    The row number is its step, so that it drops what it has by itself; ``step`` is the axis.
    """

    def __init__(self, config: WandbTracker) -> None:
        self._config = config
        self._run: Any = None

    def begin(self, run: TrackedRun) -> str:
        """Open the run.

        Raises:
            RuntimeError: It would have to ask for an account.
        """
        wandb = import_extra("wandb", "run.trackers: 'wandb'", "wandb")
        settings = wandb.Settings(silent=True, console="off")
        wandb.setup(settings)
        online = os.environ.get("WANDB_MODE", "online") not in ("offline", "disabled", "dryrun")
        if online and not wandb.login(prompt=False):  # else it would ask in the terminal
            raise RuntimeError("no API key: 'wandb login', WANDB_API_KEY, or WANDB_MODE=offline")
        self._run = wandb.init(
            project=self._config.project or os.environ.get("WANDB_PROJECT") or "turngym",
            id=run.id or uuid.uuid4().hex[:8],
            name=run.name,
            resume="allow",
            config={**run.settings, "folder": str(run.folder)},
            allow_val_change=True,
            dir=str(run.folder),
            reinit="create_new",
            settings=settings,
        )
        self._run.define_metric("*", step_metric="step")
        return str(self._run.id)

    def log(self, number: int, step: int, metrics: Mapping[str, float]) -> None:
        """Log one row."""
        if number >= self._run.step:
            self._run.log({"step": step, **metrics}, step=number, commit=True)

    def end(self, how: End) -> None:
        """Finish: a run that failed or was stopped has an exit code, and ``state`` says which."""
        self._run.summary["state"] = how
        self._run.finish(exit_code={"finished": 0, "failed": 1, "stopped": 130}[how])
