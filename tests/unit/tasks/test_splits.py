"""One rule for train and test."""

from __future__ import annotations

import pytest

from turngym.tasks.base import split_of


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
