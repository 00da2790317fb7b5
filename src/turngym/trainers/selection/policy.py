"""The settings at work: one ``Selection`` that a scheduler or a plain loop asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

from turngym.rollouts.scheduler.groups import FilterDecision, GroupRequest, ReadyGroup
from turngym.seeding import derive_seed, generator
from turngym.tasks.base import Task
from turngym.trainers.selection.budgets import attempts_for
from turngym.trainers.selection.difficulty import Difficulty
from turngym.trainers.selection.filters import reason_to_drop
from turngym.trainers.selection.past import SelfImitation, SuccessReplayer, usable
from turngym.trainers.selection.prefixes import Prefixer
from turngym.trainers.selection.samplers import SampledTasks, Sampler
from turngym.trainers.settings.selection import SelectionConfig, SelectionPart


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPool:
    """The tasks that reinforcement may play."""

    task: Callable[[int], Task]
    """Task by place; places past the end come round again."""
    size: int | None
    """Number of tasks; None when they never end."""


class DataSelection:
    """Chooses tasks in blocks of one step's groups, and judges what came of them.

    A function of its seed, of what it observed, and of the numbers of the groups: group ``i``
    belongs to block ``i // groups_per_step``, which is planned when its first group is asked for.

    Args:
        config: The settings.
        pool: The tasks.
        groups_per_step: Groups that one update consumes.
        group_size: Attempts at a task, on average.
        seed: Root of the selection's place in the seed tree.
    """

    def __init__(
        self,
        config: SelectionConfig,
        pool: TaskPool,
        *,
        groups_per_step: int,
        group_size: int,
        seed: int,
    ) -> None:
        self._config = config
        self._pool = pool
        self._block_size = groups_per_step
        self._group_size = group_size
        self._seed = seed
        self._difficulty = Difficulty(decay=config.decay, drift=config.drift)
        tasks = SampledTasks(
            size=pool.size or 0,
            difficulty=self._difficulty,
            group_size=group_size,
            parameter=self._parameter,
        )
        self._sampler: Sampler = _built(config.sampler, tasks)
        self._plans: dict[int, list[tuple[int, int]]] = {}
        self._places: dict[str, int] = {}
        self._replayer: SuccessReplayer | SelfImitation | None = _built(config.replay)
        self._prefixer: Prefixer | None = _built(config.condition)
        self._step = 0
        self._counts: dict[str, float] = {}

    def propose(self, index: int) -> Task:
        """Return the task of group number ``index``."""
        place = self._planned(index)[0]
        task = self._pool.task(place)
        if self._pool.size is not None:  # else it never comes back, and there is nothing to learn
            self._places[task.id] = place
        return task

    def allocate(self, index: int, task: Task) -> GroupRequest:
        """Return how ``task`` is played: the number of attempts, perhaps a prefix."""
        place, size = self._planned(index)
        same = self._config.repeats_episodes
        env_seed = derive_seed(self._seed, "episode", task.id) if same else None
        request = GroupRequest(task=task, size=size, env_seed=env_seed)
        if self._prefixer is None:
            return request
        success = float(self._difficulty.success([place], step=self._step)[0])
        rng = generator(self._seed, "prefix", index)
        return self._prefixer.conditioned(request, index=index, success=success, rng=rng)

    def observe(self, group: ReadyGroup) -> None:
        """Learn how hard the task is, and what its advantages are worth."""
        place, attempts = self._places.get(group.request.task.id), usable(group)
        scores = [t.score for t in attempts if t.score is not None]
        if self._prefixer is not None:
            self._prefixer.observe(group.request, attempts, self._step)
        if group.request.condition:
            self._count("conditioned_groups", 1)
        elif place is not None:
            if scores:
                self._difficulty.observe(place, scores, step=self._step)
            self._sampler.observe(place, [t.episode_return for t in attempts])

    def admit(self, group: ReadyGroup) -> FilterDecision:
        """Drop what the filter drops."""
        attempts = usable(group)
        scores, returns = [t.score for t in attempts], [t.episode_return for t in attempts]
        reason = reason_to_drop(scores, returns, self._config.filter)
        self._count("groups_played", 1)
        if reason is None:
            return FilterDecision.keep(group)
        self._count(f"dropped_{reason}", 1)
        return FilterDecision.drop(reason)

    def replay(self, step: int, groups: Sequence[ReadyGroup]) -> Sequence[ReadyGroup]:
        """Return what of the past is trained on at ``step``, and enter the next step."""
        self._step = step + 1
        found: list[ReadyGroup] = []
        if self._replayer is not None:
            found = self._replayer.replay(step, groups, generator(self._seed, "replay", step))
        self._count("replayed_attempts", sum(len(group.members) for group in found))
        return found

    def imitation(self, step: int) -> tuple[float, float]:
        """Return what a replayed attempt has to beat, and the weight of its loss, at ``step``."""
        if not isinstance(self._replayer, SelfImitation):
            return 0.0, 0.0
        return self._replayer.baseline, self._replayer.weight(step)

    def metrics(self) -> dict[str, float]:
        """Return ``selection/*`` since the last call; nothing where nothing is chosen."""
        if self._config.is_plain:
            return {}
        found = {f"selection/{name}": value for name, value in self._counts.items()}
        self._counts = {}
        if self._prefixer is not None:
            found["selection/prefix_stage"] = float(self._prefixer.stage)
        return found

    def state(self) -> dict[str, Any]:
        """Return all that was learned, as JSON values."""
        state: dict[str, Any] = {
            "step": self._step,
            "difficulty": self._difficulty.state(),
            "sampler": self._sampler.state(),
            "plans": {str(block): plan for block, plan in self._plans.items()},
            "places": self._places,
        }
        if self._replayer is not None:
            state["replay"] = self._replayer.state()
        if self._prefixer is not None:
            state["prefix"] = self._prefixer.state()
        return state

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state`` returned."""
        self._step = int(state["step"])
        self._difficulty.load_state(state["difficulty"])
        self._sampler.load_state(state["sampler"])
        self._plans = {
            int(block): [(int(place), int(size)) for place, size in plan]
            for block, plan in state["plans"].items()
        }
        self._places = dict(state["places"])
        if self._replayer is not None:
            self._replayer.load_state(state["replay"])
        if self._prefixer is not None:
            self._prefixer.load_state(state["prefix"])

    def _planned(self, index: int) -> tuple[int, int]:
        """Return place and number of attempts of group number ``index``."""
        block, place = divmod(index, self._block_size)
        if block not in self._plans:
            self._plans[block] = self._plan(block)
            for old in [number for number in self._plans if number < block - _PLANS_KEPT]:
                del self._plans[old]
        return self._plans[block][place]

    def _plan(self, block: int) -> list[tuple[int, int]]:
        tasks = self._sampler.choose(
            block * self._block_size,
            self._block_size,
            step=self._step,
            rng=generator(self._seed, "tasks", block),
        )
        if self._pool.size is not None:
            tasks = [task % self._pool.size for task in tasks]
        sizes = attempts_for(
            self._difficulty.success(tasks, step=self._step),
            self._difficulty.attempts(tasks),
            mean=self._group_size,
            config=self._config.budget,
        )
        return list(zip(tasks, sizes, strict=True))

    def _parameter(self, place: int, name: str) -> str:
        return str(self._pool.task(place).params.get(name, "none"))

    def _count(self, name: str, value: float) -> None:
        self._counts[name] = self._counts.get(name, 0.0) + value


def _built(part: SelectionPart, *more: object) -> Any:  # whatever the settings name
    return None if part.builder is None else resolve_name(part.builder)(part, *more)


_PLANS_KEPT = 64
"""Blocks behind the newest whose plans are kept: no running group is older."""
