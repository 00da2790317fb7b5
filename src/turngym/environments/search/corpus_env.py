"""Search in any corpus: an index on disk or a live engine, with questions of your own."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any, Unpack

from turngym.environments.search.backends.base import SearchBackend
from turngym.environments.search.backends.custom import own_backend
from turngym.environments.search.backends.http import HttpBackend, live_backend
from turngym.environments.search.backends.sqlite import SqliteBackend, documents_of
from turngym.environments.search.base import Limits, SearchEnv, SearchOptions
from turngym.environments.search.documents import Document
from turngym.environments.search.index import DATABASE, open_index
from turngym.environments.search.packages import sample_packages
from turngym.environments.search.questions import (
    Lookup,
    Question,
    Soundness,
    read_questions,
    sound_question,
)
from turngym.errors import ConfigError
from turngym.seeding import derive_seed
from turngym.tasks.base import SPLITS, Split, Task, procedural_task
from turngym.tasks.sets import ListedSet, TaskSet

_MAX_COMPARED = 4
"""Dependencies that an expert may have to open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """What questions need to know of one package."""

    name: str
    links: tuple[str, ...]
    """Names of the packages that it depends on."""
    fields: Mapping[str, str]


class PackageGraph:
    """The packages of a corpus, and who shares a homepage or a maintainer.

    Args:
        documents: Of a corpus built by ``PackageSource``; others are left out.
    """

    def __init__(self, documents: Iterable[Document]) -> None:
        self.packages: dict[str, Package] = {}
        self.by_homepage: dict[str, list[Package]] = defaultdict(list)
        self.by_maintainer: dict[str, list[Package]] = defaultdict(list)
        for document in documents:
            fields = document.meta.get("fields")
            if not isinstance(fields, Mapping):
                continue
            package = Package(name=document.id, links=document.links, fields=fields)
            self.packages[package.name] = package
            if homepage := package.fields.get("homepage"):
                self.by_homepage[homepage].append(package)
            if maintainer := package.fields.get("maintainer"):
                self.by_maintainer[maintainer].append(package)
        self._names = tuple(self.packages)

    def __len__(self) -> int:
        return len(self.packages)

    def sample(self, rng: Random) -> Package:
        """Return a random package."""
        return self.packages[rng.choice(self._names)]

    def dependencies(self, package: Package) -> list[Package]:
        """Return the packages that one depends on."""
        return [self.packages[name] for name in package.links if name in self.packages]


def sample_package_question(
    graph: PackageGraph, backend: SearchBackend, rng: Random, **demands: Unpack[Soundness]
) -> Question | None:
    """Return a random sound question, or None when the index seems to have none.

    Args:
        graph: What it is about.
        backend: The same packages, to be searched.
        rng: Where chance comes from.
        demands: As ``sound_question``.
    """
    return sound_question(lambda: rng.choice(_GENERATORS)(graph, rng), backend, **demands)


def _largest_dependency(graph: PackageGraph, rng: Random) -> Question | None:
    """Homepage, package, its largest dependency, whose maintainer."""
    package = graph.sample(rng)
    homepage = package.fields.get("homepage", "")
    dependencies = graph.dependencies(package)
    sizes = [int(one.fields.get("installed_size") or 0) for one in dependencies]
    if (
        not homepage
        or len(graph.by_homepage[homepage]) != 1
        or not 2 <= len(dependencies) <= _MAX_COMPARED
        or len(set(sizes)) < len(sizes)
    ):
        return None
    largest = dependencies[sizes.index(max(sizes))]
    if not largest.fields.get("maintainer"):
        return None
    return Question(
        text=f"The package with the homepage {homepage} depends on several others. Who maintains "
        "the one that takes most space when installed?",
        answers=(largest.fields["maintainer"],),
        kind="largest dependency",
        plan=(
            Lookup(query=homepage, doc=package.name),
            *(Lookup(query=one.name, doc=one.name) for one in dependencies),
        ),
        mentions=(homepage,),
        is_choice=True,
        facts=f"{package.name} {sizes}",
    )


