"""Tasks are made of a project, go on where they were, and bad projects are told why."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from helpers.workspaces import shared_host
from turngym.environments.swe.env import SweEnv
from turngym.environments.swe.factory import Demands, Factory
from turngym.environments.swe.project import Project, find_layout
from turngym.environments.swe.test_runner import project_runner
from turngym.errors import ConfigError

pytestmark = [pytest.mark.extra("bwrap"), pytest.mark.timeout(1200)]

CODE = '''
def clamp(number, low, high):
    """Return number, but not below low or above high."""
    if number < low:
        return low
    if number > high:
        return high
    return number


def mean(numbers):
    """Return the mean, 0 of nothing."""
    if not numbers:
        return 0
    return sum(numbers) / len(numbers)
'''
TESTS = """
import socket
import time
import pytest
from few import clamp, mean

def test_low():
    assert clamp(1, 3, 9) == 3

def test_high():
    assert clamp(11, 3, 9) == 9

def test_between():
    assert clamp(5, 3, 9) == 5

def test_negative():
    assert clamp(-5, -3, 9) == -3

def test_mean():
    assert mean([1, 2, 3]) == 2

def test_mean_of_two():
    assert mean([1, 2]) == 1.5

def test_mean_of_nothing():
    assert mean([]) == 0

def test_needs_the_network():
    socket.create_connection(("192.0.2.1", 80), timeout=1)
