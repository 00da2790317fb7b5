"""SWE and terminal environments keep the promises of all environments, and their tasks are sound.

The normal suite checks the forks of SWE tasks and every third kind of terminal job; ``make
conformance`` checks everything at full length.
"""

from __future__ import annotations

import os
from contextlib import closing
from functools import partial

import pytest

import turngym
from helpers.workspaces import shared_host
from turngym.agents.scripted import ExpertPolicy, NoopPolicy
from turngym.environments.checks.check import check_fork, check_turn_env
from turngym.environments.checks.task import EnvSubject, check_tasks
from turngym.environments.core.env import restore, snapshot
from turngym.environments.swe.env import SweEnv
from turngym.environments.swe.tasksets import open_tasks
from turngym.environments.terminal.env import TerminalEnv
from turngym.registry import match
from turngym.rollouts.episode import group_specs
from turngym.rollouts.evaluation.evaluate import collect
from turngym.tasks.base import SPLITS, procedural_task
from turngym.tasks.shell import GENERATORS, GROUPS

IS_FULL = os.environ.get("TURNGYM_CONFORMANCE") == "full"
QUICK_TURN = {} if IS_FULL else {"episodes": 1, "tasks": 2, "max_turns": 5, "processes": 1}
QUICK_FORK = {} if IS_FULL else {"episodes": 1, "max_turns": 3, "depths": [1]}
pytestmark = [pytest.mark.extra("bwrap", "git"), pytest.mark.timeout(3600 if IS_FULL else 1200)]


@pytest.fixture(scope="module", autouse=True)
def host():
    """Share one back end among all tests here."""
    with shared_host() as leased:
        yield leased


def everything() -> list[str]:
    names = ["swe/bugs-sample", "terminal/shell"]
    return names if not IS_FULL else names + [e.short_name for e in match("terminal/*")[1:]]


# An SWE episode of the expert is judged by running tests: a minute of checks on a quiet core.
@pytest.mark.parametrize(
    "name", ["swe/bugs-mini", *(everything() if IS_FULL else ["terminal/shell"])]
)
def test_turn_environment_keeps_its_promises(name):
    check_turn_env(name, **QUICK_TURN).raise_on_failure()


@pytest.mark.parametrize("name", ["swe/bugs-mini", *everything()])
def test_forks_are_equal_and_independent(name):
    check_fork(name, **QUICK_FORK).raise_on_failure()


def test_a_snapshot_runs_the_same_tests_in_a_new_environment():
    with closing(turngym.make("swe/bugs-sample")) as one:
        one.reset(seed=0)
        state = snapshot(one)
        run_tests = one.get_wrapper_attr("say")("run_tests")
        seen = one.step(run_tests)[0]
    with closing(turngym.make("swe/bugs-sample")) as other:
        restore(other, state)
        assert other.step(run_tests)[0] == seen
    assert "passed" in seen["text"]


def test_there_are_at_least_forty_kinds_of_terminal_jobs_each_in_one_group():
    assert len(GENERATORS) >= 40
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(GENERATORS)
    assert {e.short_name for e in match("terminal/*")} == {
        "terminal/shell",
        *(f"terminal/shell-{group}" for group in GROUPS),
    }


async def played(kind: str, index: int, policy: object) -> list[object]:
    split = "test" if index % 2 else "train"
    task = procedural_task(f"shell-{kind}", split, index)
    specs = group_specs("turngym/Shell-v0", task, seed=0, group_size=1)
    found = await collect(partial(TerminalEnv, kind=kind), policy, specs, concurrency=1)
    assert [t.error for t in found if t.error] == []
    return found


@pytest.mark.parametrize("kind", sorted(GENERATORS) if IS_FULL else sorted(GENERATORS)[::3])
async def test_the_expert_does_the_job_and_nothing_done_scores_nothing(kind):
    for index in range(4 if IS_FULL else 1):
        [expert] = await played(kind, index, ExpertPolicy())
        assert expert.score == 1.0, (kind, index, expert.final_observation)
        env = TerminalEnv(kind=kind)
        try:
            await env.reset(seed=index)
            assert (await env.step("submit"))[1] == 0.0
        finally:
            await env.close()


@pytest.mark.parametrize("kind", ["commit_change", "merge_conflict", "pack", "compress_old"])
async def test_the_same_commands_lead_to_the_same_state_keys(kind):
    async def state_keys(seed: int) -> list[str]:
        env = TerminalEnv(kind=kind)
        try:
            opening = (await env.reset(seed=seed))[1]["state_key"]
            actions = (env.expert_action(), "bash touch *", "bash echo 1 > another.txt")
            return [opening, *[(await env.step(action))[4]["state_key"] for action in actions]]
        finally:
            await env.close()

    for seed in range(3):
        one = await state_keys(seed)
        assert one == await state_keys(seed)
        assert len(set(one[:2])) == 2
        assert one[3] != one[2]


