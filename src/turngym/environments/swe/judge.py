"""Judges a patch where its author cannot write: in a fresh sandbox, from the patch alone.

The sandbox starts from the original project. The task's break is put in, then the patch; tests and
configuration are the original's (``Layout.is_protected``). A supervisor that no submitted code
reaches runs the tests (``runner.py``). What passes is then cross-examined: in a second fresh
sandbox the same tests run with a failure put in (``sabotage.py``). Where such a twin passes, the
results were forged, and nothing counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from random import SystemRandom

from turngym.environments.swe.bench import Bench, Delta, bench_of
from turngym.environments.swe.patches import Patch
from turngym.environments.swe.project import Project
from turngym.environments.workspace.host import WorkHost

_CROSS_EXAMINED = 6
"""Tests that passed all along and get a twin too, besides those that are to be fixed."""


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


async def judge(
    host: WorkHost,
    project: Project,
    broken: Delta,
    patch: Patch,
    *,
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
        fail_to_pass: Tests that are to be fixed.
        pass_to_pass: Tests that must go on passing.
        packages: Folder of what tests import.
        timeout_s: Seconds for one run of the tests.
    """
    bench = await bench_of(host, project, packages)
    allowed = {p: d for p, d in patch.files.items() if not project.layout.is_protected(p)}
    return await verdict_on(
        bench,
        {**broken, **allowed},
        fail_to_pass=list(fail_to_pass),
        pass_to_pass=list(pass_to_pass),
        timeout_s=timeout_s,
    )


async def verdict_on(
    bench: Bench,
    delta: Delta,
    *,
    fail_to_pass: list[str],
    pass_to_pass: list[str],
    timeout_s: float,
) -> Verdict:
    """Return what the changes ``delta`` are worth: a run of the tests, and its cross-examination.

    Args:
        bench: Where tests run.
        delta: Changes to what the bench starts from; tests and configuration are trusted.
        fail_to_pass: Tests that are to be fixed.
        pass_to_pass: Tests that must go on passing.
        timeout_s: Seconds for one run of the tests.
    """
    fix, keep = fail_to_pass, pass_to_pass
    run = await bench.run(delta, [*fix, *keep], timeout_s=timeout_s)
    passed, kept = run.passed(fix), run.passed(keep)
    if passed:
        others = bench.examinable(kept, delta)
        sample = SystemRandom().sample(others, min(len(others), _CROSS_EXAMINED))
        examined = [*bench.examinable(passed, delta), *sample]
        if not examined:
            problem = "none of the tests that passed can be made to fail, so nothing is believed"
            return _nothing(problem, (*fix, *keep))
        if forged := await bench.cross_examine(delta, examined, timeout_s=timeout_s):
            problem = f"{forged[0]} was made to fail and does not: results were forged"
            return replace(_nothing(problem, (*fix, *keep)), is_forged=True)
    return Verdict(
        is_resolved=len(passed) == len(fix) and len(kept) == len(keep) and bool(fix),
        fixed=len(passed) / len(fix) if fix else 0.0,
        kept=len(kept) / len(keep) if keep else 1.0,
        problem=run.problem,
        failures=tuple(one for one in (*fix, *keep) if run.outcomes.get(one) != "passed"),
    )


def _nothing(problem: str, failures: tuple[str, ...]) -> Verdict:
    return Verdict(is_resolved=False, fixed=0.0, kept=0.0, problem=problem, failures=failures)
