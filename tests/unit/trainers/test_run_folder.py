"""Who may write where, and to what."""

from __future__ import annotations

import asyncio
import errno
import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from helpers.trajectories import episode
from turngym.config import load_config
from turngym.errors import ConfigError
from turngym.records import read_trajectories
from turngym.trainers.credit.base import Credit
from turngym.trainers.runs.run_folder import Outbox, RunFolder
from turngym.trainers.settings.train import TrainConfig


def config(*overrides: str) -> TrainConfig:
    return load_config(TrainConfig, ["env.id=text/maze", *overrides])


def refusal(path: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        RunFolder(path, config(*overrides))
    [line] = str(caught.value).splitlines()
    return line


def begun_run(path: Path, *overrides: str) -> None:
    """Leave a run that has a checkpoint, so that there is something to go on from."""
    with RunFolder(path, config(*overrides)) as folder:
        (folder.checkpoints / "000001-before-0").mkdir()


def test_a_new_folder_holds_the_resolved_settings(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "run"
    with RunFolder(path, config("run.seed=3")):
        content = json.loads((path / "config.json").read_text())
    assert content["format"] == 1
    assert content["seed"] == 3
    assert TrainConfig.model_validate_json(json.dumps(content["config"])) == config("run.seed=3")


def test_the_same_settings_come_back_to_the_same_folder(tmp_path: Path) -> None:
    with RunFolder(tmp_path, config()):
        pass
    before = (tmp_path / "config.json").read_bytes()
    with RunFolder(tmp_path, config()):
        assert (tmp_path / "config.json").read_bytes() == before


def test_other_settings_are_refused_by_the_first_that_differs(tmp_path: Path) -> None:
    begun_run(tmp_path)
    line = refusal(tmp_path, "learner.lr=0.5")
    assert line.startswith(f"{tmp_path}: holds a run with learner.lr=0.0007, not 0.5")


def test_a_run_that_is_done_keeps_what_it_left_when_its_checkpoints_are_gone(
    tmp_path: Path,
) -> None:
    with RunFolder(tmp_path, config("run.steps=2")) as folder:
        folder.metrics.write_text('{"step": 0}\n')
        folder.conclude({"updates": 2})
    assert "holds a run with learner.lr=" in refusal(tmp_path, "run.steps=2", "learner.lr=0.5")
    assert "has no checkpoint any more, so it cannot be made longer" in refusal(
        tmp_path, "run.steps=3"
    )
    with RunFolder(tmp_path, config("run.steps=2")) as folder:
        assert folder.read_summary() == {"updates": 2}
        assert folder.metrics.exists()


def test_many_differences_are_a_line_each_and_ten_at_most(tmp_path: Path) -> None:
    begun_run(tmp_path, "algo=grpo")
    with pytest.raises(ConfigError) as caught:
        RunFolder(tmp_path, config("algo=archer", "run.seed=7", "learner.lr=0.5"))
    first, *lines = str(caught.value).splitlines()
    assert first == (
        f"{tmp_path}: holds a run with other settings; choose another folder with --out, or the "
        "same settings to resume"
    )
    assert len(lines) == 11
    assert lines[-1].startswith("and ")
    assert all("=" in line and ", not " in line and len(line) < 250 for line in lines[:-1])


def test_settings_that_change_no_result_may_change(tmp_path: Path) -> None:
    begun_run(tmp_path)
    with RunFolder(tmp_path, config("run.keep_checkpoints=9", "run.checkpoint_every=1")) as run:
        run.accept()
    content = json.loads((tmp_path / "config.json").read_text())
    assert content["config"]["run"]["keep_checkpoints"] == 9
    assert content["changes"][0]["run.keep_checkpoints"] == [2, 9]


def test_a_run_that_goes_on_with_another_environment_in_its_file_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, helper, other = (tmp_path / f"{name}.py" for name in ("lamps", "lamps_help", "other"))
    shutil.copy(Path(__file__).parents[3] / "examples" / "05_environment.py", file)
    file.write_text(f"from lamps_help import *\n{file.read_text()}")
    helper.touch()
    other.touch()
    for edited in (None, other, file, None, helper):
        expected = int(edited in (file, helper))
        if edited is not None:
            edited.write_text(f"{edited.read_text()}\n")
        caplog.clear()
        begun_run(tmp_path / "run", f"env.id={file}")
        said = [one for one in caplog.messages if "is no longer what the run began with" in one]
        assert len(said) == expected
        (tmp_path / "run" / "checkpoints" / "000001-before-0").rmdir()
    content = json.loads((tmp_path / "run" / "config.json").read_text())
    assert [change["sources"] for change in content["changes"]] == [[str(file)]] * 2


@pytest.mark.parametrize(
    "where", ["algo.advantage", "algo.loss.surrogate", "selection.sampler", "agent.history"]
)
def test_a_run_that_goes_on_with_another_part_of_ones_own_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def credit(*given): ...\n")
    part = json.dumps({"type": "custom", "function": f"{file}:credit"})
    for edited, expected in ((False, 0), (True, 1), (False, 0)):
        file.write_text(file.read_text() + "\n" * edited)
        caplog.clear()
        begun_run(tmp_path / "run", f"{where}={part}")
        said = f"{file}:credit is no longer what the run began with"
        assert sum(said in message for message in caplog.messages) == expected
        (tmp_path / "run" / "checkpoints" / "000001-before-0").rmdir()


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    with RunFolder(tmp_path, config()):
        pass
    content = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**content, "format": 99}))
    assert refusal(tmp_path).endswith("format version 99 is newer than 1; upgrade turngym")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 1}', "\x00"])
