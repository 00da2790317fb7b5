"""SWE-bench's instances, read and written, and as problems: each in its own image.

An instance is a row of SWE-bench's schema; of our tasks, ``image`` is empty.
The agent works in a container of the instance's image, on what the image holds at ``/testbed``. Its
patch is judged in fresh containers: the instance's test patch is put in, its tests run under a
supervisor in several rounds, as with tasks of our own (``judge.py``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

from turngym.environments.swe.exam import Trial
from turngym.environments.swe.judge import NOTHING_CHANGED, RepairResult, judge_changes, with_patch
from turngym.environments.swe.parsing import test_file
from turngym.environments.swe.patches import apply_diff, collect_patch, diff_text, named_files
from turngym.environments.swe.project import Layout, Project, find_layout
from turngym.environments.swe.records import SweRecord, TaskFile, problem_statement
from turngym.environments.swe.repair import RepairProblem
from turngym.environments.swe.tasksets import broken_of, short_name
from turngym.environments.swe.test_runner import TestRunner
from turngym.environments.workspace.host import Delta, SandboxHost
from turngym.environments.workspace.world import EndWorld, StartWorld
from turngym.errors import ConfigError
from turngym.records import replacing
from turngym.sandbox.backends.guest_sandbox import GuestSandbox
from turngym.sandbox.base import LayerRef, Limits
from turngym.tasks.base import Split
from turngym.tasks.problem import FileWorld
from turngym.tasks.questions import read_rows
from turngym.tasks.sets import ListedSet

LIMITS = Limits(memory_bytes=4 << 30, pids=512, cpus=2.0, disk_bytes=4 << 30, enforce="best_effort")
PATH = "/opt/miniconda3/envs/testbed/bin:/usr/local/bin:/usr/bin:/bin"
_NEEDED = ("instance_id", "repo", "base_commit", "problem_statement", "patch", "test_patch")


@dataclass(frozen=True, kw_only=True)
class Instance:
    """One task in SWE-bench's schema."""

    instance_id: str
    repo: str
    base_commit: str
    problem_statement: str
    patch: str
    """The repair, as a unified diff."""
    test_patch: str
    """What the judge does to the tests."""
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    version: str = ""
    image: str = ""
    """Image that holds repository and packages; "" where our own sandbox does."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Other columns, kept as they are."""

    def to_json(self) -> dict[str, Any]:
        """Return the row, test lists as JSON texts as SWE-bench has them."""
        row = {name: getattr(self, name) for name in (*_NEEDED, "version")}
        row["FAIL_TO_PASS"] = json.dumps(list(self.fail_to_pass))
        row["PASS_TO_PASS"] = json.dumps(list(self.pass_to_pass))
        if self.image:
            row["image_name"] = self.image
        return {**row, **self.more}

    @classmethod
    def from_json(cls, row: Mapping[str, Any], where: str = "instance ") -> Self:
        """Return the instance of a row; test lists may be lists or JSON texts.

        Args:
            row: By SWE-bench's names of columns.
            where: What messages begin with.

        Raises:
            ConfigError: A column is missing, or a list of tests is none.
        """
        missing = [name for name in (*_NEEDED, "FAIL_TO_PASS", "PASS_TO_PASS") if name not in row]
        where += str(row.get("instance_id", "?"))
        if missing:
            raise ConfigError(f"{where}: column {missing[0]!r} is missing")
        known = {*_NEEDED, "FAIL_TO_PASS", "PASS_TO_PASS", "version", "image_name"}
        return cls(
            **{name: str(row[name]) for name in _NEEDED},
            fail_to_pass=_tests(row["FAIL_TO_PASS"], f"{where}: FAIL_TO_PASS"),
            pass_to_pass=_tests(row["PASS_TO_PASS"], f"{where}: PASS_TO_PASS"),
            version=str(row.get("version") or ""),
            image=str(row.get("image_name") or ""),
            more={name: value for name, value in row.items() if name not in known},
        )


def _tests(value: Any, where: str) -> tuple[str, ...]:
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise ConfigError(f"{where}: wanted a list of test ids, got {str(value)[:60]!r}")
    return tuple(found)


def read_instances(path: Path) -> list[Instance]:
    """Return the instances of a file of JSON lines, CSV or Parquet.

    Raises:
        ConfigError: A row is no instance; the message names it.
    """
    return [Instance.from_json(row, f"{where}: instance ") for where, row in read_rows(path)]


def as_instance(file: TaskFile, record: SweRecord, project: Project) -> Instance:
    """Return one of our tasks as an instance, reported as an issue."""
    broken = broken_of(file, record, project)
    base = {**project.files, **{path: data for path, data in broken.items() if data is not None}}
    return Instance(
        instance_id=record.id.replace("/", "__"), repo=file.name, base_commit=file.digest,
        problem_statement=problem_statement(record, file.name, file.version, "issue"),
        patch=diff_text({path: project.files.get(path) for path in broken}, base), test_patch="",
        fail_to_pass=record.fail_to_pass, pass_to_pass=tuple(file.pass_to_pass(record)),
        version=file.version,
    )  # fmt: skip


