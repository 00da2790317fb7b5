import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from turngym.environments.swe.bench import Bench
from turngym.environments.swe.bench import TestRun as Run
from turngym.environments.swe.judge import verdict_on
from turngym.environments.swe.parsing import parse
from turngym.environments.swe.project import Layout
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


class NotRun(Bench):
    """A bench that only looks at what it is told to run."""

    async def run(self, delta, ids, *, timeout_s, is_explained=False):
        for path in ("tests/__init__.py", "tests/test_own.py"):
            assert b"assert" in delta[path], path
        assert "tests/test_other.py" not in delta
        return Run(outcomes=dict.fromkeys(ids, "failed"), messages={})


async def test_a_test_that_is_inherited_has_a_twin_even_where_another_of_its_name_is_not():
    texts = {
        "tests/__init__.py": "class Base:\n    def test_copy(self):\n        pass\n",
        "tests/test_own.py": "class A:\n    def test_copy(self):\n        pass\n",
        "tests/test_heir.py": "from tests import Base\nclass B(Base): pass\n",
        "tests/test_other.py": "def test_other():\n    pass\n",
    }
    layout = Layout(roots=(".",), packages=(), tests=("tests",))
    bench = NotRun(host=None, layer=None, layout=layout, texts=texts, packages=Path("/none"))
    ids = ["tests/test_own.py::A::test_copy", "tests/test_heir.py::B::test_copy"]
    assert await bench.cross_examine({}, ids, timeout_s=1.0) == []


def test_files_are_parsed_in_many_threads():
    text = "def f(x):\n" + "".join(f"    x = [x, ({n}, (x, [x + {n}]))]\n" for n in range(300))
    with ThreadPoolExecutor(8) as threads:
        trees = list(threads.map(parse, [text] * 64))
    assert all(tree is not None and len(tree.body) == 1 for tree in trees)
