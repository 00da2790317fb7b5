"""One episode from reset to its end, and every way it can end in one place."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium

from turngym.agents.base import (
    ContextOverflow,
    EpisodeContext,
    EpisodeEnd,
    LearningSession,
    Policy,
    PolicySession,
    PolicyTurn,
)
from turngym.environments.info import Info
from turngym.errors import ConfigError, EnvironmentFault, PolicyFault
from turngym.tasks.base import Task
from turngym.types import Message, StopReason, Trajectory, Turn

logger = logging.getLogger(__name__)


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


class KeepPicture(Protocol):
    """Keeps what the agent saw."""

    def __call__(self, pixels_HW3: Any) -> str:
        """Keep a picture, uint8 [H, W, 3], and return its name."""
        ...


async def rollout(
    env: AnyEnv,
    policy: Policy,
    spec: EpisodeSpec,
    *,
    timeout_s: float | None = None,
    keep_picture: KeepPicture | None = None,
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
        keep_picture: Keeps the ``image`` of each observation; None keeps none.
    """
    record = _Record(spec, keep_picture)
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
        try:
            record.score = _checked_score(_attribute(env, "score", lambda: None)())
        except Exception as error:  # noqa: BLE001 - an episode without a judge has no reward
            record.stop = StopReason.ERROR_REWARD
            record.error = f"score: {type(error).__name__}: {error}"
    return record.trajectory()


def faulted(spec: EpisodeSpec, error: str) -> Trajectory:
    """Return the trajectory of an episode whose environment broke before it began."""
    record = _Record(spec)
    record.error = error
    return record.trajectory()


class _Record:
    """What is known of a running episode."""

    def __init__(self, spec: EpisodeSpec, keep_picture: KeepPicture | None = None) -> None:
        self.spec = spec
        self.keep_picture = keep_picture
        self.last_picture: str | None = None
        self.turns: list[Turn] = []
        self.stop = StopReason.ERROR_ENV
        self.score: float | None = None
        self.error: str | None = None
        self.last_text: str | None = None
        self.last_potential: float | None = None
        self.ground_truth: str | None = None
        self.answer: str | None = None

    def open(self, info: Info) -> None:
        truth, answer = info.get("ground_truth"), info.get("answer")
        self.ground_truth = str(truth) if isinstance(truth, str | int | float) else None
        self.answer = answer if isinstance(answer, str) else None

    def see(self, observation: Any) -> None:
        image = observation.get("image") if self.keep_picture is not None else None
        self.last_picture = None
        if image is not None and self.keep_picture is not None:
            self.last_picture = self.keep_picture(image)

    def add(self, turn: PolicyTurn, seen: Info, answer: _Answer) -> None:
        self.last_text = answer.observation["text"]
        self.last_potential = answer.info.get("potential")
        self.turns.append(
            Turn(
                observation=turn.observation,
                action=turn.action,
                spans=turn.spans,
                reward=float(answer.reward),
                reward_parts=answer.info.get("reward_parts", {}),
                invalid_action=answer.info.get("invalid_action"),
                anchor=seen.get("anchor"),
                potential=seen.get("potential"),
                picture=self.last_picture,
                starts_segment=turn.starts_segment,
                segment_reason=turn.segment_reason,
                usage=turn.usage,
            )
        )
        if answer.is_over:
            self.stop = answer.stop_reason
            self.score = _checked_score(answer.info.get("score"))

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
            ground_truth=self.ground_truth,
            answer=self.answer,
            final_potential=self.last_potential,
            final_picture=self.last_picture,
            error=self.error,
        )


@dataclass(frozen=True, slots=True)
class _Answer:
    """What ``env.step`` returned."""

    observation: Any
    reward: float
    terminated: bool
    truncated: bool
    info: Info

    @property
    def is_over(self) -> bool:
        return bool(self.terminated or self.truncated)

    @property
    def stop_reason(self) -> StopReason:
        fallback = StopReason.TERMINATED if self.terminated else StopReason.TRUNCATED_ENV
        reason = StopReason(self.info.get("stop_reason", fallback))
        if reason.is_error:
            raise ValueError(f"stop_reason {reason.value!r} is reported instead of raised")
        return reason


async def _play(env: AnyEnv, policy: Policy, record: _Record) -> None:
    spec = record.spec
    with _env_border("reset"):
        observation, info = await _awaited(
            env.reset(seed=spec.env_seed, options={"task": spec.task})
        )
    record.open(info)
    record.see(observation)
    with _policy_border("start"):
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
            with _policy_border("act"):
                turn = await session.act(observation, info)
                if turn.action.role != "assistant":
                    raise ValueError(f"the action is a message of role {turn.action.role!r}")
            with _env_border("step"):
                answer = _Answer(*await _awaited(env.step(turn.action.content)))
                record.add(turn, info, answer)
            record.see(answer.observation)
            observation, info, over = answer.observation, answer.info, answer.is_over
        await _finish_session(session, record)
    finally:
        await _close_session(session)


@contextmanager
def _env_border(phase: str) -> Iterator[None]:
    """Attribute to the environment what is raised inside, a timeout of its own included.

    The time limit of the episode does not come this way: it arrives as a cancellation.
    """
    try:
        yield
    except (ConfigError, EnvironmentFault):
        raise
    except Exception as error:
        raise EnvironmentFault(f"{phase}: {type(error).__name__}: {error}") from error


@contextmanager
def _policy_border(phase: str) -> Iterator[None]:
    """Attribute to the policy what is raised inside."""
    try:
        yield
    except (ConfigError, ContextOverflow, EnvironmentFault, PolicyFault):
        raise
    except Exception as error:
        raise PolicyFault(f"{phase}: {type(error).__name__}: {error}") from error


async def _awaited(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


async def _finish_session(session: PolicySession, record: _Record) -> None:
    """Let a session that learns know how the episode came out."""
    if not isinstance(session, LearningSession):
        return
    end = EpisodeEnd(
        observation=record.last_text or "",
        episode_return=sum(turn.reward for turn in record.turns),
        score=record.score,
        stop_reason=record.stop,
    )
    try:
        await session.finish(end)
    except Exception as error:  # noqa: BLE001 - the episode is over; what it gave stands
        logger.warning("a policy session learned nothing: %s: %s", type(error).__name__, error)


async def _close_session(session: PolicySession) -> None:
    try:
        await _awaited(session.close())
    except Exception as error:  # noqa: BLE001 - the episode is over; what it gave stands
        logger.warning("a policy session did not close: %s: %s", type(error).__name__, error)


def _checked_score(score: Any) -> float | None:
    if score is None:
        return None
    if not 0.0 <= float(score) <= 1.0:
        raise ValueError(f"score must lie in [0, 1] or be None, got {score!r}")
    return float(score)


def _attribute(env: Any, name: str, default: Any) -> Any:
    if isinstance(env, gymnasium.Env):
        return env.get_wrapper_attr(name) if env.has_wrapper_attr(name) else default
    return getattr(env, name, default)
