import json
from pathlib import Path
from typing import Any

import pytest

from helpers.trajectories import episode
from turngym.errors import ConfigError, RecordError
from turngym.records import read_trajectories
from turngym.rollouts.evaluation.folder import EvalFolder, read_evaluation
from turngym.rollouts.evaluation.rows import FILE, read_rows, row_of
from turngym.tasks.base import procedural_task

PLAN: dict[str, Any] = {"agent": "random", "envs": {"lab/made": "lab/Made-v0"}, "seed": 0}


def add(folder: EvalFolder, task: int, *, error: str | None = None) -> None:
    made = episode([1.0], task_id=f"made/test/{task}", score=None if error else 1.0, error=error)
    folder.add(row_of(made, env="lab/made", seconds=0.0), made)


def key(task: int) -> tuple[str, str, int]:
    return ("lab/made", f"made/test/{task}", 0)


def test_what_is_finished_stands_in_the_order_asked_whatever_came_first(tmp_path: Path):
    with EvalFolder(tmp_path, PLAN) as folder:
        for task in (2, 0, 1):
            add(folder, task)
        folder.finish([key(0), key(1), key(2)], {"lab/made": {"solved": 3}})
    wanted = [f"made/test/{i}" for i in range(3)]
    assert [row.task_id for row in read_rows(tmp_path / FILE)] == wanted
    assert [t.task_id for t in read_trajectories(tmp_path / "lab-made.jsonl")] == wanted
    content = read_evaluation(tmp_path)
    assert content["results"] == {"lab/made": {"solved": 3}}
    assert {"began", "ended", "turngym", "python", "commit", "packages"} <= set(
        content["sessions"][0]
    )


def test_an_episode_is_there_before_the_evaluation_is_over(tmp_path: Path):
    with EvalFolder(tmp_path, PLAN) as folder:
        add(folder, 4)
        assert [row.task_id for row in read_rows(tmp_path / FILE)] == ["made/test/4"]
    with EvalFolder(tmp_path, PLAN) as folder:
        assert set(folder.rows) == {key(4)}
        assert len(read_evaluation(tmp_path)["sessions"]) == 2


def test_a_trajectory_without_its_row_is_played_again_and_kept_once(tmp_path: Path):
    with EvalFolder(tmp_path, PLAN) as folder:
        add(folder, 0)
    rows = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(rows[:-20])  # killed between the two files
    with EvalFolder(tmp_path, PLAN) as folder:
        assert not folder.rows
        add(folder, 0)
        folder.finish([key(0)], {})
    assert len(list(read_trajectories(tmp_path / "lab-made.jsonl"))) == 1


def test_another_plan_is_refused_with_the_difference(tmp_path: Path):
    EvalFolder(tmp_path, PLAN).close()
    with pytest.raises(ConfigError, match="holds an evaluation with seed=0, not 1"):
        EvalFolder(tmp_path, {**PLAN, "seed": 1})


def test_two_processes_do_not_write_one_evaluation(tmp_path: Path):
    with (
        EvalFolder(tmp_path, PLAN),
        pytest.raises(ConfigError, match="another evaluation is writing here"),
    ):
        EvalFolder(tmp_path, PLAN)


def test_the_files_of_something_else_are_not_touched(tmp_path: Path):
    (tmp_path / "lab-made.jsonl").write_text("mine\n")
    with pytest.raises(ConfigError, match=r"holds lab-made\.jsonl of something else"):
        EvalFolder(tmp_path, PLAN)
    assert (tmp_path / "lab-made.jsonl").read_text() == "mine\n"


@pytest.mark.parametrize("content", ["not json", "[]", '{"turngym": "0.1.0", "results": {}}'])
def test_another_evaluation_file_is_refused(tmp_path: Path, content: str):
    (tmp_path / "evaluation.json").write_text(content)
    with pytest.raises(ConfigError, match=r"evaluation\.json"):
        EvalFolder(tmp_path, PLAN)


def test_a_newer_format_is_refused(tmp_path: Path):
    EvalFolder(tmp_path, PLAN).close()
    content = json.loads((tmp_path / "evaluation.json").read_text())
    (tmp_path / "evaluation.json").write_text(json.dumps({**content, "version": 99}))
    with pytest.raises(ConfigError, match="newer than 1; upgrade turngym"):
        EvalFolder(tmp_path, PLAN)


def test_episodes_that_broke_are_played_again_when_asked(tmp_path: Path):
    with EvalFolder(tmp_path, PLAN) as folder:
        add(folder, 0)
        add(folder, 1, error="env: gone")
    with EvalFolder(tmp_path, PLAN) as folder:
        assert len(folder.rows) == 2
    with EvalFolder(tmp_path, PLAN, retry_faults=True) as folder:
        assert set(folder.rows) == {key(0)}


def test_tasks_that_changed_meanwhile_are_refused(tmp_path: Path):
    tasks = [procedural_task("made", "test", i) for i in range(2)]
    with EvalFolder(tmp_path, PLAN) as folder:
        folder.check_tasks("lab/made", tasks)
    with EvalFolder(tmp_path, PLAN) as folder:
        folder.check_tasks("lab/made", tasks)
        with pytest.raises(ConfigError, match="the tasks of 'lab/made' are not those"):
            folder.check_tasks("lab/made", tasks[:1])


def test_a_lost_trajectory_is_told(tmp_path: Path):
    with EvalFolder(tmp_path, PLAN) as folder:
        add(folder, 0)
        add(folder, 1)
        lines = (tmp_path / "lab-made.jsonl").read_bytes().splitlines(keepends=True)
        (tmp_path / "lab-made.jsonl").write_bytes(b"".join(lines[:2]))
        with pytest.raises(RecordError, match="is gone"):
            folder.finish([key(0), key(1)], {})
