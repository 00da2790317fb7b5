"""One episode from reset to its end, and every way it can end in one place."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import gymnasium

from turngym.agents.policy import (
    ContextOverflow,
    EpisodeContext,
    EpisodeEnd,
    LearningSession,
    Policy,
    PolicySession,
    PolicyTurn,
)
from turngym.coroutines import awaited
from turngym.environments.core.spaces import Info, checked_score, joined_info
from turngym.errors import ConfigError, EnvironmentFault, EpisodeError, PolicyFault
from turngym.faults import Boundary, Tolerated, cancellations, message_of
from turngym.rollouts.players import Sessions, policy_boundary
from turngym.seeding import derive_seed
from turngym.tasks.base import Task
from turngym.types import LESSON, Message, StopReason, Trajectory, Turn

SELF_CANCELLED = "CancelledError: code of the environment or the policy cancelled its own task"
_CLOSE_S = 10.0
"""Seconds that a policy session has to close."""


class AnyEnv(Protocol):
    """A ``gymnasium.Env`` with turn semantics, or an ``AsyncTurnEnv``."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Start an episode with ``options``, its task among them."""

    def step(self, action: str) -> Any:
        """Carry out one action."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSpec:
    """Which episode to play: the task and the two seeds."""

    env_id: str
    task: Task
    env_seed: int
    policy_seed: int
    member: int = 0


def group_specs(env_id: str, task: Task, *, seed: int, group_size: int) -> list[EpisodeSpec]:
    """Return the episodes of one group: one environment seed, ``group_size`` policy seeds.

    Args:
        env_id: Name of the environment, where the task names none.
        task: The task all attempts share.
        seed: Root of the group's place in the seed tree.
        group_size: Number of attempts, 1 or more.
    """
    return [
        EpisodeSpec(
            env_id=task.env_id or env_id,
            task=task,
            env_seed=derive_seed(seed, task.id, "env"),
            policy_seed=derive_seed(seed, task.id, "policy", member),
            member=member,
        )
        for member in range(group_size)
    ]


def reset_seed(env_seed: int) -> int | None:
    """Return the seed of a reset; None for the -1 of ``RecordTurns``, whose reset had none."""
    return None if env_seed < 0 else env_seed


KeepPicture = Callable[[Any], str]
"""Keeps a picture that the agent saw, uint8 [H, W, 3], and returns its name."""


@dataclass(frozen=True, slots=True)
class ReplayedTurn:
    """A turn that is carried out again: of a prefix, or of an episode that is resumed."""

    turn: Turn
    seen: str | None = None
    """``digest_of`` the observation that the turn answered; None or empty to check nothing."""


class EpisodeObserver(Protocol):
    """Observer of one episode. May hold it up where it returns an awaitable."""

    stop: StopReason | None
    """Why the episode ends after the turns that are carried out again; None where it goes on."""

    def before_act(self, played: int, observation: Any, info: Info) -> Awaitable[None] | None:
        """Turn number ``played`` begins, at what the environment says now."""

    def sampled(self, turn: PolicyTurn) -> Awaitable[None] | None:
        """The policy acted; ``env.step`` follows."""

    def stepped(self, turn: Turn, observation: Any) -> StopReason | None:
        """The turn got ``observation``. Returns a ``truncated_*`` reason to end here."""


async def rollout(
    env: AnyEnv,
    policy: Policy,
    spec: EpisodeSpec,
    *,
    timeout_s: float | None = None,
    keep_picture: KeepPicture | None = None,
    act_timeout_s: float | None = None,
    watch: EpisodeObserver | None = None,
    played: Sequence[ReplayedTurn] = (),
) -> Trajectory:
    """Play one episode and return everything it produced. Does not close ``env``.

    Whatever the environment, the policy or the judge raises ends this episode with an ``error_*``
    stop reason; it is not raised, so other episodes go on, and the trajectory has no score. Wrong
    settings, a cancellation of this task and the user's Ctrl-C are raised.

    Args:
        env: Free for the length of the episode.
        policy: Who acts.
        spec: Task and seeds.
        timeout_s: Wall-clock limit of the whole episode in seconds; past it the episode is
            truncated, or a fault where it has not begun by then. None for no limit.
        keep_picture: Keeps the ``image`` of each observation; None keeps none.
        act_timeout_s: Seconds that the policy has for one action; past it the episode ends by a
            fault of the policy.
        watch: Observes every turn but those of ``played``.
        played: Turns to carry out first, without asking the policy. They are part of the result.

    Raises:
        CannotReplay: ``played`` leads somewhere else, or the policy's sessions cannot resume it.
    """
    record = _Record(spec, keep_picture)
    try:
        async with asyncio.timeout(timeout_s):
            await _play(env, policy, record, watch, act_timeout_s, played)
    except TimeoutError:
        if record.can_be_judged is None:  # no doing of the policy: neither truncated nor worth 0
            record.error = f"reset: the episode had not begun after {timeout_s:g} s, its time limit"
        elif not record.is_over:  # else it came while the session closed
            record.stop = StopReason.TRUNCATED_TIME
    except ContextOverflow:
        record.stop = StopReason.TRUNCATED_CONTEXT
    except EnvironmentFault as fault:
        record.stop, record.error = StopReason.ERROR_ENV, message_of(fault)
    except PolicyFault as fault:
        record.stop, record.error = StopReason.ERROR_POLICY, message_of(fault)
    if record.stop.is_truncated and record.score is None:
        try:
            await _judge(env, record)
        except EnvironmentFault as fault:  # an episode without a judge has no reward
            record.error = f"{record.stop.value}: {message_of(fault)}"
            record.stop = StopReason.ERROR_REWARD
    return record.trajectory()


async def _judge(env: AnyEnv, record: _Record) -> None:
    """Judge the state in which the rollout cut the episode; what it is worth the last turn earns.

    Before the first turn and within a step no turn can be paid: the score alone is asked.

    Raises:
        EnvironmentFault: The environment's judge broke.
    """
    info: Info = {}
    if record.can_be_judged:
        with Boundary("judge", EnvironmentFault):
            end = await awaited(_attribute(env, "end_at_limit", lambda: None)())
            if end is not None:
                info = end.info or {}
                record.pay(end.reward, info)
    with Boundary("score", EnvironmentFault):
        score = info["score"] if "score" in info else _attribute(env, "score", lambda: None)()
        record.judge({**info, "score": score})


def faulted(spec: EpisodeSpec, error: str) -> Trajectory:
    """Return the trajectory of an episode whose environment broke by ``error`` before it began."""
    record = _Record(spec)
    record.error = error
    return record.trajectory()


class CannotReplay(EpisodeError):
    """An episode cannot be resumed where it was cancelled; it has to begin again."""


class NoReplay(CannotReplay):
    """The policy's sessions cannot resume any episode."""


