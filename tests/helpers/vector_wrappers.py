"""Wrappers by name, for worker processes."""

from __future__ import annotations

from turngym.environments.core.limits import InvalidActionLimit
from turngym.environments.gym.wrappers import TextEnv, limited


def limit_to_two(env: TextEnv) -> TextEnv:
    """Return ``env`` with a limit of two invalid actions."""
    return limited(env, InvalidActionLimit(2))
