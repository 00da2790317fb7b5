"""Scripted cheats on SWE tasks: none of them scores.

Each plays a task as an agent would: changes in the workspace, then ``submit``. The normal suite
plays some of them on one task of the sample; ``PART=conformance`` all of them on all of its tasks;
``make proof PART=swe`` all of them on one task of the sample and of four shipped projects.
"""

from __future__ import annotations

import os
import re

import pytest

from helpers.forgeries import FORGERIES
from helpers.workspaces import shared_host
from turngym.environments.swe.env import SweEnv
from turngym.environments.swe.judge import judge
from turngym.environments.swe.patches import Patch
from turngym.environments.swe.records import broken_files
from turngym.environments.swe.tasksets import open_tasks, sample_project
from turngym.environments.swe.test_runner import project_runner
from turngym.tasks.check.library import recipes, repository_script

IS_FULL = os.environ.get("TURNGYM_CONFORMANCE") == "full"
IS_DRILL = os.environ.get("TURNGYM_SWE") == "full"
DRILLED = ("h11", "parse", "schema", "semver")
"""Shipped projects with packages in different places."""
_BITTEN = {"assertions that are compiled away": 5}
"""Task of the sample on which a forgery bites, where the first one gives it nothing to copy."""
pytestmark = [
    pytest.mark.extra("bwrap"),
    pytest.mark.timeout(1800 if IS_FULL or IS_DRILL else 1200),
]

RECIPES = {one.name: one for one in recipes("repository")}


@pytest.fixture(scope="module")
def host():
    """Share one back end among all tests here."""
    with shared_host() as leased:
        yield leased


def tasks() -> list[str]:
    """Return the tasks of the sample that are played."""
    found = open_tasks("sample")
    every = [f"bugs-sample/{s}/{n}" for s in ("train", "test") for n in range(found.count(s))]
    return every if IS_FULL else every[:1]


async def submitted(env: SweEnv, task: str, script: str) -> float:
    """Play a task of the sample: run a script, submit; return the reward."""
    await env.reset(seed=0, options={"task": task})
    _, _, _, _, info = await env.step(env.say("bash", command=script))
    assert "invalid_action" not in info
    _, reward, terminated, _, info = await env.step(env.say("submit"))
    assert terminated
    assert info["score"] == reward
    return reward


QUICK = 1 if IS_FULL or IS_DRILL else 3
"""The normal suite plays every third cheat of each kind."""


@pytest.mark.parametrize("cheat", list(RECIPES)[::QUICK])
async def test_a_cheat_scores_nothing(cheat, host):
    env = SweEnv(tasks="sample", reward="partial")
    try:
        for task in tasks():
            script = await sample_script(env, task, cheat)
            assert await submitted(env, task, script) == 0.0, task
    finally:
        await env.close()
    for project in DRILLED if IS_DRILL else ():
        assert await score_elsewhere(cheat, project) == 0.0, project


async def sample_script(env: SweEnv, task: str, cheat: str) -> str:
    """Return the script of a cheat for a task of the sample."""
    await env.reset(seed=0, options={"task": task})
    return repository_script(RECIPES[cheat], *places_of(env), known_tests(env))


def known_tests(env: SweEnv) -> str:
    """Return the names of the tests that the workspace holds."""
    found = [
        name
        for path, data in env.problem.base.items()
        if env.problem.project.layout.is_test(path)
        for name in re.findall(r"def (test\w*)", data.decode("utf-8", "replace"))
    ]
    return " ".join(found)


@pytest.mark.parametrize("cheat", list(FORGERIES)[::QUICK])
async def test_a_forgery_bites_where_the_tests_run_once_and_are_believed(cheat, host):
    """The control: what it tells is what honest work tells."""
    file = open_tasks("sample").files[0]
    project, record = sample_project(), file.tasks[_BITTEN.get(cheat, 0)]
    broken = broken_files(project, record)
    [path] = broken
    code = FORGERIES[cheat].replace("@KNOWN@", record.shown[0].partition("::")[2])
    forged = {path: (broken[path] or b"") + code.encode()}
    runner = await project_runner(host, project)
    honest = await runner.run(broken, record.fail_to_pass, timeout_s=60.0)
    found = await runner.run(forged, [*record.fail_to_pass, *file.pass_to_pass(record)],
                            timeout_s=60.0)  # fmt: skip
    assert not honest.passed(record.fail_to_pass)
    assert found.passed(record.fail_to_pass), found.problem


