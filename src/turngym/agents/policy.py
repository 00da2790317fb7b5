"""Who acts: a policy opens one session per episode, a session answers one observation a turn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self, runtime_checkable

from turngym.types import Message, StopReason, TokenSpan, Trajectory, Turn, sum_by_name


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeContext:
    """What a policy may know when an episode starts."""

    env_id: str
    task_id: str
    seed: int
    """Policy seed: differs between the members of a group."""
    instructions: str
    """Rules and action format, for a system prompt."""
    rules: str | None = None
    """The same without the action format, for models that are shown tools; None where unknown."""
    player: str | None = None
    """Who the session is, in a game of several."""
    players: tuple[str, ...] = ()
    """All who play, in a game of several."""
    expert: Callable[[], str] | None = None
    """The environment's expert; only scripted experts and warm starts may ask it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTurn:
    """What a policy did in one turn."""

    observation: tuple[Message, ...]
    """The messages that this turn added to the conversation before the action."""
    action: Message
    """The assistant's message; its content goes to ``env.step``."""
    spans: tuple[TokenSpan, ...] = ()
    """Tokens appended by this turn; empty when the policy has no tokens."""
    starts_segment: bool = False
    """The history was rewritten: what was read and sampled before is no prefix of this turn."""
    segment_reason: str | None = None
    """Why it was rewritten."""
    usage: Mapping[str, float] = field(default_factory=dict)
    """What was spent, by the names of ``Turn.usage``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeEnd:
    """How an episode came out, for a session that learns from it."""

    observation: str
    """What the environment answered to the last action."""
    episode_return: float
    score: float | None
    stop_reason: StopReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What a session takes from its episode for later attempts at the task."""

    lesson: str
    usage: Mapping[str, float]
    """What it took, by the names of ``Turn.usage``."""

    def counted_in(self, turn: Turn) -> Turn:
        """Return the episode's last turn with what the lesson took."""
        return replace(turn, usage=sum_by_name(turn.usage, self.usage))


def messages_seen(observation: Mapping[str, Any], info: Mapping[str, Any]) -> tuple[Message, ...]:
    """Return an observation as the messages that it adds to the conversation.

    Args:
        observation: Its text becomes a user's message.
        info: Where it has ``messages``, of an environment that speaks for itself, they are these.
    """
    found: tuple[Message, ...] | None = info.get("messages")
    return (Message(role="user", content=str(observation["text"])),) if found is None else found


class ContextOverflow(Exception):
    """The conversation no longer fits the context; ends the episode as TRUNCATED_CONTEXT."""


class PolicySession(Protocol):
    """One episode's side of a policy. Used by one task at a time.

    A session may also have ``replay(observation, info, turn: Turn) -> None``, called instead of
    ``act`` for turns that were played before, in order, when an episode is resumed or begins
    with a given prefix. Afterwards it must act as if it had played them itself; a session without
    it cannot be resumed.
    """

    async def act(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> PolicyTurn:
        """Return the action for ``observation``.

        Args:
            observation: ``{"text": str}``, perhaps with ``"image"``.
            info: The ``info`` of the same reset or step.

        Raises:
            ContextOverflow: The conversation does not fit the context any more.
        """

    def close(self) -> Awaitable[None] | None:
        """Release what the session holds. Safe to call twice; what it returns is awaited."""


@runtime_checkable
class LearningSession(Protocol):
    """A session that wants to know how its episode came out."""

    async def finish(self, end: EpisodeEnd) -> Learned | None:
        """Take note of the end of an episode that did not break, before ``close``.

        What is returned is kept with the trajectory.
        """


class Policy(Protocol):
    """Acts in many episodes at once, one session each."""

    def start(self, context: EpisodeContext) -> PolicySession:
        """Return a fresh session."""


@runtime_checkable
class LearningPolicy(Policy, Protocol):
    """A policy whose attempts at a task may go by what earlier ones learned."""

    @property
    def learns(self) -> bool:
        """Whether they do; then an evaluation plays them one after the other."""

    def anew(self, before: Sequence[Trajectory]) -> Self:
        """Return this policy with what was learned in ``before``, and nothing else."""
