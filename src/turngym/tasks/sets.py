"""Sets of problems: generated without end, or listed. Each problem is in one split, by content."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from random import Random
from typing import Generic

from turngym.errors import ConfigError, TaskFault, TurnGymError, require_known
from turngym.faults import Boundary
from turngym.seeding import derive_seed
from turngym.tasks.base import SPLITS, Split, Task, parse_task_id, procedural_task, split_of
from turngym.tasks.problem import P, Problem

_MAX_SAMPLES = 1_000
_MOST_KNOWN = 10_000


class TaskSet(ABC, Generic[P]):
    """The problems of a name.

    Args:
        name: First part of the ids of its tasks.
        one_in: Share of the test split: one problem in so many.
        remainder: Which residue of the content's digest is tested; see ``split_of``.
    """

    def __init__(self, name: str, *, one_in: int = 5, remainder: int = 0) -> None:
        self.name = name
        self.one_in, self.remainder = one_in, remainder

    def split(self, problem: P) -> Split:
        """Return where a problem belongs."""
        return split_of(problem.content, one_in=self.one_in, remainder=self.remainder)

    def count(self, split: Split) -> int | None:
        """Return how many tasks a split has; None where there is no end of them."""
        return None

    @abstractmethod
    def problem(self, task: Task) -> P:
        """Return what ``task`` is about; the same on every machine."""

    def task(self, split: Split, index: int) -> Task:
        """Return task number ``index`` of a split.

        Raises:
            ConfigError: There are fewer.
        """
        task, count = procedural_task(self.name, split, index), self.count(split)
        if count is not None and index >= count:
            counts = ", ".join(f"{self.count(one)} of {one!r}" for one in SPLITS)
            advice = "" if count else ". Choose the other split, or add tasks of this one"
            raise ConfigError(f"task {task.id}: there is none; the set has {counts}{advice}")
        return task

    def find(self, task_id: str) -> Task:
        """Return the task that an id names.

        Raises:
            ConfigError: There is no such task here.
        """
        task = parse_task_id(self.name, task_id)
        return self.task(task.split, int(task.id.rpartition("/")[2]))


class GeneratedSet(TaskSet[P]):
    """Problems that generators make from the seed of a task, as many as anybody wants.

    Args:
        name: First part of the ids of its tasks.
        generators: Each samples a problem of one kind; or the one that there is.
        seed_name: Names the stream of random numbers; ``name`` by default, "" for the task's own.
        one_in: As ``TaskSet``.
        remainder: As ``TaskSet``.

    Raises:
        ConfigError: There is no generator.
    """

    def __init__(
        self,
        name: str,
        generators: Sequence[Callable[[Random], P]] | Callable[[Random], P],
        *,
        seed_name: str | None = None,
        one_in: int = 5,
        remainder: int = 0,
    ) -> None:
        super().__init__(name, one_in=one_in, remainder=remainder)
        samples_itself = type(self).sample is not GeneratedSet.sample
        if not (samples_itself or callable(generators) or generators):
            raise ConfigError(f"task set {name}: holds no generator; add one")
        self.generators = generators
        self._seed_name = name if seed_name is None else seed_name
        self._sampled: dict[str, int] = {}

    def problem(self, task: Task) -> P:
        """Return the first problem that the task's seed gives and that belongs to its split.

        Raises:
            ConfigError: None was found.
            TaskFault: A generator raised, or makes another problem than before.
        """
        name = self._seed_name
        rng = Random(derive_seed(task.seed, name) if name else task.seed)
        with Boundary(f"task {task.id}: generator", TaskFault, TurnGymError):
            for _ in range(_MAX_SAMPLES):
                problem = self.sample(task, rng)
                if not isinstance(problem, Problem):
                    raise TypeError(f"wanted a Problem, got {problem!r:.40}")
                if self.split(problem) == task.split:
                    self._must_be_the_same(task.id, problem.content)
                    return problem
        raise ConfigError(
            f"task set {self.name}: no problem of split {task.split!r} in {_MAX_SAMPLES} samples; "
            "a kind with one problem alone can be in one split only"
        )

    def _must_be_the_same(self, id: str, content: str) -> None:
        """Refuse a problem that is not the one that was asked, or that others of the group have."""
        if len(self._sampled) >= _MOST_KNOWN:
            self._sampled.clear()
        if self._sampled.setdefault(id, hash(content)) != hash(content):
            raise ValueError(
                "made two problems of one seed; it must use no random numbers but those of its "
                "argument, no clock and nothing that changes"
            )

    def sample(self, task: Task, rng: Random) -> P:
        """Return a problem of any split, sampled for ``task``."""
        if callable(self.generators):
            return self.generators(rng)
        return rng.choice(self.generators)(rng)


class ListedSet(TaskSet[P]):
    """Problems that are listed, each under an id of its own.

    Args:
        name: First part of the ids of its tasks.
        problems: Id and problem; the order of the list is that of the tasks.
        where: What messages call the list, for example its file; ``name`` by default.
        one_in: As ``TaskSet``.
        remainder: As ``TaskSet``.
        splits: Split of each id that does not go by its content.

    Raises:
        ConfigError: There is none, one has no prompt, or two have the same id.
    """

    def __init__(
        self,
        name: str,
        problems: Iterable[tuple[str, P]],
        *,
        where: str = "",
        one_in: int = 5,
        remainder: int = 0,
        splits: dict[str, Split] | None = None,
    ) -> None:
        super().__init__(name, one_in=one_in, remainder=remainder)
        where = where or f"task set {name}"
        self.problems: dict[str, P] = {}
        for number, one in enumerate(problems, start=1):
            if not isinstance(one, Sequence) or len(one) != 2:
                raise ConfigError(f"{where}: wanted (id, problem), got {one!r:.60}")
            id, problem = one
            if id in self.problems:
                earlier = [*self.problems].index(id) + 1
                raise ConfigError(
                    f"{where}: task {number} has the id {id!r} of task {earlier}; ids must differ"
                )
            if not str(getattr(problem, "prompt", "")).strip():
                raise ConfigError(f"{where}: task {id!r} asks for nothing; give it a prompt")
            self.problems[id] = problem
        if not self.problems:
            raise ConfigError(f"{where}: holds no task; add one")
        self._given = splits or {}
        for id, split in self._given.items():
            if id not in self.problems:
                raise ConfigError(f"{where}: 'splits' names {id!r}; there is no such task")
            require_known(f"split of task {id!r} in {where}", split, SPLITS)

    @cached_property
    def ids(self) -> dict[Split, list[str]]:
        """Ids of the problems by split, in their order; of a single one, ``test`` alone has it."""
        alone: Split | None = "test" if len(self.problems) == 1 else None
        found: dict[Split, list[str]] = {split: [] for split in SPLITS}
        for id, problem in self.problems.items():
            found[self._given.get(id) or alone or self.split(problem)].append(id)
        return found

    def count(self, split: Split) -> int:
        """Return how many problems belong to a split."""
        return len(self.ids[split])

    def problem(self, task: Task) -> P:
        """Return the problem of a task."""
        index = int(task.id.rpartition("/")[2])
        self.task(task.split, index)  # says how many there are, if there are fewer
        return self.problems[self.ids[task.split][index]]
