"""Search in any corpus: an index on disk or a live engine, with questions of your own."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any, Unpack

from turngym.environments.search.backends.base import SearchBackend
from turngym.environments.search.backends.http import HttpBackend, live_backend
from turngym.environments.search.backends.sqlite import SqliteBackend
from turngym.environments.search.base import Limits, SearchEnv, SearchOptions
from turngym.environments.search.index import DATABASE, documents_of, open_index
from turngym.environments.search.package_questions import PackageGraph, sample_package_question
from turngym.environments.search.packages import sample_packages
from turngym.environments.search.questions import Question, read_questions
from turngym.errors import ConfigError
from turngym.seeding import derive_seed
from turngym.tasks.base import SPLITS, Split, Task, procedural_task

_SAMPLE = "sample"
_MAX_DRAWS = 3_000


_DISTINCT = 256
"""Tasks of a split that ask different questions, as far as the index has so many; then again."""


class CorpusEnv(SearchEnv):
    """Answer questions from a corpus of your own, or from a live engine.

    Without arguments: an invented package index, with questions made from it.

    Args:
        index: Folder that ``turngym corpus build`` made.
        engine: Which engine of the index answers (``sqlite``, ``tantivy``, ``bm25s``, ``dense``,
            ``hybrid``); or, without ``index``, a live one: a table with ``url`` and what
            ``live_backend`` takes.
        questions: JSONL file of ``text``, ``answers`` and optionally ``plan``, ``split``,
            ``kind``, ``mentions``; needed unless the index is of packages.
        limits: Budgets, and how results are shown, as a table.
        options: As ``SearchEnv``.
    """

    name = "corpus"

    def __init__(
        self,
        *,
        index: str | None = None,
        engine: str | Mapping[str, Any] = "sqlite",
        questions: str | None = None,
        limits: Mapping[str, int] | Limits | None = None,
        **options: Unpack[SearchOptions],
    ) -> None:
        super().__init__(limits=_limits(limits), **options)
        self.blocks = is_live = isinstance(engine, Mapping)
        if is_live and (index is not None or questions is None):
            raise ConfigError("search/corpus: a live engine needs 'questions' and no 'index'")
        self._place = index or _SAMPLE
        if isinstance(engine, Mapping):
            self._backend: SearchBackend = live_backend(engine)
            self._place = str(engine.get("url"))
        else:
            self._backend = _local_backend(self._place, engine)
        self._questions = None if questions is None else _by_split(questions)
        self._asked_before: dict[Split, list[Question]] = {split: [] for split in SPLITS}
        """Questions of the first tasks of each split, all different."""
        self._is_empty: dict[Split, bool] = dict.fromkeys(SPLITS, False)
        if self._questions is None and not len(_graph(self._place)):
            raise ConfigError(
                f"search/corpus: index {index} is not of packages, so no questions can be made "
                "from it; name a file with 'questions'"
            )
        key = f"{self._place} {questions}" if questions or index else ""
        self.name = f"corpus-{hashlib.sha256(key.encode()).hexdigest()[:8]}" if key else "corpus"

    def task(self, split: Split, index: int) -> Task:
        """Return question number ``index`` of ``split``.

        Raises:
            ConfigError: The file has fewer.
        """
        if self._questions is not None and not 0 <= index < len(self._questions[split]):
            raise ConfigError(
                f"task {self.name}/{split}/{index}: there are {len(self._questions[split])} "
                f"questions of split {split!r}"
            )
        return procedural_task(self.name, split, index)

    def find_task(self, task_id: str) -> Task:
        task = super().find_task(task_id)
        return self.task(task.split, int(task_id.rpartition("/")[2]))

    def question_of(self, task: Task) -> tuple[Question, None]:
        if self._questions is not None:
            return self._questions[task.split][int(task.id.rpartition("/")[2])], None
        number = int(task.id.rpartition("/")[2])
        asked = self._asked_before[task.split]
        while len(asked) <= number % _DISTINCT and not self._is_empty[task.split]:
            earlier = procedural_task(self.name, task.split, len(asked))
            found = self._new_question(earlier, {one.text for one in asked})
            self._is_empty[task.split] = found is None
            asked += [] if found is None else [found]
        if not asked:
            raise ConfigError(
                f"search/corpus: no question in {_MAX_DRAWS} draws; the index holds "
                f"{len(_graph(self._place))} packages, which are too few"
            )
        return asked[number % _DISTINCT % len(asked)], None

    def _new_question(self, task: Task, asked: set[str]) -> Question | None:
        """Return a question of the task's split that is not among those ``asked``."""
        return sample_package_question(
            _graph(self._place),
            self._backend,
            Random(derive_seed(task.seed, "question")),
            k=self.limits.results,
            snippet_words=self.limits.snippet_words,
            accept=lambda one: one.split == task.split and one.text not in asked,
            tries=_MAX_DRAWS,
        )

    def backend(self, source: None) -> SearchBackend:
        """Return the engine, which all environments over one index share."""
        return self._backend

    def close(self) -> None:
        if isinstance(self._backend, HttpBackend):
            self._backend.close()

    def _choose_task(self, options: dict[str, Any]) -> Task:
        if self._questions is None or options.get("task") is not None:
            return super()._choose_task(options)
        split: Split = options.get("split", "train")
        number = len(self._questions.get(split, ()))
        if set(options) <= {"split", "task"} and number:
            return self.task(split, int(self.np_random.integers(number)))
        return super()._choose_task(options)


def _limits(limits: Mapping[str, int] | Limits | None) -> Limits:
    if limits is None or isinstance(limits, Limits):
        return limits or Limits()
    try:
        return Limits(**limits)
    except TypeError as error:
        known = ", ".join(Limits.__dataclass_fields__)
        raise ConfigError(f"search limits: {error}; known: {known}") from error


@lru_cache(maxsize=8)
def _local_backend(place: str, engine: str) -> SearchBackend:
    if place == _SAMPLE:
        if engine != "sqlite":
            raise ConfigError(f"search/corpus: the sample has no engine {engine!r}; name an index")
        records = sample_packages().records()
        return SqliteBackend.in_memory(one.document for one in records if one.document is not None)
    return open_index(Path(place).expanduser(), engine)


@lru_cache(maxsize=4)
def _graph(place: str) -> PackageGraph:
    if place == _SAMPLE:
        records = sample_packages().records()
        return PackageGraph(one.document for one in records if one.document is not None)
    database = Path(place).expanduser() / DATABASE
    if not database.is_file():
        return PackageGraph(())
    return PackageGraph(document for _, document in documents_of(database))


@lru_cache(maxsize=8)
def _by_split(path: str) -> dict[Split, list[Question]]:
    found: dict[Split, list[Question]] = {"train": [], "test": []}
    for question in read_questions(Path(path).expanduser()):
        found[question.split].append(question)
    return found
