"""Go back to a turn of an episode: to look at the state, to have somebody play on, to measure it.

``restore`` begins a recorded episode again from its task and its seed, and carries the recorded
actions out. What the environment says and pays is compared with the record turn by turn; the first
turn that differs is named, and nothing is done after it. ``turn_values`` plays episodes on, many
times, from where others have been: what their turns were truly worth.

Axis letters: T turn of an episode, S state of an episode (one more than turns), H half.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turngym.agents.policy import Policy, PolicyTurn
from turngym.environments.core.env import AnyEnv, Observation
from turngym.environments.core.spaces import Info
from turngym.environments.gym.hosts import Isolation, as_async
from turngym.environments.gym.ray_workers import RayWorkers
from turngym.errors import ConfigError, EpisodeError
from turngym.rollouts.episode import EpisodeSpec, ReplayedTurn, digest_of, reset_seed, rollout
from turngym.rollouts.scheduler.config import BudgetConfig, DeadlineConfig
from turngym.rollouts.scheduler.pool import EnvPool, MakeAnyEnv
from turngym.rollouts.scheduler.running import Allowance
from turngym.seeding import derive_seed
from turngym.tasks.base import Task
from turngym.types import Message, StopReason, Trajectory, Turn


class ReplayDiffers(EpisodeError):
    """The environment does not do what it did when the episode was recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """Where an episode stood before one of its turns."""

    observation: Observation
    info: Info
    """Of the same reset or step."""
    instructions: str
    played: tuple[ReplayedTurn, ...]
    """The turns before."""
    is_over: bool


def restore(env: AnyEnv, recorded: Trajectory, turn: int) -> Restored:
    """Bring ``env`` to where the agent chose the action of a turn.

    Args:
        env: Made as the recorded one was.
        recorded: The episode.
        turn: From 1; one more than there are for the state after the last.

    Raises:
        ConfigError: There is no such turn, or no such task.
        ReplayDiffers: The environment says or pays something else than it did.
    """
    most = len(recorded.turns) + 1
    if not 1 <= turn <= most:
        raise ConfigError(
            f"turn {turn}: the episode has turns 1 to {most - 1}, and {most} is its end"
        )
    options = {"task": recorded.task_id}
    observation, info = env.reset(seed=reset_seed(recorded.env_seed), options=options)
    instructions, is_over, played = str(info["instructions"]), False, list[ReplayedTurn]()
    for number, was in enumerate(recorded.turns[: turn - 1], start=1):
        if info.get("player") != was.player:
            raise ReplayDiffers(
                f"turn {number}: {info.get('player')} acts; recorded are turns of {was.player} "
                "alone, and only a whole game can be replayed"
            )
        _compare(number, observation["text"], was.observation)
        played.append(ReplayedTurn(was, digest_of(observation)))
        observation, reward, terminated, truncated, info = env.step(was.action.content)
        is_over = bool(terminated or truncated)
        # Where the rollout ended it between two turns, the last was paid what the judge found.
        is_paid_later = recorded.judged_at_limit and not is_over and number == len(recorded.turns)
        if not (is_paid_later or math.isclose(reward, was.reward, rel_tol=1e-6, abs_tol=1e-6)):
            raise ReplayDiffers(
                f"turn {number}: replayed, it pays {float(reward):g}; {was.reward:g} is recorded"
            )
        if is_over and number < len(recorded.turns):
            raise ReplayDiffers(
                f"turn {number}: replayed, the episode is over; recorded are "
                f"{len(recorded.turns)} turns"
            )
    seen = recorded.final_observation
    if turn < most:
        seen = recorded.turns[turn - 1].observation
    _compare(turn, observation["text"], seen)
    return Restored(
        observation=observation, info=info, instructions=instructions, played=tuple(played),
        is_over=is_over,
    )  # fmt: skip


def _compare(number: int, text: str, recorded: Sequence[Message]) -> None:
    """Compare what is seen before a turn with the messages that the agent got; prompts may add."""
    if recorded and not any(text in message.content for message in recorded):
        raise ReplayDiffers(
            f"turn {number}: replayed, it sees {text[:60]!r}; "
            f"{recorded[-1].content[:60]!r} is recorded"
        )


async def play_on(
    env: AnyEnv, policy: Policy, recorded: Trajectory, restored: Restored
) -> Trajectory:
    """Return the episode as ``policy`` plays it from ``restored`` on; the turns before are in it.

    Args:
        env: As for ``restore``. It is reset, and closed at the end.
        policy: Who acts. Its sessions take over turns that somebody else played.
        recorded: The episode.
        restored: Where it begins.

    Raises:
        CannotReplay: The environment says something else, or the policy cannot take over.
    """
    host = as_async(env)
    try:
        task = host.find_task(recorded.task_id)
        spec = EpisodeSpec(
            env_id=recorded.env_id, task=task, env_seed=recorded.env_seed,
            policy_seed=recorded.policy_seed, member=recorded.member,
        )  # fmt: skip
        return await rollout(host, policy, spec, played=restored.played)
    finally:
        await host.close()


FloatArray = NDArray[np.float64]