class _Record:
    """What is known of a running episode."""

    def __init__(self, spec: EpisodeSpec, keep_picture: KeepPicture | None = None) -> None:
        self.spec, self.keep_picture = spec, keep_picture
        self.last_picture: str | None = None
        self.turns: list[Turn] = []
        self.stop = StopReason.ERROR_ENV
        self.is_over = False
        """Whether the environment or the watch ended it: what follows changes nothing."""
        self.can_be_judged: bool | None = None  # before its reset is over
        """Whether it goes on after a turn that is complete; else no limit can be judged."""
        self.score: float | None = None
        self.scores: dict[str, float] = {}
        self.judged_at_limit, self.lesson = False, ""
        self.player: str | None = None
        self.error: str | None = None
        self.last_text: str | None = None
        self.last_potential: float | None = None
        self.ground_truth: str | None = None
        self.answer: str | None = None

    def open(self, observation: Any, info: Info) -> None:
        _text_of(observation)
        self.can_be_judged = False
        truth, answer = info.get("ground_truth"), info.get("answer")
        self.ground_truth = str(truth) if isinstance(truth, str | int | float) else None
        self.answer = answer if isinstance(answer, str) else None

    def see(self, observation: Any) -> None:
        self.last_picture = None
        if self.keep_picture is not None:
            with Boundary("image", EnvironmentFault, OSError):  # a full disk is not its fault
                if (image := observation.get("image")) is not None:
                    self.last_picture = self.keep_picture(image)

    def add(self, turn: PolicyTurn, seen: Info, answer: _Answer) -> None:
        self.last_text = _text_of(answer.observation)
        self.last_potential = answer.info.get("potential")
        self.turns.append(
            Turn(
                observation=turn.observation,
                action=turn.action,
                spans=turn.spans,
                reward=float(answer.reward),
                reward_parts=answer.info.get("reward_parts", {}),
                player=seen.get("player"),
                other_rewards=answer.info.get("other_rewards", {}),
                invalid_action=answer.info.get("invalid_action"),
                state_key=seen.get("state_key"),
                potential=seen.get("potential"),
                picture=self.last_picture,
                starts_segment=turn.starts_segment,
                segment_reason=turn.segment_reason,
                usage=turn.usage,
            )
        )
        # A wrapper may have cut it (Gymnasium's TimeLimit), of which the environment knows nothing.
        self.can_be_judged = not answer.terminated and "stop_reason" not in answer.info
        if answer.is_over:
            self.stop = answer.stop_reason
            self.judge(answer.info)

    def judge(self, info: Info) -> None:
        """Note the score of each player, and that of whose episode it is."""
        scores = {name: checked_score(one) for name, one in info.get("scores", {}).items()}
        self.scores = {name: one for name, one in scores.items() if one is not None}
        first = self.player or (self.turns[0].player if self.turns else None)
        self.score = checked_score(self.scores.get(first or "", info.get("score")))
        self.judged_at_limit |= bool(info.get("judged_at_limit"))

    def pay(self, reward: float, info: Info) -> None:
        """Add the reward of the state that is left to the last turn."""
        last = self.turns[-1]
        total = last.reward + float(reward)
        paid = {"reward_parts": last.reward_parts, "other_rewards": last.other_rewards}
        joined = joined_info({key: some for key, some in paid.items() if some}, info, total)
        self.turns[-1] = replace(last, reward=total, **{k: joined.get(k, {}) for k in paid})
        self.judged_at_limit = bool(joined["judged_at_limit"])

    def trajectory(self) -> Trajectory:
        spec = self.spec
        last = () if self.last_text is None else (Message(role="user", content=self.last_text),)
        return Trajectory(
            env_id=spec.env_id,
            task_id=spec.task.id,
            env_seed=spec.env_seed,
            policy_seed=spec.policy_seed,
            member=spec.member,
            turns=tuple(self.turns),
            stop_reason=self.stop,
            final_observation=last,
            score=None if self.stop.is_error else self.score,
            player=self.player,
            scores={} if self.stop.is_error else self.scores,
            judged_at_limit=self.judged_at_limit,
            ground_truth=self.ground_truth,
            answer=self.answer,
            final_potential=self.last_potential,
            final_picture=self.last_picture,
            error=self.error,
            metadata={LESSON: self.lesson} if self.lesson else {},
        )


