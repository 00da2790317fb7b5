"""The commands as a user types them: data on stdout, the rest on stderr, exit codes by contract."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import turngym as package
from helpers.cli import COMMAND, SOURCE, TINY_RUN, lab_environment, turngym
from helpers.models import model, tokenizer
from turngym import registry
from turngym.agents.chat.agent import ChatAgent
from turngym.agents.engine.models import save_model_dir
from turngym.api.agents import make_policy
from turngym.check_report import CheckReport, NotRun
from turngym.cli.main import main
from turngym.environments.text.maze import MazeEnv
from turngym.records import read_trajectories
from turngym.types import StopReason

Captured = pytest.CaptureFixture[str]


def typed(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


def evaluated(capsys: Captured, *arguments: str) -> Any:
    assert main(["eval", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


# The program.


def test_the_version_is_that_of_the_package(capsys: Captured) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"{package.__version__}\n"


def test_without_arguments_it_shows_help_with_every_command(capsys: Captured) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    for command in ("envs", "play", "eval", "train", "view", "check", "config", "doctor"):
        assert command in shown


def test_an_interrupt_while_it_starts_is_not_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt")
    ended = subprocess.run(
        [sys.executable, "-c", "import sys; from turngym.__main__ import main; sys.exit(main())"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{SOURCE}"},
        capture_output=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (130, b"")


@pytest.mark.parametrize("content", [b"[console_scripts]\nfoo\n", b"[console_scripts]\nf\xff=x"])
def test_a_package_whose_entry_points_cannot_be_read_is_named(
    content: bytes, tmp_path: Path
) -> None:
    about = tmp_path / "badlab-1.2.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: badlab\nVersion: 1.2\n")
    (about / "entry_points.txt").write_bytes(content)
    ended = subprocess.run(
        [sys.executable, "-c", "import sys; from turngym.__main__ import main; sys.exit(main())"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{SOURCE}"},
        capture_output=True,
        text=True,
        check=False,
    )
    [line] = ended.stderr.splitlines()
    assert ended.returncode == 1
    assert line.startswith(
        f"error: entry_points.txt of the installed package 'badlab' in {tmp_path}"
    )


def test_a_closed_pipe_ends_quietly() -> None:
    process = subprocess.Popen(
        [*COMMAND, "envs", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()  # before anything is written
    complaint = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=900) == 1
    assert complaint == b""


# envs


def test_envs_lists_one_family_a_line(capsys: Captured) -> None:
    assert main(["envs"]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split()[:6] == ["FAMILY", "ENVIRONMENTS", "RUN", "HERE", "FOR", "EXAMPLE"]
    assert all(line.count("turngym[") <= 1 for line in lines)  # one line of pip for all extras
    counts = {line.split()[0]: int(line.split()[1]) for line in lines}
    assert len(lines) == len(counts) == len({entry.family for entry in registry.entries()})
    assert sum(counts.values()) == len(registry.entries())
    assert next(line for line in lines if line.startswith("text ")).split()[3] == "text/maze"


@pytest.mark.parametrize("words", [["text"], ["--family", "text"], ["text/*"]])
def test_envs_lists_the_environments_of_one_family(words: list[str], capsys: Captured) -> None:
    assert main(["envs", *words]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split()[:2] == ["NAME", "SNAPSHOT"]
    maze = next(line for line in lines if line.startswith("text/maze "))
    assert maze.split() == ["text/maze", "exact", "14", "yes"]
    assert all(line.startswith("text/") for line in lines)


def test_envs_shows_one_environment_with_its_options(capsys: Captured) -> None:
    assert main(["envs", "text/maze"]) == 0
    told = capsys.readouterr().out
    assert "turngym/Maze-v0" in told
    rows = [" ".join(line.split()) for line in told.splitlines()]
    assert "max_turns 14 Turns after which an episode is truncated." in rows
    assert "what it is Walk through a grid of rooms to a key and then to a door." in rows
    assert "difficulty easy One of easy, medium, hard, long." in rows
    assert main(["envs", "text/maze-hard", "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    defaults = {option["name"]: option["default"] for option in record["options"]}
    styles = {"action_style": "commands", "picture": False}
    assert defaults == {
        "max_turns": 120, "calls_per_turn": 1, "difficulty": "hard", **styles,
    }  # fmt: skip


def test_envs_names_the_nearest_family(capsys: Captured) -> None:
    assert main(["envs", "--family", "txt"]) == 2
    assert "unknown family 'txt'. Did you mean 'text'?" in capsys.readouterr().err


def test_envs_tells_a_program_what_each_environment_needs(capsys: Captured) -> None:
    assert main(["envs", "--json"]) == 0
    listed = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert listed["text/maze-hard"] == {
        "id": "turngym/Maze-hard-v0",
        "name": "text/maze-hard",
        "family": "text",
        "snapshot_kind": "exact",
        "max_turns": 120,
        "provides": ["potential", "state_key"],
        "needs": {"extra": None, "modules": [], "programs": []},
        "runs_here": True,
        "missing": [],
    }


def test_envs_starts_without_torch() -> None:
    code = (
        "import sys\n"
        "from turngym.cli.main import main\n"
        "assert main(['envs']) == 0\n"
        "heavy = {'torch', 'transformers', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# play


def test_play_reads_piped_lines_until_the_episode_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    env = package.make("text/maze")
    env.reset(seed=0, options={"task": "maze-easy/test/0"})
    expert = env.get_wrapper_attr("expert_action")
    moves, over = [], False
    while not over:
        moves.append(expert())
        _, _, terminated, truncated, _ = env.step(moves[-1])
        over = terminated or truncated
    typed(monkeypatch, *moves, "not read any more")
    assert main(["play", "text/maze", "--task", "maze-easy/test/0"]) == 0
    shown = capsys.readouterr().out
    assert "Find the key" in shown  # the rules
    assert "[reward +1]" in shown
    assert shown.endswith(f"terminated after {len(moves)} turns: return 1, score 1\n")


def test_play_lists_the_legal_actions_without_spending_a_turn(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    typed(monkeypatch, "?", "quit")
    assert main(["play", "text/maze", "--seed", "3"]) == 0
    captured = capsys.readouterr()
    assert "Legal actions:\n  go north\n  go east\n" in captured.err
    assert captured.out.endswith("stopped after 0 turns: return 0\n")


def test_play_does_not_fill_the_screen_with_legal_actions(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    typed(monkeypatch, "?", "quit")
    assert main(["play", "text/wordle"]) == 0
    shown = capsys.readouterr().err
    assert shown.count("\n  guess ") == 30
    assert re.search(r"\n  \.\.\. and \d{3} more\n", shown)


def test_play_takes_options_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    typed(monkeypatch, "dance", "dance")
    assert main(["play", "text/maze", "--env-option", "max_turns=2"]) == 0
    assert "truncated_turns after 2 turns" in capsys.readouterr().out


def test_play_stops_at_the_end_of_the_input(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    typed(monkeypatch, "go north", "dance")
    assert main(["play", "text/maze", "--seed", "3"]) == 0
    shown = capsys.readouterr().out
    assert "Not a command: 'dance'" in shown
    assert shown.endswith("stopped after 2 turns: return 0\n")


def test_play_tells_a_turn_limit_from_an_end(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    typed(monkeypatch, *["dance"] * 14)
    assert main(["play", "text/maze", "--seed", "3"]) == 0
    assert capsys.readouterr().out.endswith("truncated_turns after 14 turns: return 0, score 0\n")


def test_play_with_the_same_seed_is_the_same_task(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    shown = []
    for seed in ("7", "7", "8"):
        typed(monkeypatch)
        main(["play", "text/maze", "--seed", seed])
        shown.append(capsys.readouterr().err.replace(f"seed {seed}", ""))
    assert shown[0] == shown[1] != shown[2]


# eval


def test_eval_reports_each_environment_as_promised(capsys: Captured) -> None:
    found = evaluated(capsys, "text/maze", "text/maze-hard", "--agent", "expert", "--episodes", "5")
    assert set(found) == {"text/maze", "text/maze-hard"}
    maze = found["text/maze"]
    assert (maze["episodes"], maze["solved"], maze["success"], maze["faults"]) == (5, 5, 1.0, 0)
    # Wilson with n = p*n = 5: n / (n + z^2) = 5 / 8.8415
    assert maze["success_ci95"] == pytest.approx([0.5655, 1.0], abs=1e-4)
    assert maze["mean_return"] == 1.0
    assert 1 <= maze["mean_turns"] <= 14


def test_eval_of_nobody_solves_nothing(capsys: Captured) -> None:
    found = evaluated(capsys, "text/maze", "--agent", "noop", "--episodes", "4")["text/maze"]
    assert (found["solved"], found["success"], found["mean_turns"]) == (0, 0.0, 14.0)
    assert found["invalid_actions"] == 4 * 14


def test_eval_depends_on_the_seed_and_not_on_the_concurrency(capsys: Captured) -> None:
    options = ("text/maze", "--agent", "random", "--episodes", "12")
    one = evaluated(capsys, *options, "--seed", "1", "--concurrency", "1")
    same = evaluated(capsys, *options, "--seed", "1", "--concurrency", "7")
    other = evaluated(capsys, *options, "--seed", "2")
    for found in (one, same, other):
        assert found["text/maze"].pop("time")["total_seconds"] > 0  # what a clock decides is apart
    assert one == same != other


def test_eval_of_a_pattern_tells_what_did_not_run(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    lab_environment(monkeypatch, "lab/Here-v0")
    gone = {"difficulty": "medium"}
    lab_environment(
        monkeypatch, "lab/Gone-v0", kwargs=gone, extra="gone", modules=["no_such_engine"]
    )
    assert main(["eval", "lab/*", "--agent", "noop", "--episodes", "2", "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert set(found) == {"lab/here", "lab/gone"}
    assert found["lab/here"]["success"] == 0.0
    assert found["lab/gone"]["success"] is None  # not run is not failed
    reason = "environment 'lab/gone' needs the extra 'gone': pip install 'turngym[gone]'"
    assert found["lab/gone"]["not_run"] == reason
    assert captured.err == f"not run: {reason}\n"


def test_eval_of_a_pattern_leaves_out_what_the_agent_cannot_play(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    lab_environment(monkeypatch, "lab/Here-v0")
    lab_environment(monkeypatch, "lab/Mute-v0", kwargs={"difficulty": "hard"})
    legal = MazeEnv.legal_actions

    def only_easy(self: MazeEnv) -> list[str] | None:
        return legal(self) if self.name == "maze-easy" else None

    monkeypatch.setattr(MazeEnv, "legal_actions", only_easy)
    found = evaluated(capsys, "lab/*", "--agent", "random", "--episodes", "3")
    assert found["lab/here"]["episodes"] == 3
    assert "lists no legal actions" in found["lab/mute"]["not_run"]


def test_what_cannot_run_any_more_keeps_the_episodes_that_it_had(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured, tmp_path: Path
) -> None:
    lab_environment(monkeypatch, "lab/Here-v0")
    lab_environment(monkeypatch, "lab/There-v0", kwargs={"difficulty": "medium"})
    command = ("lab/*", "--agent", "noop", "--episodes", "3", "--out", str(tmp_path))
    whole = evaluated(capsys, *command)
    rows = (tmp_path / "episodes.jsonl").read_bytes()
    there = registry.find("lab/there")
    registry._entries[there.id] = replace(there, modules=("no_such_engine",))
    gone = evaluated(capsys, *command)
    assert gone["lab/there"].pop("not_run") == (
        "environment 'lab/there': install the Python module 'no_such_engine'"
    )
    assert gone == whole
    assert (tmp_path / "episodes.jsonl").read_bytes() == rows
    assert main(["report", str(tmp_path), "--json"]) == 0
    [reported] = json.loads(capsys.readouterr().out)["evaluations"]
    assert reported["results"]["lab/there"]["episodes"] == 3


def test_two_environments_with_one_name_are_not_taken_for_each_other(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    lab_environment(monkeypatch, "lab/Here-v0")
    lab_environment(monkeypatch, "other/Here-v0", kwargs={"difficulty": "hard"})
    options = ("--agent", "noop", "--episodes", "1")
    assert main(["eval", "lab/Here-v0", "other/Here-v0", *options]) == 2
    assert capsys.readouterr().err == (
        "error: lab/Here-v0 and other/Here-v0 are both called 'lab/here' in results; "
        "evaluate them one by one, each in a folder of its own\n"
    )
    [one] = evaluated(capsys, "lab/*", *options)
    assert one == "lab/here"


def test_tasks_that_come_again_are_told(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    lab_environment(monkeypatch, "lab/Here-v0")
    task = MazeEnv.task
    monkeypatch.setattr(MazeEnv, "task", lambda env, split, index: task(env, split, index % 2))
    assert main(["eval", "lab/here", "--agent", "noop", "--episodes", "5"]) == 0
    assert capsys.readouterr().err == "lab/here: split 'test' has 2 tasks\n"


def test_eval_keeps_trajectories_and_results(capsys: Captured, tmp_path: Path) -> None:
    out = tmp_path / "runs" / "first"
    found = evaluated(
        capsys, "text/maze", "--agent", "expert", "--episodes", "3", "--out", str(out)
    )
    trajectories = list(read_trajectories(out / "text-maze.jsonl"))
    assert [t.task_id for t in trajectories] == [f"maze-easy/test/{i}" for i in range(3)]
    assert all(t.is_success and t.env_id == "turngym/Maze-v0" for t in trajectories)
    kept = json.loads((out / "evaluation.json").read_text())
    assert kept["results"] == found
    assert (kept["plan"]["agent"], kept["plan"]["split"]) == ("expert", "test")
    assert kept["sessions"][0]["turngym"] == package.__version__


def test_eval_plays_the_training_tasks_on_demand(capsys: Captured, tmp_path: Path) -> None:
    options = ("--agent", "noop", "--episodes", "1", "--split", "train", "--out", str(tmp_path))
    evaluated(capsys, "text/maze", *options)
    [trajectory] = read_trajectories(tmp_path / "text-maze.jsonl")
    assert trajectory.task_id == "maze-easy/train/0"


def test_eval_prints_a_table_for_people(capsys: Captured) -> None:
    assert main(["eval", "text/maze", "--agent", "expert", "--episodes", "5"]) == 0
    header, line = capsys.readouterr().out.splitlines()
    assert header.startswith("ENVIRONMENT")
    assert line.startswith("text/maze    5         100.0 % [56.6, 100.0]  1.00")
    assert line.endswith(" 0")


def test_eval_of_a_person_shows_each_end(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    typed(monkeypatch, *["dance"] * 14)
    found = evaluated(capsys, "text/maze", "--agent", "human", "--episodes", "1")
    assert found["text/maze"]["success"] == 0.0


def test_eval_of_a_function_that_breaks_counts_faults_and_fails(tmp_path: Path) -> None:
    (tmp_path / "half.py").write_text(
        "def act(seen, info):\n    raise RuntimeError('no answer today')\n"
    )
    done = turngym("eval", "text/maze", "--agent", "half:act", "--episodes", "3", cwd=tmp_path)
    assert done.returncode == 1
    assert "3 of 3 episodes broke: act: RuntimeError: no answer today" in done.stderr
    assert "Traceback" not in done.stderr
    line = done.stdout.splitlines()[1]
    assert line.split()[:6] == ["text/maze", "3", "–", "–", "–", "–"]
    assert line.endswith("3: policy 100.0 % [43.9, 100.0]")


def test_eval_goes_on_when_some_episodes_break(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "moody_agent.py").write_text(
        "def act(seen, info):\n"
        "    if info['task_id'].endswith('/1'):\n"
        "        raise RuntimeError('not this one')\n"
        "    return info['legal_actions'][0]\n"
    )
    monkeypatch.chdir(tmp_path)
    found = evaluated(capsys, "text/maze", "--agent", "moody_agent:act", "--episodes", "3")
    assert (found["text/maze"]["faults"], found["text/maze"]["episodes"]) == (1, 3)
    assert found["text/maze"]["success"] is not None


# eval with a model


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny untrained model with room for 128 tokens: the instructions fill more than that."""
    folder = tmp_path_factory.mktemp("model")
    save_model_dir(model(context=128), tokenizer(), folder)
    return folder


