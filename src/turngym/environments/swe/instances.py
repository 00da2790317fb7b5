"""SWE-bench instances as tasks: each in its own image, through a container engine.

The agent works in a container of the instance's image, on what the image holds at ``/testbed``. Its
patch is judged in fresh containers: the instance's test patch is put in, its tests run under a
supervisor in several rounds, as with tasks of our own (``judge.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache, wraps
from pathlib import Path
from typing import Any, ClassVar

from turngym.environments.core.actions import ActionStyle
from turngym.environments.core.env import Outcome
from turngym.environments.core.episode import opened
from turngym.environments.swe.env import SweEnv
from turngym.environments.swe.exam import Trial
from turngym.environments.swe.formats import Instance, read_instances
from turngym.environments.swe.judge import NOTHING_CHANGED, JudgeResult, judge_changes
from turngym.environments.swe.parsing import test_file
from turngym.environments.swe.patches import Patch, apply_diff, collect_patch, named_files
from turngym.environments.swe.project import Layout, find_layout
from turngym.environments.swe.repair import RepairEnv
from turngym.environments.swe.tasksets import short_name
from turngym.environments.swe.test_runner import TestRunner
from turngym.environments.workspace.base import Budget
from turngym.environments.workspace.host import BackendName, Delta, closed_on_failure
from turngym.errors import ConfigError, SandboxFileError
from turngym.sandbox.backends.guest_sandbox import GuestSandbox
from turngym.sandbox.base import LayerRef, Limits
from turngym.tasks.base import Split, Task

LIMITS = Limits(memory_bytes=4 << 30, pids=512, cpus=2.0, disk_bytes=4 << 30, enforce="best_effort")
_PATH = "/opt/miniconda3/envs/testbed/bin:/usr/local/bin:/usr/bin:/bin"
_MAX_FILE_BYTES = 4 << 20


class InstanceEnv(RepairEnv):
    """Resolve an issue of a repository that comes in an image.

    Args:
        instances: File of JSON lines in SWE-bench's schema; each names its image.
        folder: Where the images hold the repository.
        path: Folders of programs in the images, as ``PATH`` has them; its ``python3`` runs tests.
        split: Which split the instances are.
        action_style, budget, timeout_s: As ``WorkspaceEnv``.
        tests_timeout_s: Longest run of the tests that judge.
        render_mode: ``"ansi"`` or None.

    Action: tools on the workspace, ``run_tests`` and ``submit``.
    Observation: what the tool gave, cut and normalised by the rules of ``workspace.outputs``.
    Reward: at ``submit``, 1 when all tests of the instance pass that should, else 0.
    Start: the repository at the instance's commit, and its problem statement.
    End: ``submit``, or all turns are spent, which scores 0.

    Source: Jimenez et al. 2023, SWE-bench, arXiv:2310.06770.
    """

    backend: ClassVar[BackendName] = "docker"

    def __init__(
        self,
        *,
        instances: str,
        folder: str = "/testbed",
        path: str = _PATH,
        split: Split = "test",
        action_style: ActionStyle = "commands",
        budget: Budget | Mapping[str, Any] | None = None,
        timeout_s: float = 60.0,
        tests_timeout_s: float = 1800.0,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(
            action_style=action_style, budget=budget, timeout_s=timeout_s,
            render_mode=render_mode,
        )  # fmt: skip
        self._instances = _read(instances)
        self.name = f"instances-{short_name(instances)}"
        self._folder, self.default_split = folder, split
        self._env = {"PATH": path}
        self._tests_timeout_s = tests_timeout_s
        self._instance: Instance | None = None

    def count(self, split: Split) -> int:
        return len(self._instances) if split == self.default_split else 0

    @property
    def instance(self) -> Instance:
        """The instance of the running episode."""
        return opened(self._instance, self.name)

    def instance_key(self) -> str:
        return self.instance.instance_id

    async def open_sandbox(self, task: Task) -> tuple[GuestSandbox, str]:
        self._load(task)
        self.judge_result, self.patch = None, Patch()
        sandbox = await self.reopen_sandbox(await self._layer())
        async with closed_on_failure(sandbox):
            self._base = await _contents(sandbox, named_files(self.instance.patch))
            self._wanted = apply_diff(self.instance.patch, _there(self._base))
        return sandbox, self.instance.problem_statement

    def _load(self, task: Task) -> None:
        self._instance = self._instances[int(task.id.rpartition("/")[2])]

    async def _layer(self) -> LayerRef:
        return await self.host.image_layer(self.instance.image, self._folder)

    async def reopen_sandbox(self, layer: LayerRef) -> GuestSandbox:
        return await self.host.start(layer, limits=LIMITS, env=self._env)

    async def judge(self) -> Outcome:
        found = await self.changed_files()
        changed = {path: data for path, data in found.items() if not path.startswith(".git/")}
        layer = await self._layer()
        sandbox = await self.reopen_sandbox(layer)
        try:
            base = _there(await _contents(sandbox, changed))
            tests = await self._tests(sandbox)
            ids = [*self.instance.fail_to_pass, *self.instance.pass_to_pass]
            texts = _there(await _contents(sandbox, map(test_file, ids)))
            layout = await _layout(sandbox, {*tests, *texts})
        finally:
            await sandbox.close()
        self.patch = collect_patch(changed, base, layout)
        runner = TestRunner(
            host=self.host, layer=layer, layout=layout,
            texts={path: data.decode("utf-8", "replace") for path, data in texts.items()},
            packages=None, key=f"{self.instance.image} {self.instance.instance_id}",
            python=("/usr/bin/env", "python3", "-I", "-B"), env=self._env,
            limits=LIMITS,
        )  # fmt: skip
        result = await self._judge(runner, tests) if not self.patch.is_empty else NOTHING_CHANGED
        instance_id = self.instance.instance_id
        return self._report(result, base, float(result.is_resolved), instance_id=instance_id)

    async def _tests(self, sandbox: GuestSandbox) -> Delta:
        """Return what the test patch makes of the tests."""
        if not self.instance.test_patch.strip():
            return {}
        base = _there(await _contents(sandbox, named_files(self.instance.test_patch)))
        return apply_diff(self.instance.test_patch, base)

    async def _judge(self, runner: TestRunner, tests: Delta) -> JudgeResult:
        trial = Trial(
            fix=list(self.instance.fail_to_pass), keep=list(self.instance.pass_to_pass),
            gold={**self._wanted, **tests}, broken=tests, timeout_s=self._tests_timeout_s,
        )  # fmt: skip
        return await judge_changes(runner, {**self.patch.files, **tests}, trial)

    def legal_actions(self) -> list[str]:
        """Return a menu: look around, run the tests, submit. Other calls are carried out too."""
        return [self.say("bash", command="ls"), self.say("run_tests"), self.say("submit")]

    def own_state(self) -> Any:
        return self._task, dict(self._base), dict(self._wanted), self.judge_result, self.patch

    def set_own_state(self, state: Any) -> None:
        task, self._base, self._wanted, self.judge_result, self.patch = state
        if task is not None:
            self._load(task)


@lru_cache(maxsize=8)
def _read(place: str) -> tuple[Instance, ...]:
    """Return the instances of a file.

    Raises:
        ConfigError: It cannot be read, is empty, or an instance names no image.
    """
    path = Path(place).expanduser()
    if not path.is_file():
        raise ConfigError(f"instances {place!r}: no such file; wanted JSON lines")
    found = tuple(read_instances(path))
    if not found:
        raise ConfigError(f"instances {place!r}: the file holds none")
    for one in found:
        if not one.image:
            raise ConfigError(
                f"instance {one.instance_id}: names no image; wanted a column 'image_name'"
            )
    return found


async def _contents(sandbox: GuestSandbox, paths: Iterable[str]) -> dict[str, bytes | None]:
    """Return the contents of files, None for one that is not there."""
    found: dict[str, bytes | None] = {}
    for path in dict.fromkeys(paths):
        try:
            found[path] = await sandbox.read_file(path, max_bytes=_MAX_FILE_BYTES)
        except SandboxFileError:
            found[path] = None
    return found


def _there(files: Delta) -> dict[str, bytes]:
    return {path: data for path, data in files.items() if data is not None}


async def _layout(sandbox: GuestSandbox, tests: set[str]) -> Layout:
    """Return what of the repository is code and what is tests, those of ``tests`` among them."""
    listed = await sandbox.exec(
        "find . -name '*.py' -not -path './.git/*'", timeout_s=120.0, max_output=8 << 20
    )
    paths = [line.removeprefix("./") for line in listed.stdout.decode("utf-8", "replace").split()]
    layout = find_layout([*paths, *tests], "the repository of the instance")
    more = [path for path in sorted(tests) if not layout.is_test(path)]
    return replace(layout, tests=(*layout.tests, *more))


@wraps(SweEnv, assigned=(), updated=())  # whose options they are
def bugs(tasks: str = "shipped", **kwargs: Any) -> SweEnv | InstanceEnv:
    """Return the environment of a set of SWE tasks.

    Args:
        tasks: As for ``SweEnv``; a file ``*.jsonl`` holds SWE-bench instances, for ``InstanceEnv``.
        kwargs: More arguments of the one or the other.
    """
    if tasks.endswith(".jsonl"):
        return InstanceEnv(instances=tasks, **kwargs)
    return SweEnv(tasks=tasks, **kwargs)
