"""Runs that meet trouble: broken folders and checkpoints, Ctrl-C, a full disk, a short context."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from helpers import warm
from helpers.cli import TINY_RUN, lab_environment, turngym
from turngym.cli.main import main
from turngym.records import read_trajectories
from turngym.trainers.runs.checkpoints import latest_checkpoint, load_checkpoint
from turngym.types import StopReason

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; tests copy it."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "tiny.toml").write_text(TINY_RUN)
    assert main(["train", str(folder / "tiny.toml"), "--out", str(folder / "run")]) == 0
    return folder / "run"


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A run that was killed before its last checkpoint."""
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    (folder / "summary.json").unlink()
    newest = latest_checkpoint(folder / "checkpoints")
    assert newest is not None
    shutil.rmtree(newest)
    return folder


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY_RUN)
    return str(path)


def complaint(capsys: Captured, *arguments: str, code: int = 2) -> str:
    """Run a command that must fail and return its last line on stderr, without ``error: ``."""
    assert main(list(arguments)) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    *others, line = captured.err.splitlines()
    assert not any("Traceback" in other or other.startswith("error") for other in others)
    assert line.startswith("error: ")
    return line.removeprefix("error: ")


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


# What to train.


def test_training_without_the_train_extra(tmp_path: Path, config: str) -> None:
    done = turngym("train", config, cwd=tmp_path, hide=["torch"])
    assert done.returncode == 2
    assert done.stderr == (
        "error: 'turngym train' needs the extra 'train': pip install 'turngym[train]'\n"
    )


def test_an_extra_that_is_there_and_broken_is_not_called_missing(tmp_path: Path) -> None:
    text = "libcudart.so.12: cannot open shared object file"
    (tmp_path / "torch.py").write_text(f"raise ImportError({text!r})")
    done = turngym("train", "demo", cwd=tmp_path, hide=["nothing_at_all"])
    assert done.returncode == 2
    assert done.stderr == (
        f"error: 'turngym train' needs the extra 'train', which cannot be loaded: {text}; "
        "'turngym doctor' says more\n"
    )


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("env.id=text/mze", "unknown environment 'text/mze'. Did you mean 'text/maze'?"),
        (
            "env.options.size=3",
            "unknown option of text/maze 'size'. Known: action_style, calls_per_turn, difficulty",
        ),
        ("env.options.difficulty=hrd", "unknown difficulty of maze 'hrd'. Did you mean 'hard'?"),
        (
            "env.options.difficulty=5",
            "unknown difficulty of maze 5. Known: easy, hard, long, medium",
        ),
        ("env.options.max_turns=x", "option max_turns: wanted a whole number, got 'x'"),
        ("algo=grpoo", "unknown algo preset 'grpoo'. Did you mean 'grpo'?"),
        ("rollout.group_size=0", "rollout.group_size: Input should be greater than or equal to 1"),
        ("rollout.group_size=1", "rollout.group_size=1 leaves nothing to compare with"),
        ("run.stps=3", "run.stps: unknown key. Did you mean 'steps'?"),
        ("model.hidden=15", "hidden=15 must be a multiple of"),
        ("model.context=8", "model.context: Input should be greater than or equal to 16 (got 8)"),
    ],
)
def test_settings_that_do_not_fit(
    capsys: Captured, config: str, tmp_path: Path, override: str, line: str
) -> None:
    assert line in complaint(capsys, "train", config, override, "--out", str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_an_environment_whose_extra_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured, config: str, tmp_path: Path
) -> None:
    lab_environment(monkeypatch, "lab/Gone-v0", extra="babyai", modules=["no_such_engine"])
    out = str(tmp_path / "new")
    assert complaint(capsys, "train", config, "env.id=lab/gone", "--out", out) == (
        "environment 'lab/gone' needs the extra 'babyai': pip install 'turngym[babyai]'"
    )


