"""What is asked of an agent in a web application, sampled from what its databases hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from turngym.environments.web.expert_view import Stage, reply
from turngym.environments.web.sites.data import Data
from turngym.environments.web.sites.program import DATABASES
from turngym.tasks.base import Task
from turngym.tasks.problem import JudgeResult, Problem
from turngym.tasks.scorers.answers import Exact, Numeric
from turngym.tasks.sets import GeneratedSet

_SHOWN = 3
"""Differences that the evidence names."""
Made = tuple[str, Sequence[Stage]] | tuple[str, Sequence[Stage], str]
"""Goal, script, and the answer where one is asked for."""
Generator = Callable[[Data, Random], Made]
"""Samples a problem for an application that holds ``Data``, and changes that to what is wanted."""


@dataclass(frozen=True, kw_only=True)
class SiteWorld:
    """An application's database, and what was answered."""

    answer: str | None
    data: Callable[[], Data]
    """Returns all that an agent could change."""


@dataclass(frozen=True, kw_only=True)
class SiteProblem(Problem[SiteWorld]):
    """One thing to do in a web application."""

    prompt: str
    wanted: Data
    """The whole application once it is done."""
    script: Sequence[Stage]
    """What an expert does before it stops or answers."""
    truth: str = ""
    """What must be answered, as ``is_right``; empty where nothing is asked."""
    number: int
    """Of the database that it begins with."""
    is_signed_in: bool = True
    """The episode begins with the agent's user signed in."""

    async def judge(self, world: SiteWorld) -> JudgeResult:
        """Compare the answer and the whole database."""
        if self.truth and not is_right(world.answer or "", self.truth):
            return JudgeResult(score=0.0, evidence=f"the answer is not {self.truth!r}")
        wrong = world.data().differences(self.wanted)
        return JudgeResult(score=float(not wrong), evidence="; ".join(wrong[:_SHOWN]))

    def expert(self) -> Sequence[Stage]:
        """Return the script, and the answer where one is asked for."""
        return [*self.script, *([reply(self.truth)] if self.truth else [])]


class SiteTasks(GeneratedSet[SiteProblem]):
    """The problems of one kind in an application; train and test begin with other databases.

    Args:
        site: Name of the application.
        kind: Name of the generator in ids.
        generator: Samples them.
        read: Returns what the database of a number holds.
    """

    def __init__(
        self, site: str, kind: str, generator: Generator, read: Callable[[int], Data]
    ) -> None:
        super().__init__(f"{site}-{kind}", [], seed_name=site, one_in=4)
        self._generator, self._read = generator, read
        self._is_signed_in = kind != "as-other"

    def sample(self, task: Task, rng: Random) -> SiteProblem:
        """Return a problem for a database of the task's split; not each has one of every kind."""
        half = DATABASES // 2
        number = rng.randrange(half) + half * (task.split == "test")
        wanted = self._read(number).copy()
        prompt, script, *truth = self._generator(wanted, rng)
        return SiteProblem(
            prompt=prompt, wanted=wanted, script=script, truth="".join(truth), number=number,
            is_signed_in=self._is_signed_in,
        )  # fmt: skip


def question(goal: str, answer: str, look: Sequence[Stage]) -> Made:
    """Return the problem of finding something out and changing nothing.

    Args:
        goal: What is asked.
        answer: What is right.
        look: How an expert finds it out.
    """
    return f"{goal} Change nothing.", look, answer


def is_right(answer: str, truth: str) -> bool:
    """Say whether an answer is right: numbers by value, names as ``Exact`` compares them."""
    scorer = Numeric() if truth.replace(".", "", 1).isdecimal() else Exact()
    return scorer.compare(answer.strip().removeprefix("#"), truth) == 1
