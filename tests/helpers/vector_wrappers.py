"""Wrappers by name, for worker processes."""

from __future__ import annotations

from turngym.environments.gym.wrappers import InvalidActionLimit, TextEnv


def limit_to_two(env: TextEnv) -> InvalidActionLimit:
    """Return ``env`` with a limit of two invalid actions."""
    return InvalidActionLimit(env, 2)
