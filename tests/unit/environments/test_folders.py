"""Temporary folders go with their owner, also when it is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from turngym.environments.folders import OwnedFolder

OWNER = """
import sys
from turngym.environments.folders import OwnedFolder
folder = OwnedFolder("test")
(folder.path / "inside").mkdir()
print(folder.path, flush=True)
sys.stdin.read()
folder.remove()
"""


def start(place: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "TMPDIR": str(place)},
    )  # fmt: skip
    return process, Path(process.stdout.readline().strip())


def test_the_next_owner_removes_what_a_killed_one_left_and_nothing_else(tmp_path):
    first, killed = start(tmp_path)
    second, alive = start(tmp_path)
    assert killed.is_dir()
    first.kill()
    first.communicate()
    assert (killed / "inside").is_dir()
    third, fresh = start(tmp_path)
    assert not killed.exists()
    assert (alive / "inside").is_dir()
    assert (fresh / "inside").is_dir()
    for process in (second, third):
        process.communicate("")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_removed_once():
    folder = OwnedFolder("test")
    assert folder.path.name.startswith("turngym-owned-test-")
    folder.remove()
    folder.remove()
    assert not folder.path.exists()
