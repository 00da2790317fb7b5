"""Where an update gets its groups from: played when it asks, or by a scheduler all the while."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from turngym.agents.base import Policy
from turngym.rollouts.groups import ReadyGroup
from turngym.trainers.arena import Arena
from turngym.trainers.config import TrainConfig
from turngym.trainers.credit.base import Credit
from turngym.trainers.rollout_metrics import rollout_metrics
from turngym.trainers.selection.batches import Chosen, chosen
from turngym.trainers.selection.policy import DataSelection
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


class Feed(Protocol):
    """Gives one batch per update, in strict turns: take, update, publish."""

    async def take(self, step: int) -> Batch:
        """Return the groups that update number ``step`` trains on.

        Raises:
            TrainingError: Too many episodes ended by an error.
        """
        ...

    @property
    def groups(self) -> int:
        """Running number of the next group."""
        ...


class SyncFeed:
    """Plays the groups of an update when it asks for them, and nothing in between.

    Args:
        config: The run's settings.
        arena: Plays the episodes.
        policy: Who acts.
        selection: Chooses and judges.
        groups: Running number of the next group.
    """

    def __init__(
        self,
        config: TrainConfig,
        arena: Arena,
        policy: Policy,
        selection: DataSelection,
        *,
        groups: int,
    ) -> None:
        self._config = config
        self._arena = arena
        self._policy = policy
        self._selection = selection
        self.groups = groups

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
            found = await self._play(missing)
            played += found
            kept += [group for group in found if self._is_kept(group)]
        extra = self._selection.replay(step, kept)
        return Batch(
            chosen=chosen(kept, extra),
            played=tuple(group.group for group in played),
            metrics=self._selection.metrics(),
        )

    async def _play(self, count: int) -> list[ReadyGroup]:
        orders = {}
        for index in range(self.groups, self.groups + count):
            task = self._selection.propose(index)
            orders[index] = self._selection.allocate(index, task)
        found = await self._arena.groups(self._policy, orders)
        self.groups += count
        return found

    def _is_kept(self, group: ReadyGroup) -> bool:
        self._selection.observe(group)
        return self._selection.admit(group).group is not None
