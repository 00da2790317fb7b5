"""Scorers that run something: 1 for what is right, 0 for what is not, faults for themselves."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any

import pytest

from turngym.environments.terminal.env import ShellEnv
from turngym.errors import TaskFault
from turngym.tasks.problem import FileProblem, FileWorld, Machine
from turngym.tasks.scorers.answers import Numeric, text_of
from turngym.tasks.scorers.programs import Pytest, Script, SqlState
from turngym.tasks.sets import ListedSet

pytestmark = pytest.mark.extra("bwrap")

MAKE_TABLE = (
    "python3 -c \"import sqlite3; c = sqlite3.connect('a.db'); c.execute('CREATE TABLE t (n)'); "
    "c.execute('INSERT INTO t VALUES ({})'); c.commit()\""
)
TESTS = {"test_end.py": b"import double\n\ndef test_a():\n    assert double.double(2) == 4\n\n"
         b"def test_b(record_property):\n    record_property('n', 3)\n"
         b"    assert double.double(3) == 6\n"}  # fmt: skip
OWN_FILE = Script(command="bash /tmp/j.sh", files={"/tmp/j.sh": b"exit 0"})
PARTS = Script(command='echo \'{"x": 0.5, "y": 0}\' > r.json; echo half', reward="r.json")
SQL = SqlState(database="a.db", wanted={"SELECT n FROM t": [[7]]})
LONG = SqlState(
    database="a.db",
    wanted={"SELECT replace(hex(zeroblob(150000)), 0, n) FROM t": [["7" * 300_000]]},
)
DOUBLE = "printf 'def double(n):\\n    return {}\\n' > double.py"


async def scored(scorer: Callable[[FileWorld], Any], command: str) -> Any:
    """Return what ``scorer`` says of a folder in which ``command`` was run."""

    class Task(FileProblem):
        prompt = "Do it."
        machine = Machine(needs_pytest=isinstance(scorer, Pytest))

        async def judge(self, world: FileWorld) -> Any:
            return await scorer(world)

        def expert(self) -> list[str]:
            return [command]

    env = ShellEnv(tasks=ListedSet("one", [("a", Task())]))
    try:
        await env.reset(seed=0)
        await env.step(env.expert_action())
        _, reward, *_, info = await env.step("submit")
        return reward, info["problem"]
    finally:
        await env.close()


@pytest.mark.parametrize(
    ("scorer", "command", "wanted"),
    [
        (Script(command="test -e a"), "touch a", (1.0, "")),
        (Script(command="test -e a"), "touch b", (0.0, "it ended with 1")),
        (OWN_FILE, "echo exit 1 > /tmp/j.sh", (1.0, "")),
        (Script(command="wc -l < a > r.txt; echo few", reward="r.txt"), "echo > a", (1.0, "")),
        (PARTS, "true", (0.25, "half")),
        (SQL, MAKE_TABLE.format(7), (1.0, "")),
        (SQL, MAKE_TABLE.format(8), (0.0, "a.db: 'SELECT n FROM t' gives [[8]]")),
        (LONG, MAKE_TABLE.format(7), (1.0, "")),
        (SQL, "echo [[[7]]] > a.db", (0.0, "a.db: file is not a database")),
        (Pytest(files=TESTS), DOUBLE.format("2 * n"), (1.0, "")),
        (Pytest(files=TESTS), DOUBLE.format("4"), (0.0, "failed: test_b")),
        (Pytest(files=TESTS, partial=True), DOUBLE.format("4"), (0.5, "failed: test_b")),
        (text_of("a", Numeric(), "3"), "echo 3.0 > a", (1.0, "")),
        (text_of("a", Numeric(), "3"), "echo 4 > a", (0.0, "a: '4\\n' is not right")),
    ],
)  # fmt: skip
async def test_what_is_right_scores(scorer: Any, command: str, wanted: tuple[float, str]):
    assert await scored(scorer, command) == wanted


async def test_code_that_ends_the_tests_early_or_plants_its_own_does_not_score():
    assert (await scored(Pytest(files=TESTS), "echo 'import os; os._exit(0)' > double.py"))[0] == 0
    assert (await scored(Pytest(files=TESTS), "echo raise KeyboardInterrupt > double.py"))[0] == 0
    exits = ("raise KeyboardInterrupt", "pytest.exit('x' * 99, 0)", "pytest.exit('', 1)")
    for leave in exits:  # at the second test
        code = f"import pytest\ndef double(n):\n    if n == 3: {leave}\n    return 4\n"
        ends = Pytest(files=TESTS, partial=True), f"printf {shlex.quote(code)} > double.py"
        assert (await scored(*ends))[0] == 0
    plant = (
        "echo 'def pytest_runtest_makereport(*a): return None' > conftest.py; mkdir -p pytest; "
        "echo 'import _pytest.python as p; p.Function.runtest = print' > sitecustomize.py; "
        "echo 'print(1)' > pytest/__main__.py; echo '[pytest]\\naddopts = -k none' > pytest.ini; "
        + DOUBLE.format("4")
    )
    assert await scored(Pytest(files=TESTS), plant) == (0.0, "failed: test_b")


@pytest.mark.parametrize(
    ("scorer", "says"),
    [
        (Script(command="true", reward="r.txt"), "no reward file was written"),
        (Script(command="echo x > r.txt", reward="r.txt"), "the reward file holds no number: "),
        (Script(command="echo nan > r.txt", reward="r.txt"), "wanted finite numbers"),
        (Script(command="sleep 9", timeout_s=0.3), r"took more than 0.3 s"),
        (Pytest(files={"test_no.py": b""}), "no test was found"),
    ],
)
async def test_a_scorer_that_is_broken_is_a_fault(scorer: Any, says: str):
    with pytest.raises(TaskFault, match=says):
        await scored(scorer, "true")
