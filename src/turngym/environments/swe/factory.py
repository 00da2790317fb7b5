"""Makes tasks of a project: breaks it, and keeps what breaks the right tests and can be fixed.

    measure -> propose -> break -> run -> check -> keep

A task is kept when two test functions or more fail that passed every time before (so that one can
be shown and one hidden), not more than a share of all, nothing stops the tests from being
collected, the statement does not hold the repair, the judge gives the untouched workspace 0 and the
repair 1. Whatever was tried is written down, so that a run that was interrupted goes on.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from turngym.environments.swe.exam import ExamMaker, Trial
from turngym.environments.swe.judge import judge
from turngym.environments.swe.operators import Edit, apply_edits, overlap, proposals
from turngym.environments.swe.parsing import test_name
from turngym.environments.swe.patches import Patch
from turngym.environments.swe.project import Project, is_test_file
from turngym.environments.swe.records import (
    STYLES,
    Kind,
    SweRecord,
    TaskFile,
    leaks,
    older_code,
    problem_statement,
    split_of,
    symptom_of,
)
from turngym.environments.swe.test_runner import project_runner
from turngym.environments.workspace.host import SandboxHost
from turngym.errors import ConfigError
from turngym.seeding import derive_seed

OnTried = Callable[[str, str], None]
"""Called with the key of a candidate and what became of it: ``"valid"`` or a reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demands:
    """What a task must be like."""

    max_suite_s: float = 60.0
    """Longest run of all tests of a project, in seconds."""
    judged_s: float = 3.0
    """Where the tests take longer together, the slowest are left out until the rest does not."""
    max_failing: float = 0.25
    """Largest share of tests that a bug may break."""
    min_functions: int = 2
    """Least test functions that must fail: one is shown, the others are hidden."""
    per_operator: float = 0.25
    """Largest share of the tasks that one operator makes."""
    per_function: int = 3
    """Most tasks about one function."""
    bodies: float = 0.15
    """Share of the candidates that empty a function."""
    pairs: float = 0.15
    """Share of the candidates that put two bugs in."""


@dataclass(slots=True)
class Yield:
    """What became of the candidates."""

    valid: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def tried(self) -> int:
        """Candidates in all."""
        return self.valid + sum(self.reasons.values())

    @property
    def per_minute(self) -> float:
        """Valid tasks a minute."""
        return 60.0 * self.valid / self.seconds if self.seconds else 0.0


async def measure(
    host: SandboxHost, project: Project, demands: Demands, *, source: Mapping[str, str]
) -> TaskFile:
    """Run the untouched ``source`` three times; return description and tests.

    Those are the tests that passed every time and whose mutants fail.

    Raises:
        ConfigError: No test passes, or they are too slow.
    """
    runner = await project_runner(host, project)
    passed: set[str] | None = None
    least: dict[str, float] = {}
    seconds, problem = 0.0, ""
    for _ in range(3):
        started = time.monotonic()
        run = await runner.run(
            {}, _test_files(project), timeout_s=demands.max_suite_s, is_traced=True
        )
        seconds = max(seconds, time.monotonic() - started)
        for test, took in run.seconds.items():
            least[test] = min(took, least.get(test, took))
        problem = problem or run.problem
        found = {test for test, outcome in run.outcomes.items() if outcome == "passed"}
        passed = found if passed is None else passed & found
    if not passed:
        reason = problem or next(iter(run.messages.values()), "") or "nothing was collected"
        first, *others = reason.strip().splitlines()
        last = f" ... {others[-1].strip()[-160:]}" if others else ""
        raise ConfigError(
            f"project {project.key}: no test passes here: {first[:160]}{last}; "
            "tests that need the network, more packages or more than "
            f"{demands.max_suite_s:g} s make no tasks"
        )
    order = quick_tests({test: least[test] for test in passed}, demands.judged_s)
    trial = Trial(fix=order, keep=[], gold={}, broken={}, timeout_s=2 * demands.max_suite_s)
    exam = await ExamMaker(runner, trial, Random(0)).make()
    sound = exam.asked & exam.examined
    return TaskFile(
        name=project.name, version=project.version, digest=project.digest, source=source,
        layout=project.layout, split=split_of(project.name), suite_s=seconds,
        tests=tuple(one for one in order if one in sound),
    )  # fmt: skip


def quick_tests(seconds: Mapping[str, float], limit_s: float) -> list[str]:
    """Return the tests, sorted; the slowest are left out where all take more than ``seconds``."""
    kept: list[str] = []
    total = 0.0
    for test in sorted(seconds, key=lambda one: (seconds[one], one)):
        total += seconds[test]
        if kept and total > limit_s:
            break
        kept.append(test)
    return sorted(kept)