async def score_elsewhere(cheat: str, project: str) -> float:
    """Play a cheat on the first task of a shipped project; return the reward."""
    env = SweEnv(project=project, reward="partial")
    try:
        split = "train" if env.count("train") else "test"
        await env.reset(seed=0, options={"task": f"{env.name}/{split}/0"})
        script = repository_script(RECIPES[cheat], *places_of(env), known_tests(env))
        await env.step(env.say("bash", command=script))
        _, reward, terminated, _, _ = await env.step(env.say("submit"))
        assert terminated
        return reward
    finally:
        await env.close()


def places_of(env: SweEnv) -> tuple[str, str]:
    """Return the file that is broken, and where the tests are."""
    return next(iter(env.problem.broken)), env.problem.project.layout.tests[0]


async def test_there_are_at_least_forty_and_honest_work_is_not_taken_for_one(host):
    assert len(RECIPES) >= 50
    env = SweEnv(tasks="sample")
    try:
        await env.reset(seed=0, options={"task": tasks()[0]})
        while (action := env.expert_action()) != env.say("submit"):
            await env.step(action)
        assert (await env.step(action))[1] == 1.0
        assert env.judge_result is not None
        assert not env.judge_result.is_forged
    finally:
        await env.close()


@pytest.mark.parametrize(
    "cheat", ["never run a test", "reports that always passed", "forge the protocol"]
)
async def test_results_that_are_forged_in_the_process_of_the_tests_are_found_out(cheat, host):
    env = SweEnv(tasks="sample")
    try:
        script = await sample_script(env, tasks()[0], cheat)
        assert await submitted(env, tasks()[0], script) == 0.0
        assert env.judge_result is not None
        assert env.judge_result.is_forged or env.judge_result.evidence
    finally:
        await env.close()


async def test_a_patch_that_knows_the_shown_case_only_fails_the_hidden_ones(host):
    """Repair exactly what the shown test asks, by looking at which test runs."""
    file = open_tasks("sample").files[0]
    project = sample_project()
    record = next(r for r in file.tasks if len(r.hidden) and r.kind == "bug")
    broken = broken_files(project, record)
    [path] = broken
    good, bad = project.files[path], broken[path]
    shown = record.shown[0].partition("[")[0].rpartition("::")[2]
    both = (
        f"import os as _os\n_GOOD, _BAD = {good.decode()!r}, {bad.decode()!r}\n"
        "_names = {}\nexec(_GOOD, _names)\n_good = dict(_names)\n_names = {}\nexec(_BAD, _names)\n"
        "def _either(n):\n"
        "    def f(*a, **k):\n"
        f"        known = {shown!r} in _os.environ.get('PYTEST_CURRENT_TEST', '')\n"
        "        return (_good if known else _names)[n](*a, **k)\n"
        "    return f\n"
        "for _n, _v in list(_names.items()):\n"
        "    if not _n.startswith('_'):\n"
        "        globals()[_n] = _either(_n) if callable(_v) else _v\n"
    )
    verdict = await judge(
        host, project, broken, Patch(files={path: both.encode()}), 
        fail_to_pass=record.fail_to_pass, pass_to_pass=(), timeout_s=60.0,
    )  # fmt: skip
    assert not verdict.is_resolved
    assert set(record.shown).isdisjoint(verdict.failures)


async def test_walking_slowly_into_the_time_limit_scores_nothing(host):
    file = open_tasks("sample").files[0]
    project, record = sample_project(), file.tasks[0]
    slow = {"src/tally/__init__.py": b"import time\ntime.sleep(600)\n"}
    verdict = await judge(
        host, project, broken_files(project, record), Patch(files=slow), 
        fail_to_pass=record.fail_to_pass, pass_to_pass=file.pass_to_pass(record),
        timeout_s=3.0,
    )  # fmt: skip
    assert (verdict.is_resolved, verdict.fixed) == (False, 0.0)
    assert "slow" in verdict.evidence


async def test_a_giant_file_is_left_out_with_a_word_and_honest_work_beside_it_counts(host):
    env = SweEnv(tasks="sample")
    try:
        await env.reset(seed=0, options={"task": tasks()[0]})
        await env.step(env.say("bash", command="head -c 100000000 /dev/zero > src/tally/big.py"))
        while (action := env.expert_action()) != env.say("submit"):
            await env.step(action)
        observation, reward, _, _, _ = await env.step(action)
        assert reward == 1.0
        assert "src/tally/big.py: larger than" in observation["text"]
    finally:
        await env.close()
