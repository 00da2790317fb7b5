"""One episode of a run: what was recorded, and how its environment was made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from turngym import registry
from turngym.errors import ConfigError
from turngym.reports.export import episodes
from turngym.rollouts.evaluation.folder import EVALUATION_FILE, read_evaluation
from turngym.types import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One episode of a run."""

    trajectory: Trajectory
    env: str
    """Name of its environment, as the run has it."""
    options: Mapping[str, Any]
    """What the run made it with."""


def find_recorded(run: Path, number: int) -> Recorded:
    """Return episode ``number`` of a run, as the viewer and ``turngym export`` count from 0.

    Raises:
        ConfigError: There is none of that number.
    """
    found = next(islice(episodes(run), number, None), None)
    if found is None:
        count = sum(1 for _ in episodes(run))
        raise ConfigError(f"{run}: has the episodes 0 to {count - 1}, and no {number}")
    label, one = found
    folder = ((run if run.is_dir() else run.parent) / label).resolve().parent
    for place in (folder, *folder.parents[:2]):
        if (place / EVALUATION_FILE).exists():
            options = read_evaluation(place)["plan"]["env_options"]
            return Recorded(trajectory=one, env=one.env_id, options=options)
        if (place / "config.json").exists():
            from turngym.trainers.runs.run_folder import read_settings

            settings = read_settings(place)["env"]
            parts = settings.get("mix") or [settings]
            for part in parts:
                if len(parts) == 1 or registry.find(part["id"]) == registry.find(one.env_id):
                    return Recorded(trajectory=one, env=part["id"], options=part["options"])
    return Recorded(trajectory=one, env=one.env_id, options={})