def candidates(project: Project, seed: int, demands: Demands) -> list[tuple[Kind, list[Edit]]]:
    """Return changes to try, in random order: single bugs, two at once, emptied functions."""
    rng = Random(derive_seed(seed, "swe candidates", project.key))
    bugs: dict[str, list[Edit]] = {}
    bodies: list[Edit] = []
    for path, text in project.sources().items():
        for edit, _ in proposals(path, text):
            if not edit.function:
                continue
            if edit.operator == "remove_body":
                bodies.append(edit)
            else:
                bugs.setdefault(edit.operator, []).append(edit)
    for found in (bodies, *bugs.values()):
        rng.shuffle(found)
    mixed: list[Edit] = []
    while any(bugs.values()):  # operators in turn, so that rare ones come early
        mixed += [found.pop() for found in bugs.values() if found]
    result: list[tuple[Kind, list[Edit]]] = []
    partners = list(mixed)
    rng.shuffle(partners)
    for edit in mixed:
        draw = rng.random()
        if draw < demands.bodies and bodies:
            result.append(("body", [bodies.pop()]))
        elif draw < demands.bodies + demands.pairs and partners:
            other = partners.pop()
            if not overlap(edit, other):
                result.append(("bug", sorted([edit, other], key=lambda e: (e.path, e.span))))
        result.append(("bug", [edit]))
    return result


