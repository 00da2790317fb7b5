"""Turns, members, groups and small runs for tests of the scheduler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from turngym.config import load_config
from turngym.rollouts.scheduler.audit import AuditReport, audit
from turngym.rollouts.scheduler.groups import (
    GroupRequest,
    Member,
    OpenGroup,
    Selection,
    requested_episodes,
)
from turngym.rollouts.scheduler.ledger import Ledger
from turngym.rollouts.simulation.simulate import (
    ENV_ID,
    Scenario,
    SimResult,
    play_scenario,
    run_virtually,
)
from turngym.tasks.base import procedural_task
from turngym.types import Message, StopReason, TokenSpan, Trajectory, Turn


def make_turn(
    *,
    versions: tuple[int, ...] = (0,),
    reward: float = 0.0,
    potential: float | None = None,
    text: str = "go",
) -> Turn:
    """Return a turn with two drawn tokens of each version."""
    spans = [TokenSpan(token_ids=(1, 2, 3), sampled=False)]
    spans += [
        TokenSpan(token_ids=(4, 5), sampled=True, logprobs=(-0.25, -1.5), policy_version=version)
        for version in versions
    ]
    return Turn(
        observation=(Message(role="user", content="seen"),),
        action=Message(role="assistant", content=text),
        spans=tuple(spans),
        reward=reward,
        potential=potential,
    )


def trajectory_of(*rewards: float, seed: int = 0, stop: StopReason = StopReason.TERMINATED) -> Any:
    """Return a finished episode with one turn for each reward."""
    return Trajectory(
        env_id="turngym/Simulated-v0",
        task_id="simulated/train/0",
        env_seed=7,
        policy_seed=seed,
        turns=tuple(make_turn(reward=reward) for reward in rewards),
        stop_reason=stop,
        score=1.0 if rewards and rewards[-1] > 0 else 0.0,
    )


def member_of(number: int, *rewards: float) -> Member:
    """Return a finished member of a group."""
    trajectory = trajectory_of(*(rewards or (1.0,)), seed=number)
    return Member(
        number=number,
        retry=0,
        trajectory=trajectory,
        first_turn=0,
        end_turn=len(trajectory.turns),
        versions=(0,) * len(trajectory.turns),
        start_version=0,
    )


def open_group(*, size: int, index: int = 0, opened_at: float = 0.0) -> OpenGroup:
    """Return a group that is being played."""
    request = GroupRequest(task=procedural_task("simulated", "train", index), size=size, env_seed=7)
    episodes = requested_episodes(request, env_id=ENV_ID, seed=0, members=size)
    return OpenGroup(
        index=index,
        request=request,
        start_version=0,
        target=None,
        episodes=episodes,
        opened_at=opened_at,
    )


def scenario(**settings: Any) -> Scenario:
    """Return a small run; ``settings`` are merged into it."""
    base = {
        "steps": 6,
        "group_size": 4,
        "profile": {"policy_s": 0.1, "env_median_s": 0.3, "max_turns": 6},
        "scheduler": {"concurrency": 12, "groups_per_step": 3, "watchdog_s": None},
    }
    return load_config(Scenario, [base, settings])


def run_audited(
    run: Scenario, path: Path, *, selection: Selection | None = None
) -> tuple[SimResult, AuditReport]:
    """Play ``run`` in virtual time with a ledger, and read the account."""

    async def play() -> SimResult:
        async with Ledger(path, threaded=False) as ledger:
            return await play_scenario(run, ledger=ledger, selection=selection)

    result = run_virtually(play())
    return result, audit(path)
