"""Limits of an episode, and rewards from an expert, as Gymnasium wrappers with recorded arguments.

A limit truncates: the observation of the last step stands, ``truncated`` is True and
``info["stop_reason"]`` names the limit. An end of the environment's own on the same step wins.
Where the agent says when it is done (``end_at_limit``), the state is judged as if it had, and its
reward is paid with the last step.
Limits stack, and ``snapshot``, ``restore`` and ``fork`` carry their counts along.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

import gymnasium
from gymnasium.utils import RecordConstructorArgs

from turngym.environments.core.actions import Action
from turngym.environments.core.env import Observation, Outcome
from turngym.environments.core.episode import joined_info
from turngym.environments.core.info import Info
from turngym.errors import ConfigError
from turngym.types import StopReason

TextEnv = gymnasium.Env[Observation, str]
Step = tuple[Observation, float, bool, bool, Info]

_Number = TypeVar("_Number", int, float)


class LimitWrapper(gymnasium.Wrapper[Observation, str, Observation, str], RecordConstructorArgs):
    """Base of the limits: truncates with ``reason`` when ``is_spent`` says so.

    A subclass keeps all it counts in ``spent``, so that snapshots need to know nothing else.
    """

    reason: StopReason
    spent: Any = 0
    """What was counted in this episode; copied by snapshots."""

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
            return self._closed(observation, cast("float", reward), info)
        return observation, cast("float", reward), terminated, truncated, info

    def restart(self, observation: Observation) -> None:
        """Begin to count anew; ``observation`` is the opening one."""
        self.spent = 0

    def is_spent(self, action: str, observation: Observation, info: Info) -> bool:
        """Count one step and return True when the limit is reached."""
        raise NotImplementedError

    def snapshot_state(self) -> Any:
        """Return what was counted, for ``turngym.environments.core.snapshot``."""
        return self.spent

    def restore_state(self, state: Any) -> None:
        """Take over what ``snapshot_state`` returned."""
        self.spent = state

    def _closed(self, observation: Observation, reward: float, info: Info) -> Step:
        """Return the last step, judged where the environment does so at a limit."""
        end: Outcome | None = None
        if self.has_wrapper_attr("end_at_limit"):
            end = self.get_wrapper_attr("end_at_limit")()
        if end is not None:
            reward += end.reward
            info = joined_info(info, end.info or {}, reward)
        info["stop_reason"] = self.reason.value
        if "score" not in info:
            score = self.get_wrapper_attr("score")() if self.has_wrapper_attr("score") else None
            info["score"] = None if score is None else float(score)
        if "legal_actions" in info:
            info["legal_actions"] = []
        return observation, reward, False, True, info


class TurnLimit(LimitWrapper):
    """Truncates after ``max_turns`` steps, and says so at the end of the instructions.

    An environment that counts turns itself gives its own limit as ``info["max_turns"]`` of the
    reset; None there keeps limits from the agent.
    """

    reason = StopReason.TRUNCATED_TURNS

    def __init__(self, env: TextEnv, max_turns: int) -> None:
        RecordConstructorArgs.__init__(self, max_turns=max_turns)
        gymnasium.Wrapper.__init__(self, env)
        self.max_turns = _positive("TurnLimit: max_turns", max_turns)

    @property
    def turns(self) -> int:
        """Steps taken in this episode."""
        return int(self.spent)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Reset the environment and the count, and say how many turns there are."""
        observation, info = super().reset(seed=seed, options=options)
        inner = info.get("max_turns", self.max_turns)
        if inner is not None and "instructions" in info:
            rest = info["instructions"].removesuffix(_turns_line(inner))
            info["max_turns"] = min(inner, self.max_turns)
            info["instructions"] = rest + _turns_line(info["max_turns"])
        return observation, info

    def step(self, action: str) -> Step:
        """Step, then truncate when the limit is reached."""
        result = cast("Step", self.env.step(action))
        self.spent += 1
        observation, reward, terminated, truncated, info = result
        if self.spent < self.max_turns or terminated or truncated:
            return result
        return self._closed(observation, reward, info)


