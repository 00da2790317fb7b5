"""Bugs as problems, and where their projects are: shipped, installed, or made by a user."""

from __future__ import annotations

import base64
import hashlib
import re
import shlex
from functools import cached_property, lru_cache
from pathlib import Path, PurePosixPath

from turngym.environments.swe.judge import NOTHING_CHANGED, RepairResult, judge, with_patch
from turngym.environments.swe.packages import packages_beside, swe_cache
from turngym.environments.swe.parsing import hide_tests
from turngym.environments.swe.patches import collect_patch
from turngym.environments.swe.project import Project, find_layout, protected_names
from turngym.environments.swe.records import (
    Style,
    SweRecord,
    TaskFile,
    broken_files,
    problem_statement,
)
from turngym.environments.swe.repair import RepairProblem
from turngym.environments.workspace.host import Delta, SandboxHost, put_delta
from turngym.environments.workspace.world import EndWorld, StartWorld
from turngym.errors import ConfigError, require_known
from turngym.sandbox.backends.guest_sandbox import GuestSandbox
from turngym.sandbox.base import LayerRef
from turngym.tasks.base import Split, split_of
from turngym.tasks.interop.harbor import HarborParts
from turngym.tasks.problem import FileWorld
from turngym.tasks.sets import ListedSet

_DATA = Path(__file__).with_name("data")
SAMPLE = "sample"
SHIPPED = "shipped"
_SAMPLE = _DATA / "sample_tasks.json"
_TEST_SH = """#!/bin/bash
# What the agent left, with tests and configuration as they were, must pass these tests.
cd /workspace && rm -rf ./* && tar --no-same-owner -xf /logs/artifacts/workspace.tar || exit 1
find . {names} | xargs -0 rm -f
rm -rf {tests}
cp -r /tests/project/. . || exit 1
export PYTHONPATH={roots}
mapfile -t ids < /tests/ids.txt
python3 -B -m pytest -q -p no:cacheprovider -o addopts= "${{ids[@]}}"
echo $(($? == 0)) > /logs/verifier/reward.txt
"""
"""Judge of a folder in Harbor's format. ``judge.py`` knows more tricks than this."""
INSTALL = "python -m turngym.environments.swe.install"


class BugProblem(RepairProblem):
    """A project with a bug, whose own tests judge.

    Args:
        file: The project, and what is known of its tests.
        record: How it is broken.
        style: Of the prompt.
    """

    played_by = "turngym.environments.swe.env:SweEnv"

    def __init__(self, file: TaskFile, record: SweRecord, style: Style) -> None:
        self.file, self.record = file, record
        self.prompt = problem_statement(record, file.name, file.version, style)
        self.test_targets = file.layout.tests

    @property
    def content(self) -> str:
        """The id of the record."""
        return self.record.id

    @cached_property
    def project(self) -> Project:
        """The project, repaired."""
        return project_of(self.file)

    @cached_property
    def broken(self) -> Delta:
        """What the bug changes."""
        return broken_of(self.file, self.record, self.project)

    @cached_property
    def wanted(self) -> Delta:  # type: ignore[override]  # read once asked for
        """What the repair changes."""
        return {path: self.project.files.get(path) for path in sorted(self.broken)}

    @cached_property
    def base(self) -> dict[str, bytes]:  # type: ignore[override]  # read once asked for
        """What the workspace holds."""
        project = self.project
        files = {**project.files, **self.broken, **shown_tests(project, self.record)}
        return {path: data for path, data in files.items() if data is not None}

    async def start(self, host: SandboxHost, layer: LayerRef | None = None) -> GuestSandbox:
        layer = layer or await host.layer(f"project {self.project.digest}", self.project.write)
        roots = self.file.layout.roots
        paths = ["/workspace" if root == "." else f"/workspace/{root}" for root in roots]
        return await host.start(layer, tools=await packages_beside(), paths=paths)

    async def set_up(self, world: FileWorld) -> None:
        """Break the project, and hide tests."""
        assert isinstance(world, StartWorld)
        files = self.project.files
        paths = [path for path in {**files, **self.base} if self.base.get(path) != files.get(path)]
        await put_delta(world.sandbox, {path: self.base.get(path) for path in paths})

    async def judge(self, world: FileWorld) -> RepairResult:
        """Run the tests on the changes."""
        assert isinstance(world, EndWorld)
        patch = collect_patch(world.found, self.base, self.file.layout)
        result = NOTHING_CHANGED
        if patch.files:
            result = await judge(
                world.host, self.project, self.broken, patch,
                fail_to_pass=self.record.fail_to_pass,
                pass_to_pass=self.file.pass_to_pass(self.record),
                timeout_s=20.0 + 3 * self.file.suite_s,
            )  # fmt: skip
        return with_patch(result, patch, self.base)

    def harbor_parts(self) -> HarborParts:
        """Return what a folder in Harbor's format holds; its judge is plain pytest."""
        layout, files = self.file.layout, self.project.files
        ids = [*self.record.fail_to_pass, *self.file.pass_to_pass(self.record)]
        kept = {path: data for path, data in files.items() if layout.is_protected(path)}
        script = _TEST_SH.format(
            names=shlex.join(protected_names()), tests=shlex.join(layout.tests),
            roots=":".join(f"/workspace/{root}" for root in layout.roots),
        )  # fmt: skip
        return HarborParts(
            files=self.base, install="RUN pip install pytest\n",
            solution="\n".join(_written(path, data) for path, data in self.wanted.items()),
            tests={
                "test.sh": script,
                "ids.txt": "".join(f"{one}\n" for one in ids),
                **{f"project/{path}": data for path, data in kept.items()},
            },
        )  # fmt: skip