def test_an_environment_that_does_not_close_is_logged_and_what_was_played_stands(
    capsys: Captured,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "ajar.py").write_text(
        "from turngym.environments.text.maze import MazeEnv\n"
        "class AjarEnv(MazeEnv):\n"
        "    def close(self):\n"
        "        raise RuntimeError('the door is stuck')\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["eval", "ajar.py:AjarEnv", "--agent", "expert", "--episodes", "2"]) == 0
    assert "100.0 %" in capsys.readouterr().out
    short = ["run.steps=1", "rollout.groups_per_step=1", "rollout.group_size=2"]
    tasks = ["evaluation.held_out_tasks=1", "evaluation.validation_tasks=1"]
    tiny = ["warm_start.max_steps=1", "warm_start.episodes=4", "model.hidden=16", "model.heads=2"]
    config = ["train", "demo", "env.id=ajar.py:AjarEnv", *short, *tasks, *tiny]
    assert main([*config, "--out", str(tmp_path / "run")]) == 0
    said = [one.getMessage() for one in caplog.records]
    assert any("did not close: RuntimeError: the door is stuck" in one for one in said)


def test_a_game_without_a_problem_to_test_with_is_refused_before_experts_play(
    capsys: Captured, tmp_path: Path
) -> None:
    game, out = tmp_path / "one.py", tmp_path / "run"
    game.write_text(
        "from turngym.environments.text.maze import MazeEnv\n"
        "from turngym.tasks.base import split_of\n"
        "class One(MazeEnv):\n"
        "    def is_suitable(self):\n"
        "        return split_of(self.instance_key()) == 'train'\n"
    )
    line = complaint(capsys, "train", "demo", f"env.id={game}:One", "--out", str(out))
    assert "no problem of split 'test' in 1000 samples" in line
    assert not out.exists()


def test_a_missing_file_of_settings(capsys: Captured, tmp_path: Path) -> None:
    path = tmp_path / "none.toml"
    assert complaint(capsys, "train", str(path)).startswith(f"{path}: cannot be read")


def test_nothing_to_train(capsys: Captured) -> None:
    assert complaint(capsys, "train").startswith("train: wanted RECIPE|FILE.toml")


def test_a_run_without_a_name(capsys: Captured) -> None:
    assert complaint(capsys, "train", "env.id=text/maze").endswith("set --out")


# Where to.


def test_a_folder_that_cannot_be_written(capsys: Captured, config: str) -> None:
    line = complaint(capsys, "train", config, "--out", f"{config}/run")
    assert line.startswith(f"{config}/run: cannot be used as a run folder")


def test_a_folder_with_something_else_in_it(capsys: Captured, config: str, tmp_path: Path) -> None:
    line = complaint(capsys, "train", config, "--out", str(tmp_path))
    assert line == (f"{tmp_path}: is not empty (tiny.toml) and holds no run; choose another folder")


def test_a_folder_with_a_run_of_other_settings(capsys: Captured, config: str, run: Path) -> None:
    line = complaint(capsys, "train", config, "run.seed=7", "--out", str(run))
    assert line.startswith(f"{run}: holds a run with run.seed=0, not 7")


def test_a_run_folder_of_a_newer_format(capsys: Captured, config: str, run: Path) -> None:
    edit(run / "config.json", format=99)
    line = complaint(capsys, "train", config, "--out", str(run))
    assert line == f"{run}/config.json: format version 99 is newer than 1; upgrade turngym"


@pytest.mark.parametrize("options", [["--resume"], []])
def test_a_run_folder_whose_settings_are_unreadable(
    capsys: Captured, config: str, run: Path, options: list[str]
) -> None:
    (run / "config.json").write_text('{"format": 1, ')
    line = complaint(capsys, "train", config, "--out", str(run), *options)
    assert line.startswith(f"{run}/config.json: is not the settings of a run")


def test_nothing_to_resume(capsys: Captured, tmp_path: Path) -> None:
    line = complaint(capsys, "train", "--resume", "--out", str(tmp_path))
    assert line == f"{tmp_path}: holds no run to resume"


# Checkpoints.


def test_a_damaged_checkpoint_stops_a_resumed_run_and_says_which_file(
    capsys: Captured, run: Path
) -> None:
    newest = latest_checkpoint(run / "checkpoints")
    assert newest is not None
    weights = newest / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    line = complaint(capsys, "train", "--resume", "--out", str(run), code=1)
    assert line.startswith(f"{weights}: differs from its SHA-256 digest; delete ")


def test_a_damaged_checkpoint_cannot_be_evaluated(capsys: Captured, run: Path) -> None:
    newest = latest_checkpoint(run / "checkpoints")
    assert newest is not None
    (newest / "state.json").write_text("{}")
    line = complaint(capsys, "eval", "text/maze", "--agent", f"run:{run}")
    assert "state.json: differs from its SHA-256 digest" in line


def test_a_model_folder_with_half_its_weights_is_one_line(capsys: Captured, run: Path) -> None:
    newest = latest_checkpoint(run / "checkpoints")
    assert newest is not None
    weights = newest / "model" / "model.safetensors"
    os.truncate(weights, weights.stat().st_size // 2)
    line = complaint(capsys, "eval", "text/maze", "--agent", f"hf:{newest}/model")
    assert line.startswith(f"model '{newest}/model' cannot be loaded: ")


def test_a_checkpoint_of_a_newer_format_cannot_be_evaluated(capsys: Captured, run: Path) -> None:
    newest = latest_checkpoint(run / "checkpoints")
    assert newest is not None
    edit(newest / "manifest.json", version=99)
    line = complaint(capsys, "eval", "text/maze", "--agent", f"run:{newest}")
    assert line.endswith("format version 99 is newer than 1; upgrade turngym")


def test_a_folder_that_is_no_run_cannot_be_evaluated(capsys: Captured, tmp_path: Path) -> None:
    line = complaint(capsys, "eval", "text/maze", "--agent", f"run:{tmp_path}")
    assert line.endswith(f"{tmp_path}: holds neither a run with a checkpoint nor a model")


# While it runs.


def test_prompts_longer_than_the_context_truncate_their_episodes_and_training_goes_on(
    capsys: Captured, config: str, tmp_path: Path
) -> None:
    out = tmp_path / "short"
    assert main(["train", config, "model.context=40", "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["updates"] == 2
    kept = [t for file in out.glob("trajectories/best-*") for t in read_trajectories(file)]
    assert kept
    assert {t.stop_reason for t in kept} == {StopReason.TRUNCATED_CONTEXT}


def test_ctrl_c_saves_the_run_and_the_same_command_finishes_it(
    finished: Path, config: str, tmp_path: Path, capsys: Captured
) -> None:
    out = tmp_path / "run"
    command = ["train", config, "--out", str(out)]
    with closing(warm.Heard(warm.program, *command, out=tmp_path / "said")) as process:
        _wait_for(out / "metrics.jsonl", process)
        process.send_signal(signal.SIGINT)
        said = process.rest()
        assert process.returncode == 130, said
    assert said.splitlines()[-1] == f"{out}: interrupted and saved; the same command resumes it"
    assert "Traceback" not in said
    assert not (out / "summary.json").exists()
    kept = latest_checkpoint(out / "checkpoints")
    assert kept is not None
    load_checkpoint(kept)  # is whole

    assert main(["train", config, "--out", str(out)]) == 0
    captured = capsys.readouterr()
    assert f"{out}: resuming the run that is there" in captured.err
    assert (out / "metrics.jsonl").read_bytes() == (finished / "metrics.jsonl").read_bytes()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes; needs the right to mount."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m,mode=1777", "tmpfs", str(folder)]
    for prefix in ([], ["sudo", "-n"]):
        if not prefix or shutil.which("sudo"):
            done = subprocess.run([*prefix, *mount], capture_output=True, check=False)
            if done.returncode == 0:
                break
    else:
        pytest.skip("needs the right to mount a file system (root, or sudo without a password)")
    try:
        yield folder
    finally:
        subprocess.run([*prefix, "umount", str(folder)], check=True)


@contextmanager
def paused_by_a_full_disk(run: Path, disk: Path) -> Iterator[warm.Heard]:
    """Resume a copy of ``run`` on a disk with room for metrics only; wait until it says so."""
    shutil.copytree(run, disk / "run")
    (disk / "filler").write_bytes(b"\0" * (shutil.disk_usage(disk).free - 32 * 1024))
    command = ["train", "--resume", "--out", str(disk / "run")]
    with closing(warm.Heard(warm.program, *command, out=disk.parent / "said")) as process:
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "the disk is full" in line:
                break
        assert "the disk is full" in lines[-1], lines
        assert lines[-1].startswith(f"{disk}/run/checkpoints: ")
        yield process


@pytest.mark.extra("mount")
def test_a_full_disk_pauses_the_run_until_there_is_room(
    run: Path, finished: Path, small_disk: Path
) -> None:
    before = latest_checkpoint(run / "checkpoints")
    assert before is not None
    with paused_by_a_full_disk(run, small_disk) as process:
        load_checkpoint(small_disk / "run" / "checkpoints" / before.name)
        (small_disk / "filler").unlink()
        said = process.rest()
        assert process.returncode == 0, said
        assert "there is room again" in said
    for name in ("metrics.jsonl", "trajectories/best-000002.jsonl"):
        assert (small_disk / "run" / name).read_bytes() == (finished / name).read_bytes()


@pytest.mark.extra("mount")
def test_ctrl_c_ends_a_run_that_waits_for_room(run: Path, finished: Path, small_disk: Path) -> None:
    with paused_by_a_full_disk(run, small_disk) as process:
        process.send_signal(signal.SIGINT)
        said = process.rest()
        assert process.returncode == 130, said
        assert "interrupted while the disk is full; free some space" in said.splitlines()[-1]
        assert "Traceback" not in said
    assert not list((small_disk / "run" / "checkpoints").glob(".*")), "nothing half-written stays"
    (small_disk / "filler").unlink()
    assert main(["train", "--resume", "--out", str(small_disk / "run")]) == 0
    metrics = (small_disk / "run" / "metrics.jsonl").read_bytes()
    assert metrics == (finished / "metrics.jsonl").read_bytes()


@pytest.mark.extra("mount")
def test_a_full_disk_stops_an_evaluation_in_one_line(small_disk: Path, capsys: Captured) -> None:
    (small_disk / "filler").write_bytes(b"\0" * shutil.disk_usage(small_disk).free)
    arguments = ("--agent", "random", "--episodes", "20", "--out", str(small_disk))
    line = complaint(capsys, "eval", "text/maze", *arguments, code=1)
    assert "the disk is full; free some space" in line
    assert not (small_disk / "text-maze.jsonl").exists()


def _wait_for(file: Path, process: warm.Heard) -> None:
    """Wait until ``file`` has a first line, while ``process`` lives."""
    until = time.monotonic() + 120
    while not file.exists() or b"\n" not in file.read_bytes():
        assert process.returncode is None, process.rest()
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_report_without_a_finished_run_is_one_line(capsys: Captured, tmp_path: Path) -> None:
    for name in ("config.json", ".lock"):
        (tmp_path / name).touch()
    line = complaint(capsys, "report", str(tmp_path))
    assert line.startswith(f"{tmp_path}: no training run in here is finished")


def test_a_server_is_not_started_for_a_folder_without_a_model(
    capsys: Captured, tmp_path: Path
) -> None:
    where = str(tmp_path)
    line = complaint(capsys, "serve", "engine", where, "--weights", where, "--print")
    assert line == f"model {where!r} cannot be loaded: it holds no config.json"
    line = complaint(capsys, "serve", "engine", "mine", "--weights", where, "--print")
    assert "mine' cannot be loaded: there is no such folder" in line
    for more in ([], ["--weights", where, "--nccl"]):
        line = complaint(capsys, "serve", "engine", where, *more, "--print")
        assert line == "serve engine: wanted --weights FOLDER or --nccl, and not both"
    line = complaint(capsys, "serve", "engine", where, "--nccl", "--gpus", "1", "--print")
    assert line == f"model {where!r} cannot be loaded: it holds no config.json"


def test_a_model_folder_that_is_not_there_is_refused_before_experts_play(
    capsys: Captured, tmp_path: Path
) -> None:
    for path in (str(tmp_path / "nothing"), "nothing"):
        model = ["model.type=pretrained", f"model.path={path}"]
        line = complaint(capsys, "train", "demo", *model, "--out", str(tmp_path / "run"))
        assert f"{path!r} cannot be loaded: there is no such folder" in line
        assert not (tmp_path / "run").exists()