def _other_package(graph: PackageGraph, rng: Random) -> Question | None:
    """Package, its maintainer, the other package of that one, whose section."""
    package = graph.sample(rng)
    maintainer = package.fields.get("maintainer", "")
    pair = graph.by_maintainer.get(maintainer, [])
    if len(pair) != 2:
        return None
    other = next(one for one in pair if one is not package)
    section = other.fields.get("section", "")
    if not section or section == package.fields.get("section"):
        return None
    return Question(
        text=f"The maintainer of {package.name} maintains one other package. In which section is "
        "that one?",
        answers=(section,),
        kind="other package",
        plan=(
            Lookup(query=package.name, doc=package.name),
            Lookup(query=maintainer, doc=other.name),
        ),
        mentions=(package.name,),
        facts=other.name,
    )


def _only_dependency(graph: PackageGraph, rng: Random) -> Question | None:
    """Package, its only dependency, the only dependency of that, whose version."""
    package = graph.sample(rng)
    visited = [package]
    for _ in range(2):
        dependencies = graph.dependencies(visited[-1])
        if len(dependencies) != 1 or dependencies[0] in visited:
            return None
        visited.append(dependencies[0])
    version = visited[-1].fields.get("version", "")
    if not version:
        return None
    return Question(
        text=f"{package.name} depends on a single package, which in turn depends on a single "
        "package. What is the version of the last one?",
        answers=(version,),
        kind="only dependency",
        plan=tuple(Lookup(query=one.name, doc=one.name) for one in visited),
        mentions=(package.name,),
        facts=visited[-1].name,
    )


_GENERATORS = (_largest_dependency, _other_package, _only_dependency)


# The environment.


_SAMPLE = "sample"
_MAX_SAMPLES = 3_000


_DISTINCT = 256
"""Tasks of a split that ask different questions, as far as the index has so many; then again."""


class CorpusEnv(SearchEnv):
    """Answer questions from a corpus of your own, or from a live engine.

    Without arguments: an invented package index, with questions made from it.

    Args:
        index: Folder that ``turngym corpus build`` made.
        engine: Which engine of the index answers (``sqlite``, ``tantivy``, ``bm25s``, ``dense``,
            ``hybrid``); or, without ``index``, a live one: a table with ``url`` and what
            ``live_backend`` takes; or one of your own: a table with ``type="custom"``,
            ``function`` (``module:Class`` of a ``SearchBackend``) and its ``settings``.
        questions: JSONL file of ``text``, ``answers`` and optionally ``plan``, ``split``,
            ``kind``, ``mentions``; needed unless the index is of packages.
        limits: Budgets, and how results are shown, as a table.
        options: As ``SearchEnv``.
    """

    def __init__(
        self,
        *,
        index: str | None = None,
        engine: str | Mapping[str, Any] = "sqlite",
        questions: str | None = None,
        limits: Mapping[str, int] | Limits | None = None,
        **options: Unpack[SearchOptions],
    ) -> None:
        found, place = _limits(limits), index or _SAMPLE
        self.blocks = is_live = isinstance(engine, Mapping)
        if is_live and (index is not None or questions is None):
            raise ConfigError("search/corpus: a live engine needs 'questions' and no 'index'")
        self._backend: SearchBackend
        if not isinstance(engine, Mapping):
            self._backend = _local_backend(place, engine)
        elif engine.get("type") == "custom":
            self._backend, place = own_backend(engine), repr(sorted(engine.items()))
        else:
            self._backend, place = live_backend(engine), str(engine.get("url"))
        if questions is None and not len(_graph(place)):
            raise ConfigError(
                f"search/corpus: index {index} is not of packages, so no questions can be made "
                "from it; name a file with 'questions'"
            )
        key = f"{place} {questions}" if questions or index else ""
        name = f"corpus-{hashlib.sha256(key.encode()).hexdigest()[:8]}" if key else "corpus"
        tasks: TaskSet[Question]
        if questions is None:
            tasks = PackageTasks(name, _graph(place), self._backend, found)
        else:
            tasks = _questions(name, questions)
        super().__init__(tasks=tasks, limits=found, **options)

    @property
    def backend(self) -> SearchBackend:
        """The engine, which all environments over one index share."""
        return self._backend

    def close(self) -> None:
        if isinstance(self._backend, HttpBackend):
            self._backend.close()


