"""Every promise and every attack, for every back end that can run here.

As root, bubblewrap is checked as root and as a plain user. Docker and Podman need real engines:
`make proof PART=sandboxes` installs, starts and checks them.
"""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from helpers import plain_user
from turngym.sandbox import Limits, SandboxSpec, open_backend
from turngym.sandbox.backends import bubblewrap, bubblewrap_command
from turngym.sandbox.backends.unsafe_local import RISK
from turngym.sandbox.checks.check import ATTACKS, PROMISES, check_sandbox
from turngym.sandbox.checks.context import attack, program

SPEC = SandboxSpec(limits=Limits(memory_bytes=64 << 20, disk_bytes=8 << 20, enforce="best_effort"))
NEVER_LOCAL = {
    "a mount can be read and not written",
    "attack: a full disk is full at the limit",
    "attack: empty files stop at the limit",
    "attack: a grade is not changed by what was planted",
    "attack: a snapshot of exabytes of nothing is quick and small",
}
"""It has no mounts, and the disk it would fill is the host's."""
TAKE_ALL = """
import _socket, fcntl
def rights(fds):
    sender, receiver = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_DGRAM)
    packed = b"".join(fd.to_bytes(4, "little") for fd in fds)
    sender.sendmsg([b"x"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, packed)])
    return sender, receiver
def large_pipe(_):
    ends = os.pipe()
    fcntl.fcntl(ends[1], 1031, 1 << 20)
    return ends
is_hog = sys.argv[1] == "take"
watches = until_refused(lambda _: libc.inotify_init1(0) + 1 or os.close(-1), 200 if is_hog else 1)
pipes = until_refused(large_pipe, 80 if is_hog else 1)
passed = until_refused(lambda _: rights([0] * 200), 20 if is_hog else 1)
for name, got in (("inotify", watches), ("large pipes", pipes), ("descriptors", passed)):
    if not is_hog and not got: print("nothing is left of", name)
if is_hog:
    os.write(1, b"taken")
    time.sleep(600)
"""


@pytest.mark.extra("bwrap")
def test_bubblewrap_keeps_every_promise_and_withstands_every_attack() -> None:
    report = check_sandbox("bubblewrap")
    report.raise_on_failure()
    assert [result.status for result in report.results] == ["pass"] * (1 + len(PROMISES + ATTACKS))


@pytest.mark.extra("bwrap", "setpriv", "unshare")
@pytest.mark.skipif(os.geteuid() != 0, reason="as a plain user the test above is this one")
def test_bubblewrap_of_a_plain_user_keeps_every_promise_too(tmp_path_factory) -> None:  # type: ignore[no-untyped-def]
    argv = [sys.executable, "-m", "turngym", "check", "sandbox", "bubblewrap", "--json"]
    run = subprocess.run(plain_user.command(argv), capture_output=True, text=True, check=False)
    assert run.stdout, run.stderr
    [report] = json.loads(run.stdout)["reports"]
    assert {r["name"]: r["reason"] for r in report["results"] if r["status"] != "pass"} == {}
    assert len(report["results"]) == 1 + len(PROMISES + ATTACKS)
    assert run.returncode == 0


@pytest.mark.extra("bwrap")
@pytest.mark.skipif(os.geteuid() != 0, reason="a plain user's sandboxes are all that one user")
async def test_one_sandbox_cannot_take_what_another_needs() -> None:
    backend = open_backend("bubblewrap")
    async with (
        await backend.start(SPEC) as hog,
        await backend.start(SPEC) as other,
        await hog.spawn(program(hog, TAKE_ALL, "take")) as process,
    ):
        assert await process.read() == b"taken"
        assert await attack(other, TAKE_ALL, "taste") == []
        # The control: a fork stands on the same files, so it is the same user of the host.
        [fork] = await hog.fork(1)
        assert not isinstance(fork, Exception)
        async with fork:
            lacking = await attack(fork, TAKE_ALL, "taste")
        wanted = ["inotify", "large pipes", "descriptors"]
        assert [line.partition(" of ")[2] for line in lacking] == wanted
    await backend.close()


@pytest.mark.extra("bwrap")
async def test_a_writable_proc_is_what_lets_a_command_spare_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The control of the attack that asks the kernel to be spared: without its wall it works."""
    real = bubblewrap.arguments

    def without_the_wall(*given: Any, **named: Any) -> list[str]:
        options = real(*given, **named)
        at = options.index("/proc", options.index("--remount-ro"))
        return options[: at - 1] + options[at + 1 :]

    monkeypatch.setattr(bubblewrap, "arguments", without_the_wall)
    backend = open_backend("bubblewrap")
    spare = "echo 0 > /proc/self/oom_score_adj && cat /proc/self/oom_score_adj"
    async with await backend.start(SPEC) as sandbox:
        assert (await sandbox.exec(spare, timeout_s=60)).stdout == b"0\n"
    monkeypatch.undo()
    async with await backend.start(SPEC) as sandbox:
        assert (await sandbox.exec(spare, timeout_s=60)).stdout == b""
        text = (await sandbox.exec(["cat", "/proc/self/oom_score_adj"], timeout_s=60)).stdout
        assert int(text) >= 500
    await backend.close()


@pytest.mark.extra("bwrap")
async def test_the_kernels_command_line_is_read_where_nothing_covers_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The control of the attack that reads it."""
    names = [name for name in bubblewrap_command._MASKED if name != "cmdline"]
    monkeypatch.setattr(bubblewrap_command, "_MASKED", names)
    report = check_sandbox("bubblewrap", only="command line")
    assert [result.status for result in report.results] == ["pass", "fail"]
    assert "got through: read /proc/cmdline" in report.results[1].reason


@pytest.mark.extra("bwrap")
async def test_there_is_no_system_v_where_it_cannot_be_bounded() -> None:
    """A kernel before 6.10 lets a plain user set none of its limits."""
    code = "import ctypes; print(ctypes.CDLL(None).shmget(0, 4096, 0o1600) >= 0)"
    backend = bubblewrap.BubblewrapBackend()
    for held in (True, False):
        (await backend.launcher()).facts["system_v"] = held
        async with await backend.start(SPEC) as sandbox:
            assert await attack(sandbox, code) == [str(held)]
    await backend.close()


def test_every_attack_gets_through_where_nothing_isolates() -> None:
    report = check_sandbox("unsafe-local", accept_risk=RISK)
    failed = [str(result) for result in report.results if result.status == "fail"]
    assert failed == []
    assert {result.name for result in report.results if result.status == "not-run"} == NEVER_LOCAL
    assert not report.is_ok, "what did not run must not count as passed"


@pytest.mark.skipif("TURNGYM_ENGINES_RUN" not in os.environ, reason="make proof PART=sandboxes")
@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_a_real_engine_keeps_every_promise_and_withstands_every_attack(engine: str) -> None:
    socket = json.loads(os.environ["TURNGYM_ENGINES_RUN"])[engine]
    report = check_sandbox("docker", base_url=socket)
    report.raise_on_failure()
    assert len(report.results) == 1 + len(PROMISES + ATTACKS)
