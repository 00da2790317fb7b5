"""Limits of an episode: turns, seconds, tokens, tool calls, invalid actions.

A limit truncates: the observation of the last step stands, ``truncated`` is True and
``info["stop_reason"]`` names the limit. An end of the environment's own on the same step wins.
Where the agent says when it is done (``end_at_limit``), the state is judged as if it had, and its
reward is paid with the last step. Limits belong to ``EpisodeCore``, which carries their counts
through ``snapshot``, ``restore`` and ``fork``.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from turngym.environments.core.actions import Action, InvalidAction
from turngym.environments.core.spaces import Info
from turngym.errors import ConfigError, unknown_name
from turngym.types import StopReason

Parsed = Action | InvalidAction
Seen = Mapping[str, Any]


@dataclass
class Limit(ABC):
    """Counts what one episode spends; the first field of a subclass is the most it may spend."""

    reason: ClassVar[StopReason]
    spent: float = field(default=0, init=False)
    """What was counted in this episode; part of snapshots."""

    def __post_init__(self) -> None:
        name = next(one.name for one in fields(self) if one.init)
        if not (most := getattr(self, name)) > 0:
            raise ConfigError(f"{type(self).__name__}: {name} must be more than 0, got {most}")

    def start(self, seen: Seen, info: Info) -> None:
        """Begin to count anew; ``seen`` and ``info`` are of the reset, ``info`` may be added to."""
        self.spent = 0

    @abstractmethod
    def is_spent(self, action: str, parsed: Parsed | None, seen: Seen, info: Info) -> bool:
        """Count one step and return True when the limit is reached.

        Args:
            action: What the agent said.
            parsed: What was understood of it; None where the environment has no action format.
            seen: The observation that it brought.
            info: Of the same step.
        """

    def get_state(self) -> Any:
        """Return what was counted, for a snapshot."""
        return self.spent

    def set_state(self, state: Any) -> None:
        """Go on from what ``get_state`` returned."""
        self.spent = state

    def record(self) -> dict[str, Any]:
        """Return the limit as plain values, from which ``limit_of`` makes it again."""
        given = {
            one.name: value
            for one in fields(self)
            if one.init and (value := getattr(self, one.name)) != one.default
        }
        return {"type": type(self).__name__, **given}


@dataclass
class TurnLimit(Limit):
    """Truncates after ``max_turns`` steps, and says so at the end of the instructions.

    An environment that counts turns itself gives its own limit as ``info["max_turns"]`` of the
    reset; None there keeps limits from the agent.
    """

    reason = StopReason.TRUNCATED_TURNS
    max_turns: int

    def start(self, seen: Seen, info: Info) -> None:
        """Count from 0, and say how many turns there are."""
        self.spent = 0
        inner = info.get("max_turns", self.max_turns)
        if inner is not None and "instructions" in info:
            rest = info["instructions"].removesuffix(_turns_line(inner))
            info["max_turns"] = min(inner, self.max_turns)
            info["instructions"] = rest + _turns_line(info["max_turns"])

    def is_spent(self, action: str, parsed: Parsed | None, seen: Seen, info: Info) -> bool:
        self.spent += 1
        return self.spent >= self.max_turns


@dataclass
class WallClockLimit(Limit):
    """Truncates at the first step that ends ``max_seconds`` or more after the reset.

    The agent's own time counts. A step that is running is not interrupted;
    ``rollout(timeout_s=...)`` does that.
    """

    reason = StopReason.TRUNCATED_TIME
    max_seconds: float
    clock: Callable[[], float] = time.monotonic
    """Returns seconds; another one for tests and simulated time."""

    def start(self, seen: Seen, info: Info) -> None:
        self.spent = self.clock()

    def is_spent(self, action: str, parsed: Parsed | None, seen: Seen, info: Info) -> bool:
        return self.get_state() >= self.max_seconds

    def get_state(self) -> float:
        """Return the seconds since the reset."""
        return float(self.clock() - self.spent)

    def set_state(self, state: float) -> None:
        self.spent = self.clock() - state


@dataclass
class TokenLimit(Limit):
    """Truncates when opening, actions and observations together have ``max_tokens`` or more."""

    reason = StopReason.TRUNCATED_TOKENS
    max_tokens: int
    count_tokens: Callable[[str], int]
    """Returns the number of tokens in a text. A named function of a module if the environment shall
    be made again in another process."""
    actions_only: bool = False
    """Count what the agent says and nothing else."""

    def start(self, seen: Seen, info: Info) -> None:
        """Count the opening."""
        self.spent = 0 if self.actions_only else self.count_tokens(seen["text"])

    def is_spent(self, action: str, parsed: Parsed | None, seen: Seen, info: Info) -> bool:
        self.spent += self.count_tokens(action)
        if not self.actions_only:
            self.spent += self.count_tokens(seen["text"])
        return self.spent >= self.max_tokens


@dataclass
class ToolCallLimit(Limit):
    """Truncates after ``max_calls`` tool calls. What cannot be parsed is no call."""

    reason = StopReason.TRUNCATED_TOOL_CALLS
    max_calls: int
    """The last of them is carried out."""
    tool: str | None = None
    """Count only the calls of this tool. Give several limits for several tools."""

    def is_spent(self, action: str, parsed: Parsed | None, seen: Seen, info: Info) -> bool:
        if isinstance(parsed, Action) and self.tool in (None, parsed.name):
            self.spent += 1
        return self.spent >= self.max_calls


@dataclass
class InvalidActionLimit(Limit):
    """Truncates at the ``max_invalid``-th action that could not be carried out."""

    reason = StopReason.TRUNCATED_INVALID
    max_invalid: int
    consecutive: bool = False
    """Count only those in a row; a valid action sets the count to 0."""

    def is_spent(self, action: str, parsed: Parsed | None, seen: Seen, info: Info) -> bool:
        if info.get("invalid_action") is not None:
            self.spent += 1
        elif self.consecutive:
            self.spent = 0
        return self.spent >= self.max_invalid


LIMITS: dict[str, type[Limit]] = {
    one.__name__: one
    for one in (TurnLimit, WallClockLimit, TokenLimit, ToolCallLimit, InvalidActionLimit)
}


def limit_of(record: Limit | Mapping[str, Any]) -> Limit:
    """Return the limit that ``record`` describes, for example ``{"type": "TurnLimit", ...}``.

    Raises:
        ConfigError: There is no such limit, or not with these arguments.
    """
    if isinstance(record, Limit):
        return record
    arguments = dict(record)
    kind = LIMITS.get(name := str(arguments.pop("type", "")))
    if kind is None:
        raise unknown_name("limit", name, LIMITS)
    try:
        return kind(**arguments)
    except TypeError as error:
        raise ConfigError(f"limit {name}: {error}") from error


def _turns_line(turns: int) -> str:
    return f"\nThe episode ends after {turns} turns at the latest."
