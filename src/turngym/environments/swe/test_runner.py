"""Where tests are run, and how: one fresh sandbox for each run, and a supervisor in it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from turngym.environments.swe.packages import packages_beside
from turngym.environments.swe.parsing import test_file
from turngym.environments.swe.project import Layout, Project
from turngym.environments.workspace.host import (
    LIMITS,
    TOOLS,
    Delta,
    SandboxHost,
    closed_on_failure,
    put_delta,
)
from turngym.errors import SandboxDied
from turngym.sandbox.backends.guest_sandbox import GuestSandbox
from turngym.sandbox.base import LayerRef, Limits

OPTIONS = (
    "-q", "--tb=short", "-p", "no:cacheprovider", "-p", "no:faulthandler",
    "-o", "addopts=", "--import-mode=append", "--continue-on-collection-errors",
    "-W", "ignore::pytest.PytestConfigWarning",  # of plug-ins that are not here
)  # fmt: skip
"""Of pytest, for judging and for measuring alike."""
_PLAIN = ("--assert=plain", "--tb=native")
"""Assertions that only pass or fail: to rewrite them takes a third of the time of a small suite,
and to quote the tests that failed takes longer than to run them."""
_SUPERVISOR = Path(__file__).with_name("supervisor.py")
_WORKSPACE = "/workspace"
_MAX_OUTPUT, _OUTPUT, _OUTPUT_OF_TEST = 16 << 20, 3 << 20, 200
"""Bytes of a report at most; of one by submitted code: in all, and for a test besides its names."""


class Code(NamedTuple):
    """Where the function of a test is written."""

    path: str
    line: int
    """Its first one, decorators included."""
    number: int
    """Which one the test is of those that are made of this function, in order of collection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TestRun:
    """What became of each test that was asked for."""

    outcomes: Mapping[str, str]
    """Test id to ``passed``, ``failed``, ``skipped``, ``error`` or ``missing``."""
    messages: Mapping[str, str]
    """Test id to what it complained of."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Test id to how long it took, set-up and tear-down included, as reported by the process."""
    codes: Mapping[str, Code] = field(default_factory=dict)
    """Test id to its function; of a traced run."""
    traces: Mapping[str, list[tuple[str, int]]] = field(default_factory=dict)
    """Test id to file and line of each call that led to its failure; of a traced run."""
    problem: str = ""
    """Why results are missing: late, killed, broken; "" where nothing went wrong."""

    def passed(self, ids: Iterable[str]) -> list[str]:
        """Return those of ``ids`` that passed."""
        return [one for one in ids if self.outcomes.get(one) == "passed"]


