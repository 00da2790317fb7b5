"""What checks play: a subject whose episodes they take part in, one move at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

from turngym.check_report import Broken, Doubtful, Evidence
from turngym.tasks.base import Split, Task


class Seat(Protocol):
    """The agent's place in a running episode."""

    def expert(self) -> str:
        """Return what the expert does now."""

    def say(self, name: str, **arguments: Any) -> str | None:
        """Return the action ``name`` as text; None where there is no such action."""

    def named(self, action: str) -> str:
        """Return the name of an action; "" where it is not understood."""

    def menu(self) -> Sequence[str]:
        """Return the actions to choose from, none where they are endless."""


Moves = Callable[[Seat], Iterator[str | None]]
"""Yields one action a turn; who yields None, or ends, leaves the episode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One episode that was played for a check."""

    name: str
    score: float | None = 0.0
    """In [0, 1]; 0 where the episode was left, None where it ended without one."""
    reward: float = 0.0
    """The return."""
    prompt: str = ""
    texts: tuple[str, ...] = ()
    """What was seen after each action."""
    actions: tuple[str, ...] = ()
    fault: str = ""
    """What was raised, "" for nothing."""
    refused: str = ""
    """The first action that could not be carried out, and why."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """What the judge says of each part."""
    problem: str = ""
    """What the judge misses."""
    is_over: bool = False
    key: str = ""
    """What makes the problem this one."""
    truth: str | None = None
    seconds: float = 0.0

    @property
    def won(self) -> bool:
        """True for full marks."""
        return self.score is not None and self.score >= 1.0

    def __str__(self) -> str:
        if self.fault:
            return f"{self.name}: {self.fault}"
        reason = f" ({self.problem})" if self.problem and not self.won else ""
        return f"{self.name}: score {self.score!r}{reason}"


class Subject(Protocol):
    """Tasks that can be played."""

    name: str

    def tasks(self, split: Split, limit: int | None) -> list[Task]:
        """Return the first ``limit`` tasks of a split; None for all, of an endless one some."""

    def is_endless(self, split: Split) -> bool:
        """Say whether there is no end of its tasks."""

    def play(self, task: Task, moves: Moves, *, name: str, max_turns: int = 500) -> Played:
        """Play ``moves`` for at most ``max_turns``; may be called from several threads at once."""

    def expert_elsewhere(self, task: Task, *, hash_seed: int, clock_s: float) -> Played:
        """Play the expert in another process.

        Args:
            task: What is played.
            hash_seed: ``PYTHONHASHSEED`` there.
            clock_s: How far the clock is ahead there.

        Raises:
            NotRun: The subject cannot be made there.
        """

    def cheats(self, task: Task) -> Mapping[str, Moves]:
        """Return the cheats that the task's author wrote, by name."""


# What episodes must come to.


def must_win(played: Sequence[Played]) -> Evidence:
    """Return the scores of episodes.

    Raises:
        Broken: One was not won, ended in a fault, or had an action refused.
    """
    for one in played:
        if one.fault or one.refused:
            raise Broken(str(one) if one.fault else f"{one.name}: {one.refused}")
        if not one.won:
            raise Broken(f"{one}, wanted 1", actions=[action[:200] for action in one.actions[-5:]])
    return {one.name: one.score for one in played}


def must_lose(played: Sequence[Played], why: str, *, most: float = 0.0) -> Evidence:
    """Return the scores of episodes that must not be paid.

    Args:
        played: The episodes.
        why: What is wrong where one is paid, behind its name.
        most: Highest score that still counts as lost.

    Raises:
        Broken: One scored more, or ended in a fault that is not the sandbox's.
        Doubtful: One broke the sandbox, which is no score.
    """
    found = {one.name: one.fault[:200] or one.score for one in played}
    for one in played:
        if not one.fault and one.is_over and (one.score is None or one.score > most):
            raise Broken(f"{one.name} {why}: score {one.score!r}", actions=[
                action[:400] for action in one.actions[-3:]], **found)  # fmt: skip
    for one in played:
        if one.fault and not one.fault.startswith("Sandbox"):
            raise Broken(f"{one.name}: {one.fault[:300]}", **found)
        if one.fault:
            raise Doubtful(f"{one.name} breaks the sandbox instead of a 0: {one.fault}", **found)
    return found


# Moves that fit any family.


def as_expert(seat: Seat) -> Iterator[str | None]:
    """Do what the expert does."""
    while True:
        yield seat.expert()


def silent(_seat: Seat) -> Iterator[str | None]:
    """Say nothing."""
    while True:
        yield ""


def hand_in(seat: Seat) -> Iterator[str | None]:
    """End the episode as it is; leave it where nothing ends it."""
    yield finish(seat)


def finish(seat: Seat) -> str | None:
    """Return the action that hands the work in."""
    return seat.say("submit") or seat.say("stop")


def giving(text: str) -> Moves:
    """Return moves that answer ``text``."""

    def moves(seat: Seat) -> Iterator[str | None]:
        yield seat.say("answer", text=text)

    return moves


def running(*commands: str) -> Moves:
    """Return moves that run commands in the shell, then hand in."""

    def moves(seat: Seat) -> Iterator[str | None]:
        for command in commands:
            yield seat.say("bash", command=command)
        yield finish(seat)

    return moves


def after_expert(before: str, after: str) -> Moves:
    """Return moves that run a command before and one after what the expert does, then hand in."""

    def moves(seat: Seat) -> Iterator[str | None]:
        yield seat.say("bash", command=before)
        end = finish(seat)
        while (action := seat.expert()) != end:
            yield action
        yield seat.say("bash", command=after)
        yield end

    return moves


def by_chance(seed: int) -> Moves:
    """Return random choices from the menu, while there is one."""

    def moves(seat: Seat) -> Iterator[str | None]:
        rng = Random(seed)
        while menu := seat.menu():
            yield rng.choice(menu)

    return moves


def visiting(address: str) -> Moves:
    """Return a visit to an address of the web, and the end."""

    def moves(seat: Seat) -> Iterator[str | None]:
        yield seat.say("goto", url=address)
        yield finish(seat)

    return moves
