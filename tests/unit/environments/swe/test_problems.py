"""Bugs and one-line bugs as problems of the one contract."""

import asyncio
import subprocess

import numpy as np
import pytest

from turngym.environments.swe.mini.env import MiniEnv, MiniWorld, sample
from turngym.environments.swe.tasksets import _written, open_tasks
from turngym.errors import ConfigError
from turngym.tasks.problem import expert_script, judge


def test_the_expert_of_a_bug_says_calls_until_the_files_are_repaired():
    tasks = open_tasks("sample")
    for index in range(tasks.count("train")):
        problem = tasks.problem(tasks.task("train", index))
        [says] = expert_script(problem, "a bug")
        written: dict[str, bytes | None] = {}
        while (call := says(written)) is not None:
            path = call.arguments["path"]
            text = (written.get(path, problem.base[path]) or b"").decode()
            if call.name == "edit":
                assert text.count(call.arguments["old"]) == 1
                text = text.replace(call.arguments["old"], call.arguments["new"])
            else:
                text = call.arguments["content"]
            written[path] = text.encode()
        assert written == problem.wanted
        assert written == {path: problem.project.files[path] for path in problem.broken}


def test_a_set_of_bugs_has_each_in_one_split_and_says_what_there_is():
    tasks = open_tasks("sample")
    ids = [tasks.ids[split] for split in ("train", "test")]
    assert sorted(ids[0] + ids[1]) == sorted(one.id for one in tasks.files[0].tasks)
    assert not set(ids[0]) & set(ids[1])
    assert tasks.find("bugs-sample/test/0").split == "test"
    with pytest.raises(ConfigError, match="there is none; the set has"):
        tasks.find("bugs-sample/test/999")


@pytest.mark.parametrize("seed", range(10))
def test_a_one_line_bug_is_judged_by_every_call(seed):
    problem = sample(np.random.default_rng(seed))

    def score(run):
        world = MiniWorld(call=lambda calls: tuple(map(run, calls)))
        return asyncio.run(judge(problem, world, "a bug")).score

    assert score(problem.wanted) == 1
    assert score(problem.wrong.run) == 0
    assert score(lambda call: problem.wanted(problem.shown)) == 0


@pytest.mark.extra("bwrap")
def test_what_knows_the_shown_case_alone_scores_nothing():
    env = MiniEnv()
    try:
        env.reset(seed=3)
        [cheat] = env.problem.cheats()
        env.follow(cheat.script)
        text = env.step(env.expert_action())[0]["text"]
        assert text.endswith("right.")
        assert env.step(env.expert_action())[1:3] == (0.0, True)
    finally:
        env.close()


def test_a_solution_for_harbor_writes_files_that_are_empty_or_in_a_new_folder(tmp_path):
    wanted = {"a b/c/__init__.py": b"", "a b/c/-d.py": b"x = '1'\n", "-e.py": None, "f.py": b"\xff"}
    (tmp_path / "-e.py").write_text("")
    script = "\n".join(_written(path, data) for path, data in wanted.items())
    subprocess.run(["/bin/bash", "-ec", script], cwd=tmp_path, check=True)
    found = {one.relative_to(tmp_path).as_posix() for one in tmp_path.rglob("*.py")}
    assert found == {path for path, data in wanted.items() if data is not None}
    assert all((tmp_path / path).read_bytes() == wanted[path] for path in found)
