"""What ``gymnasium.make`` calls: terminal environments as synchronous ones."""

from __future__ import annotations

from typing import Any

import gymnasium

from turngym.environments.core.env import Observation
from turngym.environments.gym.adapters import as_sync


def shell(**kwargs: Any) -> gymnasium.Env[Observation, str]:
    """Return a ``TerminalEnv`` as a ``gymnasium.Env``; arguments are those of the class."""
    from turngym.environments.terminal.env import TerminalEnv

    return as_sync(TerminalEnv(**kwargs))
