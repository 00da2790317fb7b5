"""One-line bugs: what is drawn, what is judged, and what does not pay."""

from __future__ import annotations

import numpy as np
import pytest

from turngym.environments.swe.mini.env import (
    LIBRARY,
    Call,
    CaseRunner,
    MiniEnv,
    sample,
    with_line,
)

PROBLEMS = [sample(np.random.default_rng(seed)) for seed in range(40)]


def repair_of(problem):
    """Return the one wrong line, and what it should say."""
    right = problem.right.files(problem.right)[problem.path].splitlines()
    found = problem.broken_files()[problem.path].splitlines()
    [line] = [n for n, pair in enumerate(zip(right, found, strict=True)) if pair[0] != pair[1]]
    return line + 1, right[line].strip()


def test_one_line_is_wrong_and_it_shows():
    places = set()
    for problem in PROBLEMS:
        broken, right = problem.broken_files(), problem.right.files(problem.right)
        assert with_line(broken, problem.path, *repair_of(problem)) == right
        assert broken != right
        assert problem.wrong.run(problem.shown) != problem.wanted(problem.shown)
        assert problem.shown not in problem.hidden
        assert {call.function for call in problem.hidden} == {problem.right.name, *LIBRARY}
        places.add([problem.right.name, *problem.right.used].index(problem.path))
    assert places == {0, 1, 2}, "the wrong file is the own one, the first or the second it calls"


def test_a_replaced_line_keeps_its_indentation():
    files = {"a": "def a():\n    return 1\n"}
    assert with_line(files, "a", 2, "  return 2 ") == {"a": "def a():\n    return 2\n"}


def test_the_splits_share_no_problem():
    env = MiniEnv()
    keys = {}
    for split in ("train", "test"):
        keys[split] = set()
        for index in range(60):
            env.reset(options={"task": env.task(split, index)})
            keys[split].add(env.instance_key())
    env.close()
    assert keys["train"].isdisjoint(keys["test"])


@pytest.fixture(scope="module")
def runner():
    runner = CaseRunner.lease()
    yield runner
    runner.release()


@pytest.mark.extra("bwrap")
class TestJudged:
    @pytest.fixture(autouse=True)
    def _env(self, runner):
        self.env = MiniEnv()
        yield
        self.env.close()

    def reset(self, seed: int = 0) -> None:
        self.env.reset(seed=seed, options={"task": self.env.task("train", seed)})

    @pytest.mark.parametrize("seed", range(6))
    def test_the_expert_mends_it_and_nothing_done_mends_nothing(self, seed):
        self.reset(seed)
        assert self.env.step("submit")[1] == 0.0
        self.reset(seed)
        terminated, turns = False, 0
        while not terminated:
            _, reward, terminated, _, info = self.env.step(self.env.expert_action())
            turns += 1
        assert (reward, info["score"]) == (1.0, 1.0)
        assert turns <= 4

    def test_an_edit_is_told_what_it_did(self):
        self.reset()
        problem = self.env.state.problem
        line, repair = repair_of(problem)
        text = problem.broken_files()[problem.path].splitlines()[line - 1]
        same = self.env.step(f"edit {problem.path} {line} {text.strip()}")[0]["text"]
        assert same == f"{problem.shown} is {problem.wrong.run(problem.shown)}, not " + (
            f"{problem.wanted(problem.shown)}."
        )
        right = self.env.step(f"edit {problem.path} {line} {repair}")[0]["text"]
        assert right == f"{problem.shown} is {problem.wanted(problem.shown)}, right."

    @pytest.mark.parametrize(
        ("action", "reason"),
        [
            ("view no", "no file 'no'"),
            ("view ../../etc/passwd", "no file"),
            ("edit add 3 return a", "add has lines 1 to 2"),
            ("edit add 0 return a", "add has lines 1 to 2"),
            ("rm add", "Not a command"),
        ],
    )
    def test_what_cannot_be_done_is_told_why(self, action, reason):
        self.reset()
        observation, reward, terminated, _, info = self.env.step(action)
        assert reason in observation["text"]
        assert (reward, terminated) == (0.0, False)
        assert reason in info["invalid_action"]

    @pytest.mark.parametrize(
        "line",
        [
            "import os; os._exit(0)",
            "import os; os.kill(os.getppid(), 9)",
            "import os; os.kill(-1, 9)",
            "while True: pass",
            "return type('X', (int,), {'__eq__': lambda s, o: True})(1)",
            "return chr(0) * 999999",
            "return this is no Python",
            "import os; os.fork(); return a + b",
            "import os; [os.write(n, b'[1]') for n in range(3, 9)]; os._exit(0)",
        ],
    )
    def test_a_cheat_scores_nothing_and_the_next_submission_is_judged(self, line):
        self.reset()
        problem = self.env.state.problem
        self.env.step(f"edit {problem.path} {repair_of(problem)[0]} {line}")
        _, reward, terminated, _, info = self.env.step("submit")
        assert (reward, terminated, info["score"]) == (0.0, True, 0.0)
        self.reset(1)
        while not terminated or not reward:
            _, reward, terminated, *_ = self.env.step(self.env.expert_action())
            assert not terminated or reward == 1.0

    def test_calls_give_numbers_names_of_exceptions_or_what_they_are(self, runner):
        files = {
            "one": "def one(a, b):\n    return a - b\n",
            "two": "def two(a, b):\n    return one(b, a) / 0\n",
            "tri": "def tri(a, b):\n    return [one(b, a)]\n",
            "off": "def off(a, b)\n",
        }
        calls = [Call(function=name, arguments=(5, 3)) for name in ("one", "two", "tri", "off")]
        assert runner.call(files, calls) == (2, "ZeroDivisionError", "[-2]", "KeyError")
