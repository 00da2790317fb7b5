"""Sets of tasks: equal problems, answers that are always right, how many there really are."""

from __future__ import annotations

import pytest

from turngym.check_report import Broken, Doubtful, NotRun
from turngym.tasks.check.sets import (
    Opening,
    answers_vary,
    ids_differ,
    interval,
    not_in_corpus,
    problems_are_distinct,
    splits_are_disjoint,
)


def opening(number: int, split: str = "train", **values: str) -> Opening:
    text = values.pop("prompt", f"What is {number} plus one, and why is it so?")
    given = {"key": text, "truth": str(number), **values}
    return Opening(id=f"s/{split}/{number}", split=split, prompt=text, **given)  # type: ignore[arg-type]


TRAIN = [opening(n) for n in range(8)]
TEST = [opening(n + 50, "test") for n in range(8)]


def test_an_interval_is_wilsons():
    assert interval(0, 0) == (0.0, 1.0)
    low, high = interval(5, 10)
    assert (round(low, 4), round(high, 4)) == (0.2366, 0.7634)
    assert round(interval(0, 20)[1], 4) == 0.1611


def test_a_sound_set_passes_all_of_them():
    every = [*TRAIN, *TEST]
    assert ids_differ(every) == {"ids": 16}
    assert splits_are_disjoint(every) == {"train": 8, "test": 8}
    found = problems_are_distinct(every, is_endless=False)
    assert found["train"] == {"tasks": 8, "distinct": 8}
    assert answers_vary(every)["test"]["right"] == 1


def test_one_id_twice_is_found():
    with pytest.raises(Broken, match="2 tasks have the id 's/train/3'"):
        ids_differ([*TRAIN, opening(3)])


@pytest.mark.parametrize(
    "prompt",
    [
        "What is 5 plus one, and why is it so?",
        "WHAT IS 5 PLUS ONE -- and why is it so",
        "What is 5 plus one, and why is it so today?",
    ],
)
def test_a_problem_in_both_splits_is_found_however_it_is_written(prompt: str):
    with pytest.raises(Broken, match="s/train/5"):
        splits_are_disjoint([*TRAIN, *TEST, opening(99, "test", prompt=prompt, truth="5")])


def test_questions_that_differ_in_a_number_have_other_answers_and_are_two():
    assert splits_are_disjoint([*TRAIN, *TEST, opening(9, "test")])


def test_a_split_alone_cannot_overlap():
    with pytest.raises(NotRun):
        splits_are_disjoint(TRAIN)


def test_tasks_that_are_one_problem_are_found():
    with pytest.raises(Broken, match="s/train/3 and s/train/3 are the same problem"):
        problems_are_distinct([*TRAIN, opening(3)], is_endless=False)
    same = [opening(n % 2) for n in range(8)]
    with pytest.raises(Broken, match="8 tasks are 2 different problems"):
        problems_are_distinct(same, is_endless=True)


def test_problems_that_were_not_met_are_estimated_from_those_met_once_and_twice():
    met = [opening(n) for n in (0, 0, 1, 1, 2, 3, 4, 5)]  # 4 once, 2 twice: 6 + 16 / 4
    assert problems_are_distinct(met, is_endless=True)["train"]["estimate"] == 10


def test_a_constant_answer_is_found_and_half_of_them_is_doubtful():
    with pytest.raises(Broken, match="the answer '7' is right for 8 of 8"):
        answers_vary([opening(n, truth="7") for n in range(8)])
    half = [opening(n, truth="7" if n % 2 else str(n)) for n in range(8)]
    with pytest.raises(Doubtful):
        answers_vary(half)
    with pytest.raises(NotRun):
        answers_vary(TRAIN[:4])


ALIKE = "You are in a small town and shall find out one thing, in one sentence:"


def towns() -> list[Opening]:
    """Return tasks that begin alike and then say something of their own."""
    names = ("amber", "birch", "cedar", "delta", "ember", "fjord")
    return [
        opening(n, prompt=f"{ALIKE} which {name} house has {n} red doors and no green windows?")
        for n, name in enumerate(names)
    ]


def test_a_task_that_stands_in_a_corpus_is_found_with_its_place():
    page = f"Which CEDAR house has 2 red doors, and no green windows? The third one. {ALIKE}"
    with pytest.raises(Broken, match=r"\d+% of what s/train/2 says stands in row 2") as found:
        not_in_corpus(towns(), [("row 1", "nothing of it"), ("row 2", page)])
    assert found.value.evidence["texts"] == 2


def test_what_all_tasks_say_is_no_contamination():
    evidence = not_in_corpus(towns(), [("row 1", ALIKE * 9), ("row 2", "which amber house has 0")])
    assert evidence == {"tasks": 6, "texts": 2, "most": 0.0}


def test_tasks_without_words_of_their_own_cannot_be_compared():
    with pytest.raises(NotRun, match="no task says 8 words of its own"):
        not_in_corpus([opening(n, prompt="Go.") for n in range(3)], [])
