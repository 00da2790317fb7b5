from random import Random

import pytest

from turngym.tasks.scorers.files import same_text
from turngym.tasks.shell import GENERATORS, shell_tasks


@pytest.mark.parametrize("kind", sorted(GENERATORS))
def test_a_kind_draws_many_problems_for_both_splits_and_the_same_for_the_same_seed(kind):
    problems = [GENERATORS[kind](Random(seed)) for seed in range(16)]
    tasks = shell_tasks(kind=kind)
    assert {tasks.split(problem) for problem in problems} == {"train", "test"}
    assert (
        len(
            {
                (problem.prompt, repr(sorted(problem.files.items())), problem.prepare)
                for problem in problems
            }
        )
        >= 12
    )
    assert problems[3] == GENERATORS[kind](Random(3))
    for problem in problems:
        assert problem.wanted or problem.probe
        assert problem.prompt.endswith((".", ")"))


def test_blanks_at_ends_do_not_matter_but_all_else_does():
    assert same_text(b"a \nb\n\n", "a\nb")
    assert not same_text(b" a\n", "a")
    assert not same_text(None, "")
    assert same_text(None, None)
    assert not same_text(b"", None)
