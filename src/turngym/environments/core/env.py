"""One episode's dialogue as a real ``gymnasium.Env``.

An author writes ``begin`` (make the problem of a task) and ``turn`` (carry out one parsed action);
``TurnEnv`` does the rest: tasks and seeds, parsing, the reserved ``info`` keys, order of calls,
and the record that snapshots by replay need. ``AsyncTurnEnv`` is the same with coroutines.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from typing import Any, ClassVar, Self

import gymnasium
from gymnasium.utils import seeding

from turngym.environments.core.actions import Action, InvalidAction
from turngym.environments.core.episode import (
    METADATA,
    EpisodeCore,
    EpisodeLog,
    Observation,
    Outcome,
    Snapshot,
    SnapshotKind,
    add_end,
)
from turngym.environments.core.info import Info
from turngym.environments.core.spaces import Unicode, text_observation_space
from turngym.tasks.base import Task

__all__ = [
    "AsyncTurnEnv",
    "EpisodeCore",
    "Observation",
    "Outcome",
    "Snapshot",
    "SnapshotKind",
    "TurnEnv",
]


class TurnEnv(EpisodeCore, gymnasium.Env[Observation, str]):
    """One episode of one task, one agent message a turn.

    Write ``begin`` and ``turn``; set ``action_format``, ``rules`` and, if the state can be copied,
    ``snapshot_kind = "exact"`` with ``get_state`` and ``set_state``. ``check_turn_env`` and
    ``check_fork`` test what this class promises.

    Action: any text; ``action_format`` says what is understood.
    Observation: ``{"text": str}``, and ``"image"`` where the environment is visual.
    Start: ``reset(seed=..., options={"task": Task | task_id})``; without a task, one is drawn from
    the ``split`` option (default ``"train"``).
    End: ``info["stop_reason"]`` says why.
    """

    metadata: ClassVar[dict[str, Any]] = METADATA  # type: ignore[misc]
    blocks: bool = False
    """Whether its calls wait for something outside (a server, a program). Rollouts then run each
    such environment in a thread, so that others play meanwhile. Leave it False where calls compute
    only: they stay in the event loop."""

    def __init__(self, *, render_mode: str | None = None) -> None:
        self.observation_space = text_observation_space()
        self.action_space = Unicode()
        self.render_mode = render_mode

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

    def step(self, action: str) -> tuple[Observation, float, bool, bool, Info]:
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
        return self._stepped(action, outcome)

    def snapshot(self) -> Snapshot:
        """Return the state of the episode; taking it changes nothing."""
        return self._snapshot(self._state())

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to ``snapshot``, which may come from another equal environment.

        Raises:
            SnapshotError: It belongs to another environment, or replaying it gave other
                observations.
        """
        self._begin_restore(snapshot)
        if snapshot.kind == "replay":
            log: EpisodeLog = snapshot.state
            observation, _ = self.reset(seed=log.seed, options=log.options)
            self._compare(0, log.opening, observation)
            for number, (action, wanted) in enumerate(log.turns, start=1):
                self._compare(number, wanted, self.step(action)[0])
        else:
            self.set_state(snapshot.state)
        self._end_restore(snapshot)

    def fork(self, n: int) -> list[Self]:
        """Return ``n`` independent environments in the state of this one.

        Raises:
            SnapshotError: A child does not get there; those made so far are closed.
        """
        snapshot, children = self.snapshot(), []
        try:
            for _ in range(n):
                children.append(self.clone())
                children[-1].restore(snapshot)
        except BaseException:
            for child in children:
                child.close()
            raise
        return children


class AsyncTurnEnv(EpisodeCore):
    """``TurnEnv`` with coroutines, for environments that wait on I/O.

    One instance serves one task at a time. ``as_sync`` makes a ``gymnasium.Env`` of it.
    """

    metadata: ClassVar[dict[str, Any]] = METADATA

    def __init__(self, *, render_mode: str | None = None) -> None:
        self.observation_space = text_observation_space()
        self.action_space = Unicode()
        self.render_mode = render_mode
        self.np_random, self._np_random_seed = seeding.np_random()

    @abstractmethod
    async def begin(self, task: Task) -> Outcome:
        """Make the problem of ``task`` and return what the agent sees first."""

    @abstractmethod
    async def turn(self, action: Action) -> Outcome:
        """Carry out one action."""

    async def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Start an episode, as ``TurnEnv.reset``."""
        task = self._open(seed, options)
        return self._opened(await self.begin(task))

    async def step(self, action: str) -> tuple[Observation, float, bool, bool, Info]:
        """Carry out what the agent said, as ``TurnEnv.step``."""
        parsed = self._parse(action)
        outcome = parsed if isinstance(parsed, Outcome) else await self.turn(parsed)
        if outcome.truncated:
            end: Any = self.end_at_limit()
            add_end(outcome, await end if inspect.isawaitable(end) else end)
        return self._stepped(action, outcome)

    async def close(self) -> None:
        """Release what the environment holds. Safe to call twice."""

    async def snapshot(self) -> Snapshot:
        """Return the state of the episode; ``get_state`` may be a coroutine here."""
        state = self._state()
        return self._snapshot(await state if inspect.isawaitable(state) else state)

    async def restore(self, snapshot: Snapshot) -> None:
        """Go back to ``snapshot``, as ``TurnEnv.restore``; ``set_state`` may be a coroutine."""
        self._begin_restore(snapshot)
        if snapshot.kind == "replay":
            log: EpisodeLog = snapshot.state
            observation, _ = await self.reset(seed=log.seed, options=log.options)
            self._compare(0, log.opening, observation)
            for number, (action, wanted) in enumerate(log.turns, start=1):
                self._compare(number, wanted, (await self.step(action))[0])
        elif inspect.isawaitable(done := self.set_state(snapshot.state)):  # type: ignore[func-returns-value]
            await done
        self._end_restore(snapshot)

    async def fork(self, n: int) -> list[Self]:
        """Return ``n`` independent environments in the state of this one, as ``TurnEnv.fork``."""
        snapshot, children = await self.snapshot(), []
        try:
            for _ in range(n):
                children.append(self.clone())
                await children[-1].restore(snapshot)
        except BaseException:
            for child in children:
                await child.close()
            raise
        return children