async def test_who_says_nothing_scores_nothing():
    task = procedural_task("shell-archives", "test", 0)
    specs = group_specs("turngym/Shell-archives-v0", task, seed=0, group_size=1)
    make = partial(turngym.make, "terminal/shell-archives")
    [idle] = await collect(make, NoopPolicy(), specs, concurrency=1)
    assert idle.score == 0.0
    assert idle.stop_reason.is_truncated


async def test_damage_beside_the_job_costs_the_reward():
    env = TerminalEnv(kind="sum_column")
    try:
        await env.reset(seed=3)
        await env.step(env.expert_action())
        await env.step("bash echo x >> sales.csv")
        observation, reward, *_ = await env.step("submit")
        assert reward == 0.0
        assert "sales.csv should not have changed" in observation["text"]
    finally:
        await env.close()


def test_tasks_of_the_sample_are_sound():
    found = open_tasks("sample")
    assert found.count("train") >= 10
    assert found.count("test") >= 3
    make = partial(turngym.make, "swe/bugs-sample")
    with closing(EnvSubject(make, "swe/bugs-sample")) as subject:
        limit = None if IS_FULL else 1
        tasks = [task for split in SPLITS for task in subject.tasks(split, limit)]
    check_tasks(make, tasks, subject="sample").raise_on_failure()


async def test_hidden_tests_are_not_in_the_workspace_and_nothing_holds_the_repair():
    env = SweEnv(tasks="sample")
    try:
        for index in range(3):
            await env.reset(seed=0, options={"task": f"bugs-sample/train/{index}"})
            for name in env.problem.record.hidden:
                assert "No file holds" in (await env.step(f"search def {name}("))[0]["text"]
            path = next(iter(env.problem.broken))
            wanted = env.problem.project.files[path]
            elsewhere = await env.sandbox.exec(
                "find / -name '*.py' -newermt 2019-01-01 -size -40k -not -path '/proc/*' "
                f"-path '*{path}' 2>/dev/null",
                timeout_s=60,
            )
            assert elsewhere.stdout.decode().split() == [f"/workspace/{path}"]
            assert await env.sandbox.read_file(path, max_bytes=1 << 20) != wanted
    finally:
        await env.close()


@pytest.mark.parametrize("replaced", ["file", "folder"])
async def test_a_file_in_place_of_a_folder_or_the_reverse_is_a_patch_and_no_fault(replaced: str):
    env = SweEnv(tasks="sample")
    try:
        await env.reset(seed=0)
        path = next(iter(env.problem.broken))
        place = path if replaced == "file" else path.rpartition("/")[0]
        as_folder = f"mkdir {place}; echo > {place}/x.py"
        command = as_folder if replaced == "file" else f"echo 1 > {place}"
        await env.step(f"bash rm -r {place}; {command}")
        _, reward, terminated, _, info = await env.step("submit")
        assert (reward, terminated) == (0.0, True)
        assert "+++ /dev/null\n" in info["patch"]
        assert f"deleted file mode 100644\n--- a/{path}" in info["patch"]
    finally:
        await env.close()


MIXED = "```edit d/mixed\nb\nc\n=======\nB\nC\n```"


async def test_tools_take_files_of_any_encoding_and_length_and_say_what_they_leave_out():
    env = TerminalEnv(kind="sum_column")

    async def said(action: str) -> str:
        return str((await env.step(action))[0]["text"])

    try:
        await env.reset(seed=0)
        await said(r"bash mkdir d; printf 'eel \xe9\n' > d/latin; printf 'a\r\nb\nc\n' > d/mixed")
        await said(r"bash for n in 1 2 3; do printf 'eel%0200000d\n' 7 > d/$n; done")
        found = [line[:9] for line in (await said("search eel")).split("\n")]
        assert found[:4] == ["d/1:1:eel", "d/2:1:eel", "d/3:1:eel", "d/latin:1"]
        await said("bash seq 1000 | sed s/^/eel/ > d/0")
        assert "\n[954 more]\n" in await said("search eel")
        assert "2 B\n3 C" in await said(MIXED)
        # A hundred thousand lines, of whose six bytes each the sandbox hands on 256 KB in all.
        gone = 600_000 - (1 << 18)
        numbers = await said("bash seq 100000 199999 | cut -c2-")
        assert f" characters and {gone} bytes more left out " in numbers
    finally:
        await env.close()
