"""Go back to a turn of a recorded episode, to look at the state or to have somebody play on.

The episode begins again from its task and its seed, and the recorded actions are carried out. What
the environment says and pays is compared with the record turn by turn; the first turn that differs
is named, and nothing is done after it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from turngym.agents.policy import Policy
from turngym.environments.core.env import AnyEnv, Observation
from turngym.environments.core.spaces import Info
from turngym.environments.gym.hosts import as_async
from turngym.errors import ConfigError, EpisodeError
from turngym.rollouts.episode import EpisodeSpec, ReplayedTurn, digest_of, rollout
from turngym.types import Message, Trajectory


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
    observation, info = env.reset(seed=recorded.env_seed, options=options)
    instructions, is_over, played = str(info["instructions"]), False, list[ReplayedTurn]()
    for number, was in enumerate(recorded.turns[: turn - 1], start=1):
        _compare(number, observation["text"], was.observation)
        played.append(ReplayedTurn(was, digest_of(observation)))
        observation, reward, terminated, truncated, info = env.step(was.action.content)
        if not math.isclose(reward, was.reward, rel_tol=1e-6, abs_tol=1e-6):
            raise ReplayDiffers(
                f"turn {number}: replayed, it pays {float(reward):g}; {was.reward:g} is recorded"
            )
        is_over = bool(terminated or truncated)
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
