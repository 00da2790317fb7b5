"""Packs are made, looked at, played, checked and trained on by the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import turngym
from helpers.cli import TINY_RUN
from helpers.envs import registered
from turngym.cli.main import main
from turngym.errors import ConfigError
from turngym.tasks.base import SPLITS
from turngym.tasks.pack import read_pack, write_pack


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TURNGYM_CACHE", str(tmp_path / "cache"))
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_tasks_of_an_environment_are_packed_and_played(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "report.json").write_text('{"subject": "x", "ok": true, "reports": []}')
    words = ("tasks", "pack", "text/maze", "--count", "3", "--report", "report.json")
    made = said(capsys, *words, "--out", "mazes.tasks", "--licence", "MIT")
    assert made["tasks"] == 6
    again = said(capsys, *words, "--out", "new/again.tasks", "--licence", "MIT")
    assert made["sha256"] == again["sha256"]
    shown = said(capsys, "tasks", "show", "mazes.tasks")
    assert shown["sha256"] == made["sha256"]
    assert shown["report"]["ok"] is True
    assert {task["licence"] for task in shown["tasks"]} == {"MIT"}
    assert {task["source"] for task in shown["tasks"]} == {f"turngym {turngym.__version__}"}
    listed = said(capsys, "tasks", "list", "mazes.tasks")
    assert listed == said(capsys, "tasks", "list", "text/maze", "--count", "3")
    assert main(["tasks", "show", "mazes.tasks"]) == 0
    assert "6 tasks of turngym/Maze-v0, sound" in capsys.readouterr().out
    found = said(capsys, "eval", "mazes.tasks", "--agent", "expert")
    assert next(iter(found.values()))["solved"] == 3, "as many as there are"
    assert main(["check", "task", "mazes.tasks/test/1"]) == 0
    assert main(["envs", "mazes.tasks"]) == 0


def test_tasks_of_another_package_are_not_said_to_be_ours_and_want_that_package(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with registered("helpers/Packed-v0", "helpers.envs:LadderEnv") as name:
        assert main(["tasks", "pack", name, "--count", "1", "--out", "one.tasks"]) == 0
    assert {task.source for task in read_pack(Path("one.tasks")).manifest.tasks} == {""}
    assert main(["eval", "one.tasks", "--agent", "expert"]) == 2
    said = capsys.readouterr().err
    assert "one.tasks: install the package that brings its environment here: unknown" in said
    assert "'helpers/Packed-v0'" in said


def test_projects_are_shown_with_the_splits_of_their_tasks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (alone,) = said(capsys, "tasks", "show", "sample")
    assert alone["split"] == "train, test"
    assert {row["split"] for row in said(capsys, "tasks", "show", "shipped")} == {"train", "test"}


def test_an_environment_has_the_tasks_of_the_pack_alone(folder: Path) -> None:
    tasks = [f"text/maze/{one}" for one in ("test/7", "train/9", "test/4")]
    assert main(["tasks", "pack", *tasks, "--out", "three.tasks"]) == 0
    env = turngym.make("three.tasks")
    ids = [env.unwrapped.task("test", index).id for index in range(2)]
    assert ids == ["maze-easy/test/7", "maze-easy/test/4"]
    assert {env.reset(seed=seed)[1]["task_id"] for seed in range(5)} == {"maze-easy/train/9"}
    with pytest.raises(ConfigError, match="has 2 tasks of split 'test'"):
        env.unwrapped.task("test", 2)
    with pytest.raises(ConfigError, match=r"'maze-easy/test/5': is not in .*three\.tasks"):
        env.reset(options={"task": "maze-easy/test/5"})
    (copy,) = turngym.fork(env, 1)
    assert copy.unwrapped.count("test") == 2
    env.close()
    copy.close()


@pytest.mark.parametrize(
    "options",
    [{"difficulty": "hard"}, {"max_turns": 5}, {"calls_per_turn": 2, "action_style": "tools"}],
)
def test_limits_and_calls_are_those_of_the_options_it_was_packed_with(
    folder: Path, options: dict[str, Any]
) -> None:
    words = [word for k, v in options.items() for word in ("--env-option", f"{k}={v}")]
    assert main(["tasks", "pack", "text/maze", "--count", "1", *words, "--out", "a.tasks"]) == 0
    found = []
    for env in (turngym.make("text/maze", **options), turngym.make("a.tasks")):
        _, info = env.reset(seed=1, options={"split": "test"})
        found.append((info["max_turns"], info.get("calls_per_turn")))
        env.close()
    assert found[0] == found[1]


def test_a_problem_that_is_made_otherwise_by_now_is_refused(folder: Path) -> None:
    assert main(["tasks", "pack", "text/maze/test/0", "--out", "one.tasks"]) == 0
    found = read_pack(folder / "one.tasks").manifest
    task = found.tasks[0].model_copy(update={"sha256": "0" * 64})
    write_pack(folder / "old.tasks", found.model_copy(update={"tasks": (task,)}), {})
    env = turngym.make("old.tasks")
    with pytest.raises(ConfigError, match=r"maze-easy/test/0: is another problem .* than the one"):
        env.reset(options={"split": "test"})
    env.close()


def test_a_pack_says_how_hard_its_tasks_are(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tasks", "pack", "text/maze", "--count", "2", "--out", "m.tasks"]) == 0
    for agent, target in (("expert", "text/maze"), ("random", "m.tasks")):
        words = ["eval", target, "--agent", agent, "--episodes", "2", "--seeds", "3"]
        assert main([*words, "--out", agent]) == 0
    line = ["tasks", "pack", "text/maze", "--count", "2", "--results", "expert"]
    assert main([*line, "--out", "expert.tasks"]) == 0
    capsys.readouterr()
    packed = said(capsys, "tasks", "show", "expert.tasks")["tasks"]
    assert [task["scores"].get("expert") for task in packed] == [None, None, [1.0] * 3, [1.0] * 3]
    assert main(["tasks", "pack", "m.tasks", "--results", "random", "--out", "both.tasks"]) == 0
    capsys.readouterr()
    packed = said(capsys, "tasks", "show", "both.tasks")["tasks"]
    rows = (folder / "random/episodes.jsonl").read_text().splitlines()[1:]
    played = [row["score"] for row in map(json.loads, rows) if row["task_id"].endswith("test/1")]
    assert packed[-1]["scores"] == {"random": played}
    assert len(played) == 3
    assert main(["tasks", "show", "expert.tasks"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[-2:] == ["0.1.0", "1.00"]
    assert main(["tasks", "pack", "m.tasks", "--results", "expert", "--out", "x.tasks"]) == 2
    assert "is an evaluation of text/maze with options {}" in capsys.readouterr().err
    env = turngym.make("both.tasks")
    env.reset(options={"task": "maze-easy/test/1"})
    env.close()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["text/maze", "--results", "none"], "none: holds no score of a task that is packed"),
        (["text/maze", "text/wordle"], "tasks of one environment, not of text/maze, text/wordle"),
        (["text/maze", "folder"], "and not both"),
        (["mine.py"], "is a place on this machine"),
        (["text/maze", "--report", "none.json"], "cannot be read as a report"),
        (["text/maze/test/0", "text/maze/test/0"], "two tasks are called 'maze-easy/test/0'"),
        (["text/maze/test/0", "text/maze"], "two tasks are called 'maze-easy/test/0'"),
    ],
)
def test_what_cannot_be_packed_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    assert main(["new", "harbor", "folder"]) == 0
    assert main(["new", "game", "mine"]) == 0
    capsys.readouterr()
    assert main(["tasks", "pack", *words, "--out", "x.tasks"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line
    assert not Path("x.tasks").exists()


@pytest.mark.extra("torch")
@pytest.mark.slow
def test_a_policy_is_trained_on_a_mixture_of_packs(folder: Path) -> None:
    for name, tasks in (("m", "text/maze"), ("g", "text/guessnumber")):
        assert main(["tasks", "pack", tasks, "--count", "6", "--out", f"{name}.tasks"]) == 0
    (folder / "run.toml").write_text(TINY_RUN.replace('id = "text/maze"', ""))
    mix = [{"id": f"{name}.tasks", "num_train_tasks": 6} for name in "mg"]
    words = [f"env.mix={json.dumps(mix)}", "evaluation.validation_tasks=2"]
    words += ["evaluation.held_out_tasks=2"]
    assert main(["train", "run.toml", *words, "--out", "run"]) == 0
    rows = [json.loads(row) for row in (folder / "run/metrics.jsonl").read_text().splitlines()]
    names = {name for row in rows for name in row if name.startswith("rollout/success/")}
    assert len(names) == 2


@pytest.mark.extra("bwrap")
@pytest.mark.slow
def test_folders_are_packed_played_and_checked(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "two"):
        assert main(["new", "harbor", name]) == 0
    text = (folder / "two/task.toml").read_text()
    (folder / "two/task.toml").write_text(text + '\n[metadata]\nlicense = "CC0"\n')
    assert main(["tasks", "pack", "one", "two", "--licence", "MIT", "--out", "both.tasks"]) == 0
    tasks = read_pack(folder / "both.tasks").manifest.tasks
    assert [(task.id, task.licence) for task in tasks] == [("one", "MIT"), ("two", "CC0")]
    capsys.readouterr()
    for split in SPLITS:
        env = turngym.make("both.tasks")
        count = env.unwrapped.count(split)
        env.close()
        words = ("eval", "both.tasks", "--agent", "expert", "--split", split)
        words += ("--out", f"results/{split}")
        if count:
            assert next(iter(said(capsys, *words).values()))["solved"] == count
    assert main(["check", "task", "both.tasks", "--deep", "0"]) == 0
    line = ["tasks", "pack", "both.tasks", "--results", "results", "--out", "rated.tasks"]
    assert main(line) == 0
    scored = [task.scores for task in read_pack(folder / "rated.tasks").manifest.tasks]
    assert scored == [{"expert": (1.0,)}] * 2
    (folder / "both.tasks").write_bytes((folder / "both.tasks").read_bytes() + b"x")
    assert main(["eval", "both.tasks", "--agent", "expert"]) == 2
    assert "was damaged or altered: its SHA-256 is" in capsys.readouterr().err
