"""Questions about a package index, made from its records: chains of look-ups with one answer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Unpack

from turngym.environments.search.backends.base import SearchBackend
from turngym.environments.search.documents import Document
from turngym.environments.search.questions import Lookup, Question, Soundness, sound_question

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
        """Return the number of packages."""
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
