"""The contract of tasks: problems, judges, sets, and whose fault it is when one breaks."""

from __future__ import annotations

import asyncio
import itertools
import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from turngym.coroutines import finished
from turngym.environments.terminal.env import ShellEnv
from turngym.environments.text.questions import QuestionEnv
from turngym.errors import ConfigError, EnvironmentFault, SandboxDied, TaskFault
from turngym.tasks.base import SPLITS
from turngym.tasks.problem import (
    AnswerProblem,
    FileProblem,
    FileWorld,
    JudgeResult,
    World,
    expert_script,
    judge,
    set_up,
)
from turngym.tasks.sets import GeneratedSet, ListedSet


@dataclass
class ChatRow:
    answer: str | None = None


@dataclass(frozen=True)
class Sum(AnswerProblem):
    a: int
    b: int
    found: Any = None

    @property
    def prompt(self) -> str:  # type: ignore[override]
        return f"{self.a} + {self.b}?"

    async def judge(self, world: World) -> Any:
        if isinstance(self.found, Exception):
            raise self.found
        return world.answer == str(self.a + self.b) if self.found is None else self.found

    def expert(self) -> list[str]:
        return [str(self.a + self.b)]


def test_a_sum_of_weights_that_misses_one_by_its_rounding_is_one() -> None:
    below = 1 - 2**-53
    assert below != 1
    assert JudgeResult(score=below, parts={"all": 1 + 2e-16, "none": -1e-17}) == JudgeResult(
        score=1.0, parts={"all": 1.0, "none": 0.0}
    )


def test_a_score_is_a_share_and_what_else_is_measured_any_number() -> None:
    assert JudgeResult(score=0.5, parts={"seconds": 12.5, "left": -3.0}).parts["left"] == -3.0
    with pytest.raises(ConfigError, match=r"score is 1\.5, wanted a number in"):
        JudgeResult(score=1.5)
    with pytest.raises(ConfigError, match="seconds is nan, wanted a finite number"):
        JudgeResult(score=1.0, parts={"seconds": float("nan")})


async def test_a_judge_may_return_a_truth_a_number_or_a_result():
    found = [await judge(Sum(1, 2), ChatRow(answer), "sum/test/0") for answer in ("3", "4", None)]
    assert [one.score for one in found] == [1.0, 0.0, 0.0]
    assert (await judge(Sum(1, 2, 0.25), ChatRow(), "s")).score == 0.25
    for number in (np.bool_(True), np.float32(1), np.array(1.0)):
        assert (await judge(Sum(1, 2, number), ChatRow(), "s")).score == 1.0
    result = JudgeResult(score=0.5, parts={"form": 1.0}, evidence="half of it")
    assert await judge(Sum(1, 2, result), ChatRow(), "s") is result


async def cut_off(env: Any, action: str, judging: asyncio.Event) -> None:
    """Cancel a step of ``env`` while its judge, which sets ``judging``, is at work."""
    await env.reset(seed=0)
    assert env.score() == 0.0
    step = asyncio.ensure_future(env.step(action))
    await judging.wait()
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    with pytest.raises(TaskFault, match="the time was up before the judge was done"):
        env.score()


class Slow:
    prompt = "Wait."

    def __init__(self) -> None:
        self.judging = asyncio.Event()

    async def judge(self, world: Any) -> float:
        if not self.judging.is_set():
            self.judging.set()
            await asyncio.Event().wait()
        return 0.5

    def expert(self) -> list[str]:
        return ["true"]


class Waiting(FileProblem):
    """Waits for ever for something of its own."""

    limit_s = 0.05
    prompt = "Wait."

    async def set_up(self, world: Any) -> None:
        await asyncio.sleep(3600)

    async def judge(self, world: Any) -> float:
        raise TimeoutError("of its own")

    def expert(self) -> list[str]:
        return ["true"]


async def test_the_tasks_own_code_has_a_time_limit() -> None:
    says = "task w: set_up: TimeoutError: took more than 0.05 s, its limit_s"
    with pytest.raises(TaskFault, match=says):
        await set_up(Waiting(), None, "w")  # type: ignore[type-var]
    with pytest.raises(TaskFault, match=r"task w: judge: TimeoutError: of its own \(test_problems"):
        await judge(Waiting(), None, "w")  # type: ignore[type-var]