def write_predictions(path: Path, model: str, patches: Iterable[tuple[str, str]]) -> int:
    """Write predictions in SWE-bench's format; return their number.

    Args:
        path: File of JSON lines.
        model: Name of who made them.
        patches: Instance id and unified diff of each.
    """
    rows = [
        {"instance_id": instance, "model_name_or_path": model, "model_patch": patch}
        for instance, patch in patches
    ]
    with replacing(path) as fresh:
        fresh.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return len(rows)


class InstanceProblem(RepairProblem):
    """An issue of a repository that comes in an image.

    Args:
        instance: What is asked.
        folder: Where the image holds the repository.
        path: Folders of programs in the image.
        tests_timeout_s: Longest run of the tests that judge.
    """

    played_by = "turngym.environments.swe.env:InstanceEnv"

    def __init__(
        self, instance: Instance, *, folder: str, path: str, tests_timeout_s: float
    ) -> None:
        self.instance, self.prompt = instance, instance.problem_statement
        self._folder, self._env = folder, {"PATH": path}
        self._tests_timeout_s = tests_timeout_s
        self.base, self.wanted = {}, {}

    @property
    def content(self) -> str:
        """The id of the instance."""
        return self.instance.instance_id

    def know(self, files: Delta) -> None:
        """Note what those files hold at the start that the repair changes."""
        self.base, self.wanted = files, apply_diff(self.instance.patch, _there(files))

    async def start(self, host: SandboxHost, layer: LayerRef | None = None) -> GuestSandbox:
        layer = layer or await host.image_layer(self.instance.image, self._folder)
        return await host.start(layer, limits=LIMITS, env=self._env)

    async def set_up(self, world: FileWorld) -> None:
        """Look what the repair has to change; the image holds all that the agent finds."""
        self.know(await _contents(world, named_files(self.instance.patch)))

    async def judge(self, world: FileWorld) -> RepairResult:
        """Put the test patch in, and run the tests."""
        assert isinstance(world, EndWorld)
        one, host = self.instance, world.host
        changed = {path: data for path, data in world.found.items() if path[:5] != ".git/"}
        sandbox = await self.start(host)
        try:
            fresh = StartWorld(sandbox)
            base, tests = _there(await _contents(fresh, changed)), dict[str, bytes | None]()
            if one.test_patch.strip():
                named = await _contents(fresh, named_files(one.test_patch))
                tests = apply_diff(one.test_patch, _there(named))
            ids = [*one.fail_to_pass, *one.pass_to_pass]
            texts = _there(await _contents(fresh, map(test_file, ids)))
            layout = await _layout(sandbox, {*tests, *texts})
        finally:
            await sandbox.close()
        patch = collect_patch(changed, base, layout)
        if not patch.files:
            return with_patch(NOTHING_CHANGED, patch, base)
        runner = TestRunner(
            host=host, layer=await host.image_layer(one.image, self._folder), layout=layout,
            texts={path: data.decode("utf-8", "replace") for path, data in texts.items()},
            packages=None, key=f"{one.image} {one.instance_id}",
            python=("/usr/bin/env", "python3", "-I", "-B"), env=self._env, limits=LIMITS,
        )  # fmt: skip
        trial = Trial(
            fix=list(one.fail_to_pass), keep=list(one.pass_to_pass),
            gold={**self.wanted, **tests}, broken=tests, timeout_s=self._tests_timeout_s,
        )  # fmt: skip
        result = await judge_changes(runner, {**patch.files, **tests}, trial)
        return with_patch(result, patch, base)


@lru_cache(maxsize=8)
def instance_tasks(
    place: str, *, folder: str, path: str, split: Split, tests_timeout_s: float
) -> ListedSet[InstanceProblem]:
    """Return the instances of a file of JSON lines.

    Args:
        place: The file.
        folder: As ``InstanceProblem``.
        path: As ``InstanceProblem``.
        split: Which split they are.
        tests_timeout_s: As ``InstanceProblem``.

    Raises:
        ConfigError: It cannot be read, is empty, or an instance names no image.
    """
    file = Path(place).expanduser()
    found = read_instances(file)
    for one in found:
        if not one.image:
            raise ConfigError(
                f"instance {one.instance_id}: names no image; wanted a column 'image_name'"
            )
    return ListedSet(
        f"instances-{short_name(place)}",
        [
            (one.instance_id, InstanceProblem(
                one, folder=folder, path=path, tests_timeout_s=tests_timeout_s
            ))
            for one in found
        ],
        where=f"instances {place!r}",
        splits=dict.fromkeys((one.instance_id for one in found), split),
    )  # fmt: skip


async def _contents(world: FileWorld, paths: Iterable[str]) -> dict[str, bytes | None]:
    """Return the contents of files, None for one that is not there."""
    return {path: await world.read(path) for path in dict.fromkeys(paths)}


def _there(files: Delta) -> dict[str, bytes]:
    return {path: data for path, data in files.items() if data is not None}


async def _layout(sandbox: GuestSandbox, tests: set[str]) -> Layout:
    """Return what of the repository is code and what is tests, those of ``tests`` among them."""
    listed = await sandbox.exec(
        "find . -name '*.py' -not -path './.git/*' -print0", timeout_s=120.0, max_output=8 << 20
    )
    paths = [path[2:] for path in listed.stdout.decode("utf-8", "replace").split("\0")]
    layout = find_layout([*paths, *tests], "the repository of the instance")
    more = [path for path in sorted(tests) if not layout.is_test(path)]
    return replace(layout, tests=(*layout.tests, *more))
