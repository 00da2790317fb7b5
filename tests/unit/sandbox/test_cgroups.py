"""Control groups, on made-up hierarchies of either version: plain folders that take any value."""

import os
from pathlib import Path

import pytest

from turngym.sandbox.backends.docker_engine import held_limits
from turngym.sandbox.base import LIMIT_NAMES, Limits
from turngym.sandbox.launcher import cgroups


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "proc").mkdir()
    return tmp_path / "proc"


def version_1(proc: Path, root: Path) -> None:
    lines, mounts = [], []
    for number, name in enumerate(cgroups.CONTROLLERS):
        (root / name / "own").mkdir(parents=True)
        lines.append(f"{number}:{name}:/own")
        mounts.append(f"3{number} 1 0:3{number} / {root / name} rw - cgroup cgroup rw,{name}")
    (proc / "cgroup").write_text("\n".join([*lines, "0::/"]) + "\n")
    (proc / "mountinfo").write_text("\n".join(mounts) + "\n")


def version_2(proc: Path, root: Path, controllers: str) -> Path:
    own = root / "user" / "session"
    own.mkdir(parents=True)
    (own.parent / "cgroup.subtree_control").write_text(controllers)
    (proc / "cgroup").write_text("0::/user/session\n")
    (proc / "mountinfo").write_text(f"30 1 0:30 / {root} rw - cgroup2 cgroup2 rw\n")
    return own.parent


def test_version_1_groups_are_children_of_the_own_group(proc: Path, tmp_path: Path) -> None:
    version_1(proc, tmp_path)
    parents = cgroups.find_parents(proc)
    assert parents.version == 1
    assert parents.folders == {n: tmp_path / n / "own" for n in cgroups.CONTROLLERS}


def test_limits_of_version_1_are_written_and_read_back(proc: Path, tmp_path: Path) -> None:
    version_1(proc, tmp_path)
    group = cgroups.Group(cgroups.find_parents(proc), "1-2-x")
    assert group.limit(memory_bytes=(64 << 20) + 5, pids=7, cpus=0.5) == {
        "memory": "exact",
        "pids": "exact",
        "cpus": "exact",
    }
    memory = tmp_path / "memory" / "own" / "turngym-1-2-x"
    assert (memory / "memory.limit_in_bytes").read_text() == str(64 << 20), "whole pages"
    assert (tmp_path / "cpu/own/turngym-1-2-x/cpu.cfs_quota_us").read_text() == "50000"
    assert group.freeze(True)
    assert (tmp_path / "freezer/own/turngym-1-2-x/freezer.state").read_text() == "FROZEN"


def test_a_limit_that_reads_back_otherwise_does_not_count(
    proc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version_1(proc, tmp_path)
    group = cgroups.Group(cgroups.find_parents(proc), "1-2-x")
    read = Path.read_text

    def clipped(path: Path, *args: str) -> str:
        return "max" if path.name == "pids.max" else read(path, *args)

    monkeypatch.setattr(Path, "read_text", clipped)
    held = group.limit(memory_bytes=64 << 20, pids=7, cpus=1)
    assert held == {"memory": "exact", "cpus": "exact"}


def test_version_2_groups_go_where_controllers_are_handed_down(proc: Path, tmp_path: Path) -> None:
    parent = version_2(proc, tmp_path, "cpu memory pids")
    # A plain file takes what is written, so the own group would look as if it handed down, too.
    session = parent / "session"
    (session / "cgroup.subtree_control").mkdir()
    parents = cgroups.find_parents(proc)
    assert parents.version == 2
    # Writing replaced the text with what the kernel would take as an addition.
    (parent / "cgroup.subtree_control").write_text("cpu memory pids")
    parents = cgroups.Parents(dict.fromkeys(["memory", "pids", "cpu", "freezer"], parent), 2)
    group = cgroups.Group(parents, "1-2-x")
    assert group.limit(memory_bytes=64 << 20, pids=7, cpus=2) == {
        "memory": "exact",
        "pids": "exact",
        "cpus": "exact",
    }
    folder = parent / "turngym-1-2-x"
    assert (folder / "cpu.max").read_text() == "200000 100000"
    assert cgroups.oom_file(group) == str(folder / "memory.events")


def test_no_writable_group_holds_nothing(proc: Path, tmp_path: Path) -> None:
    (proc / "cgroup").write_text("0::/\n")
    (proc / "mountinfo").write_text("")
    group = cgroups.Group(cgroups.find_parents(proc), "1-2-x")
    assert group.limit(memory_bytes=64 << 20, pids=7, cpus=1) == {}
    assert not group.freeze(True)
    assert cgroups.oom_file(group) == ""
    assert group.remove()


def test_groups_of_dead_owners_are_swept_and_others_stay(tmp_path: Path) -> None:
    mark = cgroups.owner_mark()
    place = mark.split("-")[2]
    stay = [f"turngym-{mark}-a", "turngym-999999999-5-ffffffff-d", "other"]  # d: of a container
    gone = [f"turngym-{os.getpid()}-1-{place}-b", f"turngym-999999999-5-{place}-c"]
    for name in (*stay, *gone):
        (tmp_path / name).mkdir()
    swept = cgroups.sweep(cgroups.Parents({"memory": tmp_path}, 1))
    assert swept == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(stay)


def test_oom_kills_are_read_from_either_version(tmp_path: Path) -> None:
    file = tmp_path / "events"
    file.write_text("low 0\noom 4\noom_kill 3\n")
    assert cgroups.oom_kills(str(file)) == 3
    file.write_text("oom_kill_disable 0\nunder_oom 0\n")
    assert cgroups.oom_kills(str(file)) == 0
    assert cgroups.oom_kills("") == cgroups.oom_kills(str(tmp_path / "none")) == 0


@pytest.mark.parametrize(
    ("version", "files"),
    [
        (1, {"memory.limit_in_bytes": 64 << 20, "pids.max": 10, "cpu.cfs_quota_us": 200_000}),
        (2, {"memory.max": 64 << 20, "pids.max": 10, "cpu.max": "200000 100000"}),
    ],
)
def test_what_an_engine_was_asked_for_counts_where_it_can_be_read_back(
    version: int, files: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = {name: tmp_path / name for name in cgroups.CONTROLLERS}
    for folder in folders.values():
        folder.mkdir()
    monkeypatch.setattr(cgroups, "find_parents", lambda **member: cgroups.Parents(folders, version))
    asked = Limits(memory_bytes=(64 << 20) + 1, pids=9, cpus=2)
    nothing = dict.fromkeys(LIMIT_NAMES, "none")
    assert held_limits(1, asked)[0] == nothing
    for name, value in files.items():
        (folders[name.partition(".")[0]] / name).write_text(f"{value}\n")
    counter = "memory.events" if version == 2 else "memory.oom_control"
    held = {**nothing, "memory": "exact", "pids": "exact", "cpus": "exact"}
    assert held_limits(1, asked) == (held, str(folders["memory"] / counter))