def test_a_file_that_is_no_settings_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    assert "config.json: is not the settings of a run" in refusal(tmp_path)


def test_a_folder_with_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("dear reader")
    assert refusal(tmp_path).startswith(f"{tmp_path}: is not empty (thesis.tex) and holds no run")
    assert not (tmp_path / "config.json").exists()


def test_a_path_that_cannot_be_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "cannot be used as a run folder" in refusal(tmp_path / "file" / "run")


def test_a_full_disk_at_the_beginning_names_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("turngym.trainers.runs.run_folder.write_json", full)
        line = refusal(tmp_path / "run")
    assert line == f"{tmp_path / 'run'}: cannot be used as a run folder (No space left on device)"
    RunFolder(tmp_path / "run", config()).close()


def test_two_writers_in_one_process_are_refused(tmp_path: Path) -> None:
    with RunFolder(tmp_path, config()):
        assert "another run is writing here" in refusal(tmp_path)
    RunFolder(tmp_path, config()).close()


def test_a_second_process_is_refused_and_told_who_writes(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from turngym.config import load_config\n"
        "from turngym.trainers.settings.train import TrainConfig\n"
        "from turngym.trainers.runs.run_folder import Outbox, RunFolder\n"
        "f = RunFolder(Path(sys.argv[1]), load_config(TrainConfig, ['env.id=text/maze']))\n"
        "print('ready', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        assert f"another run is writing here (process {writer.pid})" in refusal(tmp_path)
        writer.kill()
    RunFolder(tmp_path, config()).close()  # the lock dies with its owner


def test_the_best_the_median_and_the_worst_episode_are_kept(tmp_path: Path) -> None:
    scores = [0.5, 0.0, 1.0, 1.0, 0.0]
    made = [episode([s], member=i, score=s) for i, s in enumerate(scores)]
    made.append(episode([0.0], member=9, error="broke"))
    with RunFolder(tmp_path, config()) as folder:
        folder.keep_trajectories("000007", made)
        asyncio.run(folder.outbox.settle())
    kept = {
        name: next(read_trajectories(tmp_path / "trajectories" / f"{name}-000007.jsonl")).score
        for name in ("worst", "median", "best")
    }
    assert kept == {"worst": 0.0, "median": 0.5, "best": 1.0}


def test_a_group_is_kept_with_its_advantages_and_a_batch_without_any_keeps_nothing(
    tmp_path: Path,
) -> None:
    members = tuple(episode([s, 0.0], member=i, score=s) for i, s in enumerate((0.0, 1.0)))
    advantages = (np.array([-1.0, -0.5]), np.array([1.0, 0.5]))
    with RunFolder(tmp_path, config()) as folder:
        folder.keep_group(
            "train-000005", Credit(samples=(), trajectories=members, advantages=advantages)
        )
        folder.keep_group("train-000010", Credit(samples=()))
        asyncio.run(folder.outbox.settle())
    [file] = (tmp_path / "trajectories").iterdir()
    assert file.name == "train-000005.jsonl"
    kept = list(read_trajectories(file))
    assert [t.score for t in kept] == [0.0, 1.0]
    assert [t.metadata["advantages"] for t in kept] == [[-1.0, -0.5], [1.0, 0.5]]


def test_seconds_add_up_over_resumptions(tmp_path: Path) -> None:
    with RunFolder(tmp_path, config()) as folder:
        assert folder.seconds() == 0.0
        folder.add_timing({"step": 0, "seconds": 1.5})
        folder.add_timing({"step": 1, "seconds": 2.0})
    with (tmp_path / "timings.jsonl").open("a") as file:
        file.write('{"step": 2, "sec')  # the process was killed here
    with RunFolder(tmp_path, config()) as folder:
        assert folder.seconds() == 3.5


def test_settings_that_are_written_can_be_read_back() -> None:
    for overrides in (
        [],
        ["rollout.group.quorum=2"],
        ["rollout.mode=overlap", "rollout.staleness=0"],
    ):
        made = config(*overrides)
        assert TrainConfig.model_validate_json(made.model_dump_json()) == made


async def test_files_are_written_in_order_while_the_event_loop_goes_on(tmp_path: Path) -> None:
    outbox, went_on, written = Outbox(), threading.Event(), list[str]()
    outbox.write(tmp_path, lambda: written.append("first" if went_on.wait(30) else "held up"))
    outbox.write(tmp_path, lambda: written.append("second"))
    asyncio.get_running_loop().call_later(0.01, went_on.set)
    await outbox.settle()
    assert written == ["first", "second"]


async def test_a_file_that_is_begun_is_finished_before_a_cancellation(tmp_path: Path) -> None:
    outbox, begun, go_on, written = Outbox(), threading.Event(), threading.Event(), list[str]()

    def write() -> None:
        begun.set()
        go_on.wait(30)
        written.append("whole")

    outbox.write(tmp_path, write)
    settling = asyncio.create_task(outbox.settle())
    assert await asyncio.to_thread(begun.wait, 30)
    settling.cancel()
    await asyncio.sleep(0.01)
    assert not settling.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await settling
    assert written == ["whole"]


async def test_what_cannot_be_written_is_raised_where_it_is_waited_for(tmp_path: Path) -> None:
    outbox, written = Outbox(), list[str]()

    def refuse() -> None:
        raise PermissionError("not yours")

    outbox.write(tmp_path, refuse)
    outbox.write(tmp_path, lambda: written.append("later"))
    with pytest.raises(PermissionError, match="not yours"):
        await outbox.settle()
    await outbox.settle()
    assert written == ["later"]
