"""Limits for all processes of a sandbox together: control groups, version 1 or 2.

A sandbox's groups are children of the group this process is in, so that limits from outside go on
to hold. A limit counts only after it was written and read back.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
import zlib
from dataclasses import dataclass, field
from pathlib import Path

CONTROLLERS = ("memory", "pids", "cpu", "freezer")
PREFIX = "turngym-"
_CPU_PERIOD_US = 100_000


@dataclass(frozen=True, slots=True)
class Parents:
    """Where groups can be made: a folder per controller; the same for all in version 2."""

    folders: dict[str, Path] = field(default_factory=dict)
    version: int = 1


def find_parents(proc: Path = Path("/proc/self"), member: Path | None = None) -> Parents:
    """Return the folders of a process's own groups, whether or not they can be written.

    ``proc`` is this process, whose mounts are read; ``member`` is the one, if it is another.
    """
    rows = ((member or proc) / "cgroup").read_text().splitlines()
    # The path of the process in each hierarchy; "" is the unified one.
    groups = {
        name: path
        for _, names, path in (row.split(":", 2) for row in rows)
        for name in names.split(",")
    }
    folders: dict[str, Path] = {}
    top, unified = Path("/sys/fs/cgroup"), Path()
    for line in (proc / "mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        root, point = left.split(" ")[3:5]
        if kind == "cgroup":
            names = set(options.rpartition(" ")[2].split(",")) | set(options.split(","))
            for name in names & set(CONTROLLERS) & set(groups):
                folders[name] = _below(point, root, groups[name])
        elif kind == "cgroup2" and "" in groups:
            top, unified = Path(point), _below(point, root, groups[""])
    if "memory" in folders or unified == Path():
        return Parents(folders, 1)
    if member is not None:
        return Parents(dict.fromkeys(CONTROLLERS, unified), 2)
    return Parents(_unified_folders(unified, top), 2)


def _below(point: str, root: str, path: str) -> Path:
    relative = os.path.relpath(path, root) if path.startswith(root) else "."
    return Path(point) / relative if not relative.startswith("..") else Path(point)


def _unified_folders(own: Path, top: Path) -> dict[str, Path]:
    """Return the nearest group, own or above, whose children get memory, pids and cpu.

    A group that holds processes cannot hand controllers down, so its parent is asked next.
    """
    for folder in (own, *own.parents):
        with contextlib.suppress(OSError):
            (folder / "cgroup.subtree_control").write_text("+memory +pids +cpu")
        try:
            given = set((folder / "cgroup.subtree_control").read_text().split())
        except OSError:
            given = set()
        if {"memory", "pids"} <= given and os.access(folder, os.W_OK):
            return dict.fromkeys([*(given & set(CONTROLLERS)), "freezer"], folder)
        if folder == top:
            break
    return {}


class Group:
    """The groups of one sandbox, from their making until ``remove`` succeeds."""

    def __init__(self, parents: Parents, name: str) -> None:
        self.version = parents.version
        self.folders: dict[str, Path] = {}
        for controller, parent in parents.folders.items():
            folder = parent / (PREFIX + name)
            with contextlib.suppress(OSError):
                folder.mkdir(exist_ok=True)
                self.folders[controller] = folder

    def limit(self, *, memory_bytes: int, pids: int, cpus: float) -> dict[str, str]:
        """Limit memory, ``pids`` and ``cpus``, read back; return what holds, as ``exact``."""
        quota = max(1000, int(cpus * _CPU_PERIOD_US))
        page = os.sysconf("SC_PAGE_SIZE")
        memory_bytes -= memory_bytes % page
        if self.version == 2:
            swap_off = self._set("memory.swap.max", "0") or not self._has("memory.swap.max")
            memory = self._set("memory.max", str(memory_bytes)) and swap_off
            cpu = self._set("cpu.max", f"{quota} {_CPU_PERIOD_US}")
        else:
            memory = self._set("memory.limit_in_bytes", str(memory_bytes))
            if self._has("memory.memsw.limit_in_bytes"):
                memory = memory and self._set("memory.memsw.limit_in_bytes", str(memory_bytes))
            cpu = self._set("cpu.cfs_period_us", str(_CPU_PERIOD_US))
            cpu = cpu and self._set("cpu.cfs_quota_us", str(quota))
        done = {"memory": memory, "pids": self._set("pids.max", str(pids)), "cpus": cpu}
        return dict.fromkeys([name for name, held in done.items() if held], "exact")

    def _has(self, name: str) -> bool:
        return "memory" in self.folders and (self.folders["memory"] / name).exists()

    def _set(self, name: str, value: str) -> bool:
        folder = self.folders.get(name.partition(".")[0])
        if folder is None:
            return False
        try:
            (folder / name).write_text(value)
            return (folder / name).read_text().split() == value.split()
        except OSError:
            return False

    def join(self) -> None:
        """Move this process into the groups.

        Raises:
            OSError: A group does not take it.
        """
        for folder in set(self.folders.values()):
            (folder / "cgroup.procs").write_text("0")

    def freeze(self, frozen: bool) -> bool:
        """Stop or continue all processes; return False where there is no freezer."""
        folder = self.folders.get("freezer")
        if folder is None:
            return False
        try:
            if self.version == 2:
                (folder / "cgroup.freeze").write_text("1" if frozen else "0")
            else:
                (folder / "freezer.state").write_text("FROZEN" if frozen else "THAWED")
        except OSError:
            return False
        return True

    def wait_frozen(self, patience_s: float) -> None:
        """Wait until all processes that were frozen stand still, for ``patience_s`` seconds."""
        folder = self.folders.get("freezer")
        if folder is None:
            return
        v2 = self.version == 2
        file, word = ("cgroup.events", "frozen 1") if v2 else ("freezer.state", "FROZEN")
        deadline = time.monotonic() + patience_s
        while word not in (folder / file).read_text() and time.monotonic() < deadline:
            time.sleep(0.001)

    def kill(self) -> None:
        """Kill every process in the groups."""
        for folder in set(self.folders.values()):
            _kill_members(folder)

    def remove(self) -> bool:
        """Remove the groups and return whether all are gone; a member that still dies keeps one."""
        for controller, folder in list(self.folders.items()):
            try:
                folder.rmdir()
            except FileNotFoundError:
                pass
            except OSError:
                continue
            del self.folders[controller]
        return not self.folders


def oom_file(groups: Group | Parents) -> str:
    """Return the file that counts processes killed for want of memory, "" without one."""
    if "memory" not in groups.folders:
        return ""
    name = "memory.events" if groups.version == 2 else "memory.oom_control"
    return str(groups.folders["memory"] / name)


def oom_kills(file: str) -> int:
    """Return how many processes a group's ``oom_file`` counts; 0 without one."""
    if not file:
        return 0
    try:
        words = Path(file).read_text().split()
    except OSError:
        return 0
    return int(words[words.index("oom_kill") + 1]) if "oom_kill" in words else 0


