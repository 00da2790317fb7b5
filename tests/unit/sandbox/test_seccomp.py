"""The filter does what its table says: it is run here by a small interpreter of BPF."""

import platform

import pytest

from turngym.errors import SandboxRefused
from turngym.sandbox import SandboxSpec
from turngym.sandbox.backends import docker_engine as engine_container
from turngym.sandbox.backends import seccomp

ALLOW, KILL, EPERM, ENOSYS = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026
ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def verdict(program: bytes, number: int, *arguments: int, arch: int) -> int:
    """Return what the filter says about a system call."""
    data = number.to_bytes(4, "little") + arch.to_bytes(4, "little") + bytes(8)
    for argument in (*arguments, *[0] * (6 - len(arguments))):
        data += (argument & (1 << 64) - 1).to_bytes(8, "little")
    at = accumulator = 0
    while True:
        code = int.from_bytes(program[at * 8 : at * 8 + 2], "little")
        yes, no = program[at * 8 + 2], program[at * 8 + 3]
        value = int.from_bytes(program[at * 8 + 4 : at * 8 + 8], "little")
        at += 1
        if code == 0x06:
            return value
        if code == 0x20:
            accumulator = int.from_bytes(data[value : value + 4], "little")
            continue
        tests = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: accumulator & value}
        at += yes if tests[code] else no


@pytest.fixture(params=["x86_64", "aarch64"])
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(platform, "machine", lambda: request.param)
    return str(request.param)


def test_every_call_of_the_table_is_denied_and_ordinary_ones_are_not(machine: str) -> None:
    column, arch, program = seccomp.machine(), ARCH[machine], seccomp.bpf()
    for table, answer in (
        (seccomp.DENIED | seccomp.DEBUGGING, EPERM),
        (seccomp.ABSENT, ENOSYS),
    ):
        for name, numbers in table.items():
            if numbers[column] is not None:
                assert verdict(program, numbers[column], arch=arch) == answer, name
    ordinary = {"x86_64": (0, 1, 2, 57, 59, 257, 202), "aarch64": (56, 63, 64, 221, 98)}[machine]
    assert [verdict(program, number, arch=arch) for number in ordinary] == [ALLOW] * len(ordinary)


def test_arguments_decide_about_clone_ioctl_and_socket(machine: str) -> None:
    column, arch, program = seccomp.machine(), ARCH[machine], seccomp.bpf()
    clone, ioctl = (56, 220)[column], (16, 29)[column]
    for bit in (17, 25, 26, 27, 28, 29, 30):
        assert verdict(program, clone, 1 << bit | 17, arch=arch) == EPERM
    assert verdict(program, clone, 0x003D0F00, arch=arch) == ALLOW, "a thread"
    for command, answer in ((0x5412, EPERM), (0x541C, EPERM), (0x5413, ALLOW), (0x5401, ALLOW)):
        assert verdict(program, ioctl, 0, command, arch=arch) == answer
        assert verdict(program, ioctl, 0, command | 1 << 32, arch=arch) == answer, "upper half"
    for call in ((41, 198)[column], (53, 199)[column]):  # socket, socketpair
        allowed = [f for f in range(64) if verdict(program, call, f, arch=arch) == ALLOW]
        assert allowed == [1, 2, 10, 16]


def test_process_one_is_out_of_reach_and_others_are_not(machine: str) -> None:
    column, arch, program = seccomp.machine(), ARCH[machine], seccomp.bpf()
    for name, (numbers, argument) in seccomp.OF_PROCESS_ONE.items():
        for who, answer in ((0, ALLOW), (1, EPERM), (1 | 1 << 32, EPERM), (2, ALLOW), (77, ALLOW)):
            arguments = [0] * argument + [who]
            assert verdict(program, numbers[column], *arguments, arch=arch) == answer, (name, who)
    for name, kind in seccomp.OF_A_USER.items():
        number = seccomp.OF_PROCESS_ONE[name][0][column]
        assert verdict(program, number, kind, 0, arch=arch) == EPERM, name
        assert verdict(program, number, kind, 1000, arch=arch) == EPERM, name
        assert verdict(program, number, kind - 1, 1, arch=arch) == EPERM, "the group of process 1"


def test_another_architectures_calls_are_not_let_in(machine: str) -> None:
    other = next(value for name, value in ARCH.items() if name != machine)
    assert verdict(seccomp.bpf(), 0, arch=other) == KILL
    assert verdict(seccomp.bpf(), 0x40000000, arch=ARCH[machine]) == ENOSYS, "x32"


def test_debuggers_are_a_switch(machine: str) -> None:
    column, arch = seccomp.machine(), ARCH[machine]
    number = seccomp.DEBUGGING["ptrace"][column]
    assert number is not None
    assert verdict(seccomp.bpf(allow_ptrace=True), number, arch=arch) == ALLOW


def test_system_v_is_not_there_where_it_cannot_be_bounded(machine: str) -> None:
    column, arch = seccomp.machine(), ARCH[machine]
    for name, numbers in seccomp.SYSTEM_V.items():
        number = numbers[column]
        assert number is not None
        assert verdict(seccomp.bpf(), number, arch=arch) == ALLOW, name
        assert verdict(seccomp.bpf(system_v=False), number, arch=arch) == ENOSYS, name


def test_an_unknown_processor_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "pdp11")
    with pytest.raises(SandboxRefused, match="pdp11"):
        seccomp.bpf()


def test_engines_get_the_same_table() -> None:
    names = {name for rule in seccomp.engine_profile()["syscalls"] for name in rule["names"]}
    assert names == {
        *seccomp.DENIED,
        *seccomp.DEBUGGING,
        *seccomp.ABSENT,
        "clone",
        "ioctl",
        "socket",
        "socketpair",
        *seccomp.OF_PROCESS_ONE,
    }
    without = seccomp.engine_profile(system_v=False)["syscalls"]
    absent = next(rule for rule in without if rule["errnoRet"] == seccomp.ENOSYS)
    assert set(absent["names"]) == {*seccomp.ABSENT, *seccomp.SYSTEM_V}
    relaxed = seccomp.engine_profile(allow_ptrace=True)["syscalls"]
    assert "ptrace" not in {name for rule in relaxed for name in rule["names"]}


@pytest.mark.parametrize("can_limit", [True, False])
def test_a_container_has_limits_of_system_v_or_none_of_it(can_limit: bool) -> None:
    made = engine_container.creation(SandboxSpec(), dict, podman=False, system_v=can_limit)
    profile = next(o for o in made["security_opt"] if o.startswith("seccomp="))
    assert bool(made["sysctls"]) is can_limit
    assert ("shmget" in profile) is not can_limit
