"""What ``gymnasium.make`` calls: web environments as synchronous ones.

The classes themselves (``MiniWobEnv``, ...) are asynchronous, and play many episodes at once in
one event loop.
"""

from __future__ import annotations

from typing import Any

import gymnasium

from turngym.environments.core.env import Observation
from turngym.environments.gym.adapters import as_sync


def miniwob(**kwargs: Any) -> gymnasium.Env[Observation, str]:
    """Return a ``MiniWobEnv`` as a ``gymnasium.Env``; arguments are those of the class."""
    from turngym.environments.web.miniwob.env import MiniWobEnv

    return as_sync(MiniWobEnv(**kwargs))


def site(*, site: str, **kwargs: Any) -> gymnasium.Env[Observation, str]:
    """Return an environment of a web application; arguments are those of ``SiteEnv``."""
    from turngym.environments.web.sites.catalogue import env_class

    return as_sync(env_class(site)(**kwargs))
