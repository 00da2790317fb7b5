"""Trajectories made by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from turngym.types import Message, StopReason, TokenSpan, Trajectory, TrajectoryGroup, Turn


def turn(
    reward: float = 0.0,
    *,
    prompt: Sequence[int] = (1, 2),
    drawn: Sequence[int] = (3, 4),
    logprob: float = -0.5,
    version: int = 0,
    starts_segment: bool = False,
    state_key: str | None = None,
    parts: Mapping[str, float] | None = None,
    invalid: bool = False,
    potential: float | None = None,
) -> Turn:
    """Return a turn that read ``prompt`` and drew ``drawn``; ``parts`` also make its reward."""
    return Turn(
        observation=(Message(role="user", content="seen"),),
        action=Message(role="assistant", content="done"),
        reward=reward if parts is None else sum(parts.values()),
        reward_parts=parts or {},
        invalid_action="no such command" if invalid else None,
        state_key=state_key,
        potential=potential,
        spans=(
            TokenSpan(token_ids=tuple(prompt), sampled=False),
            TokenSpan(
                token_ids=tuple(drawn),
                sampled=True,
                logprobs=(logprob,) * len(drawn),
                policy_version=version,
            ),
        ),
        starts_segment=starts_segment,
    )


def episode(
    rewards: Sequence[float] | Sequence[Turn],
    *,
    member: int = 0,
    error: str | None = None,
    score: float | None = None,
    task_id: str = "made/train/0",
    stop: StopReason = StopReason.TERMINATED,
    final_potential: float | None = None,
) -> Trajectory:
    """Return an episode with one turn per reward, or with the given turns."""
    turns = tuple(r if isinstance(r, Turn) else turn(r) for r in rewards)
    return Trajectory(
        env_id="made",
        task_id=task_id,
        env_seed=7,
        policy_seed=member,
        member=member,
        turns=turns,
        stop_reason=stop if error is None else StopReason.ERROR_ENV,
        error=error,
        score=score,
        final_potential=final_potential,
    )


def group(*attempts: Sequence[float] | Trajectory) -> TrajectoryGroup:
    """Return a group of attempts given by their turn rewards."""
    trajectories = tuple(
        a if isinstance(a, Trajectory) else episode(a, member=i) for i, a in enumerate(attempts)
    )
    return TrajectoryGroup(group_id="made", trajectories=trajectories)
