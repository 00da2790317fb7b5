"""What the guest sees of its own cage, and what it is sent before it starts."""

import os

from turngym.sandbox.guest import system

LIMITS = (6, 2, 7, 4, 1)
"""RLIMIT_NPROC, DATA, NOFILE, CORE, FSIZE by number."""


def sent_file(fd: int) -> int:
    """Return the open file that waits in the socket ``fd``, -1 where there is none."""
    if fd < 0:
        return -1
    import _socket

    sender = _socket.socket(fileno=fd)
    try:
        _, ancillary, _, _ = sender.recvmsg(1, 64)
        return int.from_bytes(ancillary[0][2][:4], "little")
    except (OSError, IndexError):
        return -1
    finally:
        sender.close()


def greeting() -> "list[bytes]":
    """Return what the guest can see of its own cage, for the host to check."""
    import resource

    status = dict(
        line.split(":\t", 1)
        for line in system.read_text("/proc/self/status").split("\n")
        if ":\t" in line
    )
    limits = [resource.getrlimit(kind)[1] for kind in LIMITS]
    facts = {
        "pid": os.getpid(),
        "uid": os.getuid(),
        "caps": status.get("CapEff", "?"),
        "bounding": status.get("CapBnd", "?"),
        "seccomp": status.get("Seccomp", "?"),
        "no_new_privs": status.get("NoNewPrivs", "?"),
        "uid_map": system.read_text("/proc/self/uid_map").strip(),
        "routes": max(0, system.read_text("/proc/net/route").count("\n") - 1),
        "shm_rmid_forced": system.read_text("/proc/sys/kernel/shm_rmid_forced").strip(),
        "limits": ",".join(map(str, limits)),
        "interfaces": ",".join(
            line.split(":")[0].strip()
            for line in system.read_text("/proc/net/dev").split("\n")
            if ":" in line
        ),
    }
    return [f"{name}={value}".encode() for name, value in facts.items()]
