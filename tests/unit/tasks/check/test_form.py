"""The form of Harbor folders: every planted defect is found by its rule, and by reading alone."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from turngym.tasks.check.form import check_form

FILE = Path(__file__).parents[4] / "benchmarks" / "soundness_folders.py"
SPEC = importlib.util.spec_from_file_location("soundness_folders", FILE)
assert SPEC is not None
assert SPEC.loader is not None
folders = importlib.util.module_from_spec(SPEC)
sys.modules["soundness_folders"] = folders
SPEC.loader.exec_module(folders)

FOUND = {
    "configuration is no TOML": "invalid-task-config", "a limit is a word": "invalid-task-config",
    "a key is misspelt": "unknown-config-field", "no instruction": "invalid-task-files",
    "an empty instruction": "invalid-task-files", "no solution": "missing-solution",
    "artifacts overlap": "overlapping-artifacts", "an artifact is a log": "artifact-log-overlap",
    "a privileged service": "compose-privileged",
    "a mount of the host for writing": "compose-writable-bind-mount",
    "a mount from outside": "compose-external-bind-mount",
    "a version is open": "unpinned-python-dependency",
    "judge installs": "verifier-runtime-install",
    "judge loads from the network": "verifier-network-download",
    "tests are in the image": "agent-image-test-leak", "a path is not named": "unnamed-path",
}  # fmt: skip


@pytest.mark.parametrize("name", [n for n in folders.folders() if "--" not in n])
def test_a_sound_folder_has_no_finding(name, tmp_path):
    report = check_form(folders.write(name, tmp_path))
    assert [one for one in report.results if one.status == "fail"] == []
    assert len(report.results) == 19


@pytest.mark.parametrize("defect", list(folders.FORM))
def test_a_defect_is_found_by_its_rule(defect, tmp_path):
    [name] = [name for name in folders.folders() if name.endswith(f"--{defect}")]
    report = check_form(folders.write(name, tmp_path))
    assert f"static.{FOUND[defect]}" in [one.name for one in report.failures]


def test_links_that_leave_the_folder_are_found_and_not_followed(tmp_path):
    folder = folders.write("folder-sum", tmp_path)
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "environment" / "more.txt").symlink_to(tmp_path / "secret.txt")
    [found] = check_form(folder).failures
    assert (found.name, found.reason) == (
        "static.invalid-task-files",
        "environment/more.txt is a link that leaves the folder",
    )


def test_a_shared_verifier_and_a_root_agent_are_doubtful(tmp_path):
    folder = folders.write("folder-sum", tmp_path)
    text = (folder / "task.toml").read_text()
    (folder / "task.toml").write_text(text.replace('environment_mode = "separate"\n', ""))
    warned = [one.name for one in check_form(folder).results if one.status == "warn"]
    assert warned == ["static.shared-verifier", "static.root-agent"]


def test_a_hostile_folder_is_read_and_nothing_of_it_is_run(tmp_path):
    folder = folders.write("folder-sum", tmp_path)
    mark = tmp_path / "mark"
    script = f"#!/bin/bash\ntouch {mark}\n"
    for name in ("tests/test.sh", "solution/solve.sh", "conftest.py", "environment/setup.py"):
        (folder / name).write_text(script)
    (folder / "environment" / "loop").symlink_to(folder)
    with (folder / "environment" / "large.bin").open("wb") as file:
        file.truncate(1 << 34)
    os.mkfifo(folder / "environment" / "pipe")
    report = check_form(folder)
    assert len(report.results) == 19
    assert not mark.exists()
