"""What a container of an engine is created with, and what its control groups say it got."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from pathlib import Path
from typing import Any

from turngym.sandbox.backends import seccomp
from turngym.sandbox.backends.bubblewrap_command import guest_settings
from turngym.sandbox.backends.docker_images import UID
from turngym.sandbox.backends.runtime import MOUNT, cache_folder, command, runtime_folder
from turngym.sandbox.base import Enforcement, Limits, SandboxSpec
from turngym.sandbox.launcher import cgroups
from turngym.sandbox.launcher.mounts import SYSTEM_V_LIMITS

OWNER_LABEL = "turngym.owner"


def creation(
    spec: SandboxSpec, ulimit: Any, *, podman: bool, system_v: bool
) -> dict[str, Any]:  # the client's
    """Return what a container is created with.

    Args:
        spec: What was asked for.
        ulimit: The client's type for a limit of each process.
        podman: The engine is Podman.
        system_v: The engine may set the limits of System V; else there is none.
    """
    limits = spec.limits
    settings = guest_settings(spec, "0,1,-1", watch_memory=False, own_user=False)
    profile = json.dumps(seccomp.engine_profile(allow_ptrace=spec.allow_ptrace, system_v=system_v))
    if podman:  # it reads the profile itself, from a file
        profile = str(_profile_file(profile))
    volumes = {str(runtime_folder()): {"bind": MOUNT, "mode": "ro"}}
    for mount in spec.mounts:
        volumes[str(mount.source.resolve())] = {"bind": mount.target, "mode": "ro"}
    return {
        "command": command(settings),
        "entrypoint": [],
        "stdin_open": True,
        "user": f"{UID}:{UID}",
        "working_dir": "/",  # a command may have closed its workspace for itself
        "hostname": "sandbox",
        "environment": {"PATH": "/usr/bin:/bin"},
        "network_mode": "none",
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges", f"seccomp={profile}"],
        "mem_limit": limits.memory_bytes,
        "memswap_limit": limits.memory_bytes,
        "pids_limit": limits.pids + 1,
        "nano_cpus": int(limits.cpus * 1e9),
        "shm_size": min(limits.disk_bytes, limits.memory_bytes) // 4,
        "ulimits": [
            ulimit(name="nofile", soft=limits.open_files, hard=limits.open_files),
            ulimit(name="nproc", soft=1 << 14, hard=1 << 14),
            ulimit(name="core", soft=0, hard=0),
        ],
        "volumes": volumes,
        "ipc_mode": "private",
        "sysctls": SYSTEM_V_LIMITS if system_v else {},
        "log_config": {"type": "none"} if not podman else {"type": "k8s-file"},
        "labels": {OWNER_LABEL: owner_mark()},
    }


def held_limits(pid: int, limits: Limits) -> tuple[dict[str, Enforcement], str]:
    """Read the limits of a container's process back from its control groups.

    Returns:
        How each limit is held, and the file that counts processes killed for want of memory.
    """
    held: dict[str, Enforcement] = {
        "memory": "none", "pids": "none", "cpus": "none", "disk": "none", "inodes": "none",
    }  # fmt: skip
    try:
        groups = cgroups.find_parents(member=Path(f"/proc/{pid}"))
    except OSError:
        return held, ""
    second = groups.version == 2
    page = os.sysconf("SC_PAGE_SIZE")
    quota = str(int(limits.cpus * 100_000))
    wanted = {
        "memory": ("memory", "memory.max" if second else "memory.limit_in_bytes",
                   str(limits.memory_bytes - limits.memory_bytes % page)),
        "pids": ("pids", "pids.max", str(limits.pids + 1)),
        "cpus": ("cpu", "cpu.max" if second else "cpu.cfs_quota_us", quota),
    }  # fmt: skip
    for name, (controller, file, value) in wanted.items():
        with contextlib.suppress(OSError, KeyError, IndexError):
            if (groups.folders[controller] / file).read_text().split()[0] == value:
                held[name] = "exact"
    counter = "memory.events" if second else "memory.oom_control"
    folder = groups.folders.get("memory")
    return held, str(folder / counter) if folder else ""


def owner_mark() -> str:
    """Return what a container's label says of the process that owns it."""
    return f"{os.getpid()}-{cgroups.start_time(os.getpid())}"


def _profile_file(profile: str) -> Path:
    """Return a file with ``profile``, whole at any moment that others may read it."""
    name = hashlib.sha256(profile.encode()).hexdigest()[:16]
    path = cache_folder() / f"seccomp-{name}.json"
    if not path.exists():
        fresh = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
        fresh.write_text(profile)
        fresh.replace(path)
    return path