class WallClockLimit(LimitWrapper):
    """Truncates at the first step that ends ``max_seconds`` or more after the reset.

    A step that is running is not interrupted; ``rollout(timeout_s=...)`` does that.

    Args:
        env: What to wrap.
        max_seconds: Seconds from the end of the reset, the agent's own time included.
        clock: Returns seconds; for tests and simulated time. Recorded only when given.
    """

    reason = StopReason.TRUNCATED_TIME

    def __init__(
        self,
        env: TextEnv,
        max_seconds: float,
        clock: Callable[[], float] | None = None,
    ) -> None:
        recorded: dict[str, Any] = {} if clock is None else {"clock": clock}
        RecordConstructorArgs.__init__(self, max_seconds=max_seconds, **recorded)
        gymnasium.Wrapper.__init__(self, env)
        self.max_seconds = _positive("WallClockLimit: max_seconds", max_seconds)
        self._clock = clock or time.monotonic
        self._started = self._clock()

    def restart(self, observation: Observation) -> None:
        """Start the clock."""
        self._started = self._clock()

    def is_spent(self, action: str, observation: Observation, info: Info) -> bool:
        """Return True when the time is over."""
        return self._clock() - self._started >= self.max_seconds

    def snapshot_state(self) -> float:
        """Return the seconds used so far."""
        return self._clock() - self._started

    def restore_state(self, state: float) -> None:
        """Go on as if the seconds used so far were ``state``."""
        self._started = self._clock() - state


class TokenLimit(LimitWrapper):
    """Truncates when the dialogue has ``max_tokens`` tokens or more.

    Args:
        env: What to wrap.
        max_tokens: Tokens of the opening, the actions and the observations together.
        count_tokens: Returns the number of tokens in a text. A named function of a module if the
            wrapper shall be rebuilt in another process.
        actions_only: Count what the agent says and nothing else.
    """

    reason = StopReason.TRUNCATED_TOKENS

    def __init__(
        self,
        env: TextEnv,
        max_tokens: int,
        count_tokens: Callable[[str], int],
        actions_only: bool = False,
    ) -> None:
        RecordConstructorArgs.__init__(
            self,
            _disable_deepcopy=True,  # the function may belong to a whole tokenizer
            max_tokens=max_tokens,
            count_tokens=count_tokens,
            actions_only=actions_only,
        )
        gymnasium.Wrapper.__init__(self, env)
        self.max_tokens = _positive("TokenLimit: max_tokens", max_tokens)
        self._count = count_tokens
        self._actions_only = actions_only

    @property
    def tokens(self) -> int:
        """Tokens counted in this episode."""
        return int(self.spent)

    def restart(self, observation: Observation) -> None:
        """Count the opening."""
        self.spent = 0 if self._actions_only else self._count(observation["text"])

    def is_spent(self, action: str, observation: Observation, info: Info) -> bool:
        """Count the action and what it brought."""
        self.spent += self._count(action)
        if not self._actions_only:
            self.spent += self._count(observation["text"])
        return bool(self.spent >= self.max_tokens)


class ToolCallLimit(LimitWrapper):
    """Truncates when ``max_calls`` tool calls were made. What cannot be parsed is no call.

    Args:
        env: What to wrap; must have an ``action_format``, as every ``TurnEnv`` does.
        max_calls: Number of calls; the last of them is carried out.
        tool: Count only the calls of this tool. Stack several limits for several tools.
    """

    reason = StopReason.TRUNCATED_TOOL_CALLS

    def __init__(self, env: TextEnv, max_calls: int, tool: str | None = None) -> None:
        RecordConstructorArgs.__init__(self, max_calls=max_calls, tool=tool)
        gymnasium.Wrapper.__init__(self, env)
        self.max_calls = _positive("ToolCallLimit: max_calls", max_calls)
        self.tool = tool
        if not env.has_wrapper_attr("action_format"):
            raise ConfigError(f"ToolCallLimit: {env} has no action_format to tell calls by")

    @property
    def calls(self) -> int:
        """Calls counted in this episode."""
        return int(self.spent)

    def is_spent(self, action: str, observation: Observation, info: Info) -> bool:
        """Count the action if it is a call that counts."""
        parsed = self.get_wrapper_attr("action_format").parse(action)
        if isinstance(parsed, Action) and self.tool in (None, parsed.name):
            self.spent += 1
        return bool(self.spent >= self.max_calls)


