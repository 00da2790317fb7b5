"""One episode from reset to its end, and every way it can end in one place."""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium

from turngym.agents.base import (
    ContextOverflow,
    EpisodeContext,
    Policy,
    PolicySession,
    PolicyTurn,
)
from turngym.environments.info import Info
from turngym.errors import ConfigError, EnvironmentFault, PolicyFault
from turngym.tasks.base import Task
from turngym.types import Message, StopReason, Trajectory, Turn


class AnyEnv(Protocol):
    """A ``gymnasium.Env`` with turn semantics, or an ``AsyncTurnEnv``."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Start an episode."""
        ...

    def step(self, action: str) -> Any:
        """Carry out one action."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSpec:
    """Which episode to play: the task and the two seeds."""

    env_id: str
    task: Task
    env_seed: int
    policy_seed: int
    attempt: int = 0


async def rollout(
    env: AnyEnv, policy: Policy, spec: EpisodeSpec, *, timeout_s: float | None = None
) -> Trajectory:
    """Play one episode and return everything it produced. Does not close ``env``.

    A fault of the environment or the policy ends this episode with an ``error_*`` stop reason; it
    is not raised, so other episodes go on, and the trajectory has no score. Wrong settings and
    cancellation are raised.

    Args:
        env: Free for the length of the episode.
        policy: Who acts.
        spec: Task and seeds.
        timeout_s: Wall-clock limit of the whole episode in seconds; past it the episode is
            truncated. None for no limit.
    """
    record = _Record(spec)
    try:
        async with asyncio.timeout(timeout_s):
            await _play(env, policy, record)
    except TimeoutError:
        record.stop = StopReason.TRUNCATED_TIME
    except ContextOverflow:
        record.stop = StopReason.TRUNCATED_CONTEXT
    except EnvironmentFault as fault:
        record.stop, record.error = StopReason.ERROR_ENV, str(fault)
    except PolicyFault as fault:
        record.stop, record.error = StopReason.ERROR_POLICY, str(fault)
    if record.stop.is_truncated and record.score is None:
        record.score = _attribute(env, "score", lambda: None)()
    return record.trajectory()


class _Record:
    """What is known of a running episode."""

    def __init__(self, spec: EpisodeSpec) -> None:
        self.spec = spec
        self.turns: list[Turn] = []
        self.stop = StopReason.ERROR_ENV
        self.score: float | None = None
        self.error: str | None = None
        self.last_text: str | None = None

    def add(self, turn: PolicyTurn, seen: Info, reward: float, info: Info) -> None:
        self.turns.append(
            Turn(
                observation=turn.observation,
                action=turn.action,
                spans=turn.spans,
                reward=reward,
                reward_parts=info.get("reward_parts", {}),
                invalid_action=info.get("invalid_action"),
                anchor=seen.get("anchor"),
                starts_segment=turn.starts_segment,
            )
        )

    def trajectory(self) -> Trajectory:
        spec = self.spec
        last = () if self.last_text is None else (Message(role="user", content=self.last_text),)
        return Trajectory(
            env_id=spec.env_id,
            task_id=spec.task.id,
            env_seed=spec.env_seed,
            policy_seed=spec.policy_seed,
            attempt=spec.attempt,
            turns=tuple(self.turns),
            stop_reason=self.stop,
            final_observation=last,
            score=None if self.stop.is_error else self.score,
            error=self.error,
        )


async def _play(env: AnyEnv, policy: Policy, record: _Record) -> None:
    spec = record.spec
    observation, info = await _env_call(
        "reset", lambda: env.reset(seed=spec.env_seed, options={"task": spec.task})
    )
    session = policy.start(
        EpisodeContext(
            env_id=spec.env_id,
            task_id=spec.task.id,
            seed=spec.policy_seed,
            instructions=info.get("instructions", ""),
            oracle=_attribute(env, "oracle_action", None),
        )
    )
    try:
        over = False
        while not over:
            turn = await _act(session, observation, info)
            action, seen = turn.action.content, info
            observation, reward, terminated, truncated, info = await _env_call(
                "step",
                lambda action=action: env.step(action),
            )
            record.add(turn, seen, float(reward), info)
            record.last_text = observation["text"]
            over = terminated or truncated
    finally:
        session.close()
    fallback = StopReason.TERMINATED if terminated else StopReason.TRUNCATED_ENV
    record.stop = StopReason(info.get("stop_reason", fallback))
    record.score = info.get("score")


async def _env_call(phase: str, call: Any) -> Any:
    """Run one call of the environment; whatever it raises becomes an ``EnvironmentFault``."""
    try:
        result = call()
        return await result if inspect.isawaitable(result) else result
    except (ConfigError, EnvironmentFault, TimeoutError):
        raise
    except Exception as error:  # the border where faults are attributed
        raise EnvironmentFault(f"{phase}: {type(error).__name__}: {error}") from error


async def _act(session: PolicySession, observation: Any, info: Info) -> PolicyTurn:
    try:
        return await session.act(observation, info)
    except (ConfigError, ContextOverflow, PolicyFault, TimeoutError):
        raise
    except Exception as error:  # the border where faults are attributed
        raise PolicyFault(f"act: {type(error).__name__}: {error}") from error


def _attribute(env: Any, name: str, default: Any) -> Any:
    if isinstance(env, gymnasium.Env):
        return env.get_wrapper_attr(name) if env.has_wrapper_attr(name) else default
    return getattr(env, name, default)
