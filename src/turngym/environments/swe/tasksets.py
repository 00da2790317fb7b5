"""Where tasks and projects are: what ships, what was installed, what a user made."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from pathlib import Path

from turngym.environments.swe.packages import swe_cache
from turngym.environments.swe.project import Project
from turngym.environments.swe.records import SweRecord, TaskFile, broken_files
from turngym.errors import ConfigError, unknown_name
from turngym.tasks.base import Split, split_of

_DATA = Path(__file__).with_name("data")
SAMPLE = "sample"
SHIPPED = "shipped"
INSTALL = "python -m turngym.environments.swe.install"


class TaskSet:
    """The tasks of several projects, in one order.

    Args:
        files: Their tasks.
        name: What messages call it.
    """

    def __init__(self, files: list[TaskFile], name: str) -> None:
        self.name = name
        self.files = files
        self._by_split: dict[Split, list[tuple[TaskFile, SweRecord]]] = {"train": [], "test": []}
        for file in files:
            for record in file.tasks:
                self._by_split[self._split(file, record)].append((file, record))
        for found in self._by_split.values():  # projects mixed, so that a few tasks show many
            found.sort(key=lambda pair: hashlib.sha256(pair[1].id.encode()).hexdigest())

    def __len__(self) -> int:
        return sum(len(file.tasks) for file in self.files)

    def count(self, split: Split) -> int:
        """Return the number of tasks of a split."""
        return len(self._by_split[split])

    def require(self) -> None:
        """Raise when a project is not installed.

        Raises:
            ConfigError: With the command that installs it.
        """
        for file in self.files:
            if SAMPLE not in file.source:
                project_place(str(file.source.get("path", "")), file.name, file.version)

    def get(self, split: Split, index: int) -> tuple[TaskFile, SweRecord]:
        """Return one task of ``split`` and its project.

        Raises:
            ConfigError: There are fewer.
        """
        found = self._by_split[split]
        if not 0 <= index < len(found):
            raise ConfigError(
                f"task {self.name}/{split}/{index}: there are {len(found)} tasks of split {split!r}"
            )
        return found[index]

    def _split(self, file: TaskFile, record: SweRecord) -> Split:
        """Return the project's split; of a single project one task in four is for test."""
        if len(self.files) > 1:
            return file.split
        return split_of(record.id, one_in=4)


@lru_cache(maxsize=16)
def open_tasks(place: str, project: str | None = None) -> TaskSet:
    """Return the tasks at ``place``: ``"shipped"``, ``"sample"``, a file or a folder of files.

    Args:
        place: Where they are.
        project: Only those of this project.

    Raises:
        ConfigError: There are none.
    """
    if place == SAMPLE:
        return TaskSet([TaskFile.read(_DATA / "sample_tasks.json")], SAMPLE)
    folder = _DATA / "tasks" if place == SHIPPED else Path(place).expanduser()
    paths = [folder] if folder.is_file() else sorted(folder.glob("*.json"))
    if not paths:
        raise ConfigError(f"swe tasks {place!r}: no file or folder of tasks; see 'turngym tasks'")
    files = [TaskFile.read(path) for path in paths]
    if project is not None:
        names = [file.name for file in files]
        if project not in names:
            raise unknown_name("project", project, names)
        return TaskSet([file for file in files if file.name == project], project)
    return TaskSet(files, place if place == SHIPPED else short_name(place))


def short_name(place: str) -> str:
    """Return a name for a place of a user's, safe in task ids and the same for the same place."""
    path = Path(place).expanduser().resolve()
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:6]
    return f"{re.sub('[^a-z0-9]+', '-', path.stem.lower()).strip('-')}-{digest}"


@lru_cache(maxsize=32)
def open_project(source: str, name: str, version: str, digest: str) -> Project:
    """Return the project at ``source``, whose files must have this ``digest``.

    Raises:
        ConfigError: It is not installed, or is not the one that the tasks were made of.
    """
    if source == SAMPLE:
        project = sample_project()
    else:
        project = Project.read(project_place(source, name, version), name=name, version=version)
    if project.digest != digest:
        raise ConfigError(
            f"project {project.key}: its files are not those that the tasks were made of "
            f"({project.digest[:12]}, wanted {digest[:12]}); make the tasks again"
        )
    return project


def project_of(file: TaskFile) -> Project:
    """Return the project that ``file`` is about."""
    source = SAMPLE if SAMPLE in file.source else str(file.source.get("path", ""))
    return open_project(source, file.name, file.version, file.digest)


def before_of(file: TaskFile) -> Project | None:
    """Return the release before the project of ``file``, where tasks were made of the two."""
    requirement = file.source.get("before_requirement", "")
    place = str(file.source.get("before_path", ""))
    if not requirement and not place:
        return None
    version = requirement.partition("==")[2] or "before"
    return Project.read(project_place(place, file.name, version), name=file.name, version=version)


def broken_of(file: TaskFile, record: SweRecord, project: Project) -> dict[str, bytes | None]:
    """Return the files that differ in the broken project of a task."""
    before = before_of(file) if record.kind == "release" else None
    return broken_files(project, record, before)


def project_place(source: str, name: str, version: str) -> Path:
    """Return where the project of ``source`` is: at the path in it, or where it was installed.

    Raises:
        ConfigError: It is not there.
    """
    places = [Path(source)] if source else []
    places.append(swe_cache() / "projects" / f"{name}-{version}.tar.gz")
    for place in places:
        if place.exists():
            return place
    raise ConfigError(f"project {name} {version} is not installed: {INSTALL} {name}")


@lru_cache(maxsize=1)
def sample_project() -> Project:
    """Return our own small project, which needs no download."""
    from turngym.environments.swe.project import find_layout

    files: dict[str, bytes] = {}
    for part in (_DATA / "sample_project.txt").read_text(encoding="utf-8").split("=== ")[1:]:
        head, _, body = part.partition("\n")
        files[head.strip()] = body.encode()
    return Project(name="tally", version="1.0", files=files, layout=find_layout(files))
