"""What ``gymnasium.make`` calls: SWE environments as synchronous ones."""

from __future__ import annotations

from typing import Any

import gymnasium

from turngym.environments.core.env import Observation
from turngym.environments.gym.adapters import as_sync


def bugs(tasks: str = "shipped", **kwargs: Any) -> gymnasium.Env[Observation, str]:
    """Return SWE tasks as a ``gymnasium.Env``.

    Args:
        tasks: As ``SweEnv``; a file ``*.jsonl`` holds SWE-bench instances, for ``InstanceEnv``.
        kwargs: More arguments of the one or the other.
    """
    from turngym.environments.swe.env import SweEnv
    from turngym.environments.swe.instances import InstanceEnv

    if tasks.endswith(".jsonl"):
        return as_sync(InstanceEnv(instances=tasks, **kwargs))
    return as_sync(SweEnv(tasks=tasks, **kwargs))