"""


def project(code: str = CODE, tests: str = TESTS, version: str = "2.0") -> Project:
    files = {"few.py": code.encode(), "tests/test_few.py": tests.encode()}
    return Project(name="few", version=version, files=files, layout=find_layout(files))


@pytest.fixture(scope="module", autouse=True)
def host():
    """Share one back end among all tests here."""
    with shared_host() as leased:
        yield leased


async def test_tasks_are_made_and_a_run_goes_on_where_it_was(tmp_path):
    place = tmp_path / "few"
    project().write(_made(place))
    source = {"path": str(place)}
    demands = Demands(max_failing=0.9)
    first = Factory(
        Project.read(place, name="few"), tmp_path / "out", source=source, demands=demands
    )
    made = await first.make(2)
    assert len(made.tasks) == 2
    assert "tests/test_few.py::test_needs_the_network" not in made.tests
    again = Factory(
        Project.read(place, name="few"), tmp_path / "out", source=source, demands=demands
    )
    more = await again.make(3)
    assert more.tasks[:2] == made.tasks
    tried = [json.loads(line)[0] for line in again.log.read_text().splitlines()]
    assert len(tried) == len(set(tried))
    env = SweEnv(tasks=str(tmp_path / "out"))
    try:
        for record in range(1, 2):
            split = "train" if env.count("train") else "test"
            await env.reset(seed=record, options={"split": split})
            while (action := env.expert_action()) != env.say("submit"):
                await env.step(action)
            assert (await env.step(action))[1] == 1.0
    finally:
        await env.close()


async def test_what_was_mended_between_releases_is_a_task(tmp_path):
    older = CODE.replace("    if not numbers:\n        return 0\n", "").replace(
        "if number > high", "if number > high + 1"
    )
    older += "\n\ndef gone():\n    return 1\n"
    code = CODE.replace("return low\n", "return low  # the least\n")
    before = project(older.replace("10", "11"), version="1.0")
    tests = TESTS.replace("clamp(11, 3, 9)", "clamp(10, 3, 9)")
    _made(tmp_path / "new")
    project(code, tests).write(tmp_path / "new")
    before.write(_made(tmp_path / "old"))
    factory = Factory(
        Project.read(tmp_path / "new", name="few"),
        tmp_path / "out",
        source={"path": str(tmp_path / "new"), "before_path": str(tmp_path / "old")},
        before=before,
        demands=Demands(max_failing=0.9),
    )
    made = await factory.make(1)
    assert [task.kind for task in made.tasks] == ["release"]
    assert {one.rpartition("::")[2] for one in made.tasks[0].fail_to_pass} == {
        "test_high",
        "test_mean_of_nothing",
    }
    env = SweEnv(tasks=str(tmp_path / "out"))
    try:
        split = "train" if env.count("train") else "test"
        await env.reset(seed=0, options={"split": split})
        while (action := env.expert_action()) != env.say("submit"):
            await env.step(action)
        assert (await env.step(action))[1] == 1.0
    finally:
        await env.close()


@pytest.mark.parametrize(
    ("tests", "demands", "reason"),
    [
        ("import socket\n\ndef test():\n    socket.create_connection(('192.0.2.1', 80), 1)\n",
         Demands(), "no test passes here: .*need the network"),
        ("import time\n\ndef test():\n    time.sleep(60)\n",
         Demands(max_suite_s=2.0), "too slow"),
        ("import no_such_package\n", Demands(), "no_such_package"),
    ],
    ids=["network", "slow", "packages"],
)  # fmt: skip
async def test_a_project_whose_tests_cannot_be_used_is_told_why(tests, demands, reason, tmp_path):
    factory = Factory(project(tests=tests), tmp_path, demands=demands)
    with pytest.raises(ConfigError, match=reason):
        await factory.make(1)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("tests/conftest.py", "import no_such_plugin\n", "no_such_plugin"),
        ("tests/conftest.py", "def pytest_collection(session):\n    raise OSError('no disk')\n",
         "no disk"),
        ("tests/conftest.py", "raise SystemExit('out of paper')\n",
         "out of paper"),
    ],
    ids=["conftest", "internal error", "exit"],
)  # fmt: skip
async def test_a_run_that_ends_before_its_tests_says_why(name, text, reason, tmp_path):
    files = {**project().files, name: text.encode()}
    broken = replace(project(), files=files)
    with pytest.raises(ConfigError, match=reason):
        await Factory(broken, tmp_path).make(1)


async def test_warnings_about_settings_of_missing_plugins_stop_no_tests(tmp_path):
    settings = b"[pytest]\nasyncio_mode = auto\nfilterwarnings = error\n"
    files = {**project().files, "pytest.ini": settings}
    strict = Factory(replace(project(), files=files), tmp_path, demands=Demands(max_failing=0.9))
    assert len((await strict.make(1)).tasks) == 1


async def test_a_long_report_of_very_many_tests_is_read(host):
    tests = (
        "import pytest\n\n@pytest.mark.parametrize('n', range(8), ids=lambda n: str(n) * 200_000)"
    )
    runner = await project_runner(host, project(tests=f"{tests}\ndef test(n):\n    pass\n"))
    run = await runner.run({}, ["tests/test_few.py"], timeout_s=120.0, is_traced=True)
    assert run.problem == ""
    assert list(run.outcomes.values()) == ["passed"] * 8


async def test_tasks_of_other_files_are_not_mixed_in(tmp_path):
    factory = Factory(project(), tmp_path, demands=Demands(max_failing=0.9))
    await factory.make(1)
    other = replace(project(), files={**project().files, "more.py": b""})
    with pytest.raises(ConfigError, match="other files of few"):
        await Factory(other, tmp_path).make(1)


async def test_rewards_may_be_partial_and_gated():
    env = SweEnv(tasks="sample", reward="partial", step_reward=0.1, gate=0.5)
    try:
        await env.reset(seed=0, options={"task": "bugs-sample/train/0"})
        await env.step(env.say("bash", command="ls"))
        _, reward, _, _, info = await env.step(env.say("submit"))
        assert reward == 0.0
        assert info["reward_parts"] == {"outcome": 0.0, "steps": 0.0}
        await env.reset(seed=0, options={"task": "bugs-sample/train/0"})
        turns = 0
        while (action := env.expert_action()) != env.say("submit"):
            await env.step(action)
            turns += 1
        _, reward, _, _, info = await env.step(action)
        assert reward == pytest.approx(1.0 + 0.1 * turns)
        assert info["score"] == 1.0
    finally:
        await env.close()


async def test_a_budget_that_is_spent_is_extended_then_ends_the_episode():
    budget = {"turns": 2, "extensions": 1, "extension_turns": 1}
    env = SweEnv(tasks="sample", budget=budget)
    try:
        await env.reset(seed=0, options={"task": "bugs-sample/train/0"})
        say = env.say("bash", command="true")
        assert "1 turn left" in (await env.step(say))[0]["text"]
        assert "1 more turns are granted" in (await env.step(say))[0]["text"]
        observation, _, terminated, truncated, info = await env.step("no call, a turn all the same")
        assert "all turns are spent" in observation["text"]
        assert (terminated, truncated, info["score"]) == (False, True, 0.0)
    finally:
        await env.close()


def _made(folder):
    folder.mkdir(parents=True, exist_ok=True)
    return folder
