"""Whole or not there; broken ones are named; a full disk harms nothing."""

from __future__ import annotations

import json
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from turngym.errors import CheckpointError
from turngym.trainers.runs.checkpoints import (
    find_model,
    latest_checkpoint,
    load_checkpoint,
    save_checkpoint,
)

MOMENTS = {"0.exp_avg": torch.arange(6.0).reshape(2, 3), "0.step": torch.tensor(4.0)}


def write_model(path: Path) -> None:
    (path / "config.json").write_text("{}")
    (path / "tokenizer_config.json").write_text("{}")
    (path / "model.safetensors").write_bytes(b"weights" * 10_000)


def save(run: Path, step: int, *, keep: int = 2) -> Path:
    folder = run / "checkpoints"
    folder.mkdir(parents=True, exist_ok=True)
    return save_checkpoint(
        folder,
        f"train-{step}",
        state={"step": step},
        tensors={"optimizer": MOMENTS, "reference": {}},
        write_model=write_model,
        keep=keep,
    )


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Make every write past ``size`` bytes of a file fail, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    found = load_checkpoint(save(tmp_path, 7))
    assert found.state == {"step": 7}
    assert (found.model_dir / "model.safetensors").read_bytes() == b"weights" * 10_000
    tensors = found.tensors("optimizer")
    assert tensors.keys() == MOMENTS.keys()
    assert all(torch.equal(tensors[name], MOMENTS[name]) for name in MOMENTS)
    assert found.tensors("reference") == {}


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 3, 10):
        newest = save(tmp_path, step)
    names = sorted(p.name for p in (tmp_path / "checkpoints").iterdir())
    assert names == ["000003-train-3", "000004-train-10"]
    assert latest_checkpoint(tmp_path / "checkpoints") == newest


def test_the_same_step_can_be_saved_twice(tmp_path: Path) -> None:
    save(tmp_path, 5)
    assert save(tmp_path, 5).name == "000002-train-5"


def test_an_empty_run_has_no_checkpoint(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path / "checkpoints") is None


def test_a_full_disk_leaves_the_previous_checkpoint_intact(tmp_path: Path) -> None:
    first = save(tmp_path, 1, keep=1)
    with largest_file(20_000), pytest.raises(CheckpointError) as caught:
        save(tmp_path, 2, keep=1)
    assert "train-2: could not be written (File too large)" in str(caught.value)
    assert str(caught.value).endswith("earlier checkpoints are intact")
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == [first.name]
    assert load_checkpoint(first).state == {"step": 1}


def test_a_full_disk_is_noticed_in_tensors_too(tmp_path: Path) -> None:
    first = save(tmp_path, 1)
    large = {"0.exp_avg": torch.zeros(40_000)}
    with largest_file(100_000), pytest.raises(CheckpointError, match="could not be written"):
        save_checkpoint(
            tmp_path / "checkpoints",
            "train-2",
            state={},
            tensors={"optimizer": large},
            write_model=write_model,
            keep=1,
        )
    assert latest_checkpoint(tmp_path / "checkpoints") == first


def test_an_unfinished_checkpoint_is_never_the_newest_and_is_swept_away(tmp_path: Path) -> None:
    first = save(tmp_path, 1)
    shutil.copytree(first, first.with_name(".000002-train-2.partial"))
    assert latest_checkpoint(tmp_path / "checkpoints") == first
    save(tmp_path, 3)
    assert not list((tmp_path / "checkpoints").glob(".*"))


@pytest.mark.parametrize("name", ["model/model.safetensors", "optimizer.safetensors", "state.json"])
def test_one_changed_byte_is_found_and_the_file_named(tmp_path: Path, name: str) -> None:
    path = save(tmp_path, 1)
    content = bytearray((path / name).read_bytes())
    content[len(content) // 2] ^= 1
    (path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=f"{name}: differs from its SHA-256 digest"):
        load_checkpoint(path)


@pytest.mark.parametrize("name", ["model/model.safetensors", "state.json"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    path = save(tmp_path, 1)
    (path / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name}: is missing"):
        load_checkpoint(path)


@pytest.mark.parametrize("content", ["", "[1]", "{}", '{"version": "x", "files": {}}'])
def test_a_broken_manifest_is_named(tmp_path: Path, content: str) -> None:
    path = save(tmp_path, 1)
    (path / "manifest.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"manifest\.json: "):
        load_checkpoint(path)


def test_a_newer_format_asks_for_an_upgrade(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "version": 99}))
    with pytest.raises(CheckpointError, match="format version 99 is newer than 1; upgrade"):
        load_checkpoint(path)


def test_a_broken_checkpoint_says_which_one_to_fall_back_to(tmp_path: Path) -> None:
    save(tmp_path, 1)
    path = save(tmp_path, 2)
    (path / "state.json").unlink()
    with pytest.raises(CheckpointError, match=f"delete {path} to go on from 000001-train-1"):
        load_checkpoint(path)


def test_the_model_is_found_in_a_run_a_checkpoint_and_itself(tmp_path: Path) -> None:
    save(tmp_path, 1)
    wanted = save(tmp_path, 2) / "model"
    assert find_model(tmp_path) == find_model(wanted.parent) == find_model(wanted) == wanted


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds neither a run with a checkpoint nor a model"):
        find_model(tmp_path)