def _text_of(observation: Any) -> str:
    if not isinstance(text := observation["text"], str):
        raise TypeError(f"the observation's text is of type {type(text).__name__}")
    return text


@dataclass(slots=True)  # not frozen, nor is ``Outcome``: one is made at every turn
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
        plain = StopReason.TERMINATED if self.terminated else StopReason.TRUNCATED_ENV
        if (reason := StopReason(self.info.get("stop_reason", plain))).is_error:
            raise ValueError(f"stop_reason {reason.value!r} is reported instead of raised")
        return reason


async def _play(
    env: AnyEnv,
    policy: Policy,
    record: _Record,
    watch: EpisodeObserver | None,
    act_timeout_s: float | None,
    played: Sequence[ReplayedTurn],
) -> None:
    spec = record.spec
    with _env_boundary("reset"):
        observation, info = await awaited(
            env.reset(seed=reset_seed(spec.env_seed), options={"task": spec.task})
        )
        record.open(observation, info)
        context = EpisodeContext(
            env_id=spec.env_id,
            task_id=spec.task.id,
            seed=spec.policy_seed,
            instructions=info.get("instructions", ""),
            rules=info.get("rules"),
            expert=_attribute(env, "expert_action", None),
        )
    record.see(observation)
    sessions = Sessions(policy, context, info)
    record.player = sessions.player
    try:
        over = False
        for number, before in enumerate(played):
            if over:
                raise CannotReplay(f"the episode is over after {number} of {len(played)} turns")
            _resume(*sessions.at(info), observation, before, number)
            answer = await _carried_out(env, record, _as_policy_turn(before.turn), info)
            observation, info, over = answer.observation, answer.info, answer.is_over
        stop = None if watch is None else watch.stop
        while not (over or stop):
            if watch is not None:
                hold = watch.before_act(len(record.turns), observation, info)
                if hold is not None:
                    await hold
            session, informed = sessions.at(info)
            with policy_boundary("act"):
                acting = _acted(session.act(observation, informed), act_timeout_s)
                turn = _checked(await _heeded(acting))
            if watch is not None and (hold := watch.sampled(turn)) is not None:
                await hold
            answer = await _carried_out(env, record, turn, info)
            if watch is not None:
                stop = watch.stepped(record.turns[-1], observation)
            observation, info, over = answer.observation, answer.info, answer.is_over
        if stop and not over:
            record.stop = stop
        record.is_over = True
        await _finish_session(sessions.learner, record)
    finally:
        with Tolerated("a policy session did not close"):
            async with asyncio.timeout(_CLOSE_S):
                await sessions.close()


