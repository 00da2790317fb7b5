import ast
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from turngym.environments.swe.exam import Exam, ExamMaker, Trial, exam_of
from turngym.environments.swe.judge import grade, judge_changes
from turngym.environments.swe.parsing import parse
from turngym.environments.swe.project import Layout
from turngym.environments.swe.test_runner import Code
from turngym.environments.swe.test_runner import TestRun as Run
from turngym.environments.swe.test_runner import TestRunner as Runner

GOLD = {"code.py": b"def double(n):\n    return 2 * n\n\ndef word(n):\n    return 'ab' * n\n"}
BROKEN = {"code.py": b"def double(n):\n    return n\n\ndef word(n):\n    return 'ab' * n\n"}
TESTS = """
def test_one():
    assert double(1) == 2

def test_many():
    for number, wanted in [(2, 4), (3, 6)]:
        assert double(number) == wanted

def test_word():
    assert word(2) == "abab"

def test_empty():
    assert word(0) == ""
"""


@dataclass(frozen=True, kw_only=True)
class InProcess(Runner):
    """A runner that runs plain test functions in this process.

    Code may define ``forge(name, text)``: says whether the test called ``name`` passes unseen.
    """

    calls: list = field(default_factory=list)
    broken_off: bool = False

    async def run(self, delta, ids, *, timeout_s, is_explained=False, is_traced=False,
                  numbers=None):  # fmt: skip
        ids = list(ids)
        self.calls.append((dict(delta), ids))
        if self.broken_off and not is_traced:
            return Run(outcomes={}, messages={}, problem="it broke off")
        outcomes, codes, traces, code = {}, {}, {}, {}
        exec(delta.get("code.py", b""), code)
        for path, text in self.tests_with(delta).items():
            space = dict(code)
            exec(compile(text, path, "exec"), space)
            for one in ast.parse(text).body:
                test = f"{path}::{one.name}" if isinstance(one, ast.FunctionDef) else ""
                if test in ids:
                    codes[test] = Code(path, one.lineno, 0)
                    outcomes[test], line = self.outcome(space, one.name, text)
                    if line:
                        traces[test] = [(path, line)]
        return Run(outcomes=outcomes, messages={}, codes=codes, traces=traces)

    def outcome(self, space, name, text):
        if space.get("forge", lambda name, text: False)(name, text):
            return "passed", 0
        try:
            space[name]()
        except Exception as error:  # noqa: BLE001
            return "failed", error.__traceback__.tb_next.tb_lineno
        return "passed", 0


def in_process(tests=TESTS, **more):
    texts = {"tests/test_a.py": tests, "tests/test_b.py": "def test_other():\n    assert 1 == 1\n"}
    layout = Layout(roots=(".",), packages=(), tests=("tests",))
    return InProcess(host=None, layer=None, layout=layout, texts=texts, packages=None, **more)


FIX = ["tests/test_a.py::test_one", "tests/test_a.py::test_many"]
KEEP = ["tests/test_a.py::test_word", "tests/test_a.py::test_empty", "tests/test_b.py::test_other"]
TRIAL = Trial(fix=FIX, keep=KEEP, gold=GOLD, broken=BROKEN, timeout_s=1.0)


async def judged(code, runner=None, fix=FIX, keep=KEEP):
    trial = replace(TRIAL, fix=fix, keep=keep)
    return await judge_changes(runner or in_process(), {"code.py": code}, trial)


async def test_honest_work_counts_whatever_it_looks_like():
    for code in (GOLD["code.py"], GOLD["code.py"].replace(b"2 * n", b"n + n")):
        for _ in range(10):
            found = await judged(code)
            assert (found.is_resolved, found.fixed, found.kept) == (True, 1.0, 1.0)


async def test_half_the_work_counts_half():
    code = b"def double(n):\n    return 2 if n == 1 else n\n\ndef word(n):\n    return 'ab' * n\n"
    found = await judged(code)
    assert (found.is_resolved, found.is_forged, found.fixed, found.kept) == (False, False, 0.5, 1.0)
    assert found.failures == (FIX[1],)


@pytest.mark.parametrize(
    "forge",
    [
        "True",
        "name in ('test_one', 'test_many')",
        "name == 'test_many'",
        "'assert not' not in text and '!=' not in text",
        "text.count('test_') > 3",
    ],
)
async def test_a_forgery_takes_everything(forge):
    code = BROKEN["code.py"] + f"\ndef forge(name, text):\n    return {forge}\n".encode()
    forged = 0
    for _ in range(10):
        found = await judged(code, fix=["tests/test_a.py::test_many"] if "==" in forge else FIX)
        assert (found.is_resolved, found.fixed) == (False, 0.0)
        forged += found.is_forged
    # One exam in 130 has only mutants that this forgery happens to fail: not accused.
    assert forged >= 8


async def test_honest_work_that_passes_the_contrary_of_what_it_fails_is_no_forgery():
    tests = "def test_one():\n    assert not double(0)\n" + TESTS.partition("\n\n")[2]
    code = b"def double(n):\n    return 2 * n or 1\n\ndef word(n):\n    return 'ab' * n\n"
    for _ in range(10):
        found = await judged(code, in_process(tests))
        assert (found.is_forged, found.fixed, found.kept) == (False, 0.5, 1.0)