def test_where_no_loop_runs_the_tasks_own_code_runs_without_a_limit() -> None:
    class Counting(Waiting):
        async def set_up(self, world: list[int]) -> None:
            world.append(1)

        async def judge(self, world: list[int]) -> float:
            return len(world) / 2

    world: Any = []
    finished(set_up(Counting(), world, "w"))
    assert finished(judge(Counting(), world, "w")).score == 0.5


async def test_a_judge_that_is_cut_off_leaves_no_score():
    problem = type("Once", (Slow, AnswerProblem), {})()
    env = QuestionEnv(tasks=ListedSet("slow", [("one", problem)]))
    await cut_off(env, "answer 3", problem.judging)
    await env.reset(seed=0)
    assert env.score() == 0.0


@pytest.mark.extra("bwrap")
async def test_a_judge_in_a_shell_that_is_cut_off_leaves_no_score():
    problem = type("Once", (Slow, FileProblem), {})()
    async with ShellEnv(tasks=ListedSet("slow", [("one", problem)])) as env:
        await cut_off(env, "submit", problem.judging)
        end = await env.end_at_limit()  # as Inspect, whose limits end a step, asks once more
        assert (end.reward, env.score()) == (0.5, 0.5)


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (
            ValueError("no table"),
            r"task sum/test/0: judge: ValueError: no table \(test_problems.py:\d+",
        ),
        (1.5, r"task sum/test/0: judge: ConfigError: .*score is 1.5, wanted a number in \[0, 1\]"),
        (float("nan"), "score is nan"),
        ("yes", "TypeError: wanted a JudgeResult or a number, got str"),
    ],
)
async def test_a_broken_judge_is_a_fault_of_the_task_and_never_a_score(found: Any, says: str):
    with pytest.raises(TaskFault, match=says) as fault:
        await judge(Sum(1, 2, found), ChatRow("3"), "sum/test/0")
    assert isinstance(fault.value, EnvironmentFault)  # so no rollout takes it for a reward


async def test_a_sandbox_that_died_under_the_judge_is_no_fault_of_the_task():
    with pytest.raises(SandboxDied):
        await judge(Sum(1, 2, SandboxDied("gone")), ChatRow(), "s")


async def test_set_up_and_expert_are_held_to_the_same():
    class Broken(Sum):
        async def set_up(self, world: World) -> None:
            raise KeyError("x")

        def expert(self) -> list[str]:
            return []

    with pytest.raises(TaskFault, match="task b/train/1: set_up: KeyError"):
        await set_up(Broken(1, 2), ChatRow(), "b/train/1")
    with pytest.raises(TaskFault, match="expert: TypeError: wanted a list of at least one action"):
        expert_script(Broken(1, 2), "b/train/1")
    assert expert_script(Sum(1, 2), "s") == ["3"]


async def test_a_file_of_a_problem_is_text_or_bytes():
    class Numbered(FileProblem):
        prompt = "Count."
        files = MappingProxyType({"a.txt": 3})  # type: ignore[assignment]

        async def judge(self, world: FileWorld) -> float:
            return 0.0

        def expert(self) -> list[str]:
            return ["true"]

    world: Any = None
    with pytest.raises(TaskFault, match=r"files\['a\.txt'\]: wanted text or bytes, got int"):
        await set_up(Numbered(), world, "n/test/0")


def test_a_problem_without_an_expert_cannot_be_made():
    class Lazy(AnswerProblem):
        async def judge(self, world: World) -> float:
            return 0.0

    with pytest.raises(TypeError, match="expert"):
        Lazy()  # type: ignore[abstract]


def test_a_generated_set_is_endless_and_its_splits_share_nothing():
    tasks = GeneratedSet("sums", [lambda rng: Sum(rng.randrange(30), rng.randrange(30))])
    seen = {
        split: {tasks.problem(tasks.task(split, n)).prompt for n in range(100)} for split in SPLITS
    }
    assert len(seen["train"]) > 60
    assert len(seen["test"]) > 60
    assert not seen["train"] & seen["test"]
    assert tasks.count("test") is None
    assert tasks.problem(tasks.find("sums/test/7")) == tasks.problem(tasks.task("test", 7))


