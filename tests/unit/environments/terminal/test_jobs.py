from random import Random

import pytest

from turngym.environments.terminal.catalogue import TEMPLATES
from turngym.environments.terminal.jobs import same_text


@pytest.mark.parametrize("kind", sorted(TEMPLATES))
def test_a_kind_draws_many_problems_for_both_splits_and_the_same_for_the_same_seed(kind):
    jobs = [TEMPLATES[kind](Random(seed)) for seed in range(16)]
    assert {job.split for job in jobs} == {"train", "test"}
    assert len({(job.goal, repr(sorted(job.files.items())), job.prepare) for job in jobs}) >= 12
    assert jobs[3] == TEMPLATES[kind](Random(3))
    for job in jobs:
        assert job.wanted or job.probe
        assert job.goal.endswith((".", ")"))


def test_blanks_at_ends_do_not_matter_but_all_else_does():
    assert same_text(b"a \nb\n\n", "a\nb")
    assert not same_text(b" a\n", "a")
    assert not same_text(None, "")
    assert same_text(None, None)
    assert not same_text(b"", None)