def test_eval_of_a_model_in_a_folder(
    capsys: Captured, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("model")
    save_model_dir(model(context=1024), tokenizer(), folder)
    options = ("--agent", f"hf:{folder}", "--episodes", "2", "--out", str(tmp_path))
    assert evaluated(capsys, "text/maze", *options)["text/maze"]["faults"] == 0
    first = next(iter(read_trajectories(tmp_path / "text-maze.jsonl")))
    assert first.num_sampled_tokens > 0
    assert first.turns[0].observation[0].role == "system"
    assert "Find the key" in first.turns[0].observation[0].content


def test_a_prompt_longer_than_the_context_truncates_its_episode_and_the_run_goes_on(
    capsys: Captured, tmp_path: Path, model_folder: Path
) -> None:
    options = ("--agent", f"hf:{model_folder}", "--episodes", "3", "--out", str(tmp_path))
    assert main(["eval", "text/maze", *options, "--json"]) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)["text/maze"]
    assert (found["episodes"], found["truncated"], found["faults"]) == (3, 3, 0)
    assert "text/maze: the agent never acted in 3 of 3 episodes: truncated_context" in said.err
    kept = list(read_trajectories(tmp_path / "text-maze.jsonl"))
    assert [t.stop_reason for t in kept] == [StopReason.TRUNCATED_CONTEXT] * 3


