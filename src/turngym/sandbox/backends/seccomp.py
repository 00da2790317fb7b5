"""System calls that no sandbox may make: one table, for bubblewrap as BPF and for engines as JSON.

The table closes doors to the kernel that namespaces leave open (keys, BPF, io_uring, perf, handles,
user faults, virtual sockets) and those that only matter when something else has failed already
(mount, setns, modules). ``clone3`` and io_uring say "not implemented", so that libraries fall back
to what can be looked into. Calls that change the limits or the schedule of a process are denied for
process 1, which has the same user as all others in a sandbox, and for everything of a user.

Source: the table is our own; numbers are those of Linux 6.18's ``unistd`` headers.
"""

from __future__ import annotations

import functools
import platform
from typing import Any

from turngym.errors import SandboxRefused

EPERM, ENOSYS = 1, 38

# name: (x86_64, aarch64); None where the architecture has no such call
DENIED: dict[str, tuple[int | None, int | None]] = {
    "acct": (163, 89), "add_key": (248, 217), "adjtimex": (159, 171), "bpf": (321, 280),
    "chroot": (161, 51), "clock_adjtime": (305, 266), "clock_settime": (227, 112),
    "create_module": (174, None), "delete_module": (176, 106), "fanotify_init": (300, 262),
    "finit_module": (313, 273), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fsopen": (430, 430), "fspick": (433, 433), "get_kernel_syms": (177, None),
    "init_module": (175, 105), "ioperm": (173, None), "iopl": (172, None), "kcmp": (312, 272),
    "kexec_file_load": (320, 294), "kexec_load": (246, 104), "keyctl": (250, 219),
    "lookup_dcookie": (212, 18), "migrate_pages": (256, 238), "mount": (165, 40),
    "mount_setattr": (442, 442), "move_mount": (429, 429), "move_pages": (279, 239),
    "name_to_handle_at": (303, 264), "nfsservctl": (180, 42), "open_by_handle_at": (304, 265),
    "open_tree": (428, 428), "perf_event_open": (298, 241), "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41), "process_madvise": (440, 440), "query_module": (178, None),
    "quotactl": (179, 60), "quotactl_fd": (443, 443), "reboot": (169, 142),
    "request_key": (249, 218), "setdomainname": (171, 162), "sethostname": (170, 161),
    "setns": (308, 268), "settimeofday": (164, 170), "swapoff": (168, 225), "swapon": (167, 224),
    "sysfs": (139, None), "syslog": (103, 116), "umount2": (166, 39), "unshare": (272, 97),
    "uselib": (134, None), "userfaultfd": (323, 282), "ustat": (136, None), "vhangup": (153, 58),
    "_sysctl": (156, None),
}  # fmt: skip
DEBUGGING: dict[str, tuple[int | None, int | None]] = {
    "personality": (135, 92),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
}
ABSENT: dict[str, tuple[int | None, int | None]] = {
    "clone3": (435, 435),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
}
SYSTEM_V: dict[str, tuple[int | None, int | None]] = {
    "msgget": (68, 186),
    "semget": (64, 190),
    "shmget": (29, 194),
}
"""Not there either where what they make, which outlives its maker, cannot be bounded."""
_CLONE, _IOCTL = (56, 220), (16, 29)
_SOCKETS: dict[str, tuple[int, int]] = {"socket": (41, 198), "socketpair": (53, 199)}
NAMESPACE_FLAGS = 0x7E020000
"""Flags of ``clone`` that make a namespace."""
FORBIDDEN_IOCTLS = (0x5412, 0x541C)
"""TIOCSTI types on somebody's terminal, TIOCLINUX pastes into it."""
SOCKET_FAMILIES = (1, 2, 10, 16)
"""Unix, IPv4, IPv6, netlink. Others (virtual sockets to the hypervisor!) know no namespace."""

OF_PROCESS_ONE: dict[str, tuple[tuple[int, int], int]] = {
    "ioprio_set": ((251, 30), 1), "prlimit64": ((302, 261), 0),
    "sched_setaffinity": ((203, 122), 0), "sched_setattr": ((314, 274), 0),
    "sched_setparam": ((142, 118), 0), "sched_setscheduler": ((144, 119), 0),
    "setpriority": ((141, 140), 1),
}  # fmt: skip
"""Calls that change a process, and which argument names it. 1 is the guest, also as a group."""
OF_A_USER: dict[str, int] = {"ioprio_set": 3, "setpriority": 2}
"""Calls whose first argument says that they mean everything of a user, the guest included."""

_AUDIT_ARCH = (0xC000003E, 0xC00000B7)
_MACHINES = {"x86_64": 0, "aarch64": 1}
_LD_W_ABS, _JEQ_K, _JGE_K, _JSET_K, _RET_K = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NR, _ARCH, _ARG0, _ARG1 = 0, 4, 16, 24


def machine() -> int:
    """Return the column of the tables for this machine.

    Raises:
        SandboxRefused: There is none.
    """
    name = platform.machine()
    if name not in _MACHINES:
        raise SandboxRefused(
            "there is no seccomp filter for this processor",
            name,
            f"Known are {', '.join(_MACHINES)}",
        )
    return _MACHINES[name]


