"""An evaluation as a user meets it: killed, resumed, recomputed, compared."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from contextlib import chdir, closing
from pathlib import Path
from typing import Any

import pytest

from helpers import warm
from helpers.cli import SOURCE, turngym
from turngym.cli.main import main
from turngym.rollouts.evaluation.rows import FILE, read_rows

Captured = pytest.CaptureFixture[str]

EPISODES, ATTEMPTS = 20, 3
HALF = EPISODES * ATTEMPTS // 2

AGENT = f"""
import random, sys, time
from pathlib import Path

ended = set()

def act(seen, info):
    if info["task_id"] == "maze-easy/test/13":
        raise RuntimeError("not this one")
    place = Path("half")
    if not place.exists() and sum(1 for _ in open("run/episodes.jsonl")) > {HALF}:
        place.touch()
    while place.exists() and not Path("go on").exists():
        time.sleep(0.01)
    return sorted(info["legal_actions"])[hash(seen["text"]) % len(info["legal_actions"])]
"""


def command(*more: str) -> list[str]:
    options = ["--episodes", str(EPISODES), "--seeds", str(ATTEMPTS), "--out", "run", "--json"]
    return ["eval", "text/maze", "--agent", "slow:act", *options, *more]


def table(found: dict[str, Any]) -> dict[str, Any]:
    """Return what was found without what a clock decided."""
    return {
        env: {name: value for name, value in row.items() if name != "time"}
        for env, row in found.items()
    }


def test_killed_at_half_and_resumed_it_gives_the_same_table(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(AGENT)
    with chdir(tmp_path):  # all of these have the hash seed of the process they are forked from
        process = warm.start(warm.program, command(), out=tmp_path / "out", err=tmp_path / "err")
    until = time.monotonic() + 900
    while not (tmp_path / "half").exists():
        assert process.is_alive()
        assert time.monotonic() < until
        time.sleep(0.01)
    process.kill()
    process.join()
    kept = len(list(read_rows(tmp_path / "run" / FILE)))
    assert 0 < kept < EPISODES * ATTEMPTS
    assert json.loads((tmp_path / "run" / "evaluation.json").read_text())["results"] is None

    (tmp_path / "go on").touch()
    resumed = warm.turngym(*command(), cwd=tmp_path)
    assert f"going on; {kept} episodes kept" in resumed.stderr
    (tmp_path / "run").rename(tmp_path / "resumed")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "note.txt").touch()
    whole = warm.turngym(*command("--concurrency", "3"), cwd=tmp_path)
    assert resumed.returncode == whole.returncode == 0
    assert table(json.loads(resumed.stdout)) == table(json.loads(whole.stdout))
    assert json.loads(whole.stdout)["text/maze"]["faults"] == ATTEMPTS
    one, other = (tmp_path / run / "text-maze.jsonl" for run in ("resumed", "run"))
    assert one.read_bytes() == other.read_bytes()

    again = warm.turngym(*command(), cwd=tmp_path)
    assert json.loads(again.stdout) == json.loads(whole.stdout)  # nothing is played twice
    report = warm.turngym("report", "run", "--json", cwd=tmp_path)
    [found] = json.loads(report.stdout)["evaluations"]
    assert found["results"] == json.loads(whole.stdout)  # times included: all is in the rows


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_keeps_what_was_played_and_says_so(tmp_path: Path, number: int) -> None:
    (tmp_path / "slow.py").write_text(AGENT)
    with chdir(tmp_path):
        process = warm.Heard(warm.program, *command(), out=tmp_path / "said")
    with closing(process):
        until = time.monotonic() + 900
        while not (tmp_path / "half").exists():
            assert time.monotonic() < until
            time.sleep(0.01)
        process.send_signal(number)
        said = process.rest()
        assert process.returncode == 130
    assert "the same command goes on from there" in said
    assert "Traceback" not in said


def test_what_was_played_is_kept_when_the_terminal_is_closed(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(AGENT)
    there, terminal = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "turngym", *command()],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        # These tests may run under nohup, and what is ignored is inherited.
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    ) as process:
        until = time.monotonic() + 900
        while not (tmp_path / "half").exists():
            assert time.monotonic() < until
            time.sleep(0.01)
        process.send_signal(signal.SIGHUP)  # as the system does
        os.close(terminal)
        os.close(there)
        assert process.wait(900) == 130
    report = turngym("report", "run", cwd=tmp_path)
    assert report.returncode == 0, report.stderr
    assert sum(1 for _ in read_rows(tmp_path / "run" / FILE)) > HALF


def test_an_interrupt_at_any_moment_ends_an_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """Raised inside of asyncio it may lose a wake-up, and the task that waits for it never ends."""
    (tmp_path / "first.py").write_text("def act(seen, info): return info['legal_actions'][0]")
    monkeypatch.syspath_prepend(tmp_path)
    run, left = asyncio.Handle._run, 0

    def interrupted(handle: asyncio.Handle) -> None:
        nonlocal left
        if threading.current_thread() is threading.main_thread():  # not a loop of another test
            left -= 1
            if left == 0:
                signal.raise_signal(signal.SIGINT)
        run(handle)

    monkeypatch.setattr(asyncio.Handle, "_run", interrupted)

    def interrupted_at(moment: int) -> int:
        nonlocal left
        left = moment
        return main(["eval", "text/maze", "--agent", "first:act", "--episodes", "4"])

    codes = [interrupted_at(moment) for moment in range(1, 60)]
    assert set(codes) <= {0, 130}
    assert codes.count(130) >= 40
    capsys.readouterr()


def test_more_episodes_and_attempts_are_played_beside_those_that_are_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def play(out: str, *options: str) -> dict[str, Any]:
        plan = ["eval", "text/maze", "--agent", "random", "--out", str(tmp_path / out), "--json"]
        assert main([*plan, *options]) == 0
        return table(json.loads(capsys.readouterr().out))

    play("grown", "--episodes", "4")
    first = {row.key: row for row in read_rows(tmp_path / "grown" / FILE)}
    whole = play("whole", "--episodes", "8", "--seeds", "2")
    assert play("grown", "--episodes", "8", "--seeds", "2") == whole
    rows = {row.key: row for row in read_rows(tmp_path / "grown" / FILE)}
    assert all(rows[key] == row for key, row in first.items())  # its seconds included
    one, other = (tmp_path / out / "text-maze.jsonl" for out in ("grown", "whole"))
    assert one.read_bytes() == other.read_bytes()
    content = json.loads((tmp_path / "grown" / "evaluation.json").read_text())
    assert content["changes"][0]["before"] == {"episodes": 4, "seeds": 1}
    fewer = ["eval", "text/maze", "--agent", "random", "--episodes", "4"]
    assert main([*fewer, "--seeds", "2", "--out", str(tmp_path / "grown")]) == 2
    assert "holds an evaluation with episodes=8, not 4" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["q.py", "q.jsonl"])
def test_tasks_and_judges_of_ones_own_that_changed_are_not_mixed(
    folder: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "q.toml").write_text('questions = "q.jsonl"\n')
    (folder / "q.jsonl").write_text('{"question": "Who?", "answer": "Ada"}\n')
    (folder / "q.py").write_text(
        "from turngym.tasks.questions import read_questions\ntasks = read_questions('q.toml')\n"
    )
    target = name.replace("jsonl", "toml")
    assert main(["eval", target, "--agent", "expert", "--out", "run"]) == 0
    assert main(["eval", target, "--agent", "expert", "--out", "run"]) == 0
    (folder / name).write_text((folder / name).read_text() + "\n")
    assert main(["eval", target, "--agent", "expert", "--seeds", "2", "--out", "run"]) == 2
    assert "run: the files of its envs are not those of before" in capsys.readouterr().err


@pytest.mark.parametrize("changed", ["questions", "index"])
def test_questions_and_an_index_that_changed_are_not_mixed(
    folder: Path, changed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "c.jsonl").write_text('{"id": "ada", "text": "Ada lives in Orm."}\n')
    question = '{"text": "Where does Ada live?", "answers": ["Orm"], "split": "test"}\n'
    (folder / "q.jsonl").write_text(question)
    build = ["corpus", "build", "c.jsonl", "--out", "ix", "--fresh"]
    assert main(build) == 0
    options = ["--env-option", "index=ix", "--env-option", "questions=q.jsonl"]
    command = ["eval", "search/corpus", "--agent", "random", *options, "--out", "run"]
    assert main(command) == 0
    assert main(build) == 0  # the same anew
    assert main([*command, "--seeds", "2"]) == 0
    if changed == "questions":
        (folder / "q.jsonl").write_text(question.replace("Orm", "Tal"))
    else:
        (folder / "c.jsonl").write_text('{"id": "ada", "text": "Ada lives in Tal."}\n')
        assert main(build) == 0
    assert main([*command, "--seeds", "3"]) == 2
    assert "run: the files of its envs are not those of before" in capsys.readouterr().err


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for agent in ("random", "expert"):
        options = ("--episodes", "12", "--seeds", "2", "--out", str(folder / agent))
        assert main(["eval", "text/maze", "text/wordle", "--agent", agent, *options]) == 0
    return folder


def test_two_evaluations_are_compared_task_by_task(two_runs: Path, capsys: Captured) -> None:
    capsys.readouterr()
    folders = [str(two_runs / "random"), str(two_runs / "expert")]
    assert main(["report", *folders, "--out", str(two_runs / "report"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["comparisons"]
    assert [(c["env"], c["run"], c["reference"]) for c in found] == [
        ("text/maze", "expert", "random"),
        ("text/wordle", "expert", "random"),
    ]
    for comparison in found:
        rows = {name: list(read_rows(two_runs / name / FILE)) for name in ("random", "expert")}
        share = {
            name: sum(row.is_success for row in chosen if row.env == comparison["env"]) / 24
            for name, chosen in rows.items()
        }
        value, low, high = comparison["differences"]["success"]
        assert value == pytest.approx(share["expert"] - share["random"])
        assert low <= value <= high
        assert (comparison["tasks"], comparison["worse"]) == (12, 0)
    for name in ("evaluations.md", "evaluations.csv", "evaluations.png", "evaluations.svg"):
        assert (two_runs / "report" / name).stat().st_size > 100


def test_a_comparison_has_a_reference_of_choice(two_runs: Path, capsys: Captured) -> None:
    folders = [str(two_runs / name) for name in ("random", "expert")]
    options = ("--reference", "expert", "--out", str(two_runs / "other"), "--json")
    assert main(["report", *folders, *options]) == 0
    [found, _] = json.loads(capsys.readouterr().out)["comparisons"]
    assert (found["run"], found["differences"]["success"][0] < 0) == ("random", True)
    assert main(["report", *folders, "--reference", "exprt"]) == 2
    assert "Did you mean 'expert'?" in capsys.readouterr().err


def test_a_report_without_matplotlib_has_its_tables(two_runs: Path, tmp_path: Path) -> None:
    done = turngym(
        "report", two_runs / "expert", "--out", tmp_path, cwd=tmp_path, hide=["matplotlib", "torch"]
    )
    assert done.returncode == 0, done.stderr
    assert "no plots" in done.stderr
    assert "100.0 %" in done.stdout
    assert (tmp_path / "evaluations.md").exists()


def test_an_option_reaches_the_environment(capsys: Captured) -> None:
    options = ("--agent", "expert", "--episodes", "1", "--json")
    assert main(["eval", "text/maze", *options, "--env-option", "difficulty=hard"]) == 0
    hard = json.loads(capsys.readouterr().out)["text/maze"]
    assert main(["eval", "text/maze-hard", *options]) == 0
    same = json.loads(capsys.readouterr().out)["text/maze-hard"]
    assert hard["mean_turns"] == same["mean_turns"]


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("difficulty", "wanted KEY=VALUE"),
        ("=hard", "wanted KEY=VALUE"),
        ("colour=red", "colour"),
        ("difficulty=1", "difficulty"),
    ],
)
def test_an_option_that_means_nothing_is_one_line(option: str, said: str, capsys: Captured) -> None:
    assert main(["eval", "text/maze", "--agent", "noop", "--env-option", option]) in (1, 2)
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert said in line


def test_more_attempts_tell_pass_at_k(capsys: Captured) -> None:
    options = ("--agent", "random", "--episodes", "10", "--seeds", "4")
    assert main(["eval", "text/maze", *options]) == 0
    header, _ = capsys.readouterr().out.splitlines()
    assert "PASS@1" in header
    assert "PASS@4" in header
    assert "PASS@3" not in header


def test_one_call_runs_in_a_fresh_process_with_no_torch(tmp_path: Path) -> None:
    options = ["--agent", "noop", "--episodes", "2", "--out", str(tmp_path)]
    code = (
        "import sys; from turngym.cli.main import main; "
        f"main(['eval', 'text/maze', *{options}]); sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": SOURCE}, check=False
    )
    assert done.returncode == 0


USERS = {
    "agent.py": ("def help_me(text):\n    raise ValueError('boom')\n\n\n"
                 "def act(observation, info):\n    return help_me(observation)\n"),
    "game.py": ("from turngym.environments.text.maze import MazeEnv\n\n\n"
                "class Mine(MazeEnv):\n    def turn(self, action):\n        raise SystemExit(3)\n"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("env", "agent", "said", "source"),
    [
        ("text/maze", "agent.py:act", "act: ValueError: boom (agent.py:2 in help_me)", "agent.py"),
        ("game.py:Mine", "random", "step: SystemExit: 3 (game.py:6 in turn)", "game.py"),
    ],
)
def test_an_error_in_the_users_code_names_its_line(
    tmp_path: Path, env: str, agent: str, said: str, source: str
) -> None:
    for name, text in USERS.items():
        (tmp_path / name).write_text(text)
    words = ["eval", env, "--agent", agent, "--episodes", "1", "--out", "run"]
    done = turngym("--debug", *words, cwd=tmp_path)
    assert done.returncode == 1
    (row,) = read_rows(tmp_path / "run" / FILE)
    assert row.error == said
    told = done.stderr.splitlines()
    assert any(line.endswith(f"1 of 1 episodes broke: {said}") for line in told)
    assert any(line.startswith("  File ") and source in line for line in told)  # the traceback


NOISY = """
import subprocess

