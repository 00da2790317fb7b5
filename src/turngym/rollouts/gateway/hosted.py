"""An environment that the gateway plays for an outside agent: its tools are all that the agent has.

The agent can neither reset nor step nor judge; the environment's rewards go to the trajectory
alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from turngym.environments.core.actions import Action, ActionFormat, InvalidAction, JsonTools
from turngym.environments.gym.hosts import as_async
from turngym.errors import ConfigError, EnvironmentFault
from turngym.faults import Boundary
from turngym.tasks.base import Split, Task
from turngym.types import StopReason

if TYPE_CHECKING:
    pass


OVER = "The episode is over; nothing more can be done."


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolAnswer:
    """What came of one tool call."""

    text: str
    image: Any = None
    reward: float = 0.0
    invalid_action: str | None = None
    stop_reason: StopReason | None = None
    """Why the episode ended with this call; None when it goes on."""
    score: float | None = None


class HostedEnv:
    """One environment, spoken to by tool calls.

    Args:
        env: An environment of ours, limits included; its calls do not hold up the server.
        env_id: Its name in trajectories.
        split: Which tasks are played.
    """

    def __init__(self, env: Any, *, env_id: str, split: Split = "train") -> None:
        self.env_id = env_id
        self._env: Any = as_async(env)
        self._split = split
        self._over = True
        format: ActionFormat = self._env.action_format
        self._format = format
        self._checker = JsonTools(format.tools())
        self.instructions = str(self._env.rules)
        self.observation = ""

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The actions as OpenAI-style function descriptions."""
        return self._format.tools()

    def task(self, chosen: int | str) -> Task:
        """Return a task by its number or its id.

        Raises:
            ConfigError: There is none of that id.
        """
        if isinstance(chosen, int):
            task: Task = self._env.task(self._split, chosen)
        else:
            task = self._env.find_task(chosen)
        return task

    async def reset(self, task: Task, *, seed: int) -> None:
        """Begin an episode; ``observation`` is then what the agent should see."""
        with Boundary("reset", EnvironmentFault, ConfigError):
            found = await self._env.reset(seed=seed, options={"task": task})
        self.observation = found[0]["text"]
        self._over = False

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolAnswer:
        """Carry out one tool call with ``arguments``.

        A call that is none is carried out too: the environment says what is wrong, and counts it.

        Raises:
            EnvironmentFault: The environment broke.
        """
        if self._over:
            return ToolAnswer(text=OVER)
        try:
            with Boundary("step", EnvironmentFault):
                step = await self._env.step(self._action(name, arguments))
                observation, reward, terminated, truncated, info = step
        except EnvironmentFault:
            self._over = True
            raise
        self._over = bool(terminated or truncated)
        self.observation = observation["text"]
        fallback = StopReason.TERMINATED if terminated else StopReason.TRUNCATED_ENV
        stop = StopReason(info.get("stop_reason", fallback)) if self._over else None
        score = info.get("score")
        return ToolAnswer(
            text=observation["text"],
            image=observation.get("image"),
            reward=float(reward),
            invalid_action=info.get("invalid_action"),
            stop_reason=stop,
            score=None if score is None else float(score),
        )

    async def close(self) -> None:
        """Close the environment."""
        self._over = True
        await self._env.close()

    def score(self) -> float | None:
        """Return success in [0, 1] if the episode ended now, or None.

        Raises:
            EnvironmentFault: The environment's judge broke.
        """
        with Boundary("score", EnvironmentFault):
            score = self._env.score()
            return None if score is None else float(score)

    def _action(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return a call in the environment's own words."""
        as_json = self._checker.render(Action(name=name, arguments=dict(arguments)))
        parsed = self._checker.parse(as_json)
        return as_json if isinstance(parsed, InvalidAction) else self._format.render(parsed)