_TRIES = 3
"""Of a continuation that breaks."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TurnValues:
    """Monte-Carlo values of the states of some episodes under one policy."""

    values: tuple[FloatArray, ...]
    """One array [H, S] for each episode: the mean return from each state on, twice, from two
    halves of the continuations. What follows the last turn is 0."""
    episodes: int
    """Episodes played for it."""

    def advantages(self, trajectories: Sequence[Trajectory]) -> list[FloatArray]:
        """Return ``r_t + V(s_t+1) - V(s_t)`` of every turn, one array [H, T] for each episode.

        Args:
            trajectories: The episodes, in the order of ``values``.
        """
        rewards = [np.array([turn.reward for turn in t.turns]) for t in trajectories]
        pairs = zip(rewards, self.values, strict=True)
        return [reward_T + np.diff(values_HS, axis=1) for reward_T, values_HS in pairs]


PlayOn = Callable[[Sequence[Trajectory], int, int], Coroutine[None, None, TurnValues]]
"""``turn_values`` of episodes, with so many continuations of each state and this seed."""


class _Budget:
    """Ends a continuation where its whole episode has spent its budget."""

    def __init__(self, config: BudgetConfig, played: Sequence[ReplayedTurn]) -> None:
        self._allowance = Allowance(config)
        self._turns = self._tokens = 0
        self.stop: StopReason | None = None
        for before in played:
            self.stop = self.stepped(before.turn, None)

    def before_act(self, played: int, observation: Any, info: Info) -> None:
        """Hold nothing up."""

    def sampled(self, turn: PolicyTurn) -> None:
        """Hold nothing up."""

    def stepped(self, turn: Turn, observation: Any) -> StopReason | None:
        self._turns += 1
        self._tokens += turn.num_said_tokens
        return self._allowance.spend(turn, turns=self._turns, tokens=self._tokens)


async def turn_values(
    make_env: MakeAnyEnv,
    policy: Policy,
    trajectories: Sequence[Trajectory],
    tasks: Sequence[Task],
    *,
    attempts: int,
    seed: int,
    concurrency: int = 64,
    isolation: Isolation | RayWorkers = "inline",
    calls: asyncio.Semaphore | None = None,
    deadlines: DeadlineConfig | None = None,
    timeout_s: float | None = None,
    budget: BudgetConfig | None = None,
) -> TurnValues:
    """Return what the states of ``trajectories`` are worth under ``policy``.

    From each state the episode is played to its end ``attempts`` times; its actions so far are
    carried out again, and where episodes of one task began alike they share the continuations. The
    game has to lead to the same state by the same actions, which is not checked here.

    Args:
        make_env: Makes one environment.
        policy: Who plays on. Its sessions must be able to resume an episode.
        trajectories: The episodes.
        tasks: The task of each.
        attempts: Continuations of each state, an even number, 2 or more.
        seed: Root of their place in the seed tree.
        concurrency: Episodes alive at once. No result depends on it.
        isolation: Where environments run, as for ``EnvPool``.
        calls: Holds back calls that block, as for ``EnvPool``.
        deadlines: Seconds that calls may take, as for ``EnvPool``.
        timeout_s: Seconds after which a continuation is truncated; None for no limit.
        budget: Turns and tokens of a whole episode; None for no limit.

    Raises:
        EpisodeError: A continuation broke three times, or its actions led elsewhere.
        ValueError: ``attempts`` is odd or too small.
    """
    if attempts < 2 or attempts % 2:
        raise ValueError(f"attempts={attempts}: wanted an even number, 2 or more")
    wanted: dict[tuple[str, int, tuple[str, ...]], tuple[Trajectory, Task, int]] = {}
    for trajectory, task in zip(trajectories, tasks, strict=True):
        for played in range(len(trajectory.turns)):
            wanted.setdefault(_key(trajectory, played), (trajectory, task, played))
    pool = EnvPool(
        make_env, size=concurrency, isolation=isolation, deadlines=deadlines, calls=calls
    )

    async def play_on(trajectory: Trajectory, task: Task, played: int, attempt: int) -> float:
        place = _key(trajectory, played)
        spec = EpisodeSpec(
            env_id=trajectory.env_id, task=task, env_seed=trajectory.env_seed, member=attempt,
            policy_seed=derive_seed(seed, place[0], place[1], *place[2], attempt),
        )  # fmt: skip
        before = [ReplayedTurn(turn.as_context()) for turn in trajectory.turns[:played]]
        for _ in range(_TRIES):
            lease, is_whole = await pool.lease(), False
            try:
                found = await rollout(
                    lease, policy, spec, timeout_s=timeout_s, played=before,
                    watch=None if budget is None else _Budget(budget, before),
                )  # fmt: skip
                is_whole = not found.stop_reason.is_error
            finally:
                lease.release(broken=not is_whole)
            if is_whole:
                return sum(turn.reward for turn in found.turns[played:])
        raise EpisodeError(f"{task.id}, after {played} turns: {found.error}")

    try:
        async with asyncio.TaskGroup() as group:
            running = {
                key: [group.create_task(play_on(*place, number)) for number in range(attempts)]
                for key, place in wanted.items()
            }
    except ExceptionGroup as found:  # the first says enough, and the others are cancelled
        raise found.exceptions[0] from None
    finally:
        await pool.close()
    means = {
        key: np.array([task.result() for task in found]).reshape(2, -1).mean(axis=1)
        for key, found in running.items()
    }
    values = []
    for trajectory in trajectories:
        states = [means[_key(trajectory, played)] for played in range(len(trajectory.turns))]
        values.append(np.stack([*states, np.zeros(2)], axis=1))
    return TurnValues(values=tuple(values), episodes=attempts * len(wanted))


def _key(trajectory: Trajectory, played: int) -> tuple[str, int, tuple[str, ...]]:
    """Return what episodes have in common that began alike."""
    actions = tuple(turn.action.content for turn in trajectory.turns[:played])
    return trajectory.task_id, trajectory.env_seed, actions
