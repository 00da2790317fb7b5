"""The check of a task, and of a set of them: ``turngym check task``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest

from turngym.check_report import Broken, CheckReport
from turngym.tasks.base import SPLITS, Task
from turngym.tasks.check import sets
from turngym.tasks.check.checks import Settings, TaskChecks
from turngym.tasks.check.sets import Opening
from turngym.tasks.check.subject import Seat, Subject

SAMPLE = 40
"""Tasks of an endless split whose openings are compared."""
_OPENINGS_S = 20.0


def check_task(
    subject: Subject,
    task: Task,
    settings: Settings | None = None,
    *,
    to_first_failure: bool = False,
    on_check: Callable[[str], None] | None = None,
) -> CheckReport:
    """Return what all checks of one task find.

    Args:
        subject: What is played.
        task: Which task of it.
        settings: How much is played.
        to_first_failure: Leave out what comes after a check that failed.
        on_check: Told the id of each check that is done.
    """
    report, checks = CheckReport(task.id), TaskChecks(subject, task, settings)
    if not report.run("runtime.startup", checks.startup):
        return report
    for name, check, required in checks.all():
        passed = report.run(name, check, required=required)
        if on_check is not None:
            on_check(name)
        if report.failures and (to_first_failure or (not passed and name == "semantic.oracle_max")):
            break  # what follows compares with an expert that wins
    return report


def check_set(
    subject: Subject, *, limit: int | None = None, corpus: Iterable[tuple[str, str]] | None = None
) -> CheckReport:
    """Return what the tasks of a set are to each other; none of them is played.

    Args:
        subject: What has the tasks.
        limit: Most tasks of each split; None for all, of an endless split ``SAMPLE``.
        corpus: Texts in which none of them may stand, and where each is; None to compare nothing.
    """
    report, is_endless = CheckReport(f"set {subject.name}"), subject.is_endless("train")
    most = SAMPLE if limit is None and is_endless else limit
    found: list[Opening] = []

    def read() -> None:
        tasks = [task for split in SPLITS for task in subject.tasks(split, most)]
        if not tasks:
            raise Broken("there is no task")
        found.extend(openings(subject, tasks))

    if report.run("runtime.task_declaration_accuracy", read):
        report.run("set.ids", lambda: sets.ids_differ(found))
        report.run("set.disjoint", lambda: sets.splits_are_disjoint(found), required=False)
        report.run("set.distinct",
                   lambda: sets.problems_are_distinct(found, is_endless=is_endless))  # fmt: skip
        report.run("set.constant_answer", lambda: sets.answers_vary(found), required=False)
        if corpus is not None:
            report.run("set.contamination", lambda: sets.not_in_corpus(found, corpus))
    return report


def openings(subject: Subject, tasks: Sequence[Task]) -> Iterator[Opening]:
    """Yield how tasks begin, as many as a few seconds allow; train and test by turns.

    Raises:
        Broken: A task cannot be begun.
    """
    by_split = [[task for task in tasks if task.split == split] for split in SPLITS]
    started = time.perf_counter()
    for together in zip_longest(*by_split):
        for task in filter(None, together):
            one = subject.play(task, _looking, name=task.id)
            if one.fault:
                raise Broken(f"{one.name}: {one.fault}")
            yield Opening(id=one.name, split=task.split, prompt=one.prompt, key=one.key,
                          truth=one.truth)  # fmt: skip
        if time.perf_counter() - started > _OPENINGS_S:
            return


def _looking(_seat: Seat) -> Iterator[str | None]:
    yield None
