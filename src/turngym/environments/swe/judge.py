"""Judges a patch where its author cannot write: in a fresh sandbox, from the patch alone.

The sandbox starts from the original project. The task's break is put in, then the patch; tests and
configuration are the original's (``Layout.is_protected``). A supervisor that no submitted code
reaches runs the tests (``runner.py``). What passes is then cross-examined: in a second fresh
sandbox the same tests run with a failure put in (``sabotage.py``). Where such a twin passes, the
results were forged, and nothing counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom
from typing import Any

from turngym.environments.swe.patches import Patch
from turngym.environments.swe.project import Project
from turngym.environments.swe.sabotage import test_file, test_name, twin
from turngym.environments.workspace.host import TOOLS, WorkHost
from turngym.errors import EnvironmentFault, SandboxDied
from turngym.sandbox.base import LayerRef
from turngym.sandbox.guest_sandbox import GuestSandbox

OPTIONS = (
    "-q", "--tb=short", "-p", "no:cacheprovider", "-p", "no:faulthandler",
    "-o", "addopts=", "--import-mode=append", "--continue-on-collection-errors",
)  # fmt: skip
"""Of pytest, for judging and for measuring alike."""
_RUNNER = Path(__file__).with_name("runner.py")
_WORKSPACE = "/workspace"
_MAX_OUTPUT = 3 << 20
_CROSS_EXAMINED = 6
"""Tests that passed all along and get a twin too, besides those that are to be fixed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TestRun:
    """What became of each test that was asked for."""

    outcomes: Mapping[str, str]
    """Test id to ``passed``, ``failed``, ``skipped``, ``error`` or ``missing``."""
    messages: Mapping[str, str]
    """Test id to what it complained of."""
    problem: str = ""
    """Why results are missing: late, killed, broken; "" where nothing went wrong."""

    def passed(self, ids: Iterable[str]) -> list[str]:
        """Return those of ``ids`` that passed."""
        return [one for one in ids if self.outcomes.get(one) == "passed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a patch is worth."""

    is_resolved: bool
    """Every test that was to be fixed passes, and no other broke."""
    fixed: float
    """Share of the tests to be fixed that pass, in [0, 1]."""
    kept: float
    """Share of the others that still pass, in [0, 1]."""
    is_forged: bool = False
    problem: str = ""
    failures: tuple[str, ...] = ()
    """Ids of tests that did not pass."""


async def run_tests(
    host: WorkHost,
    box: GuestSandbox,
    project: Project,
    ids: Iterable[str],
    *,
    timeout_s: float,
) -> TestRun:
    """Run tests in ``box``, whose workspace is as it shall be, and return what became of them.

    Args:
        host: Which back end it belongs to.
        box: Used for nothing else afterwards.
        project: Whose layout says what is imported from where.
        ids: Test ids, or files for all their tests.
        timeout_s: Seconds for all of them.
    """
    asked = list(dict.fromkeys(ids))
    roots = [_WORKSPACE if root == "." else f"{_WORKSPACE}/{root}" for root in project.layout.roots]
    order = {
        "workspace": _WORKSPACE,
        "packages": [TOOLS],
        "roots": list(dict.fromkeys([*roots, _WORKSPACE])),
        "files": list(dict.fromkeys(map(test_file, asked))),
        "ids": [one for one in asked if "::" in one],
        "options": list(OPTIONS),
        "total_s": timeout_s,
    }
    command = ["/usr/bin/python3", "-I", "-S", "-B", "-c", _RUNNER.read_text(encoding="utf-8")]
    try:
        result = await box.exec(
            command,
            timeout_s=timeout_s + 20.0,
            stdin=json.dumps(order).encode(),
            max_output=_MAX_OUTPUT,
        )
    except SandboxDied as error:
        return TestRun(outcomes={}, messages={}, problem=f"the sandbox ended: {error}")
    lines = result.stdout.decode("utf-8", "replace").splitlines()
    if result.truncated or result.exit_code != 0 or not lines or lines[-1] != '"end"':
        how = "was too slow" if result.timed_out else f"ended early ({_how(result)})"
        return TestRun(outcomes={}, messages={}, problem=f"the run of the tests {how}")
    return read_run(json.loads(lines[0]), asked)


def read_run(told: Mapping[str, Any], asked: Iterable[str]) -> TestRun:
    """Return what the supervisor's answer means for the tests that were ``asked`` for."""
    phases: dict[str, dict[str, str]] = {}
    messages: dict[str, str] = {}
    ends: list[Any] = []
    is_sound = True
    for line in told["lines"]:
        if not (isinstance(line, list) and len(line) == 4 and isinstance(line[0], str)):
            is_sound = False
            break
        test, when, outcome, text = line
        if when == "end":
            ends.append(outcome)
        elif test:
            known = phases.setdefault(test, {})
            is_sound &= when == "call" or when not in known  # subtests tell several calls
            if known.get(when, "passed") == "passed":
                known[when] = str(outcome)
            if text:
                messages.setdefault(test, str(text))
        else:
            messages.setdefault("", f"{outcome}: {text}")
    names = [one for one in asked if "::" in one]
    if told["late"] or not is_sound or ends != [told["status"]] or told["status"] not in (0, 1):
        how = "too slow" if told["late"] else f"exit code {told['status']}"
        problem = f"the tests did not end well ({how}) {messages.get('', '')}".rstrip()
        return TestRun(outcomes=dict.fromkeys(names, "missing"), messages=messages, problem=problem)
    outcomes = dict.fromkeys(names, "missing")
    outcomes |= {test: _outcome(found) for test, found in phases.items()}
    return TestRun(outcomes=outcomes, messages=messages)


def _outcome(phases: Mapping[str, str]) -> str:
    if [phases.get(when) for when in ("setup", "call", "teardown")] == ["passed"] * 3:
        return "passed"
    for wanted in ("failed", "skipped", "xfail"):
        if wanted in phases.values():
            at = next(when for when, what in phases.items() if what == wanted)
            return "error" if wanted == "failed" and at != "call" else wanted
    return "missing"


def _how(result: Any) -> str:  # an ExecResult
    if result.signal is not None:
        return f"signal {result.signal}"
    if result.oom_killed:
        return "out of memory"
    return f"exit code {result.exit_code}, {result.stdout_total} bytes"


async def judge(
    host: WorkHost,
    project: Project,
    broken: Mapping[str, bytes | None],
    patch: Patch,
    *,
    tests: Mapping[str, bytes],
    fail_to_pass: Iterable[str],
    pass_to_pass: Iterable[str],
    packages: Path,
    timeout_s: float,
) -> Verdict:
    """Return what ``patch`` is worth.

    Args:
        host: Makes the sandboxes.
        project: The original.
        broken: What the task makes of it.
        patch: What the agent makes of that.
        tests: Test files that are put in place of the project's own, and others that are added.
        fail_to_pass: Tests that are to be fixed.
        pass_to_pass: Tests that must go on passing.
        packages: Folder of what tests import.
        timeout_s: Seconds for one run of the tests.
    """
    fix, keep = list(fail_to_pass), list(pass_to_pass)
    layer = await host.layer(f"project {project.digest}", project.write)
    allowed = {p: d for p, d in patch.files.items() if not project.layout.is_protected(p)}
    delta: dict[str, bytes | None] = {**broken, **allowed, **tests}
    box = await fresh_box(host, layer, delta, packages)
    try:
        run = await run_tests(host, box, project, [*fix, *keep], timeout_s=timeout_s)
    finally:
        await box.close()
    passed, kept = run.passed(fix), run.passed(keep)
    if passed:
        rng = SystemRandom()
        examined = [*passed, *rng.sample(kept, min(len(kept), _CROSS_EXAMINED))]
        forged = await cross_examine(
            host, project, layer, delta, examined, packages=packages, timeout_s=timeout_s
        )
        if forged:
            return Verdict(
                is_resolved=False,
                fixed=0.0,
                kept=0.0,
                is_forged=True,
                problem=f"{forged[0]} passes although it was made to fail: results were forged",
                failures=(*fix, *keep),
            )
    return Verdict(
        is_resolved=len(passed) == len(fix) and len(kept) == len(keep) and bool(fix),
        fixed=len(passed) / len(fix) if fix else 0.0,
        kept=len(kept) / len(keep) if keep else 1.0,
        problem=run.problem,
        failures=tuple(one for one in (*fix, *keep) if run.outcomes.get(one) != "passed"),
    )


async def cross_examine(
    host: WorkHost,
    project: Project,
    layer: LayerRef,
    delta: Mapping[str, bytes | None],
    ids: list[str],
    *,
    packages: Path,
    timeout_s: float,
    rng: Any = None,
    place: Any = None,
) -> list[str]:
    """Return those of ``ids`` that pass although a failure was put into them."""
    texts = test_texts(project, delta)
    twins: dict[str, str] = {}
    names = {test_name(one) for one in ids}
    own = {test_file(one) for one in ids}
    rng = rng or SystemRandom()
    twins |= twin({p: t for p, t in texts.items() if p in own}, names, rng, place)
    inherited = {n for n in names if not twin({p: texts[p] for p in own if p in texts}, [n], rng)}
    if inherited:
        others = {p: t for p, t in texts.items() if p not in own}
        twins |= twin(others, inherited, rng, place)
    changed = {**delta, **{path: text.encode() for path, text in twins.items()}}
    box = await fresh_box(host, layer, changed, packages)
    try:
        run = await run_tests(host, box, project, ids, timeout_s=timeout_s)
    finally:
        await box.close()
    return run.passed(ids)


def test_texts(project: Project, delta: Mapping[str, bytes | None]) -> dict[str, str]:
    """Return the text of every Python file of the tests, as they are judged."""
    found = {}
    for path, data in {**project.files, **delta}.items():
        if data is not None and path.endswith(".py") and project.layout.is_test(path):
            found[path] = data.decode("utf-8", "replace")
    return found


async def fresh_box(
    host: WorkHost, layer: LayerRef, delta: Mapping[str, bytes | None], packages: Path
) -> GuestSandbox:
    """Start a sandbox on ``layer`` and make the changes of ``delta``.

    Raises:
        EnvironmentFault: A file cannot be removed.
    """
    box = await host.start(layer, tools=packages)
    try:
        for path, data in delta.items():
            if data is not None:
                await box.write_file(path, data)
        gone = [path for path, data in delta.items() if data is None]
        if gone:
            result = await box.exec(["/usr/bin/rm", "-f", "--", *gone], timeout_s=30.0)
            if not result.ok:
                raise EnvironmentFault(f"cannot remove {gone[0]!r} in a fresh sandbox")
    except BaseException:
        await box.close()
        raise
    return box
