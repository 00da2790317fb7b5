"""An environment that the gateway plays for an outside agent: its tools are all that the agent has.

The agent can neither reset nor step nor judge; the environment's rewards go to the trajectory
alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turngym.coroutines import awaited
from turngym.environments.core.actions import Action, ActionFormat, InvalidAction, JsonTools
from turngym.environments.core.spaces import checked_score
from turngym.environments.gym.hosts import as_async
from turngym.errors import ConfigError, EnvironmentFault
from turngym.faults import Boundary, Tolerated
from turngym.tasks.base import Split, Task
from turngym.types import StopReason

OVER = "The episode is over; nothing more can be done."


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolAnswer:
    """What came of one tool call, or of a reset."""

    text: str
    image: Any = None
    reward: float = 0.0
    invalid_action: str | None = None
    stop_reason: StopReason | None = None
    """Why the episode ended with this call; None when it goes on."""
    score: float | None = None
    judged_at_limit: bool = False
    legal_actions: Sequence[str] | None = None
    """What can be said next, where it can be listed."""

    def __post_init__(self) -> None:
        finite(self.reward)
        checked_score(self.score)


def finite(reward: Any) -> float:
    """Return a reward as a number.

    Raises:
        ValueError: It is none that can be added up.
    """
    if not math.isfinite(number := float(reward)):
        raise ValueError(f"the reward must be finite, got {number}")
    return number


class HostedEnv:
    """One environment, spoken to by tool calls.

    Args:
        env: An environment of ours, limits included; its calls do not hold up the server.
        env_id: Its name in trajectories.
        split: Which tasks are played.
        options: What it was made with, for the record.
    """

    def __init__(
        self,
        env: Any,
        *,
        env_id: str,
        split: Split = "train",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.env_id, self.options = env_id, options or {}
        self._env: Any = as_async(env)
        self._split = split
        self.is_over = True
        self.stop_reason: StopReason | None = None
        """Why the environment ended the episode."""
        self._end: Mapping[str, Any] = {}
        """What the end of the episode said, its score included."""
        self._learn_actions()
        self.instructions = _sendable(str(self._env.rules))
        self.observation = self.task_id = ""
        self.image: Any = None
        """Picture of what the agent should see, where the environment shows one."""
        self.instructions_in_text = ""
        """Rules, limits and how to act without tools; of the running episode."""
        self.ground_truth: Any = None
        """What the environment says at the start is the answer; not for the agent."""

    def _learn_actions(self) -> None:
        format: ActionFormat = self._env.action_format
        self._format, self._checker = format, JsonTools(format.tools())

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The actions as OpenAI-style function descriptions."""
        return self._format.tools()

    def task(self, chosen: int | str, split: Split | None = None) -> Task:
        """Return a task by its number in a split or by its id.

        Raises:
            ConfigError: There is none of that id.
        """
        if isinstance(chosen, int):
            task: Task = self._env.task(split or self._split, chosen)
        else:
            task = self._env.find_task(chosen)
        return task

    @property
    def judged_at_limit(self) -> bool:
        """Whether the last reward has what the state was worth where a limit ended the episode."""
        return bool(self._end.get("judged_at_limit"))

    @property
    def env(self) -> Any:
        """The environment, with coroutines for calls that may wait."""
        return self._env

    async def reset(
        self, task: Task | None, *, seed: int, split: Split | None = None
    ) -> ToolAnswer:
        """Begin an episode; ``observation`` is then what the agent should see.

        Args:
            task: What is played; None for one that the seed chooses.
            seed: Seeds the episode.
            split: Where a task is chosen from; the one of this host by default.
        """
        options = {"split": split or self._split} if task is None else {"task": task}
        self.is_over = True  # what was played before; a reset that fails begins nothing
        self.stop_reason, self._end = None, {}
        with Boundary("reset", EnvironmentFault, ConfigError):
            observation, info = await self._env.reset(seed=seed, options=options)
            self._learn_actions()  # a server says its tools when an episode begins
        self.observation, self.image = _sendable(observation["text"]), observation.get("image")
        self.task_id = str(info["task_id"])
        self.instructions_in_text = str(info["instructions"])
        self.ground_truth = info.get("ground_truth")
        self.is_over = False
        return ToolAnswer(
            text=self.observation, image=self.image, legal_actions=info.get("legal_actions")
        )

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolAnswer:
        """Carry out one tool call with ``arguments``, as ``say``."""
        return await self.say(call_text(self._format, self._checker, name, arguments))

    async def say(self, text: str) -> ToolAnswer:
        """Carry out what the agent said, in the environment's own words.

        An action that is none is carried out too: the environment says what is wrong, and counts
        it.

        Raises:
            EnvironmentFault: The environment broke.
        """
        if self.is_over:
            return ToolAnswer(text=OVER)
        try:
            with Boundary("step", EnvironmentFault):
                observation, reward, terminated, truncated, info = await self._env.step(text)
                is_over = bool(terminated or truncated)
                fallback = StopReason.TERMINATED if terminated else StopReason.TRUNCATED_ENV
                answer = ToolAnswer(
                    text=_sendable(observation["text"]),
                    image=observation.get("image"),
                    reward=float(reward),
                    invalid_action=info.get("invalid_action"),
                    stop_reason=StopReason(info.get("stop_reason", fallback)) if is_over else None,
                    score=checked_score(info.get("score")),
                    judged_at_limit=bool(info.get("judged_at_limit")),
                    legal_actions=info.get("legal_actions"),
                )
        except EnvironmentFault:
            self.is_over = True
            raise
        self.is_over, self.observation, self.image = is_over, answer.text, answer.image
        self._end = info if is_over else {}
        self.stop_reason = answer.stop_reason
        return answer

    async def end(self) -> float:
        """End the episode as a limit would, and return the reward of the state that is left.

        Raises:
            EnvironmentFault: The environment's judge broke.
        """
        if self.is_over:
            return 0.0
        self.is_over = True
        with Boundary("judge", EnvironmentFault):
            if (end := await awaited(self._env.end_at_limit())) is None:
                return 0.0
            self._end = end.info or {}
            return finite(end.reward)

    async def close(self) -> None:
        """Close the environment; one that cannot is logged, since its episode is over anyway."""
        self.is_over = True
        with Tolerated("an environment did not close"):
            await self._env.close()

    def score(self) -> float | None:
        """Return success in [0, 1] if the episode ended now, or None.

        Raises:
            EnvironmentFault: The environment's judge broke.
        """
        with Boundary("score", EnvironmentFault):
            end = self._end
            return checked_score(end["score"] if "score" in end else self._env.score())


def _sendable(text: str) -> str:
    """Return ``text`` with half of a unicode pair, which cannot be sent, as a question mark."""
    return text.encode(errors="replace").decode()


def call_text(
    format: ActionFormat, checker: JsonTools, name: str, arguments: Mapping[str, Any]
) -> str:
    """Return a tool call in the environment's own words; one that is none stays as it is.

    Args:
        format: The words.
        checker: Made of the tools of ``format``.
        name: Which tool.
        arguments: Its arguments.
    """
    as_json = checker.render(Action(name=name, arguments=dict(arguments)))
    parsed = checker.parse(as_json)
    return as_json if isinstance(parsed, InvalidAction) else format.render(parsed)
