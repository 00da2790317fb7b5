"""Many runs at once, with the training process replaced by one that is told what happens."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import turngym
from helpers.runs import write_lines, write_run
from turngym.api import jobs
from turngym.cli.main import main
from turngym.config import load_config
from turngym.errors import ConfigError
from turngym.records import Manifest
from turngym.trainers.runs.comparison import Heat, PlannedRun
from turngym.trainers.runs.run_folder import RunFolder
from turngym.trainers.settings.train import TrainConfig

Captured = pytest.CaptureFixture[str]
READY = ['model={"type": "pretrained", "path": "some/model"}', "warm_start.episodes=0"]


class FakeTraining:
    """Stands for the processes: notes what began and how many were there at once."""

    def __init__(self, failing: tuple[str, ...] = ()) -> None:
        self.failing = failing
        self.begun: list[str] = []
        self.most = 0
        self._now = 0

    async def __call__(self, run: PlannedRun) -> int:
        self.begun.append(f"{run.seed} {run.name}")
        self._now += 1
        self.most = max(self.most, self._now)
        await asyncio.sleep(0.01)
        self._now -= 1
        if run.name in self.failing:
            run.log_file.write_text("warm start: 6 steps\nerror: the lamp blew\n")
            return 1
        steps = run.config.run.steps
        write_run(run.folder, (0.1, 0.2, 0.4), algo=run.name, seed=run.seed, updates=steps)
        return 0


def planned(place: Path, name: str, seed: int) -> PlannedRun:
    config = load_config(TrainConfig, ["env.id=text/maze", "run.steps=2", f"run.seed={seed}"])
    folder = place / f"seed-{seed}" / name
    return PlannedRun(env="text/maze", seed=seed, name=name, folder=folder, config=config)


def heat(place: Path, seed: int, *, warm: bool = False) -> Heat:
    return Heat(
        start=place / f"seed-{seed}" / "start",
        warm_start=planned(place, "warm-start", seed) if warm else None,
        runs=tuple(planned(place, name, seed) for name in ("a", "b", "c")),
    )


def silent(done: int, note: str) -> None:
    """Watch and say nothing."""


@pytest.mark.parametrize("seats", [1, 2, 4])
def test_as_many_as_asked_for_run_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seats: int
) -> None:
    training = FakeTraining()
    monkeypatch.setattr(jobs, "_train", training)
    failures = jobs.run_heats([heat(tmp_path, s) for s in range(2)], jobs=seats, advance=silent)
    assert failures == {}
    assert len(training.begun) == 6
    assert training.most == seats


def test_what_is_done_is_not_run_again_and_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = FakeTraining()
    monkeypatch.setattr(jobs, "_train", training)
    one = heat(tmp_path, 0)
    write_run(one.runs[1].folder, (0.1, 0.2, 0.4), algo="b", seed=0)
    seen: list[int] = []
    jobs.run_heats([one], jobs=1, advance=lambda done, _: seen.append(done))
    assert training.begun == ["0 a", "0 c"]
    assert seen[-1] == 6  # two updates each


def test_what_a_killed_comparison_left_behind_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    training = FakeTraining()
    monkeypatch.setattr(jobs, "_train", training)
    monkeypatch.setattr(jobs, "_SECONDS_BETWEEN_LOOKS", 0.01)
    one = heat(tmp_path, 0)
    orphans = {run.name: RunFolder(run.folder, run.config) for run in one.runs[:2]}

    def advance(done: int, note: str) -> None:
        for run in one.runs[:2]:
            if note == run.label and (orphan := orphans.pop(run.name, None)):
                shutil.rmtree(run.folder)
                if run.name == "a":  # b dies on the way
                    write_run(run.folder, (0.1, 0.2, 0.4), algo="a", seed=0)
                orphan.close()

    assert jobs.run_heats([one], jobs=1, advance=advance) == {}
    assert training.begun == ["0 b", "0 c"]
    assert f"{one.runs[0].folder}: is trained by another process" in caplog.text


def test_a_run_that_another_process_has_just_begun_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Late(FakeTraining):
        async def __call__(self, run: PlannedRun) -> int:
            if run.name != "a":
                return await super().__call__(run)
            other = RunFolder(run.folder, run.config)

            def end() -> None:
                shutil.rmtree(run.folder)
                write_run(run.folder, (0.1, 0.2, 0.4), algo="a", seed=0)
                other.close()

            asyncio.get_running_loop().call_later(0.02, end)
            run.log_file.write_text("error: another run is writing here\n")
            return 2

    monkeypatch.setattr(jobs, "_train", Late())
    monkeypatch.setattr(jobs, "_SECONDS_BETWEEN_LOOKS", 0.01)
    assert jobs.run_heats([heat(tmp_path, 0)], jobs=1, advance=silent) == {}


def test_without_a_start_nothing_begins_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = FakeTraining(failing=("warm-start",))
    monkeypatch.setattr(jobs, "_train", training)
    heats = [heat(tmp_path, 0, warm=True), heat(tmp_path, 1)]
    failures = jobs.run_heats(heats, jobs=1, advance=silent)
    assert training.begun == ["0 warm-start", "1 a", "1 b", "1 c"]
    first = failures.pop("text/maze, seed 0, warm-start")
    assert first.startswith("exit code 1: the lamp blew (see ")
    assert failures == {
        f"text/maze, seed 0, {name}": "not started, because its warm-start failed"
        for name in ("a", "b", "c")
    }


def test_progress_is_read_from_the_runs(tmp_path: Path) -> None:
    assert jobs._updates(tmp_path) == 0
    write_lines(tmp_path / "metrics.jsonl", [{"step": 0}, {"step": 0, "rollout/episodes": 4}])
    assert jobs._updates(tmp_path) == 1


def test_a_failed_run_is_named_and_the_others_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setattr(jobs, "_train", FakeTraining(failing=("bad",)))
    out = tmp_path / "out"
    command = ["compare", "env.id=text/maze", "--env", "text/maze", *READY, "--out", str(out)]
    command += ["--algos", "grpo,bad=rloo", "--seeds", "2", "--budget-episodes", "2000"]
    assert main([*command, "--set", "bad:learner.num_minibatches=1"]) == 1
    captured = capsys.readouterr()
    assert "failed: text/maze, seed 1, bad: exit code 1: the lamp blew" in captured.err
    assert captured.out.splitlines()[2].startswith("grpo       2      40.0 %")
    page = (out / "report.md").read_text(encoding="utf-8")
    assert "- failed: text/maze, seed 0, bad" in page
    assert "| grpo |" in page
    assert "| bad |" not in page


def test_when_all_fail_there_is_no_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setattr(jobs, "_train", FakeTraining(failing=("grpo",)))
    command = ["compare", *READY, "--env", "text/maze", "--algos", "grpo", "--seeds", "1"]
    command += ["--budget-episodes", "2000", "--out", str(tmp_path), "--json"]
    assert main(command) == 1
    assert '"envs": []' in capsys.readouterr().out
    assert not (tmp_path / "report.md").exists()


def test_a_comparison_from_python_is_written_down_where_a_home_is_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(jobs, "_train", FakeTraining())
    compared = {"first": "grpo", "second": "rloo"}
    settings: dict[str, Any] = {"budget_episodes": 2000, "seeds": [4, 5]}
    ranking = turngym.compare("text/maze", compared, *READY, out="~/all", **settings)
    assert [entry.preset for entry in ranking.entries] == ["grpo", "rloo"]
    found = json.loads((tmp_path / "all" / "comparison.json").read_text())
    assert (found["presets"], found["seeds"]) == (compared, [4, 5])
    assert found["budget_episodes"] == 2000
    run = tmp_path / "all" / "text-maze" / "seed-4" / "first"
    Manifest(run).add(run / "config.json")
    with pytest.raises(ConfigError, match="first: holds a run; wanted another folder"):
        turngym.compare("text/maze", compared, *READY, out=run, **settings)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="is a file; wanted a folder"):
        turngym.compare("text/maze", compared, *READY, out=tmp_path / "file", **settings)
