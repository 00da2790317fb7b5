"""What the check of a task does at the same time, so that slow tasks are not checked in line."""

from __future__ import annotations

from functools import partial
from threading import Barrier
from types import SimpleNamespace

from turngym.cli import check as command
from turngym.environments.checks.task import EnvSubject
from turngym.environments.gym.registration import make
from turngym.tasks.check import check
from turngym.tasks.check.checks import Settings, TaskChecks
from turngym.tasks.check.subject import Played

WAIT_S = 60.0
"""A barrier that is not met breaks after this, and the test fails with it."""


def test_both_other_processes_play_at_once_and_each_check_has_its_own():
    barrier = Barrier(2)

    def elsewhere(task, *, hash_seed, clock_s):
        barrier.wait(WAIT_S)
        return Played(name=f"{hash_seed} {clock_s > 0}", score=1.0)

    subject = SimpleNamespace(expert_elsewhere=elsewhere)
    checks = TaskChecks(subject, SimpleNamespace(id="a/test/0"))
    assert checks.elsewhere() == {"7 False": 1.0}
    assert checks.clock() == {"1 True": 1.0}


def test_tasks_are_checked_in_depth_side_by_side_and_reported_in_order(monkeypatch):
    subject = EnvSubject(partial(make, "text/maze-easy"), "text/maze-easy")
    tasks, barrier = subject.tasks("train", 2), Barrier(2)

    def check_task(of, task, *, settings, on_check):
        assert (of, settings.parallel) == (subject, 2)
        barrier.wait(WAIT_S)
        return task.id

    monkeypatch.setattr(check, "check_task", check_task)
    assert command._deeply(subject, tasks, Settings()) == [task.id for task in tasks]
    subject.close()
