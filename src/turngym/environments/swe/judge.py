"""Judges a patch where its author cannot write: in fresh sandboxes, from the patch alone.

Each sandbox starts from the original project. The task's break is put in, then the patch; tests and
configuration are the original's (``Layout.is_protected``). A supervisor that no submitted code
reaches runs the tests (``supervisor.py``), in several rounds that look the same (``exam.py``). In
each, other tests are mutants, which no honest repair can pass. A submission that passes one, and
the test itself as well, made its results up, and nothing of it counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from random import SystemRandom

from turngym.environments.swe.exam import FAILS, Exam, Round, Trial, exam_of
from turngym.environments.swe.patches import Patch, diff_text
from turngym.environments.swe.project import Project
from turngym.environments.swe.test_runner import TestRun, TestRunner, project_runner
from turngym.environments.workspace.host import Delta, SandboxHost
from turngym.tasks.problem import JudgeResult

_CHECKED = 2
"""How often the repair runs a round again before it accuses a submission."""


@dataclass(frozen=True, kw_only=True)
class RepairResult(JudgeResult):
    """What a patch is worth: 1 where every test to be fixed passes and no other broke."""

    fixed: float
    """Share of the tests to be fixed that pass, in [0, 1]."""
    kept: float
    """Share of the others that still pass, in [0, 1]."""
    is_forged: bool = False
    failures: tuple[str, ...] = ()
    """Ids of tests that did not pass."""
    diff: str = ""
    """The patch."""
    left_out: tuple[str, ...] = ()
    """As ``Patch.left_out``."""

    @property
    def is_resolved(self) -> bool:
        """Nothing is left to do."""
        return self.score == 1


def with_patch(result: RepairResult, patch: Patch, base: Mapping[str, bytes]) -> RepairResult:
    """Return the result of a ``patch`` to the files ``base``, with what was submitted."""
    return replace(result, diff=diff_text(patch.files, base), left_out=patch.left_out)


NOTHING_CHANGED = RepairResult(score=0.0, fixed=0.0, kept=1.0, evidence="nothing was changed")


async def judge(
    host: SandboxHost,
    project: Project,
    broken: Delta,
    patch: Patch,
    *,
    fail_to_pass: Iterable[str],
    pass_to_pass: Iterable[str],
    timeout_s: float,
) -> RepairResult:
    """Return what ``patch`` is worth.

    Args:
        host: Makes the sandboxes.
        project: The original.
        broken: What the task makes of it.
        patch: What the agent makes of that.
        fail_to_pass: Tests that are to be fixed.
        pass_to_pass: Tests that must go on passing.
        timeout_s: Seconds for one run of the tests.
    """
    runner = await project_runner(host, project)
    allowed = {p: d for p, d in patch.files.items() if not project.layout.is_protected(p)}
    trial = Trial(
        fix=list(fail_to_pass), keep=list(pass_to_pass), gold={}, broken=broken,
        timeout_s=timeout_s,
    )  # fmt: skip
    return await judge_changes(runner, {**broken, **allowed}, trial)


async def judge_changes(runner: TestRunner, delta: Delta, trial: Trial) -> RepairResult:
    """Return what the changes ``delta``, made where the ``runner`` starts, are worth in an exam."""
    return await grade(runner, await exam_of(runner, trial), delta, trial)


async def grade(runner: TestRunner, exam: Exam, delta: Delta, trial: Trial) -> RepairResult:
    """Return what the changes ``delta``, made where the ``runner`` starts, give in an ``exam``."""
    # What even the repair fails says nothing.
    fix, keep = trial.fix, [one for one in trial.keep if one in exam.asked]
    exam_run = _ExamRun(runner, exam, delta, trial)
    # By chance: a submission must not learn from the order which round has which mutants.
    for one in SystemRandom().sample(exam.rounds, len(exam.rounds)):
        await exam_run.play([*fix, *keep], one)
        if exam_run.problem or not exam_run.is_open(fix):
            break
    if await exam_run.is_forged([*fix, *keep]):
        return replace(_nothing(exam_run.problem, (*fix, *keep)), is_forged=True)
    passed, kept = exam_run.passed(fix), exam_run.passed(keep)
    # Without a mutant among what passed, "passed" may be made up for every one of them.
    if passed and not exam.examined & set(passed):
        problem = "none of the tests that passed can be made to fail, so nothing is believed"
        return _nothing(problem, (*fix, *keep))
    is_resolved = len(passed) == len(fix) and len(kept) == len(keep) and bool(fix)
    return RepairResult(
        score=float(is_resolved),
        fixed=len(passed) / len(fix) if fix else 0.0,
        kept=len(kept) / len(keep) if keep else 1.0,
        evidence=exam_run.problem or exam.problem,
        failures=tuple(one for one in (*fix, *keep) if one not in {*passed, *kept}),
    )


class _ExamRun:
    """What a submission makes of an exam, round by round."""

    def __init__(self, runner: TestRunner, exam: Exam, delta: Delta, trial: Trial) -> None:
        self._runner, self._exam, self._delta, self._trial = runner, exam, delta, trial
        self._texts = runner.tests_with(delta)
        self._failed: set[str] = set()
        self._passed: set[str] = set()
        self._suspects: list[tuple[Round, set[str]]] = []
        self.problem = ""

    async def play(self, ids: list[str], round_: Round) -> None:
        """Run one round."""
        run = await self._run(self._delta, ids, round_)
        outcome = {one: run.outcomes.get(round_.names.get(one, one)) for one in ids}
        self.problem = run.problem
        self._failed |= {one for one in round_.passing if outcome.get(one) != "passed"}
        # One that neither passed nor failed, skipped for example, counts as failed.
        counted = ("passed", *FAILS)
        self._failed |= {one for one in round_.failing if outcome.get(one) not in counted}
        self._passed |= {one for one in round_.passing if outcome.get(one) == "passed"}
        if suspects := {one for one in round_.failing if outcome.get(one) == "passed"}:
            self._suspects.append((round_, suspects))

    async def is_forged(self, ids: list[str]) -> bool:
        """Say whether a test passed both as it is and as a mutant; ``problem`` names it then.

        Code that is honest and wrong may pass the contrary of what it fails: ``assert not f(a)``.
        """
        for round_, suspects in self._suspects:
            accused = suspects & self._passed
            # A flaky mutant would accuse an honest repair, so the known repair runs it again.
            for _ in range(_CHECKED if accused else 0):
                again = await self._run(self._trial.gold, ids, round_)
                names = {one: round_.names.get(one, one) for one in accused}
                accused = {one for one in accused if again.outcomes.get(names[one]) in FAILS}
            if accused:
                self.problem = f"{min(accused)} was made to fail and does not: results were forged"
                return True
        return False

    async def _run(self, delta: Delta, ids: list[str], round_: Round) -> TestRun:
        names = [round_.names.get(one, one) for one in ids]
        changed = {**delta, **round_.put(self._texts)}
        return await self._runner.run(changed, names, timeout_s=self._trial.timeout_s)

    def is_open(self, fix: list[str]) -> bool:
        """Say whether a test that is to be fixed may still pass."""
        return any(one not in self._failed for one in fix)

    def passed(self, ids: list[str]) -> list[str]:
        """Return those of ``ids`` that passed wherever they should."""
        if self.problem:
            return []
        return [one for one in ids if one not in self._failed and one in self._exam.asked]


def _nothing(problem: str, failures: tuple[str, ...]) -> RepairResult:
    return RepairResult(score=0.0, fixed=0.0, kept=0.0, evidence=problem, failures=failures)
