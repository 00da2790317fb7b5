"""Nothing that the launcher starts outlives it."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from turngym.sandbox.launcher.instance import Instance

CODE = """
import sys, time
from turngym.sandbox.launcher.instance import in_child
print(in_child(lambda: time.sleep(600))[0], flush=True)
time.sleep(600)
"""


def test_a_worker_ends_with_the_launcher_that_is_killed() -> None:
    argv = [sys.executable, "-c", CODE]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout is not None
        worker = int(launcher.stdout.readline())
        try:
            os.kill(worker, 0)
            launcher.kill()
            launcher.wait()
            deadline = time.monotonic() + 60
            while is_running(worker):
                assert time.monotonic() < deadline, "the worker goes on"
                time.sleep(0.01)
        finally:
            if is_running(worker):
                os.kill(worker, signal.SIGKILL)


def is_running(pid: int) -> bool:
    """Say whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_sandbox_that_is_killed_while_it_starts_does_not_end_the_launcher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its first process may be gone when bubblewrap is let go on: nobody reads that any more."""
    with subprocess.Popen(["sleep", "600"]) as first:
        sandbox = Instance("s", "sandboxes/s", [])
        sandbox.score, guest_score = socket.socketpair()
        sandbox.info = json.dumps({"child-pid": first.pid}).encode()
        reads, sandbox.block_fd = os.pipe()
        sandbox.kill()  # before its first process is known: it is killed once it is admitted
        kill = sandbox.kill

        def killed() -> None:
            kill()
            first.wait()
            os.close(reads)

        monkeypatch.setattr(sandbox, "kill", killed)
        with sandbox.score, guest_score:
            assert sandbox.admit()
        os.close(sandbox.init_fd)
        assert (first.returncode, sandbox.block_fd) == (-signal.SIGKILL, -1)
