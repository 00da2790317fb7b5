"""Where an update gets its groups from: played when it asks, or by a scheduler all the while."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from turngym.agents.policy import Policy
from turngym.rollouts.scheduler.groups import ReadyGroup
from turngym.trainers.beside import Uncut, Work
from turngym.trainers.credit.base import Credit
from turngym.trainers.runs.arena import Arena
from turngym.trainers.runs.rollout_metrics import rollout_metrics
from turngym.trainers.runs.run_state import RunState
from turngym.trainers.selection.batches import Chosen, chosen
from turngym.trainers.selection.policy import DataSelection
from turngym.trainers.settings.train import TrainConfig
from turngym.types import TrajectoryGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one update is made of, and what was played for it."""

    chosen: Chosen
    played: tuple[TrajectoryGroup, ...]
    """Groups that closed since the last batch, dropped ones included."""
    metrics: Mapping[str, float] = field(default_factory=dict)


def step_metrics(batch: Batch, credit: Credit) -> dict[str, float]:
    """Return what is logged of a step's episodes: ``rollout/*``, ``credit/*``, ``selection/*``."""
    found = rollout_metrics(batch.played, credit, chosen=len(batch.chosen.groups))
    return found | dict(batch.metrics)


Update = Callable[[], dict[str, float]]
Load = Callable[[], Awaitable[None]]


class Feed(Protocol):
    """Gives one batch per update, in strict turns: take, assign, train, publish.

    What a method or the learner has learned of a batch belongs to the next weights, so nothing
    between ``take`` and ``publish`` is cut off by a cancellation.
    """

    async def take(self, step: int) -> Batch:
        """Return the groups that update number ``step`` trains on.

        Raises:
            TrainingError: Too many episodes ended by an error.
        """
        ...

    async def assign(self, credit: Work[Credit]) -> Credit:
        """Return what ``credit`` returns, after it has run to its end."""
        ...

    async def train(self, update: Update) -> dict[str, float]:
        """Return what ``update`` returns, after it has run to its end."""
        ...

    async def publish(self, version: int, load: Load) -> None:
        """Put the weights of ``version`` into the engine."""
        ...

    def mark_checkpointed(self, version: int) -> None:
        """Note that the weights of ``version`` are in a checkpoint."""
        ...


class SyncFeed:
    """Plays the groups of an update when it asks for them, and nothing in between.

    Args:
        config: The run's settings.
        arena: Plays the episodes.
        policy: Who acts.
        selection: Chooses and judges.
        state: Where the run stands; its number of groups goes on with every batch.
    """

    def __init__(
        self,
        config: TrainConfig,
        arena: Arena,
        policy: Policy,
        selection: DataSelection,
        state: RunState,
    ) -> None:
        self._config = config
        self._arena = arena
        self._policy = policy
        self._selection = selection
        self._state = state
        self._uncut = Uncut()

    async def take(self, step: int) -> Batch:
        """Return the groups that update number ``step`` trains on.

        Dropped groups are replaced until there are enough, or ``filter.max_rounds`` are spent.

        Raises:
            TrainingError: Too many episodes ended by an error.
        """
        wanted = self._config.rollout.groups_per_step
        most = wanted * self._config.selection.filter.max_rounds
        kept: list[ReadyGroup] = []
        played: list[ReadyGroup] = []
        while (missing := min(wanted - len(kept), most - len(played))) > 0:
            found = await self._play(self._state.groups + len(played), missing)
            played += found
            kept += [g for g in found if self._selection.admit(g).group is not None]
        for group in played:  # past all waits, where nothing can come between
            self._selection.observe(group)
        extra = self._selection.replay(step, kept)
        self._state.groups += len(played)
        return Batch(
            chosen=chosen(kept, extra),
            played=tuple(group.group for group in played),
            metrics=self._selection.metrics(),
        )

    async def assign(self, credit: Work[Credit]) -> Credit:
        """Return what ``credit`` returns; a cancellation waits until the update is published."""
        return await self._uncut(credit())

    async def train(self, update: Update) -> dict[str, float]:
        """Return what ``update`` returns; nothing else happens meanwhile."""
        return update()

    async def publish(self, version: int, load: Load) -> None:
        """Put the weights of ``version`` into the engine."""
        self._uncut.check()
        await load()

    def mark_checkpointed(self, version: int) -> None:
        """Do nothing: nothing is accounted for apart from the checkpoint."""

    async def _play(self, first: int, count: int) -> list[ReadyGroup]:
        orders = {}
        for index in range(first, first + count):
            orders[index] = self._selection.allocate(index, self._selection.propose(index))
        return await self._arena.groups(self._policy, orders)