class PackageTasks(TaskSet[Question]):
    """Questions about the packages of an index, without end.

    Args:
        name: First part of the ids.
        graph: What they are about.
        backend: The same packages, to be searched.
        limits: Of those who search.
    """

    def __init__(
        self, name: str, graph: PackageGraph, backend: SearchBackend, limits: Limits
    ) -> None:
        super().__init__(name)
        self._graph, self._backend, self._limits = graph, backend, limits
        self._asked: dict[Split, list[Question]] = {split: [] for split in SPLITS}
        """Questions of the first tasks of each split, all different."""
        self._is_empty: dict[Split, bool] = dict.fromkeys(SPLITS, False)

    def problem(self, task: Task) -> Question:
        """Return a question that the first tasks of the split have only once.

        Raises:
            ConfigError: The index gives none.
        """
        number, asked = int(task.id.rpartition("/")[2]), self._asked[task.split]
        while len(asked) <= number % _DISTINCT and not self._is_empty[task.split]:
            earlier = procedural_task(self.name, task.split, len(asked))
            found = self._new(earlier, {one.text for one in asked})
            self._is_empty[task.split] = found is None
            asked += [] if found is None else [found]
        if not asked:
            raise ConfigError(
                f"search/corpus: no question in {_MAX_SAMPLES} samples; the index holds "
                f"{len(self._graph)} packages, which are too few"
            )
        return asked[number % _DISTINCT % len(asked)]

    def _new(self, task: Task, asked: set[str]) -> Question | None:
        """Return a question of the task's split that is not among those ``asked``."""
        return sample_package_question(
            self._graph, self._backend, Random(derive_seed(task.seed, "question")),
            k=self._limits.results, snippet_words=self._limits.snippet_words,
            accept=lambda one: self.split(one) == task.split and one.text not in asked,
            tries=_MAX_SAMPLES,
        )  # fmt: skip


@lru_cache(maxsize=8)
def _questions(name: str, path: str) -> ListedSet[Question]:
    found = {str(n): one for n, one in enumerate(read_questions(Path(path).expanduser()), start=1)}
    splits = {id: one.split for id, one in found.items()}
    return ListedSet(name, found.items(), where=f"questions {path}", splits=splits)


def _limits(limits: Mapping[str, int] | Limits | None) -> Limits:
    if limits is None or isinstance(limits, Limits):
        return limits or Limits()
    try:
        return Limits(**limits)
    except TypeError as error:
        known = ", ".join(Limits.__dataclass_fields__)
        raise ConfigError(f"search limits: {error}; known: {known}") from error


def _sample_documents() -> list[Document]:
    return [one.document for one in sample_packages().records() if one.document is not None]


@lru_cache(maxsize=8)
def _local_backend(place: str, engine: str) -> SearchBackend:
    if place == _SAMPLE:
        if engine != "sqlite":
            raise ConfigError(f"search/corpus: the sample has no engine {engine!r}; name an index")
        return SqliteBackend.in_memory(_sample_documents())
    return open_index(Path(place).expanduser(), engine)


@lru_cache(maxsize=4)
def _graph(place: str) -> PackageGraph:
    if place == _SAMPLE:
        return PackageGraph(_sample_documents())
    database = Path(place).expanduser() / DATABASE
    if not database.is_file():
        return PackageGraph(())
    return PackageGraph(document for _, document in documents_of(database))
