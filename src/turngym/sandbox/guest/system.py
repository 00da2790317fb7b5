"""What the kernel offers and Python's ``os`` does not: processes, limits, what the guest is in."""

import _ctypes
import os
import time

PR_SET_DUMPABLE = 4
PR_SET_NO_NEW_PRIVS = 38
PR_SET_CHILD_SUBREAPER = 36
SIGKILL, SIGSTOP, SIGCONT, SIGUSR1 = 9, 19, 18, 10
LIMITS = (6, 2, 7, 4, 1)
"""RLIMIT_NPROC, DATA, NOFILE, CORE, FSIZE by number."""


# The core of ctypes alone: to make all of its types would be a fifth of what a start costs.
class _Int(_ctypes._SimpleCData):  # type: ignore[type-arg]  # not subscriptable before 3.14
    _type_ = "i"


class _Long(_ctypes._SimpleCData):  # type: ignore[type-arg]
    _type_ = "L"


class _Function(_ctypes.CFuncPtr):
    _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO
    _restype_ = _Int


_prctl = _Function(_ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl"))  # type: ignore[arg-type]  # None: this program


def prctl(option: int, value: int) -> None:
    """Call ``prctl(option, value)``.

    Raises:
        OSError: The kernel refuses.
    """
    if _prctl(_Int(option), _Long(value), _Long(0), _Long(0), _Long(0)) != 0:
        raise OSError(_ctypes.get_errno(), f"prctl({option}, {value})")


def send_signal(pid: int, number: int) -> bool:
    """Send signal ``number`` to ``pid`` and return whether there was such a process."""
    try:
        os.kill(pid, number)
    except OSError:
        return False
    return True


def read_text(path: str) -> str:
    """Return the text of a small file of /proc, "" when it is gone."""
    try:
        fd = os.open(path, os.O_RDONLY)
        try:
            return os.read(fd, 1 << 16).decode("ascii", "replace")
        finally:
            os.close(fd)
    except OSError:
        return ""


def processes() -> "list[int]":
    """Return the ids of all visible processes."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def parents() -> "dict[int, int]":
    """Return the parent of every visible process that is not a zombie."""
    found = {}
    for pid in processes():
        # The name in parentheses may hold anything, so count from its end.
        fields = read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
        if len(fields) > 1 and fields[0] not in "ZX":
            found[pid] = int(fields[1])
    return found


def descendants(root: int) -> "list[int]":
    """Return all living descendants of ``root``, parents before children."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents().items():
        children.setdefault(parent, []).append(pid)
    found, queue = [], [root]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def kill_descendants(patience_s: float) -> "tuple[int, bool]":
    """Kill every descendant of this process, a subreaper, and reap them.

    They are stopped before they are killed, so that a fork bomb cannot outrun the search.

    Returns:
        How many were found, and whether none is left after ``patience_s`` seconds.
    """
    seen: set[int] = set()
    deadline = time.monotonic() + patience_s
    while True:
        if reap_all():
            return len(seen), True
        found = descendants(os.getpid())
        seen.update(found)
        for number in (SIGSTOP, SIGKILL):
            for pid in found:
                send_signal(pid, number)
        if time.monotonic() > deadline:
            return len(seen), False
        if found:
            time.sleep(0.0005)


def reap_all() -> bool:
    """Collect finished children and return whether no child is left at all."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return True
    return False


def private_memory_bytes(pid: int) -> int:
    """Return the resident memory of ``pid`` that no file backs, in bytes; 0 when it is gone."""
    fields = read_text(f"/proc/{pid}/statm").split()
    if len(fields) < 3:
        return 0
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")


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
        line.split(":\t", 1) for line in read_text("/proc/self/status").split("\n") if ":\t" in line
    )
    limits = [resource.getrlimit(kind)[1] for kind in LIMITS]
    facts = {
        "pid": os.getpid(),
        "uid": os.getuid(),
        "caps": status.get("CapEff", "?"),
        "bounding": status.get("CapBnd", "?"),
        "seccomp": status.get("Seccomp", "?"),
        "no_new_privs": status.get("NoNewPrivs", "?"),
        "uid_map": read_text("/proc/self/uid_map").strip(),
        "routes": max(0, read_text("/proc/net/route").count("\n") - 1),
        "shm_rmid_forced": read_text("/proc/sys/kernel/shm_rmid_forced").strip(),
        "limits": ",".join(map(str, limits)),
        "interfaces": ",".join(
            line.split(":")[0].strip()
            for line in read_text("/proc/net/dev").split("\n")
            if ":" in line
        ),
    }
    return [f"{name}={value}".encode() for name, value in facts.items()]