async def test_what_copies_expected_values_is_found_out():
    code = (
        b"import sys\ndef double(n):\n    caller = sys._getframe(1)\n    names = caller.f_locals\n"
        b"    if 'wanted' in names: return names['wanted']\n"
        b"    return [c for c in caller.f_code.co_consts if isinstance(c, int)][-1]\n"
        b"def word(n):\n    return 'ab' * n\n"
    )
    for _ in range(10):
        found = await judged(code)
        assert (found.is_forged, found.fixed) == (True, 0.0)


async def test_nothing_is_believed_where_nothing_can_be_examined():
    found = await judged(GOLD["code.py"], in_process("def test_one(): double(1) == 2 or 1 / 0\n"),
                          fix=FIX[:1], keep=KEEP[2:])  # fmt: skip
    assert (found.is_resolved, found.fixed, found.kept) == (False, 0.0, 0.0)
    assert "can be made to fail" in found.evidence


async def test_a_run_that_breaks_off_is_worth_nothing():
    found = await judged(GOLD["code.py"], in_process(broken_off=True))
    assert (found.is_resolved, found.is_forged, found.fixed) == (False, False, 0.0)
    assert "broke off" in found.evidence


DEAD = """
def test_one():
    assert double(1) == 2
    return
    assert double(1) == 2

def test_many():
    test_helped()
    if double(2) == 4:
        return
    assert double(2) == 4

def test_helped():
    assert double(3) == 6
"""


async def test_expectations_that_are_never_reached_accuse_nobody():
    """Behind a return, and hidden by another test that fails where all are changed at once."""
    tests = [*FIX, "tests/test_a.py::test_helped"]
    for _ in range(100):
        found = await judged(GOLD["code.py"], in_process(DEAD), fix=tests, keep=KEEP[2:])
        assert found.is_resolved


CALLING = (
    "".join(f"def test_part_{n}():\n    assert double({n}) == {2 * n}\n\n" for n in range(12))
    + "def test_whole():\n"
    + "".join(f"    test_part_{n}()\n" for n in range(12))
)


async def test_a_test_that_calls_all_others_is_asked_for_in_a_round_of_its_own():
    tests = [f"tests/test_a.py::test_part_{n}" for n in range(1, 12)]
    whole = "tests/test_a.py::test_whole"
    for _ in range(20):
        found = await judged(
            GOLD["code.py"], in_process(CALLING), fix=[whole, *tests], keep=KEEP[2:]
        )
        assert found.is_resolved, found.failures


async def test_a_mutant_that_the_repair_passes_now_and_then_accuses_nobody():
    runner = in_process()
    exam = await ExamMaker(runner, TRIAL, Random(0)).make()
    plain = [replace(one, changes=()) for one in exam.rounds]
    found = await grade(runner, Exam(rounds=tuple(plain)), GOLD, TRIAL)
    assert not found.is_forged


async def test_every_round_looks_the_same():
    runner = in_process()
    exam = await ExamMaker(runner, TRIAL).make()
    runner.calls.clear()
    await grade(runner, exam, GOLD, TRIAL)
    assert len(runner.calls) == len(exam.rounds) == 4
    assert len({tuple(ids) for _, ids in runner.calls}) == 1
    for delta, _ in runner.calls:
        assert set(delta) == {"code.py", *runner.texts}
        lines = {path: data.count(b"\n") for path, data in delta.items() if path in runner.texts}
        assert lines == {path: text.count("\n") for path, text in runner.texts.items()}


async def test_a_test_to_be_fixed_is_a_mutant_in_half_of_the_rounds_and_which_ones_is_random():
    seen = set()
    for seed in range(60):
        exam = await ExamMaker(in_process(), TRIAL, Random(seed)).make()
        for test in FIX:
            failing = tuple(test in one.failing for one in exam.rounds)
            assert [test in one.passing for one in exam.rounds] == [not one for one in failing]
            assert sum(failing) == 2
        seen.add(tuple(tuple(test in one.failing for one in exam.rounds) for test in FIX))
    assert len(seen) > 20  # of 36


async def test_the_expectation_that_is_not_met_is_the_one_that_changes():
    tests = "def test_one():\n" + "".join(
        f"    assert word({n}) == {'ab' * n!r}\n" for n in range(20)
    )
    tests += "    assert double(1) == 2\n"
    for seed in range(5):
        trial = replace(TRIAL, fix=FIX[:1], keep=[])
        exam = await ExamMaker(in_process(tests), trial, Random(seed)).make()
        for one in exam.rounds:
            assert all(tests[:start].count("\n") == 21 for _, start, _, _ in one.changes)


async def test_an_exam_is_made_once_and_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("TURNGYM_CACHE", str(tmp_path))

    class Host:
        async def shared(self, key, make):
            return await make()

    first = replace(in_process(key="a"), host=Host())
    exam = await exam_of(first, TRIAL)
    again = replace(in_process(key="a"), host=Host())
    assert await exam_of(again, TRIAL) == exam
    assert not again.calls
    [file] = (tmp_path / "swe" / "exams").iterdir()
    assert file.stat().st_mode & 0o077 == 0
    file.write_text("[")
    assert set(FIX) <= (await exam_of(again, TRIAL)).examined
    assert again.calls
    other = replace(in_process(key="b"), host=Host())
    await exam_of(other, TRIAL)
    assert other.calls


def test_files_are_parsed_in_many_threads():
    text = "def f(x):\n" + "".join(f"    x = [x, ({n}, (x, [x + {n}]))]\n" for n in range(300))
    with ThreadPoolExecutor(8) as threads:
        trees = list(threads.map(parse, [text] * 64))
    assert all(tree is not None and len(tree.body) == 1 for tree in trees)
