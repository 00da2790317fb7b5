"""What the check of a task does at the same time, so that slow tasks are not checked in line."""

from __future__ import annotations

import asyncio
from contextlib import closing
from functools import partial
from threading import Barrier, Event
from types import SimpleNamespace

import pytest

from turngym.check_report import Broken, NotRun
from turngym.cli import check as command
from turngym.environments.checks import task as playing
from turngym.environments.checks.task import EnvSubject
from turngym.environments.core.actions import Commands
from turngym.environments.core.env import Outcome
from turngym.environments.gym.face import as_gym
from turngym.environments.gym.registration import make
from turngym.environments.text.base import TextGame
from turngym.environments.text.questions import QuestionEnv
from turngym.tasks.check import check
from turngym.tasks.check.checks import Settings, TaskChecks
from turngym.tasks.check.subject import Played, as_expert
from turngym.tasks.problem import AnswerProblem
from turngym.tasks.sets import ListedSet

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


class Hanging(AnswerProblem):
    prompt = "Wait."
    judging = Event()

    async def judge(self, world):
        self.judging.set()
        await asyncio.Event().wait()

    def expert(self):
        return ["yes"]


def hanging() -> EnvSubject:
    """Return a subject whose judge never ends."""
    Hanging.judging.clear()
    tasks = ListedSet("hanging", [("one", Hanging())])
    return EnvSubject(lambda: as_gym(QuestionEnv(tasks=tasks)), "hanging")


@pytest.mark.parametrize(
    ("prompt", "says_something"),
    [("法国的首都是什么？", True), ("2+2=?", True), ("Go!", False), ("...", False)],
)
def test_an_opening_says_something_without_blanks_too(prompt, says_something):
    problem = type("Asks", (Hanging,), {"prompt": prompt})()
    tasks = ListedSet("asks", [("one", problem)])
    with closing(EnvSubject(lambda: as_gym(QuestionEnv(tasks=tasks)), "asks")) as subject:
        checks = TaskChecks(subject, subject.task("test", 0))
        if says_something:
            assert checks.startup()["prompt"] == prompt
        else:
            with pytest.raises(Broken, match="the opening says nothing"):
                checks.startup()


def test_a_judge_that_never_ends_is_found(monkeypatch):
    monkeypatch.setattr(playing, "_EPISODE_S", 0.01)
    with closing(hanging()) as subject:
        played = subject.play(subject.task("test", 0), as_expert, name="expert")
    assert "the episode took more than 0.01 s" in played.fault


def test_ctrl_c_ends_what_is_played_and_begins_nothing_more():
    with closing(hanging()) as subject:
        play = partial(subject.play, subject.task("test", 0), as_expert, name="expert")

        def interrupted():
            with subject.threads(1) as threads:
                played.extend(threads.submit(play) for _ in range(9))
                assert Hanging.judging.wait(WAIT_S)
                raise KeyboardInterrupt

        played = []
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert "the call was cancelled" in played[0].result().fault
        assert all(one.cancelled() for one in played[1:])


def test_what_is_played_one_after_the_other_is_played_in_one_environment():
    with closing(EnvSubject(lambda: SimpleNamespace(close=lambda: None), "any")) as subject:
        with subject._env() as one, subject._env() as other:
            assert one is not other
        for _ in range(3):
            with subject._env() as last:
                assert last is one


class Switch(TextGame):
    name = "switch"
    rules = "Press the switch as often as is asked, then say stop."
    commands = Commands({"press": "press", "stop": "stop"})
    presses = 1

    def new_game(self, rng):
        return {"number": int(rng.integers(1000)), "pressed": 0}

    def view(self):
        return f"switch {self.state['number']}"

    def turn(self, action):
        self.state["pressed"] += action.name == "press"
        return Outcome(text="on", terminated=action.name == "stop")

    def score(self):
        return float(self.state["pressed"] > 0)

    def expert_action(self):
        return self.say("press" if self.state["pressed"] < self.presses else "stop")


class Twice(Switch):
    presses = 2


def test_one_thing_that_is_done_and_handed_in_has_no_half():
    for game in (Switch, Twice):
        with closing(EnvSubject(lambda: as_gym(game()), "switch")) as subject:  # noqa: B023
            checks = TaskChecks(subject, subject.task("test", 0))
            checks.startup()
            assert checks.expert()
            if game is Switch:
                with pytest.raises(NotRun, match="can be made worse"):
                    checks.spoiled()
            else:  # half of it is paid
                with pytest.raises(Broken, match="half of what the expert does still wins"):
                    checks.spoiled()
