"""Limits for any environment, rewards from an expert, and turns that are recorded.

``limited`` gives an environment more limits. One of ours takes them in itself, so that they work in
every form of it; any other ``gymnasium.Env`` is wrapped.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import gymnasium
from gymnasium.utils import RecordConstructorArgs

from turngym.environments.core.actions import Action, calls_at_end
from turngym.environments.core.env import AsyncTurnEnv, Observation, Step
from turngym.environments.core.episode import EpisodeCore, Outcome
from turngym.environments.core.limits import Limit, ToolCallLimit, limit_of
from turngym.environments.core.spaces import Info
from turngym.environments.gym.face import GymFace
from turngym.errors import ConfigError
from turngym.records import append_trajectory
from turngym.types import Message, StopReason, Trajectory, Turn, after_thoughts

TextEnv = gymnasium.Env[Observation, str]
EnvT = TypeVar("EnvT", bound="gymnasium.Env[Any, Any] | AsyncTurnEnv")


def limited(env: EnvT, *limits: Limit) -> EnvT:
    """Return ``env`` with more limits, which its spec records.

    Args:
        env: An environment, wrapped or not.
        limits: Each belongs to one environment only, whose counts it keeps.

    Raises:
        ConfigError: A ``ToolCallLimit`` for an environment without ``action_format``.
    """
    attached = attach(env, limits)
    if (spec := env.unwrapped.spec) is not None and attached is env:
        spec.kwargs["episode_limits"] = [
            *spec.kwargs.get("episode_limits", ()),
            *(limit.record() for limit in limits),
        ]
    return attached


def attach(env: EnvT, limits: Sequence[Limit]) -> EnvT:
    """Return ``env`` with more limits, of which its spec knows already.

    Raises:
        ConfigError: A limit of tool calls is asked of what has none.
    """
    if (core := _core(env)) is not None:
        core.episode_limits += limits
        return env
    for limit in limits:
        if isinstance(limit, ToolCallLimit):
            raise ConfigError(f"ToolCallLimit: {env} has no action_format to tell calls by")
    records = [limit.record() for limit in limits]
    return cast("EnvT", LimitedEnv(cast("TextEnv", env), records))


def with_calls(env: EnvT, most: int) -> EnvT:
    """Return ``env``, which carries out several tool calls of one answer, in their order.

    Args:
        env: One of ours; its actions are tool calls, or its next reset says that they are none.
        most: Calls of one answer that are carried out.

    Raises:
        ConfigError: It is none of ours, or ``most`` is less than 1.
    """
    if (core := _core(env)) is None or most < 1:
        what = "wanted 1 or more" if most < 1 else "it is no TurnEnv, which alone has calls"
        raise ConfigError(f"{env}: calls_per_turn={most}: {what}")
    core.calls_per_turn = most
    return env


def _core(env: Any) -> EpisodeCore | None:
    """Return the environment of ours within ``env``; None where it is none of ours."""
    inner = env.unwrapped
    core = inner.inner if isinstance(inner, GymFace) else inner
    return core if isinstance(core, EpisodeCore) else None


class LimitedEnv(gymnasium.Wrapper[Observation, str, Observation, str], RecordConstructorArgs):
    """Limits around an environment that is no ``TurnEnv``.

    Args:
        env: What to wrap.
        limits: Limits, or what ``Limit.record`` gives of them.
    """

    def __init__(self, env: TextEnv, limits: Sequence[Limit | Mapping[str, Any]]) -> None:
        RecordConstructorArgs.__init__(self, limits=limits)
        gymnasium.Wrapper.__init__(self, env)
        self.episode_limits = [copy.copy(limit_of(limit)) for limit in limits]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Reset the environment with ``options``, and the counts."""
        observation, info = self.env.reset(seed=seed, options=options)
        for limit in self.episode_limits:
            limit.start(observation, info)
        return observation, info

    def step(self, action: str) -> Step:
        """Step, then truncate when a limit is reached."""
        observation, reward, terminated, truncated, info = cast("Step", self.env.step(action))
        spent = [
            one for one in self.episode_limits if one.is_spent(action, None, observation, info)
        ]
        if spent and not (terminated or truncated):
            truncated = True
            info["stop_reason"] = spent[0].reason.value
            if "score" not in info:
                has_score = self.env.has_wrapper_attr("score")
                info["score"] = self.env.get_wrapper_attr("score")() if has_score else None
        return observation, reward, terminated, truncated, info

    def snapshot_state(self) -> list[Any]:
        """Return what was counted."""
        return [limit.get_state() for limit in self.episode_limits]

    def restore_state(self, state: list[Any]) -> None:
        """Go on from what ``snapshot_state`` returned."""
        for limit, counted in zip(self.episode_limits, state, strict=True):
            limit.set_state(counted)


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
        for paid in ("other_rewards", "judged_at_limit"):  # by the environment
            info.pop(paid, None)
        info["reward_parts"] = {"expert_match": reward}
        return observation, reward, terminated, truncated, info

    def end_at_limit(self) -> Outcome | None:
        """Judge as the environment does at a limit, and pay nothing."""
        if not self.env.has_wrapper_attr("end_at_limit"):
            return None
        end: Outcome | None = self.env.get_wrapper_attr("end_at_limit")()
        if end is not None:
            end.reward = 0.0
            paid = ("reward_parts", "other_rewards")
            end.info = {k: v for k, v in (end.info or {}).items() if k not in paid}
            end.info["judged_at_limit"] = False
        return end

    def agreement(self, action: str, expert: str) -> float:
        """Return how well ``action`` agrees with the ``expert``'s, in [0, 1]."""
        parse = self.get_wrapper_attr("action_format").parse
        is_ours = self.has_wrapper_attr("calls_per_turn")
        has_several = is_ours and self.get_wrapper_attr("calls_per_turn") > 1
        calls = calls_at_end(action) if has_several else []
        own = parse(calls[0] if calls else after_thoughts(action))  # the expert was asked before it
        wanted = parse(expert)
        if not isinstance(own, Action):
            return 0.0
        if own == wanted:
            return 1.0
        is_same_command = isinstance(wanted, Action) and own.name == wanted.name
        return 0.1 + 0.9 * (0.5 if is_same_command else 0.1)