class InvalidActionLimit(LimitWrapper):
    """Truncates at the ``max_invalid``-th action that could not be carried out.

    Args:
        env: What to wrap.
        max_invalid: Number of invalid actions that ends the episode.
        consecutive: Count only those in a row; a valid action sets the count to 0.
    """

    reason = StopReason.TRUNCATED_INVALID

    def __init__(self, env: TextEnv, max_invalid: int, consecutive: bool = False) -> None:
        RecordConstructorArgs.__init__(self, max_invalid=max_invalid, consecutive=consecutive)
        gymnasium.Wrapper.__init__(self, env)
        self.max_invalid = _positive("InvalidActionLimit: max_invalid", max_invalid)
        self.consecutive = consecutive

    def is_spent(self, action: str, observation: Observation, info: Info) -> bool:
        """Count the action if ``info`` calls it invalid."""
        if info.get("invalid_action") is not None:
            self.spent += 1
        elif self.consecutive:
            self.spent = 0
        return bool(self.spent >= self.max_invalid)


class ExpertMatch(gymnasium.Wrapper[Observation, str, Observation, str], RecordConstructorArgs):
    """Pays each action for its agreement with the environment's own expert, and for nothing else.

    The expert is asked in the state before the action. The reward, and its part ``expert_match``,
    is a tenth for an action that can be parsed plus nine tenths of: 1 for the same action, 0.5 for
    the same command with other arguments, 0.1 for another command. So it is 1, 0.55, 0.19, or 0
    for what is no action. The environment's own reward is dropped; ``score`` stays.

    Args:
        env: What to wrap; must have an ``action_format`` and an ``expert_action``.

    Source:
        UI-S1, arXiv:2509.11543.
    """

    def __init__(self, env: TextEnv) -> None:
        RecordConstructorArgs.__init__(self)
        gymnasium.Wrapper.__init__(self, env)
        for name in ("action_format", "expert_action"):
            if not env.has_wrapper_attr(name):
                raise ConfigError(f"ExpertMatch: {env} has no {name} to compare actions by")

    def step(self, action: str) -> Step:
        """Step, and reward the agreement."""
        expert = self.get_wrapper_attr("expert_action")()
        observation, _, terminated, truncated, info = self.env.step(action)
        reward = self.agreement(action, expert)
        info["reward_parts"] = {"expert_match": reward}
        return observation, reward, terminated, truncated, info

    def end_at_limit(self) -> Outcome | None:
        """Judge the end, and pay nothing for it."""
        env = self.env
        if not env.has_wrapper_attr("end_at_limit"):
            return None
        end: Outcome | None = env.get_wrapper_attr("end_at_limit")()
        return end and Outcome(text=end.text)

    def agreement(self, action: str, expert: str) -> float:
        """Return how well two texts agree as actions, in [0, 1]."""
        parse = self.get_wrapper_attr("action_format").parse
        own, wanted = parse(action), parse(expert)
        if not isinstance(own, Action):
            return 0.0
        if own == wanted:
            return 1.0
        is_same_command = isinstance(wanted, Action) and own.name == wanted.name
        return 0.1 + 0.9 * (0.5 if is_same_command else 0.1)


def _turns_line(turns: int) -> str:
    return f"\nThe episode ends after {turns} turns at the latest."


def _positive(what: str, value: _Number) -> _Number:
    if not value > 0:
        raise ConfigError(f"{what} must be more than 0, got {value}")
    return value
