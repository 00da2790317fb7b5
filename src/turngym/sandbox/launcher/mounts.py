"""The system calls that make namespaces and mounts, which Python's ``os`` lacks before 3.12."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
from collections.abc import Sequence

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWIPC = 0x00020000, 0x10000000, 0x08000000
SYSTEM_V_LIMITS = {
    "kernel.shm_rmid_forced": "1",
    "kernel.msgmni": "16",
    "kernel.sem": "250 32000 32 128",
}
"""Memory goes with the last who shares it, messages and semaphores take 2 MB at most.

They outlive their makers. What has no owner cannot be had back by a kill, so the kernel would
kill every process before it gave up.
"""
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = (
    1, 2, 4, 32, 4096, 16384, 1 << 18,
)  # fmt: skip
_MNT_DETACH = 2
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def enter_private_namespace(*, as_root: bool) -> None:
    """Give this process mounts of its own; a plain user gets a user namespace first.

    Raises:
        OSError: The kernel or a security module forbids it.
    """
    if as_root:
        _check(_libc.unshare(CLONE_NEWNS), "unshare(mount namespace)")
    else:
        uid, gid = os.geteuid(), os.getegid()
        _check(_libc.unshare(CLONE_NEWNS | CLONE_NEWUSER), "unshare(user namespace)")
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"0 {uid} 1"),
            ("gid_map", f"0 {gid} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    mount("none", "/", None, MS_REC | MS_PRIVATE)


def enter_private_ipc() -> bool:
    """Give this process a System V of its own; return whether it keeps within `SYSTEM_V_LIMITS`.

    Raises:
        OSError: The kernel or a security module forbids it.
    """
    _check(_libc.unshare(CLONE_NEWIPC), "unshare(System V)")
    try:
        for name, value in SYSTEM_V_LIMITS.items():
            with open(f"/proc/sys/{name.replace('.', '/')}", "w") as file:
                file.write(value)
    except OSError:  # kernels before 6.10 let only the host's root
        return False
    return True


def mount(source: str, target: str, kind: str | None, flags: int = 0, options: str = "") -> None:
    """Mount ``source`` at ``target`` by the kernel's call: its kind, flags and options.

    Raises:
        OSError: The kernel refuses.
    """
    encoded = [os.fsencode(text) for text in (source, target, kind or "none", options)]
    result = _libc.mount(
        encoded[0], encoded[1], encoded[2] if kind else None, ctypes.c_ulong(flags), encoded[3]
    )
    _check(result, f"mount {kind or 'bind'} on {target}")


def mount_tmpfs(target: str, *, num_bytes: int, inodes: int) -> None:
    """Mount memory at ``target``, for at most ``num_bytes`` and ``inodes``."""
    options = f"size={num_bytes},nr_inodes={inodes},mode=755"
    mount("tmpfs", target, "tmpfs", MS_NOSUID | MS_NODEV, options)


def bind_read_only(source: str, target: str) -> None:
    """Make ``source`` visible at ``target``, for reading."""
    mount(source, target, None, MS_BIND)
    mount("none", target, None, MS_REMOUNT | MS_BIND | MS_RDONLY | _kept_flags(target))


def _kept_flags(path: str) -> int:
    """Return what a user namespace may not take away from a mount: nosuid, nodev, noexec."""
    found = os.statvfs(path).f_flag
    # The kernel's flags of a mount have the same numbers, but for one.
    same = os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC | os.ST_NOATIME | os.ST_NODIRATIME
    return found & same | (1 << 21 if found & os.ST_RELATIME else 0)


def mount_overlay(
    target: str, *, lower: Sequence[str], upper: str, work: str, as_root: bool
) -> None:
    """Mount an overlay. Relative paths keep its options below the kernel's 4 KiB.

    Args:
        target: Where it is seen.
        lower: Read-only folders, topmost first.
        upper: Folder that takes what is written.
        work: Empty folder for the kernel's own use, in the file system of ``upper``.
        as_root: The host's root mounts; in a user namespace marks are attributes of users.

    Raises:
        OSError: The kernel refuses, or there are too many layers.
    """
    options = f"lowerdir={':'.join(lower)},upperdir={upper},workdir={work}"
    if not as_root:
        options += ",userxattr"
    if len(options) > 4000:
        raise OSError(7, f"{len(lower)} layers are more than fit into one mount")
    mount("overlay", target, "overlay", MS_NOSUID | MS_NODEV, options)


def unmount(target: str) -> None:
    """Unmount ``target`` now, or as soon as it is not in use."""
    _check(_libc.umount2(os.fsencode(target), _MNT_DETACH), f"umount {target}")


def forbid_new_privileges() -> None:
    """From here on no program this process executes gains anything by a set-uid bit."""
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(no new privileges)")


def end_with(parent: int) -> None:
    """From here on this process is killed when ``parent`` ends; at once when it has.

    Raises:
        OSError: The parent has ended.
    """
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl(signal of the end)")
    if os.getppid() != parent:
        raise OSError(errno.ESRCH, "the launcher has ended")