def _written(path: str, data: bytes | None) -> str:
    """Return a command that leaves a file with this content, or none."""
    place, folder = (shlex.quote(f"./{one}") for one in (path, PurePosixPath(path).parent))
    if data is None:
        return f"rm {place}"
    return f"mkdir -p {folder}\nbase64 -d > {place} <<< '{base64.b64encode(data).decode()}'"


class BugTasks(ListedSet[BugProblem]):
    """The tasks of several projects, mixed, so that a few tasks show many.

    Args:
        name: Of the set.
        files: Their tasks.
        style: Of the prompts.
    """

    def __init__(self, name: str, files: list[TaskFile], style: Style) -> None:
        self.files = files
        found = [(one.id, BugProblem(file, one, style)) for file in files for one in file.tasks]
        found.sort(key=lambda pair: hashlib.sha256(pair[0].encode()).hexdigest())
        # Of a single project one task in four is for test.
        splits: dict[str, Split] = {
            id: one.file.split if len(files) > 1 else split_of(id, one_in=4) for id, one in found
        }
        super().__init__(name, found, splits=splits)


def require_projects(tasks: BugTasks) -> None:
    """Raise when a project is not installed.

    Raises:
        ConfigError: With the command that installs it.
    """
    for file in tasks.files:
        if SAMPLE not in file.source:
            project_place(str(file.source.get("path", "")), file.name, file.version)


@lru_cache(maxsize=16)
def open_tasks(place: str, project: str | None = None, style: Style = "failing") -> BugTasks:
    """Return the tasks at ``place``: ``"shipped"``, ``"sample"``, a file or a folder of files.

    Args:
        place: Where they are.
        project: Only those of this project.
        style: Of the prompts.

    Raises:
        ConfigError: There are none.
    """
    folder = _DATA / "tasks" if place == SHIPPED else Path(place).expanduser()
    paths = [folder] if folder.is_file() else sorted(folder.glob("*.json"))
    files = [TaskFile.read(path) for path in ([_SAMPLE] if place == SAMPLE else paths)]
    if not files:
        raise ConfigError(f"swe tasks {place!r}: no file or folder of tasks; see 'turngym tasks'")
    if project is not None:
        names = [file.name for file in files]
        require_known("project", project, names)
        return BugTasks(f"bugs-{project}", [file for file in files if file.name == project], style)
    if place == SHIPPED:
        return BugTasks("bugs", files, style)
    return BugTasks(f"bugs-{place if place == SAMPLE else short_name(place)}", files, style)


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


def broken_of(file: TaskFile, record: SweRecord, project: Project) -> dict[str, bytes | None]:
    """Return the files that differ in the broken project of a task."""
    requirement, place = (file.source.get(f"before_{one}", "") for one in ("requirement", "path"))
    before = None
    if record.kind == "release" and (requirement or place):
        version = requirement.partition("==")[2] or "before"
        old = project_place(place, file.name, version)
        before = Project.read(old, name=file.name, version=version)
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
    files: dict[str, bytes] = {}
    for part in (_DATA / "sample_project.txt").read_text(encoding="utf-8").split("=== ")[1:]:
        head, _, body = part.partition("\n")
        files[head.strip()] = body.encode()
    return Project(name="tally", version="1.0", files=files, layout=find_layout(files))


def shown_tests(project: Project, record: SweRecord) -> dict[str, bytes]:
    """Return the test files of the workspace that differ from the project's."""
    files: dict[str, bytes] = {}
    for path, text in project.test_texts("surrogateescape").items():
        left = hide_tests(text, record.hidden)
        if left != text:
            files[path] = left.encode("utf-8", "surrogateescape")
    return files