# train


@pytest.fixture(scope="module")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A finished run, and what was printed at its end."""
    folder = tmp_path_factory.mktemp("train")
    (folder / "tiny.toml").write_text(TINY_RUN)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = main(["train", str(folder / "tiny.toml"), "--out", str(folder / "run")])
    assert code == 0
    return folder / "run", printed.getvalue()


def test_train_prints_held_out_success_before_and_after_with_intervals(
    tiny_run: tuple[Path, str],
) -> None:
    folder, printed = tiny_run
    summary = json.loads((folder / "summary.json").read_text())
    sampled = printed.splitlines()[1]
    assert sampled.startswith("sampled")
    for moment in ("before", "after"):
        found = summary[moment]["sampled"]
        low, high = found["success_ci95"]
        shown = f"{100 * found['success']:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"
        assert shown in sampled
    assert "2 updates (all updates done), 8 episodes, 0 faults" in printed
    assert printed.endswith(f"run folder: {folder}\n")


def test_train_says_of_each_phase_when_it_is_over(
    capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tiny.toml").write_text(TINY_RUN)
    monkeypatch.chdir(tmp_path)
    assert main(["train", "tiny.toml", "algo=rloo", "run.seed=1", "--json"]) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert (result["folder"], result["algo"], result["seed"]) == ("runs/tiny", "rloo", 1)
    assert result["after"]["greedy"]["episodes"] == 4
    phases = [line.split(":")[0] for line in captured.err.splitlines()]
    said = [p for p in phases if p in ("warm start", "reinforcement")]
    assert list(dict.fromkeys(said)) == ["warm start", "reinforcement"]  # slow ones say more
    assert said == sorted(said, reverse=True)


def test_train_does_not_repeat_a_run_that_is_done(
    capsys: Captured, tiny_run: tuple[Path, str]
) -> None:
    folder, printed = tiny_run
    metrics = (folder / "metrics.jsonl").read_bytes()
    assert main(["train", "--resume", "--out", str(folder)]) == 0
    captured = capsys.readouterr()
    assert captured.out == printed
    assert "this run is done" in captured.err
    assert (folder / "metrics.jsonl").read_bytes() == metrics


@pytest.mark.parametrize("part", [".", "checkpoints"])
def test_eval_of_a_run_or_of_one_of_its_checkpoints(
    capsys: Captured, tiny_run: tuple[Path, str], part: str
) -> None:
    folder = tiny_run[0] / part
    if part == "checkpoints":
        folder = sorted(folder.iterdir())[-1]
    found = evaluated(capsys, "text/maze", "--agent", f"run:{folder}", "--episodes", "4")
    greedy = json.loads((tiny_run[0] / "summary.json").read_text())["after"]["greedy"]
    assert found["text/maze"]["success"] == greedy["success"]
    assert found["text/maze"]["faults"] == 0


def test_eval_of_a_run_with_settings_behind_its_folder(
    capsys: Captured, tiny_run: tuple[Path, str], tmp_path: Path
) -> None:
    folder = tmp_path / "a run"  # as it has blanks
    folder.symlink_to(tiny_run[0])
    plain, sampled = make_policy(f"run:{folder}"), make_policy(f"run:'{folder}' temperature=0.5")
    assert isinstance(plain, ChatAgent)
    assert isinstance(sampled, ChatAgent)
    assert sampled.model.sampling == replace(plain.model.sampling, temperature=0.5)
    assert sampled.model.engine.context == plain.model.engine.context
    played = ["eval", "text/maze", "--episodes", "2", "--agent"]
    assert main([*played, f"run:'{folder}' temperature=1"]) == 0
    capsys.readouterr()
    assert main([*played, f"run:'{folder}' temprature=1"]) == 2
    assert "Did you mean 'temperature'?" in capsys.readouterr().err


def test_an_opponent_in_an_environment_of_one_player_is_refused(capsys: Captured) -> None:
    played = ["eval", "text/maze", "--agent", "random", "--episodes", "2", "--opponent", "expert"]
    assert main(played) == 2
    assert "--opponent expert: there is one player in text/maze" in capsys.readouterr().err
    assert main([*played, "text/tictactoe"]) == 0


# check


def test_check_reports_every_promise_of_an_environment(capsys: Captured) -> None:
    assert main(["check", "env", "text/maze", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["subject"], report["ok"], len(report["reports"])) == ("text/maze", True, 2)
    results = [result for part in report["reports"] for result in part["results"]]
    assert len(results) > 10
    assert {result["status"] for result in results} <= {"pass", "not-run"}


def test_an_environment_is_checked_as_it_is_made_with_options(capsys: Captured) -> None:
    assert main(["check", "env", "text/maze", "--env-option", "max_turns=4"]) == 1
    said = capsys.readouterr().out
    assert "fail    expert solves: expert, maze-easy/train/0: score 0.0 after 4 turns" in said
    assert "pass    same in another process" in said
    assert main(["check", "task", "text/maze/test/0", "--env-option", "max_turns=4"]) == 1
    assert "not sound" in capsys.readouterr().out
    assert main(["tasks", "list", "text/maze", "--env-option", "difficulty=hard"]) == 0
    assert "maze-hard/test/0" in capsys.readouterr().out


def test_check_of_a_broken_environment_fails_and_names_the_promise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    (tmp_path / "forgetful_maze.py").write_text(
        "from turngym.environments.text.maze import MazeEnv\n"
        "class ForgetfulEnv(MazeEnv):\n"
        "    def set_state(self, state):\n"
        "        super().set_state(state)\n"
        "        self.state.at = self.state.door\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["check", "env", "forgetful_maze:ForgetfulEnv"]) == 1
    shown = capsys.readouterr().out
    assert any(line.strip().startswith("fail") for line in shown.splitlines())
    assert any(line.strip().startswith("pass") for line in shown.splitlines())


@pytest.mark.parametrize(("required", "code"), [(True, 1), (False, 0)])
def test_a_check_that_did_not_run_fails_when_it_is_required(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured, required: bool, code: int
) -> None:
    def cannot() -> None:
        raise NotRun("no second process here")

    def report(target: str, *, timeout_s: float) -> CheckReport:
        assert timeout_s == 600
        made = CheckReport(target)
        made.run("same in a fresh process", cannot, required=required)
        return made

    monkeypatch.setattr("turngym.environments.checks.check.check_turn_env", report)
    monkeypatch.setattr("turngym.environments.checks.check.check_fork", report)
    assert main(["check", "env", "text/maze"]) == code
    assert "not-run same in a fresh process" in capsys.readouterr().out


# config


def test_config_show_prints_settings_that_give_the_same_settings(
    capsys: Captured, tmp_path: Path
) -> None:
    first = tmp_path / "first.toml"
    first.write_text('[env]\nid = "text/maze"\n')
    assert main(["config", "show", str(first), "algo=rloo", "run.seed=3"]) == 0
    shown = capsys.readouterr().out
    second = tmp_path / "second.toml"
    second.write_text(shown)
    assert main(["config", "show", str(second)]) == 0
    assert capsys.readouterr().out == shown
    assert 'name = "rloo"' in shown


@pytest.mark.parametrize("null", ["rollout.watchdog_s=null", "algo.advantage.batch=null"])
def test_a_setting_that_toml_cannot_say_is_named(
    capsys: Captured, tmp_path: Path, null: str
) -> None:
    assert main(["config", "show", "demo", "algo=ppo", null]) == 0
    first = capsys.readouterr()
    assert first.err == f"TOML has no null: with what was printed goes {null}\n"
    (tmp_path / "own.toml").write_text(first.out)
    assert main(["config", "show", str(tmp_path / "own.toml"), null]) == 0
    assert capsys.readouterr() == first


def test_config_show_tells_a_program_also_what_is_unset(capsys: Captured, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('[env]\nid = "text/maze"\n')
    path = str(tmp_path / "run.toml")
    assert main(["config", "show", path, "rollout.group_size=4", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["rollout"]["group_size"] == 4
    assert shown["env"]["id"] == "text/maze"
    assert shown["env"]["num_train_tasks"] is None


def test_config_show_works_without_torch(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('[env]\nid = "text/maze"\n')
    done = turngym("config", "show", "run.toml", cwd=tmp_path, hide=["torch", "transformers"])
    assert (done.returncode, done.stderr) == (0, "")


# doctor


def test_doctor_finds_the_core_working(capsys: Captured) -> None:
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["turngym"] == package.__version__
    assert report["cores"] >= 1
    checks = {check["name"]: check for check in report["checks"]}
    assert checks["core"]["status"] == "ok"
    assert checks["train"]["status"] in ("ok", "missing")
    for check in checks.values():
        assert (check["fix"] is None) == (check["status"] == "ok")
