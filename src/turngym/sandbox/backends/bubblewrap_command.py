"""The command line of bubblewrap, the same for root and a plain user.

Each option answers something that was seen to go wrong without it; the tests name the trap.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from turngym.sandbox.backends.images import RootEntry
from turngym.sandbox.backends.runtime import MOUNT, command
from turngym.sandbox.base import SandboxSpec
from turngym.sandbox.launcher.instance import BLOCK_FD, GUEST_FD, INFO_FD, SCORE_FD, SECCOMP_FD

NAMESPACES = ("user", "pid", "net", "uts", "cgroup")
"""Spelled out, because --unshare-all only tries to get a user namespace.

System V gets one from the launcher."""
_MASKED = (
    "cmdline", "config.gz", "interrupts", "kallsyms", "keys", "kmsg", "sched_debug", "timer_list",
)  # fmt: skip
WRITABLE = (
    ("workspace", "/workspace"), ("home", "/home/agent"), ("tmp", "/tmp"), ("run", "/run"),
    ("vartmp", "/var/tmp"), ("shm", "/dev/shm"),
)  # fmt: skip
"""Area of a layer and where the sandbox sees it. Nothing else can be written."""
UID = 1000
_FDS = f"{GUEST_FD},{GUEST_FD},{SCORE_FD}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """What a sandbox's root is made of."""

    entries: Sequence[RootEntry]
    etc: str = ""
    """Folder for /etc, "" when the entries hold one."""


def arguments(
    spec: SandboxSpec, root: Root, *, overlay: str, runtime: str, watch_memory: bool
) -> list[str]:
    """Return options, ``--`` and the guest's command.

    Args:
        spec: What was asked for.
        root: The read-only part of the file system.
        overlay: Folder with the writable places.
        runtime: Folder with the guest.
        watch_memory: Have the guest kill what exceeds the memory limit.
    """
    return [
        "--die-with-parent",
        *(f"--unshare-{name}" for name in NAMESPACES),
        "--disable-userns",
        "--uid", str(UID), "--gid", str(UID), "--cap-drop", "ALL",
        "--hostname", "sandbox", "--new-session", "--as-pid-1",
        *root_options(root),
        "--ro-bind", runtime, MOUNT,
        "--dev", "/dev", "--proc", "/proc",
        *_writable_options(root, overlay),
        *_mount_options(spec),
        *masks(),
        # Or a command could lower its own score, and the kernel would take the guest first.
        "--remount-ro", "/proc",
        "--remount-ro", "/dev", "--remount-ro", "/",
        "--chdir", "/",  # a command may have closed its workspace for itself
        "--setenv", "PATH", "/usr/bin:/bin",
        "--seccomp", str(SECCOMP_FD), "--info-fd", str(INFO_FD), "--block-fd", str(BLOCK_FD),
        "--",
        *command(guest_settings(spec, _FDS, watch_memory=watch_memory)),
    ]  # fmt: skip


def guest_settings(
    spec: SandboxSpec, fds: str, *, watch_memory: bool, own_user: bool = True
) -> str:
    """Return the settings of the guest: its connection, the watch, and limits of each process.

    Args:
        spec: What was asked for.
        fds: Receiving and sending descriptor, and that of the score, -1 for none.
        watch_memory: Have the guest kill what exceeds the memory limit.
        own_user: The user's processes are counted for this sandbox alone.
    """
    limits = spec.limits
    own = (
        limits.memory_bytes if watch_memory else 0,
        limits.pids + 1 if own_user else -1,  # the guest is one
        limits.memory_bytes,
        limits.open_files,
        0,
        limits.file_bytes or -1,
    )
    return ",".join([fds, *map(str, own)])


def root_options(root: Root) -> list[str]:
    """Return options that show ``root``, read-only."""
    options = []
    for entry in root.entries:
        if entry.link:
            options += ["--symlink", entry.link, f"/{entry.name}"]
        else:
            options += ["--ro-bind", entry.source, f"/{entry.name}"]
    if root.etc:
        options += ["--ro-bind", root.etc, "/etc"]
    return options


def _writable_options(root: Root, overlay: str) -> list[str]:
    options = []
    var = next((entry.source for entry in root.entries if entry.name == "var"), "")
    for area, place in WRITABLE:
        if area == "vartmp" and var and not os.path.isdir(f"{var}/tmp"):
            continue  # an image with a /var but no /var/tmp
        options += ["--bind", f"{overlay}/{area}", place]
    return options


def _mount_options(spec: SandboxSpec) -> list[str]:
    options = ["--dir", "/mnt", "--dir", "/opt"]
    for mount in spec.mounts:
        options += ["--ro-bind", str(mount.source.resolve()), mount.target]
    for path, place in spec.links.items():
        options += ["--symlink", place, path]
    return options


def masks() -> list[str]:
    """Return options that cover what of /proc concerns the host."""
    options = ["--ro-bind", "/proc/sys", "/proc/sys"]
    for name in _MASKED:
        if os.path.exists(f"/proc/{name}"):
            options += ["--ro-bind", "/dev/null", f"/proc/{name}"]
    return options
