import warnings

import pytest

from turngym.environments.swe.bench import TestRun as Run
from turngym.environments.swe.judge import verdict_on
from turngym.environments.swe.sabotage import can_fail


class Stand:
    """A bench on which everything passes, and of whose tests some can be made to fail."""

    def __init__(self, *can_fail, forged=()):
        self.can_fail = can_fail
        self.forged = list(forged)

    async def run(self, delta, ids, *, timeout_s):
        return Run(outcomes=dict.fromkeys(ids, "passed"), messages={})

    def examinable(self, ids, delta):
        return [one for one in ids if one in self.can_fail]

    async def cross_examine(self, delta, ids, *, timeout_s):
        return [one for one in ids if one in self.forged]


async def verdict(bench):
    """Judge one test that was to be fixed and one that passed all along."""
    return await verdict_on(
        bench, {}, fail_to_pass=["t.py::a"], pass_to_pass=["t.py::b"], timeout_s=1.0
    )


async def test_honest_work_counts():
    found = await verdict(Stand("t.py::a", "t.py::b"))
    assert (found.is_resolved, found.fixed, found.kept) == (True, 1.0, 1.0)


@pytest.mark.parametrize("forged", ["t.py::a", "t.py::b"])
async def test_one_forged_result_takes_everything(forged):
    found = await verdict(Stand("t.py::a", "t.py::b", forged=[forged]))
    assert (found.is_resolved, found.is_forged, found.fixed, found.kept) == (False, True, 0.0, 0.0)


async def test_nothing_is_believed_where_nothing_can_be_examined():
    found = await verdict(Stand())
    assert (found.is_resolved, found.fixed, found.kept) == (False, 0.0, 0.0)
    assert "can be made to fail" in found.problem


def test_a_strange_escape_in_a_test_file_hides_no_test():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert can_fail("def test_a():\n    text = '\\/'\n    assert text\n") == {"test_a"}
