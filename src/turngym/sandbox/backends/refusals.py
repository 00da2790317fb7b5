"""Why a sandbox cannot be made here, said with evidence and what to do about it."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from turngym.errors import SandboxRefused, SandboxUnavailable
from turngym.sandbox.base import Limits, SandboxSpec

_IN_CONTAINER = (
    "Inside a container, start it with --security-opt seccomp=unconfined --security-opt "
    "systempaths=unconfined, or use the back end 'docker'"
)
_UBUNTU = (
    "On Ubuntu 24.04 and later AppArmor keeps programs from user namespaces: allow bwrap with the "
    "profile in docs/security.md, or sysctl kernel.apparmor_restrict_unprivileged_userns=0"
)
_DEBIAN = "Allow user namespaces: sysctl -w kernel.unprivileged_userns_clone=1"
_NUMBER = "Allow user namespaces: sysctl -w user.max_user_namespaces=10000"

_HELD = {
    "pids": resource.RLIMIT_NPROC, "memory_bytes": resource.RLIMIT_DATA,
    "open_files": resource.RLIMIT_NOFILE, "file_bytes": resource.RLIMIT_FSIZE,
}  # fmt: skip


def missing_bubblewrap() -> SandboxRefused:
    """Return the refusal for a machine without bubblewrap."""
    return SandboxRefused(
        "bubblewrap is not installed",
        "no program bwrap in /usr/bin or /bin",
        "Debian, Ubuntu: apt-get install bubblewrap. Fedora: dnf install bubblewrap",
    )


def of_kernel(message: str) -> SandboxRefused:
    """Return the refusal for a kernel or security module that forbids namespaces or mounts."""
    return SandboxRefused("this machine forbids the namespaces of a sandbox", message, hint())


def hint() -> str:
    """Return what to do about forbidden namespaces, from what this machine shows."""
    if _read("/proc/sys/user/max_user_namespaces") == "0":
        return _NUMBER
    if _read("/proc/sys/kernel/unprivileged_userns_clone") == "0":
        return _DEBIAN
    if _read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
        return _UBUNTU
    if is_in_container():
        return _IN_CONTAINER
    if os.geteuid() == 0:
        return "Root without CAP_SYS_ADMIN: run as a plain user, or use the back end 'docker'"
    return "Use the back end 'docker', or ask who runs this machine to allow user namespaces"


def is_in_container() -> bool:
    """Say whether this process seems to run in a container of an engine."""
    if any(os.path.exists(path) for path in ("/.dockerenv", "/run/.containerenv")):
        return True
    return any(word in _read("/proc/1/cgroup") for word in ("docker", "kubepods", "containerd"))


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def check_own_limits(limits: Limits) -> None:
    """Check that this process has what its sandboxes are to have: no process can raise its own.

    Raises:
        SandboxRefused: It has less.
    """
    for name, kind in _HELD.items():
        wanted, hard = getattr(limits, name) or 0, resource.getrlimit(kind)[1]
        if hard != resource.RLIM_INFINITY and wanted > hard:
            raise SandboxRefused(
                f"the limit {name}={wanted} is more than this process may have",
                f"{hard} (ulimit -H)",
                "Raise that, or ask for less in Limits",
            )


def of_start(message: str, spec: SandboxSpec) -> Exception:
    """Return the error for a sandbox that did not come up, with the ``message`` of it."""
    message = message or "bwrap ended without a word"
    lowered = message.lower()
    if "limits not held" in message:
        return SandboxRefused(
            "the limits cannot be held here",
            message,
            "Run as root, or in a control group that was handed over (systemd-run --user --scope "
            "-p Delegate=yes), or set Limits(enforce='best_effort') and see Sandbox.enforced",
        )
    if "bwrap: can't find source path" in lowered:
        return SandboxRefused(
            "a folder to mount does not exist or cannot be reached", message, "Check spec.mounts"
        )
    if any(
        word in lowered for word in ("namespace", "uid map", "rtm_newaddr", "pivot_root", "mount")
    ):
        return of_kernel(message)
    if "resource temporarily" in lowered or "no space" in lowered or "memory" in lowered:
        return SandboxUnavailable(f"a sandbox cannot be started now: {message}")
    return SandboxUnavailable(f"a sandbox of {spec.image!r} did not start: {message}")


def check_greeting(
    facts: dict[str, str],
    spec: SandboxSpec,
    *,
    host_uid: int,
    wanted_uid: int,
    own_user: bool = True,
    system_v: bool = True,
) -> list[str]:
    """Check what the guest sees of its own cage; return it as evidence.

    Args:
        facts: The guest's greeting.
        spec: What was asked for.
        host_uid: User that the launcher sees the sandbox's first process run as.
        wanted_uid: User that it must be.
        own_user: The sandbox has a user namespace of its own.
        system_v: Its System V is bounded by settings, not by the filter.

    Raises:
        SandboxRefused: Something is not as it must be.
    """
    limits = spec.limits
    pids = limits.pids + 1 if own_user else facts.get("limits", "").split(",")[0]
    wanted = {
        "pid": "1",
        "uid": "1000",
        "caps": "0000000000000000",
        "bounding": "0000000000000000",
        "seccomp": "2",
        "no_new_privs": "1",
        "routes": "0",
        "interfaces": "lo",
        "limits": f"{pids},{limits.memory_bytes},{limits.open_files},0,{limits.file_bytes or -1}",
    }
    if system_v:
        wanted["shm_rmid_forced"] = "1"
    for name, value in wanted.items():
        if facts.get(name) != value:
            raise SandboxRefused(
                f"the sandbox came up with {name} {facts.get(name)!r} instead of {value!r}",
                "reported by the guest from inside",
                hint(),
            )
    # One line, one user. Which one that is outside cannot be seen from inside.
    fields = facts.get("uid_map", "").split()
    is_single = len(fields) == 3 and (fields[0], fields[2]) == ("1000", "1")
    if (own_user and not is_single) or host_uid != wanted_uid:
        raise SandboxRefused(
            "the sandbox's user is not a single unprivileged one",
            f"map {' '.join(fields)!r}, user {host_uid} outside",
            hint(),
        )
    return [f"{name} {value}" for name, value in sorted(facts.items())]
