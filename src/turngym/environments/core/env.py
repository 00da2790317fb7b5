"""One episode's dialogue, synchronous (a real ``gymnasium.Env``) or with coroutines.

An author writes ``begin`` (make the problem of a task) and ``turn`` (carry out one parsed action);
``EpisodeCore`` does the rest: tasks and seeds, parsing, limits, the reserved ``info`` keys, order
of calls, and the record that snapshots by replay need.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Self

import gymnasium
import numpy as np

from turngym.coroutines import awaited, finished
from turngym.environments.core.actions import Action, InvalidAction
from turngym.environments.core.episode import (
    EpisodeCore,
    Observation,
    Outcome,
    Snapshot,
    SnapshotKind,
    Step,
    add_end,
)
from turngym.environments.core.info import Info
from turngym.tasks.base import Task

__all__ = [
    "AsyncTurnEnv",
    "EpisodeCore",
    "Observation",
    "Outcome",
    "Snapshot",
    "SnapshotKind",
    "Step",
    "TurnEnv",
]


class TurnEnv(EpisodeCore, gymnasium.Env[Observation, str]):
    """One episode of one task, one agent message a turn.

    Write ``begin`` and ``turn``; set ``action_format``, ``rules`` and, if the state can be copied,
    ``snapshot_kind = "exact"`` with ``get_state`` and ``set_state``. ``check_turn_env`` and
    ``check_fork`` test what this class promises.

    Action: any text; ``action_format`` says what is understood.
    Observation: ``{"text": str}``, and ``"image"`` where the environment is visual.
    Start: ``reset(seed=..., options={"task": Task | task_id})``; without a task, one is sampled
    from the ``split`` option (default ``"train"``).
    End: ``info["stop_reason"]`` says why.
    """

    blocks: bool = False
    """Whether its calls wait for something outside (a server, a program). Rollouts then give each
    such environment a thread, so that others play meanwhile. Leave it False where calls compute
    only: they stay in the event loop."""

    @abstractmethod
    def begin(self, task: Task) -> Outcome:
        """Make the problem of ``task`` and return what the agent sees first."""

    @abstractmethod
    def turn(self, action: Action) -> Outcome:
        """Carry out one action."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Start an episode. The same seed and options give the same episode."""
        return self._opened(self.begin(self._open(seed, options)))

    def step(self, action: str) -> Step:
        """Carry out what the agent said. An action that is not understood is part of the episode.

        Raises:
            ResetNeeded: The episode is over.
        """
        if self._over or not isinstance(action, str):
            self._refuse(action)
        parsed = self.action_format.parse(action)
        if isinstance(parsed, InvalidAction):
            outcome = self._not_understood(parsed)
        else:
            self._over = True  # stays so when the turn fails: only a reset helps then
            outcome = self.turn(parsed)
        if outcome.truncated:
            add_end(outcome, self.end_at_limit())
        step = self._stepped(action, parsed, outcome)
        if (limit := self._spent) is None:
            return step
        return self._truncated(limit, step, self.end_at_limit())

    def close(self) -> None:
        """Release what the environment holds. Safe to call twice."""

    def snapshot(self) -> Snapshot:
        """Return the state of the episode; taking it changes nothing."""
        return self._snapshot(self._state())

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to ``snapshot``, which may come from another equal environment.

        Raises:
            SnapshotError: It belongs to another environment, or replaying it gave other
                observations.
        """
        finished(self._restore(snapshot))

    def fork(self, n: int) -> list[Self]:
        """Return ``n`` independent environments in the state of this one.

        Raises:
            SnapshotError: A child does not get there; those made so far are closed.
        """
        return finished(self._fork(n))


class AsyncTurnEnv(EpisodeCore):
    """``TurnEnv`` with coroutines, for environments that wait on I/O; the same public methods.

    One instance serves one task at a time. ``gymnasium.make`` gives its synchronous face,
    ``turngym.make_async`` the environment itself.
    """

    _np_random: Any = None
    if TYPE_CHECKING:
        np_random: np.random.Generator
        np_random_seed: int
    else:
        np_random = gymnasium.Env.np_random
        np_random_seed = gymnasium.Env.np_random_seed
    get_wrapper_attr = gymnasium.Env.get_wrapper_attr
    has_wrapper_attr = gymnasium.Env.has_wrapper_attr
    set_wrapper_attr = gymnasium.Env.set_wrapper_attr

    @property
    def unwrapped(self) -> Self:
        """The environment itself."""
        return self

    @abstractmethod
    async def begin(self, task: Task) -> Outcome:
        """Make the problem of ``task`` and return what the agent sees first."""

    @abstractmethod
    async def turn(self, action: Action) -> Outcome:
        """Carry out one action."""

    async def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Start an episode with the ``options`` of ``TurnEnv.reset``."""
        return self._opened(await self.begin(self._open(seed, options)))

    async def step(self, action: str) -> Step:
        """Carry out what the agent said, as ``TurnEnv.step``."""
        if self._over or not isinstance(action, str):
            self._refuse(action)
        parsed = self.action_format.parse(action)
        if isinstance(parsed, InvalidAction):
            outcome = self._not_understood(parsed)
        else:
            self._over = True  # stays so when the turn fails or is cancelled
            outcome = await self.turn(parsed)
        if outcome.truncated:
            add_end(outcome, await awaited(self.end_at_limit()))
        step = self._stepped(action, parsed, outcome)
        if (limit := self._spent) is None:
            return step
        self._over = True  # stays so when the judge fails
        return self._truncated(limit, step, await awaited(self.end_at_limit()))

    async def close(self) -> None:
        """Release what the environment holds. Safe to call twice."""

    async def snapshot(self) -> Snapshot:
        """Return the state of the episode; ``get_state`` may be a coroutine here."""
        return self._snapshot(await awaited(self._state()))

    async def restore(self, snapshot: Snapshot) -> None:
        """Go back to ``snapshot``, as ``TurnEnv.restore``; ``set_state`` may be a coroutine."""
        await self._restore(snapshot)

    async def fork(self, n: int) -> list[Self]:
        """Return ``n`` independent environments in the state of this one, as ``TurnEnv.fork``."""
        return await self._fork(n)

    async def __aenter__(self) -> Self:
        """Return the environment."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close it."""
        await self.close()
