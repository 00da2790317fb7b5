"""One rule for train and test."""

from __future__ import annotations

import pytest

from turngym import FileProblem, ListedSet
from turngym.errors import ConfigError
from turngym.tasks.base import split_of
from turngym.tasks.problem import World


def test_a_problem_has_one_split() -> None:
    assert split_of("problem 1") == split_of("problem 1")
    assert [split_of(f"problem {n}") for n in range(6)].count("train") < 6


@pytest.mark.parametrize(("one_in", "remainder"), [(5, 0), (4, 0), (2, 1)])
def test_one_problem_in_so_many_is_for_test(one_in: int, remainder: int) -> None:
    splits = [split_of(f"problem {n}", one_in=one_in, remainder=remainder) for n in range(5000)]
    assert abs(splits.count("test") / 5000 - 1 / one_in) < 0.02


def test_the_splits_of_published_results_are_held() -> None:
    held = [n for n in range(16) if split_of(str(n)) == "test"]
    shell = [n for n in range(16) if split_of(str(n), one_in=2, remainder=1) == "train"]
    assert held == [0, 4, 9, 15]
    assert shell == [2, 3, 8, 10, 15]


class Nothing(FileProblem):
    prompt = "Do nothing."

    async def judge(self, world: World) -> float:
        return 1.0

    def expert(self) -> list[str]:
        return []


def test_a_split_without_tasks_says_what_else_can_be_played() -> None:
    tasks = ListedSet("few", [("one", Nothing())], splits={"one": "train"})
    with pytest.raises(ConfigError, match=r"1 of 'train', 0 of 'test'\. Choose the other split"):
        tasks.task("test", 0)
    with pytest.raises(ConfigError, match=r"1 of 'train', 0 of 'test'$"):
        tasks.task("train", 1)