async def _carried_out(env: AnyEnv, record: _Record, turn: PolicyTurn, seen: Info) -> _Answer:
    """Carry out the action of a turn and record what came of it."""
    record.can_be_judged = False
    with _env_boundary("step"):
        answer = _Answer(*await _heeded(awaited(env.step(turn.action.content))))
        record.add(turn, seen, answer)
    record.see(answer.observation)
    return answer


async def _acted(acting: Awaitable[PolicyTurn], timeout_s: float | None) -> PolicyTurn:
    if timeout_s is None:
        return await acting
    limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            found = await acting
    except TimeoutError:
        if not limit.expired():
            raise
    if limit.expired():
        raise PolicyFault(f"act: no answer within {timeout_s:g} s")
    return found


async def _heeded(work: Awaitable[Any]) -> Any:
    """Return the result of foreign code; what it kept to itself of a cancellation is raised."""
    before = cancellations()
    result = await work
    if cancellations() > before:  # a bare except does that, and no time limit would hold
        await asyncio.sleep(0)  # raises one that has not reached the code yet
        raise asyncio.CancelledError
    return result


def _checked(turn: PolicyTurn) -> PolicyTurn:
    if not isinstance(turn, PolicyTurn):
        raise TypeError(f"wanted a PolicyTurn, got {type(turn).__name__}")
    if turn.action.role != "assistant":
        raise ValueError(f"the action is a message of role {turn.action.role!r}")
    return turn


def digest_of(observation: Any) -> str:
    """Return what identifies an observation: 16 hex digits for its text, 16 more for an image."""
    text = hashlib.blake2b(observation["text"].encode("utf-8", "replace"), digest_size=8)
    image = observation.get("image")
    if image is None:
        return text.hexdigest()
    return f"{text.hexdigest()}-{hashlib.blake2b(image.tobytes(), digest_size=8).hexdigest()}"


def _looks_like(now: str, recorded: str) -> bool:
    """Return whether two digests agree; a record without an image asks for the text alone."""
    return now == recorded or ("-" not in recorded and now.split("-")[0] == recorded)


def _resume(
    session: PolicySession, info: Info, observation: Any, before: ReplayedTurn, number: int
) -> None:
    """Tell the session what it did in a turn that is carried out again."""
    if before.seen and not _looks_like(now := digest_of(observation), before.seen):
        raise CannotReplay(f"turn {number} saw {now}, recorded was {before.seen}")
    replay = getattr(session, "replay", None)
    if replay is None:
        raise NoReplay(f"sessions of {type(session).__name__} have no replay")
    with policy_boundary("replay"):
        replay(observation, info, before.turn)


def _as_policy_turn(turn: Turn) -> PolicyTurn:
    return PolicyTurn(
        observation=turn.observation,
        action=turn.action,
        spans=turn.spans,
        starts_segment=turn.starts_segment,
    )


def _env_boundary(phase: str) -> Boundary:
    """Attribute to the environment what is raised inside, a timeout of its own included.

    The time limit of the episode does not come this way: it arrives as a cancellation.
    """
    return Boundary(phase, EnvironmentFault, ConfigError, EnvironmentFault)


async def _finish_session(session: PolicySession, record: _Record) -> None:
    """Let a session that learns know how the episode came out."""
    with Tolerated("a policy session learned nothing"):
        if isinstance(session, LearningSession):
            end = EpisodeEnd(
                observation=record.last_text or "",
                episode_return=record.trajectory().episode_return,
                score=record.score,
                stop_reason=record.stop,
            )
            if (learned := await session.finish(end)) is not None:
                record.turns[-1] = learned.counted_in(record.turns[-1])
                record.lesson = learned.lesson


def _attribute(env: Any, name: str, default: Any) -> Any:
    if isinstance(env, gymnasium.Env):
        return env.get_wrapper_attr(name) if env.has_wrapper_attr(name) else default
    return getattr(env, name, default)
