"""What ``gymnasium.make`` calls: device environments as synchronous ones.

The classes themselves are asynchronous, and play many episodes at once in one event loop.
"""

from __future__ import annotations

from typing import Any

import gymnasium

from turngym.environments.core.env import Observation
from turngym.environments.gym.adapters import as_sync


def desktop(**kwargs: Any) -> gymnasium.Env[Observation, str]:
    """Return a ``DesktopEnv`` as a ``gymnasium.Env``; arguments are those of the class."""
    from turngym.environments.desktop.env import DesktopEnv

    return as_sync(DesktopEnv(**kwargs))


def grounding(**kwargs: Any) -> gymnasium.Env[Observation, str]:
    """Return a ``GroundingEnv`` as a ``gymnasium.Env``; arguments are those of the class."""
    from turngym.environments.desktop.grounding import GroundingEnv

    return as_sync(GroundingEnv(**kwargs))


def phone(**kwargs: Any) -> gymnasium.Env[Observation, str]:
    """Return a ``PhoneEnv`` as a ``gymnasium.Env``; arguments are those of the class."""
    from turngym.environments.desktop.phone.env import PhoneEnv

    return as_sync(PhoneEnv(**kwargs))
