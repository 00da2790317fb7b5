"""What ``gymnasium.make`` calls: SWE environments as synchronous ones."""

from __future__ import annotations

from typing import Any

import gymnasium

from turngym.environments.adapters import as_sync
from turngym.environments.base import Observation


def bugs(**kwargs: Any) -> gymnasium.Env[Observation, str]:
    """Return a ``SweEnv`` as a ``gymnasium.Env``; arguments are those of the class."""
    from turngym.environments.swe.env import SweEnv

    return as_sync(SweEnv(**kwargs))