def bpf(*, allow_ptrace: bool = False, system_v: bool = True) -> bytes:
    """Return the filter for this machine as the kernel's array of instructions.

    Debuggers work with ``allow_ptrace``; System V's memory, messages and semaphores can be had with
    ``system_v``.

    Raises:
        SandboxRefused: The processor is not known.
    """
    return _compiled(machine(), allow_ptrace, system_v)


@functools.cache
def _compiled(at: int, allow_ptrace: bool, system_v: bool) -> bytes:
    """Return the filter for one column of the tables; every start asks for it."""
    program = [
        (_LD_W_ABS, 0, 0, _ARCH),
        (_JEQ_K, 1, 0, _AUDIT_ARCH[at]),
        (_RET_K, 0, 0, _KILL),
        (_LD_W_ABS, 0, 0, _NR),
        (_JGE_K, 0, 1, 0x40000000),  # the x32 calls of x86_64 have other numbers
        (_RET_K, 0, 0, _ERRNO | ENOSYS),
    ]
    denied = DENIED if allow_ptrace else DENIED | DEBUGGING
    absent = ABSENT if system_v else ABSENT | SYSTEM_V
    for table, number in ((denied, EPERM), (absent, ENOSYS)):
        for numbers in table.values():
            if (call := numbers[at]) is not None:
                program += [(_JEQ_K, 0, 1, call), (_RET_K, 0, 0, _ERRNO | number)]
    program += _rule(_CLONE[at], [(_LD_W_ABS, 0, 0, _ARG0), (_JSET_K, 0, 1, NAMESPACE_FLAGS)])
    ioctls = [(_JEQ_K, 1, 0, FORBIDDEN_IOCTLS[0]), (_JEQ_K, 0, 1, FORBIDDEN_IOCTLS[1])]
    program += _rule(_IOCTL[at], [(_LD_W_ABS, 0, 0, _ARG1), *ioctls])
    count = len(SOCKET_FAMILIES)
    families = [(_JEQ_K, count - index, 0, family) for index, family in enumerate(SOCKET_FAMILIES)]
    for numbers in _SOCKETS.values():
        program += _rule(numbers[at], [(_LD_W_ABS, 0, 0, _ARG0), *families])
    for name, (numbers, argument) in OF_PROCESS_ONE.items():
        test = [(_LD_W_ABS, 0, 0, _ARG0 + 8 * argument), (_JEQ_K, 0, 1, 1)]
        if name in OF_A_USER:
            test = [(_LD_W_ABS, 0, 0, _ARG0), (_JEQ_K, 2, 0, OF_A_USER[name]), *test]
        program += _rule(numbers[at], test)
    program.append((_RET_K, 0, 0, _ALLOW))
    return b"".join(
        code.to_bytes(2, "little") + bytes([yes, no]) + value.to_bytes(4, "little")
        for code, yes, no, value in program
    )


_Instruction = tuple[int, int, int, int]


def _rule(call: int, test: list[_Instruction]) -> list[_Instruction]:
    """Return instructions that deny ``call`` when ``test`` falls through to its end.

    A jump of 1 from the last instruction of ``test``, or to just behind it, allows.
    """
    body = [*test, (_RET_K, 0, 0, _ERRNO | EPERM), (_RET_K, 0, 0, _ALLOW)]
    return [(_JEQ_K, 0, len(body), call), *body]


def engine_profile(*, allow_ptrace: bool = False, system_v: bool = True) -> dict[str, Any]:
    """Return the same table (``allow_ptrace``, ``system_v``) as container engines read it."""
    denied = DENIED if allow_ptrace else DENIED | DEBUGGING
    absent = ABSENT if system_v else ABSENT | SYSTEM_V
    rules: list[dict[str, Any]] = [
        {"names": sorted(denied), "action": "SCMP_ACT_ERRNO", "errnoRet": EPERM},
        {"names": sorted(absent), "action": "SCMP_ACT_ERRNO", "errnoRet": ENOSYS},
    ]
    flags = [1 << bit for bit in range(32) if NAMESPACE_FLAGS >> bit & 1]
    rules += [_deny_when("clone", 0, "SCMP_CMP_MASKED_EQ", flag, flag) for flag in flags]
    rules += [_deny_when("ioctl", 1, "SCMP_CMP_MASKED_EQ", 0xFFFFFFFF, n) for n in FORBIDDEN_IOCTLS]
    # Denied one by one: rules on one call are alternatives, so "none of these" cannot be said.
    others = [family for family in range(64) if family not in SOCKET_FAMILIES]
    for name in _SOCKETS:
        rules += [_deny_when(name, 0, "SCMP_CMP_EQ", family, 0) for family in others]
    low = 0xFFFFFFFF  # the kernel reads no more of a process id
    for name, (_, argument) in OF_PROCESS_ONE.items():
        rules.append(_deny_when(name, argument, "SCMP_CMP_MASKED_EQ", low, 1))
    for name, who in OF_A_USER.items():
        rules.append(_deny_when(name, 0, "SCMP_CMP_MASKED_EQ", low, who))
    return {
        "defaultAction": "SCMP_ACT_ALLOW",
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"],
        "syscalls": rules,
    }


def _deny_when(name: str, index: int, how: str, value: int, second: int) -> dict[str, Any]:
    test = {"index": index, "value": value, "valueTwo": second, "op": how}
    return {"names": [name], "action": "SCMP_ACT_ERRNO", "errnoRet": EPERM, "args": [test]}