def test_a_kind_with_one_problem_is_refused_where_it_does_not_belong():
    tasks = GeneratedSet("one", [lambda rng: Sum(1, 1)])
    split = tasks.split(Sum(1, 1))
    other = "test" if split == "train" else "train"
    assert tasks.problem(tasks.task(split, 0)) == Sum(1, 1)
    with pytest.raises(ConfigError, match=f"task set one: no problem of split '{other}'"):
        tasks.problem(tasks.task(other, 0))  # type: ignore[arg-type]


def test_a_listed_set_has_each_problem_once():
    tasks = ListedSet("sums", [(f"{a}", Sum(a, 1)) for a in range(40)])
    counts = [tasks.count(split) for split in SPLITS]
    assert sum(counts) == 40
    assert min(counts) > 0
    found = [tasks.problem(tasks.task(s, n)) for s in SPLITS for n in range(tasks.count(s))]
    assert {one.a for one in found} == set(range(40))
    with pytest.raises(
        ConfigError, match=rf"task sums/test/40: there is none; .* {counts[1]} of 'test'"
    ):
        tasks.find("sums/test/40")


def test_a_generator_that_raises_is_a_fault_of_the_task_with_its_place():
    tasks = GeneratedSet("sums", [lambda rng: Sum(rng.randrange(0), 0)])
    with pytest.raises(TaskFault, match=r"task sums/test/0: generator: ValueError.*test_problems"):
        tasks.problem(tasks.task("test", 0))
    nothing: Any = lambda rng: None  # noqa: E731
    with pytest.raises(TaskFault, match="generator: TypeError: wanted a Problem, got None"):
        GeneratedSet("sums", [nothing]).problem(tasks.task("test", 0))
    with pytest.raises(ConfigError, match="task set sums: holds no generator; add one"):
        GeneratedSet("sums", [])


def test_a_generator_whose_seed_does_not_decide_is_a_fault_of_the_task():
    numbers = itertools.count()
    tasks = GeneratedSet("sums", [lambda rng: Sum(next(numbers), 0)])
    tasks.problem(tasks.task("test", 0))
    with pytest.raises(TaskFault, match="generator: ValueError: made two problems"):
        tasks.problem(tasks.task("test", 0))


@pytest.mark.parametrize(
    ("splits", "says"),
    [
        ({"a": "dev"}, "unknown split of task 'a' in here.toml 'dev'. Known: test, train"),
        ({"b": "test"}, "here.toml: 'splits' names 'b'; there is no such task"),
    ],
)
def test_a_split_of_no_name_or_of_no_task_is_refused(splits: Any, says: str):
    with pytest.raises(ConfigError, match=re.escape(says)):
        ListedSet("sums", [("a", Sum(1, 1))], where="here.toml", splits=splits)


def test_a_single_problem_is_for_test():
    tasks = ListedSet("sums", [("a", Sum(1, 1))])
    assert [tasks.count(split) for split in SPLITS] == [0, 1]


@pytest.mark.parametrize(
    ("listed", "says"),
    [
        (
            [("a", Sum(1, 1)), ("b", Sum(1, 2)), ("a", Sum(1, 3))],
            "here.toml: task 3 has the id 'a' of task 1",
        ),
        ([], "here.toml: holds no task"),
        ([Sum(1, 1)], r"here.toml: wanted \(id, problem\), got Sum"),
    ],
)
def test_a_bad_list_is_one_line(listed: list[Any], says: str):
    with pytest.raises(ConfigError, match=says):
        ListedSet("sums", listed, where="here.toml")


def test_a_problem_that_asks_for_nothing_is_refused():
    class Silent(Sum):
        prompt = " "  # type: ignore[assignment]

    with pytest.raises(ConfigError, match=r"here.toml: task .a. asks for nothing"):
        ListedSet("sums", [("a", Silent(1, 1))], where="here.toml")


def test_generators_get_the_same_stream_in_every_process():
    tasks = GeneratedSet("sums", [lambda rng: Sum(rng.randrange(1000), 0)], seed_name="x")
    again = GeneratedSet("other", [lambda rng: Sum(rng.randrange(1000), 0)], seed_name="x")
    task = tasks.task("train", 3)
    assert tasks.problem(task) == again.problem(task)