def _kill_members(folder: Path) -> None:
    for name, word in (("cgroup.kill", "1"), ("freezer.state", "THAWED")):
        with contextlib.suppress(OSError):
            if (folder / name).exists():
                (folder / name).write_text(word)
    with contextlib.suppress(OSError):
        for pid in (folder / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                os.kill(int(pid), signal.SIGKILL)


def sweep(parents: Parents) -> int:
    """Remove the groups of launchers that are gone; return of how many sandboxes.

    Containers and their host may share one tree of groups, and each sees others' folders.
    """
    swept: set[str] = set()
    for parent in set(parents.folders.values()):
        for folder in parent.glob(PREFIX + "*"):
            if is_gone(folder.name.removeprefix(PREFIX)):
                _kill_members(folder)
                with contextlib.suppress(OSError):
                    folder.rmdir()
                    swept.add(folder.name)
    return len(swept)


def owner_mark() -> str:
    """Return what names this process, of all past and present."""
    return f"{os.getpid()}-{start_time(os.getpid())}-{_place()}"


def is_gone(mark: str) -> bool:
    """Return whether the process of an ``owner_mark`` ended; False where it cannot be seen."""
    pid, start, place, *_ = (*mark.split("-"), "", "", "")
    return pid.isdigit() and place == _place() and start_time(int(pid)) != start


def _place() -> str:
    """Return what names the machine or container whose process ids this process sees."""
    space = os.readlink("/proc/self/ns/pid")
    return f"{zlib.crc32(f'{os.uname().nodename} {space}'.encode()):08x}"


def start_time(pid: int) -> str:
    """Return when a process was started, in clock ticks since boot; "" when there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]
