"""Limits of an episode as Gymnasium wrappers with recorded arguments.

A limit truncates: the observation of the last step stands, ``truncated`` is True and
``info["stop_reason"]`` names the limit.
"""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium.utils import RecordConstructorArgs

from turngym.environments.base import Observation
from turngym.environments.info import Info
from turngym.errors import ConfigError
from turngym.types import StopReason

Step = tuple[Observation, float, bool, bool, Info]


class LimitWrapper(gymnasium.Wrapper[Observation, str, Observation, str], RecordConstructorArgs):
    """Base of the limits: truncates with ``reason`` when ``spent`` says so.

    ``snapshot``, ``restore`` and ``fork`` of ``turngym.environments.snapshot`` carry a wrapper's
    attributes along.
    """

    reason: StopReason

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Reset the environment and the count."""
        observation, info = self.env.reset(seed=seed, options=options)
        self.restart(observation)
        return observation, info

    def step(self, action: str) -> Step:
        """Step, then truncate when the limit is reached."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        if self.is_spent(action, observation, info) and not (terminated or truncated):
            truncated = True
            info["stop_reason"] = self.reason.value
            info.setdefault("score", self.get_wrapper_attr("score")())
            if "legal_actions" in info:
                info["legal_actions"] = []
        return observation, float(reward), terminated, truncated, info

    def restart(self, observation: Observation) -> None:
        """Begin to count anew; ``observation`` is the opening one."""
        raise NotImplementedError

    def is_spent(self, action: str, observation: Observation, info: Info) -> bool:
        """Count one step and return True when the limit is reached."""
        raise NotImplementedError


class TurnLimit(LimitWrapper):
    """Truncates after ``max_turns`` steps."""

    reason = StopReason.TRUNCATED_TURNS

    def __init__(self, env: gymnasium.Env[Observation, str], max_turns: int) -> None:
        RecordConstructorArgs.__init__(self, max_turns=max_turns)
        gymnasium.Wrapper.__init__(self, env)
        if max_turns < 1:
            raise ConfigError(f"TurnLimit: max_turns must be at least 1, got {max_turns}")
        self.max_turns = max_turns
        self.turns = 0

    def restart(self, observation: Observation) -> None:
        """Set the count to 0."""
        self.turns = 0

    def is_spent(self, action: str, observation: Observation, info: Info) -> bool:
        """Return True from turn ``max_turns`` on."""
        self.turns += 1
        return self.turns >= self.max_turns