class RecordTurns(gymnasium.Wrapper[Observation, str, Observation, str], RecordConstructorArgs):
    """Appends each episode to ``path`` as a ``Trajectory`` without tokens when it ends.

    Wrap it around the limits, so that their stop reasons are recorded. An episode that is left
    before its end (by ``reset`` or ``close``) and one whose environment breaks are written with an
    ``error_*`` stop reason, so nothing takes them for finished ones. Several environments, in
    several processes too, may write to one file.

    The environment knows no policy seed: the number of the episode stands in its place. An
    environment seed of -1 means that the reset had none.

    Args:
        env: What to wrap.
        path: File of JSON lines; made with its folders if missing, otherwise appended to.

    Raises:
        ConfigError: What the environment shows is no text.
    """

    def __init__(self, env: TextEnv, path: str | os.PathLike[str]) -> None:
        space: gymnasium.Space[Any] = env.observation_space
        if not (isinstance(space, gymnasium.spaces.Dict) and "text" in space.spaces):
            raise ConfigError(
                f"RecordTurns: {env} shows {space}, wanted a dict with 'text'; from_gymnasium "
                "makes an environment in words of one with discrete actions"
            )
        RecordConstructorArgs.__init__(self, path=os.fspath(path))
        gymnasium.Wrapper.__init__(self, env)
        self.path = Path(path)
        self._number = -1
        self._seed = -1
        self._turns: list[Turn] | None = None
        self._seen = ""
        self._info: Info = {}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Write what is left of the last episode and start a new one with ``options``."""
        self._leave("reset before its end")
        observation, info = self.env.reset(seed=seed, options=options)
        self._number += 1
        self._seed = -1 if seed is None else seed
        self._turns, self._seen, self._info = [], observation["text"], info
        return observation, info

    def step(self, action: str) -> Step:
        """Step and note the turn; write the episode when it is over."""
        before = self._info
        try:
            observation, reward, terminated, truncated, info = self.env.step(action)
        except Exception as error:
            self._write(StopReason.ERROR_ENV, error=f"step: {type(error).__name__}: {error}")
            raise
        reward = float(reward)
        if self._turns is not None:
            self._turns.append(
                Turn(
                    observation=(Message(role="user", content=self._seen),),
                    action=Message(role="assistant", content=action),
                    reward=reward,
                    reward_parts=info.get("reward_parts", {}),
                    player=before.get("player"),
                    other_rewards=info.get("other_rewards", {}),
                    invalid_action=info.get("invalid_action"),
                    state_key=before.get("state_key"),
                    potential=before.get("potential"),
                )
            )
        self._seen, self._info = observation["text"], info
        if terminated or truncated:
            fallback = StopReason.TERMINATED if terminated else StopReason.TRUNCATED_ENV
            self._write(StopReason(info.get("stop_reason", fallback)), end=info)
        return observation, reward, terminated, truncated, info

    def close(self) -> None:
        """Write what is left of the last episode and close the environment."""
        self._leave("closed before its end")
        self.env.close()

    def snapshot_state(self) -> dict[str, Any]:
        """Return what is noted of the running episode."""
        names = ("_number", "_seed", "_seen", "_info", "_turns")
        return copy.deepcopy({name: getattr(self, name) for name in names})

    def restore_state(self, state: dict[str, Any]) -> None:
        """Go on from what ``snapshot_state`` returned."""
        vars(self).update(copy.deepcopy(state))

    def _leave(self, how: str) -> None:
        if self._turns:
            self._write(StopReason.ERROR_POLICY, error=f"the episode was {how}")
        self._turns = None

    def _write(
        self, stop_reason: StopReason, *, end: Info | None = None, error: str | None = None
    ) -> None:
        turns, self._turns = self._turns, None
        if turns is None:
            return
        end = end or {}
        scores = end.get("scores", {})
        first = turns[0].player if turns else None
        spec = self.unwrapped.spec
        append_trajectory(
            self.path,
            Trajectory(
                env_id=spec.id if spec is not None else str(self.unwrapped),
                task_id=str(self._info.get("task_id", "")),
                env_seed=self._seed,
                policy_seed=self._number,
                turns=tuple(turns),
                stop_reason=stop_reason,
                final_observation=(Message(role="user", content=self._seen),) if turns else (),
                score=scores.get(first, end.get("score")),
                scores=scores,
                judged_at_limit=bool(end.get("judged_at_limit")),
                final_potential=end.get("potential"),
                error=error,
            ),
        )