class Factory:
    """Makes tasks of one project.

    Args:
        project: Of which tasks are made.
        out: Folder for ``<project>.json`` and the log of what was tried.
        seed: Orders the candidates.
        demands: What a task must be like.
        source: Where the project comes from, for ``TaskFile.source``.
        before: The release before; what was fixed since makes one more task.
    """

    _file: TaskFile  # once the tests were measured

    def __init__(
        self,
        project: Project,
        out: Path,
        *,
        seed: int = 0,
        demands: Demands | None = None,
        source: Mapping[str, str] | None = None,
        before: Project | None = None,
    ) -> None:
        self.project, self.before = project, before
        self.path = out / f"{project.name}.json"
        self.log = out / f"{project.name}.log.jsonl"
        self.demands = demands or Demands()
        self.result = Yield()
        self._seed = seed
        self._source = dict(source or {})
        self._tried: dict[str, str] = {}
        self._kept: list[SweRecord] = []

    async def make(
        self, count: int, *, parallel: int = 1, on_tried: OnTried | None = None
    ) -> TaskFile:
        """Return ``count`` tasks or as many as there are; so many ``parallel`` ones are tried.

        Raises:
            ConfigError: The tests of the project cannot be used.
        """
        host = SandboxHost.lease("bubblewrap")
        started = time.monotonic()
        try:
            self._file = self._earlier() or await measure(
                host, self.project, self.demands, source=self._source
            )  # fmt: skip
            found = candidates(self.project, self._seed, self.demands)
            if self.before is not None:
                found.insert(0, ("release", []))
            todo = iter(found)
            async with asyncio.TaskGroup() as group:
                for _ in range(parallel):
                    group.create_task(self._work(host, todo, count, on_tried))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            self.result.seconds += time.monotonic() - started
            await host.release()
        self._save()
        return replace(self._file, tasks=tuple(self._kept))

    def _earlier(self) -> TaskFile | None:
        """Take over what an earlier run made of the same project, and return its description.

        Raises:
            ConfigError: It was made of other files.
        """
        if not self.path.exists() or not self.log.exists():
            self.log.parent.mkdir(parents=True, exist_ok=True)
            self.log.write_text("", encoding="utf-8")
            return None
        earlier = TaskFile.read(self.path)
        if earlier.digest != self.project.digest:
            raise ConfigError(
                f"{self.path}: holds tasks of other files of {self.project.name}; name another "
                "folder with --out"
            )
        self._kept = list(earlier.tasks)
        for line in self.log.read_text(encoding="utf-8").splitlines():
            key, reason = json.loads(line)
            self._tried[key] = reason
        return replace(earlier, source=self._source or earlier.source)

    async def _work(
        self, host: SandboxHost, todo: object, count: int, on_tried: OnTried | None
    ) -> None:
        for kind, edits in todo:  # type: ignore[attr-defined]  # an iterator that all workers share
            if len(self._kept) >= count:
                return
            key = _key(edits)
            if key in self._tried or not self._is_wanted(edits, count):
                continue
            self._tried[key] = "running"
            outcome = await self.attempt(host, kind, edits)
            reason = outcome if isinstance(outcome, str) else "valid"
            if isinstance(outcome, SweRecord):
                self._kept.append(outcome)
                self.result.valid += 1
                self._save()
            else:
                self.result.reasons[reason] += 1
            self._tried[key] = reason
            with self.log.open("a", encoding="utf-8") as file:
                file.write(json.dumps([key, reason]) + "\n")
            if on_tried is not None:
                on_tried(key, reason)

    def _is_wanted(self, edits: list[Edit], count: int) -> bool:
        """Say whether there are not enough tasks like this one yet."""
        used = [edit for task in self._kept for edit in task.edits]
        for edit in edits:
            same = sum(one.operator == edit.operator for one in used)
            here = sum((one.path, one.function) == (edit.path, edit.function) for one in used)
            if same >= max(2, self.demands.per_operator * count):
                return False
            if here >= self.demands.per_function:
                return False
        return True

    def _save(self) -> None:
        replace(self._file, tasks=tuple(self._kept)).write(self.path)

    async def attempt(self, host: SandboxHost, kind: Kind, edits: list[Edit]) -> SweRecord | str:
        """Return a task of ``kind`` made of these edits, or why it makes none."""
        broken = self._broken(kind, edits)
        if isinstance(broken, str):
            return broken
        tests, timeout_s = list(self._file.tests), 20.0 + 3 * self._file.suite_s
        runner = await project_runner(host, self.project)
        run = await runner.run(broken, tests, timeout_s=timeout_s, is_explained=True)
        if "slow" in run.problem:
            return "too slow"
        if run.problem:
            return "stops the tests"
        failing = [one for one in tests if run.outcomes.get(one) != "passed"]
        if not failing:
            return "survives"
        if "missing" in {run.outcomes.get(one) for one in failing}:
            return "stops the collection of tests"
        record = self._record(kind, edits, failing, run.messages)
        if isinstance(record, str):
            return record
        if self._leaks(record, broken):
            return "the statement holds the repair"
        again = await runner.run(broken, record.fail_to_pass, timeout_s=timeout_s)
        if again.passed(record.fail_to_pass):
            return "not every test fails again"
        repair = Patch(files={path: self.project.files.get(path) for path in broken})
        repaired = await judge(
            host, self.project, broken, repair, fail_to_pass=record.fail_to_pass,
            pass_to_pass=self._file.pass_to_pass(record), timeout_s=timeout_s,
        )  # fmt: skip
        if not repaired.is_resolved:
            return "the repair does not pass" + (" (flaky tests)" if repaired.failures else "")
        return record

    def _broken(self, kind: Kind, edits: list[Edit]) -> dict[str, bytes | None] | str:
        """Return the files of the broken project, or why there is none."""
        if kind == "release":
            assert self.before is not None
            return older_code(self.project, self.before) or "the releases have the same code"
        try:
            changed = apply_edits(self.project.sources(), edits)
        except ConfigError:
            return "the edits do not fit together"
        for path, text in changed.items():
            try:
                compile(text, path, "exec", dont_inherit=True)
            except (SyntaxError, ValueError):
                return "no valid Python"
        return {path: text.encode() for path, text in changed.items()}

    def _record(
        self, kind: Kind, edits: list[Edit], failing: list[str], messages: Mapping[str, str]
    ) -> SweRecord | str:
        judged = [one for one in failing if one in messages]
        names = sorted({test_name(one) for one in judged})
        if len(names) < self.demands.min_functions:
            return "too few tests fail"
        if len(failing) > max(10, self.demands.max_failing * len(self._file.tests)):
            return "too many tests fail"
        key = _key(edits)
        rng = Random(derive_seed(self._seed, "shown", key))
        name = rng.choice(names)
        shown = [one for one in judged if test_name(one) == name]
        return SweRecord(
            id=f"{self.project.key}/{key}", kind=kind, edits=tuple(edits),
            fail_to_pass=tuple(judged), shown=tuple(shown),
            also_failing=tuple(one for one in failing if one not in judged),
            symptom=symptom_of(messages[shown[0]]),
        )  # fmt: skip

    def _leaks(self, record: SweRecord, broken: Mapping[str, bytes | None]) -> bool:
        """Say whether a statement holds a line of the repair."""
        before = {path: (data or b"").decode("utf-8", "replace") for path, data in broken.items()}
        repaired = {path: text for path, text in self.project.sources().items() if path in broken}
        name, version = self.project.name, self.project.version
        return any(
            leaks(problem_statement(record, name, version, style), before, repaired)
            for style in STYLES
        )


def _key(edits: list[Edit]) -> str:
    if not edits:
        return "release"
    if len(edits) == 1:
        return edits[0].key
    return hashlib.sha256("".join(edit.key for edit in edits).encode()).hexdigest()[:8]


def _test_files(project: Project) -> list[str]:
    return [
        path
        for path in sorted(project.test_texts())
        if is_test_file(path) or path in project.layout.tests
    ]