@dataclass(frozen=True, kw_only=True)
class TestRunner:
    """What every run of the tests of one project starts from."""

    host: SandboxHost
    layer: LayerRef
    layout: Layout
    texts: Mapping[str, str] = field(repr=False)
    """Path to text of every Python file of the tests."""
    packages: Path | None
    """Folder of what tests import; None where the sandbox has it."""
    key: str = ""
    """Says what it starts from: two of one key are equal."""
    python: tuple[str, ...] = ("/usr/bin/python3", "-I", "-S", "-B")
    env: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = LIMITS

    async def open(self, delta: Delta) -> GuestSandbox:
        """Start a sandbox and make the changes of ``delta``.

        Raises:
            EnvironmentFault: A file cannot be removed.
        """
        sandbox = await self.host.start(
            self.layer, tools=self.packages, env=self.env, limits=self.limits
        )
        async with closed_on_failure(sandbox):
            await put_delta(sandbox, delta)
        return sandbox

    async def run(
        self,
        delta: Delta,
        ids: Iterable[str],
        *,
        timeout_s: float,
        is_explained: bool = False,
        is_traced: bool = False,
        numbers: Mapping[str, list[int]] | None = None,
    ) -> TestRun:
        """Run tests in a sandbox of their own, and return what became of them.

        Args:
            delta: Changes to the project.
            ids: Test ids, or files for all their tests.
            timeout_s: Seconds for all of them.
            is_explained: Messages say which values an assertion compared.
            is_traced: Say where the tests are written and, if they are explained, where they fail.
            numbers: Ids without their cases, to the numbers of the cases that are asked for
                whatever they are called.
        """
        asked = list(dict.fromkeys(ids))
        request = self._request(asked, timeout_s, numbers or {})
        request["options"] += [] if is_explained else _PLAIN
        request["is_traced"] = is_traced
        own = _OUTPUT + sum(3 * len(one) + _OUTPUT_OF_TEST for one in asked)
        sandbox = await self.open(delta)
        try:
            result = await sandbox.exec(
                [*self.python, "-c", _SUPERVISOR.read_text(encoding="utf-8")],
                timeout_s=timeout_s + 20.0,
                stdin=json.dumps(request).encode(),
                max_output=_MAX_OUTPUT if is_traced else min(_MAX_OUTPUT, own),
            )
        except SandboxDied as error:
            return TestRun(outcomes={}, messages={}, problem=f"the sandbox ended: {error}")
        finally:
            await sandbox.close()
        lines = result.stdout.decode("utf-8", "replace").splitlines()
        if result.truncated or result.exit_code != 0 or not lines or lines[-1] != '"end"':
            how = "was too slow" if result.timed_out else f"ended early ({_how(result)})"
            how = f"gave a report of {result.stdout_total} bytes" if result.truncated else how
            return TestRun(outcomes={}, messages={}, problem=f"the run of the tests {how}")
        return read_run(json.loads(lines[0]), asked, is_traced=is_traced)

    def _request(
        self, asked: list[str], timeout_s: float, numbers: Mapping[str, list[int]]
    ) -> dict[str, Any]:
        inner = [f"/{root}" for root in self.layout.roots if root != "."]
        return {
            "workspace": _WORKSPACE, "packages": [] if self.packages is None else [TOOLS],
            "roots": [*(_WORKSPACE + root for root in inner), _WORKSPACE],
            "files": list(dict.fromkeys(map(test_file, asked))),
            "ids": [one for one in asked if "::" in one and one.partition("[")[0] not in numbers],
            "numbers": dict(numbers), "options": list(OPTIONS), "total_s": timeout_s,
        }  # fmt: skip

    def tests_with(self, delta: Delta) -> dict[str, str]:
        """Return the text of every Python file of the tests, as they are judged."""
        found = dict(self.texts)
        for path, data in delta.items():
            if path.endswith(".py") and self.layout.is_test(path):
                found.pop(path, None)
                if data is not None:
                    found[path] = data.decode("utf-8", "replace")
        return found


async def project_runner(host: SandboxHost, project: Project) -> TestRunner:
    """Return the runner of a project, in sandboxes of our own."""
    layer = await host.layer(f"project {project.digest}", project.write)
    packages = await packages_beside()
    key = f"{project.digest} {packages.name}"
    return TestRunner(
        host=host,
        layer=layer,
        layout=project.layout,
        texts=project.test_texts(),
        packages=packages,
        key=key,
    )


def read_run(
    report: Mapping[str, Any], asked: Iterable[str], *, is_traced: bool = False
) -> TestRun:
    """Return what the supervisor reports, ``is_traced`` or not, for the tests ``asked`` for."""
    phases: dict[str, dict[str, str]] = {}
    messages: dict[str, str] = {}
    seconds: dict[str, float] = {}
    codes: dict[str, Code] = {}
    traces: dict[str, list[tuple[str, int]]] = {}
    ends: list[Any] = []
    is_sound = True
    for line in report["lines"]:
        if not (isinstance(line, list) and len(line) == 5 and isinstance(line[0], str)):
            is_sound = False
            break
        test, when, outcome, text, took = line
        if when == "end":
            ends.append(outcome)
        elif is_traced and when == "place":
            codes[test] = Code(path=text[0], line=text[1], number=outcome)
        elif is_traced and when == "trace":
            traces[test] = [(path, number) for path, number in text]
        elif test:
            known = phases.setdefault(test, {})
            is_sound &= when == "call" or when not in known  # subtests tell several calls
            if known.get(when, "passed") == "passed":
                known[when] = str(outcome)
            seconds[test] = seconds.get(test, 0.0) + (took if isinstance(took, float) else 0.0)
            if text:
                messages.setdefault(test, str(text))
        else:
            messages.setdefault("", f"{outcome}: {text}")
    outcomes = dict.fromkeys((one for one in asked if "::" in one), "missing")
    problem, status = "", report["status"]
    if report["late"] or not is_sound or ends != [status] or status not in (0, 1):
        how = "too slow" if report["late"] else f"exit code {status}"
        why = messages.get("", "") or report.get("printed", "")
        problem = f"the tests did not end well ({how}) {why}".rstrip()
    else:
        outcomes |= {test: _outcome(found) for test, found in phases.items()}
    return TestRun(
        outcomes=outcomes, messages=messages, seconds=seconds, problem=problem,
        codes=codes, traces=traces,
    )  # fmt: skip


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
    return f"exit code {result.exit_code}"
