"""What to play next: a group of attempts at one task, and the hooks that choose and judge groups.

A ``Selection`` decides which tasks are played, how often and under which condition, and what of it
is worth training on. Its hooks are plain functions, called in the event loop of the scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

from turngym.errors import ConfigError
from turngym.seeding import derive_seed
from turngym.tasks.base import Task
from turngym.types import Turn

if TYPE_CHECKING:
    from turngym.rollouts.scheduler.groups import ReadyGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOrder:
    """One group that is to be played."""

    task: Task
    size: int
    """Attempts that make the group complete, 1 or more."""
    condition: str = ""
    """How its episodes differ from plain ones (a hint, a prefix). Part of the group's key: attempts
    under two conditions are never compared."""
    env_seed: int | None = None
    """Seed of the environment; None to draw one for this group."""
    prefix: tuple[Turn, ...] = ()
    """Turns that are carried out before the policy acts. They are context, never trained on."""

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigError(f"group of {self.task.id!r}: size must be at least 1: {self.size}")


@dataclass(frozen=True, slots=True)
class SampleKey:
    """Names one attempt of one group: what a ledger accounts for."""

    group: int
    """Running number of the group in the run."""
    member: int

    def __str__(self) -> str:
        return f"{self.group}.{self.member}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What becomes of a finished group."""

    group: ReadyGroup | None
    """What goes on to training; None to drop it."""
    reason: str = ""
    """Why it is dropped, one word for the table of waste."""

    @classmethod
    def keep(cls, group: ReadyGroup) -> Self:
        """Train on ``group``, which may be a changed copy of what was judged."""
        return cls(group=group)

    @classmethod
    def drop(cls, reason: str) -> Self:
        """Do not train on it; another group takes its place."""
        return cls(group=None, reason=reason)


class Selection(Protocol):
    """Chooses tasks and judges groups. Deterministic in its own state and its arguments."""

    def propose(self, index: int) -> Task | None:
        """Return the task of group number ``index``, or None when there is none left.

        Should be a function of ``index`` and of what was observed, so that a resumed run goes on
        where it stood without any loader's position.
        """
        ...

    def allocate(self, index: int, task: Task) -> GroupOrder:
        """Return how ``task`` is to be played."""
        ...

    def observe(self, group: ReadyGroup) -> None:
        """See every group that closed, before ``admit``; the dropped ones teach difficulty too."""
        ...

    def admit(self, group: ReadyGroup) -> Verdict:
        """Return whether ``group`` is trained on."""
        ...

    def replay(self, step: int, groups: Sequence[ReadyGroup]) -> Sequence[ReadyGroup]:
        """Return groups of the past to train on besides ``groups``."""
        ...

    def state(self) -> dict[str, Any]:
        """Return what a resumed run must know, as JSON values."""
        ...

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state`` returned."""
        ...


class UniformSelection:
    """Every task in turn, groups of one size, everything is kept. Base class for others.

    Args:
        task: Task number ``index``.
        group_size: Attempts at each task.
        count: Number of groups; None for no end.
    """

    def __init__(
        self, task: Callable[[int], Task], *, group_size: int, count: int | None = None
    ) -> None:
        self.task = task
        self.group_size = group_size
        self.count = count

    def propose(self, index: int) -> Task | None:
        """Return task number ``index``."""
        return None if self.count is not None and index >= self.count else self.task(index)

    def allocate(self, index: int, task: Task) -> GroupOrder:
        """Return a plain group."""
        return GroupOrder(task=task, size=self.group_size)

    def observe(self, group: ReadyGroup) -> None:
        """Learn nothing."""

    def admit(self, group: ReadyGroup) -> Verdict:
        """Keep every group."""
        return Verdict.keep(group)

    def replay(self, step: int, groups: Sequence[ReadyGroup]) -> Sequence[ReadyGroup]:
        """Return nothing of the past."""
        return ()

    def state(self) -> dict[str, Any]:
        """Return nothing: there is nothing to remember."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over nothing."""


def group_env_seed(seed: int, index: int, order: GroupOrder) -> int:
    """Return the environment seed that all members of a group share."""
    if order.env_seed is not None:
        return order.env_seed
    return derive_seed(seed, "group", index, "env")


def member_policy_seed(seed: int, index: int, member: int, attempt: int) -> int:
    """Return the policy seed of one try at one member; no two members or tries share one."""
    return derive_seed(seed, "group", index, "policy", member, attempt)
