"""Who acts in an episode: one session, or one for each player of a game of several.

An environment with ``players`` says in ``info["player"]`` who acts next. Each player has a
conversation of its own, and sees nothing of the others'. ``Versus`` seats a policy and an opponent;
any other policy plays all of them, which is self-play. ``by_player`` makes of such an episode one
for each player, as credit and training take them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any, Self

from turngym.agents.policy import (
    ContextOverflow,
    EpisodeContext,
    LearningPolicy,
    Policy,
    PolicySession,
    PolicyTurn,
)
from turngym.coroutines import awaited
from turngym.environments.core.spaces import Info
from turngym.errors import ConfigError, EnginesLost, EnvironmentFault, PolicyFault
from turngym.faults import Boundary
from turngym.seeding import derive_seed
from turngym.types import Trajectory, TrajectoryGroup, Turn, given, sum_by_name

SELF = "self"
"""The opponent that is the policy itself."""
_INTRODUCTION = ("instructions", "rules", "tools", "max_turns", "calls_per_turn")
"""What the ``info`` of a reset says, and each player has to know."""


@dataclass(frozen=True, slots=True)
class Versus:
    """A policy as one player of a game of several, and an opponent as the others.

    Which player it is depends on the task alone, so that attempts at one task can be compared. What
    the opponent says is never trained on.
    """

    policy: Policy
    opponent: Policy

    def player(self, context: EpisodeContext) -> str | None:
        """Return who the policy is in an episode; None where there is one player."""
        players = context.players
        return (
            players[derive_seed(0, context.task_id, "player") % len(players)] if players else None
        )

    def start(self, context: EpisodeContext) -> PolicySession:
        """Return a session of the one who is ``context.player``."""
        if context.player == self.player(context):
            return self.policy.start(context)
        return _Opponent(self.opponent.start(context))

    @property
    def learns(self) -> bool:
        """Whether the policy's attempts at a task go by what earlier ones learned."""
        return isinstance(self.policy, LearningPolicy) and self.policy.learns

    def anew(self, before: Sequence[Trajectory]) -> Self:
        """Return this with a policy that has what was learned in ``before``, and nothing else."""
        assert isinstance(self.policy, LearningPolicy)
        return replace(self, policy=self.policy.anew(before))


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of several policies: which one depends on the task alone, as in ``Versus``."""

    policies: tuple[Policy, ...]

    def start(self, context: EpisodeContext) -> PolicySession:
        """Return a session of the one whose task it is."""
        place = derive_seed(0, context.task_id, "opponent") % len(self.policies)
        return self.policies[place].start(context)


class _Opponent:
    """A session whose tokens were given, as far as training is concerned."""

    def __init__(self, session: PolicySession) -> None:
        self._session = session
        if hasattr(session, "replay"):
            self.replay = session.replay

    async def act(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> PolicyTurn:
        turn = await self._session.act(observation, info)
        return replace(turn, spans=given(turn.spans))

    async def close(self) -> None:
        await _close(self._session)


class Sessions:
    """The sessions of one episode; those of a game of several begin at a player's first turn.

    Args:
        policy: Whose sessions they are.
        context: What is known of the episode.
        opening: The ``info`` of its reset.
    """

    def __init__(self, policy: Policy, context: EpisodeContext, opening: Info) -> None:
        self._policy, self._opening = policy, opening
        self._context = replace(context, players=opening.get("players", ()))
        self._begun: dict[str | None, PolicySession] = {}
        self.player = policy.player(self._context) if isinstance(policy, Versus) else None
        """Whose episode it is; None where the policy is all players."""
        self.at(opening)

    def at(self, info: Info) -> tuple[PolicySession, Info]:
        """Return the session of who acts next, and what that player has to know.

        Raises:
            PolicyFault: The policy cannot start one.
            EnvironmentFault: There is no such player.
        """
        player = info.get("player")
        if (session := self._begun.get(player)) is not None:
            return session, info
        context = self._context
        if player is not None:
            if player not in context.players:
                raise EnvironmentFault(f"player {player!r} acts; players are {context.players!r}")
            seed = derive_seed(context.seed, "player", player) if self._begun else context.seed
            context = replace(context, player=player, seed=seed)
            shared = {key: self._opening[key] for key in _INTRODUCTION if key in self._opening}
            info = shared | info
        with policy_boundary("start"):
            if not hasattr(session := self._policy.start(context), "act"):
                raise TypeError(f"wanted a session with act, got {type(session).__name__}")
        self._begun[player] = session
        return session, info

    @property
    def learner(self) -> PolicySession:
        """The session that learns how the episode came out: the policy's, the first of several."""
        return self._begun.get(self.player) or next(iter(self._begun.values()))

    async def close(self) -> None:
        """Close them all."""
        async with AsyncExitStack() as opened:  # all of them, where one cannot be closed
            for session in self._begun.values():
                opened.push_async_callback(_close, session)


async def _close(session: PolicySession) -> None:
    await awaited(session.close())


def policy_boundary(phase: str) -> Boundary:
    """Attribute to the policy what is raised inside.

    Args:
        phase: What it does there, for the message.
    """
    passing = (ConfigError, ContextOverflow, EnginesLost, EnvironmentFault, PolicyFault)
    return Boundary(phase, PolicyFault, *passing)


def by_player(episode: Trajectory) -> list[Trajectory]:
    """Return an episode as each player that the policy was lived through it, the first one first.

    A turn has also what later turns of others paid to its player, before the player's next one.
    Where a limit cuts a game off, its last observation goes to the player who would have acted
    next, where that is known, and to no other. An episode of one player is returned as it is.

    Args:
        episode: As it was played.
    """
    names = dict.fromkeys(turn.player for turn in episode.turns)
    if None in names or not names:
        return [episode]
    return [_of(episode, name) for name in names if episode.player in (None, name) and name]


def groups_by_player(groups: Iterable[TrajectoryGroup]) -> list[TrajectoryGroup]:
    """Return groups of attempts, with one for each player where the policy was several.

    So what is compared are attempts of one player at one task.
    """
    found: list[TrajectoryGroup] = []
    for group in groups:
        sides: dict[str | None, list[Trajectory]] = {}
        for one in group.trajectories:
            for side in by_player(one):
                sides.setdefault(side.player, []).append(side)
        for player, members in sides.items():
            name = group.group_id if len(sides) == 1 else f"{group.group_id}/{player or ''}"
            found.append(TrajectoryGroup(group_id=name, trajectories=tuple(members)))
    return found


def _of(episode: Trajectory, player: str) -> Trajectory:
    """Return an episode with the turns of one player alone."""
    turns: list[Turn] = []
    owed = 0.0  # paid before the player's first turn
    for turn in episode.turns:
        if turn.player == player:
            turns.append(_paid(turn, owed))
            owed = 0.0
        elif turns:
            turns[-1] = _paid(turns[-1], turn.reward_of(player))
        else:
            owed += turn.reward_of(player)
    # Where a limit cuts a game off, its last observation is for who would have acted next.
    waiting = {turn.player for turn in episode.turns} - {episode.turns[-1].player}
    is_shown = waiting <= {player} or not episode.stop_reason.is_truncated
    return replace(
        episode,
        turns=tuple(turns),
        player=player,
        score=episode.scores.get(player, None if episode.scores else episode.score),
        final_observation=episode.final_observation if is_shown else (),
    )


def _paid(turn: Turn, reward: float) -> Turn:
    if not reward:
        return turn
    parts = sum_by_name(turn.reward_parts, {"others": reward}) if turn.reward_parts else {}
    return replace(turn, reward=turn.reward + reward, reward_parts=parts)