print("imported")

def agent(observation, info):
    print("acting")
    subprocess.run(["echo", "started"])
    return "move up"
"""


def test_what_a_users_module_prints_is_no_part_of_json(tmp_path: Path) -> None:
    (tmp_path / "noisy.py").write_text(NOISY)
    play = ("eval", "text/maze", "--agent", "noisy.py:agent", "--episodes", "1")
    done = turngym(*play, "--json", cwd=tmp_path)
    assert list(json.loads(done.stdout)) == ["text/maze"]
    assert {"imported", "acting", "started"} <= set(done.stderr.splitlines())
    assert "imported" in turngym(*play, cwd=tmp_path).stdout.splitlines()


def test_episodes_that_a_second_signal_cuts_off_are_played_again(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import asyncio, signal\n"
        "waiting = []\n"
        "def stop():\n"
        "    signal.raise_signal(signal.SIGTERM)\n"
        "    signal.raise_signal(signal.SIGTERM)\n"
        "async def act(observation, info):\n"
        "    waiting.append(observation)\n"
        "    if len(waiting) == 4:\n"  # all episodes: two signals in all, and no third
        "        asyncio.get_running_loop().call_later(0.5, stop)\n"
        "    await asyncio.sleep(600)\n"
    )
    agent = ("--agent", f"{tmp_path / 'slow.py'}:act", "--episodes", "4")
    found = turngym("eval", "text/maze", *agent, "--out", str(tmp_path / "out"))
    assert found.returncode == 130, found.stderr
    assert "0 episodes kept, and the same command goes on from there" in found.stderr
    assert "Traceback" not in found.stderr
