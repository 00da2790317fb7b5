"""Nothing that the launcher starts outlives it."""

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from turngym.sandbox.launcher.instance import Instance
from turngym.sandbox.launcher.main import Launcher

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


def test_a_pipe_that_a_worker_holds_too_is_not_reported_once_it_is_closed() -> None:
    launcher = object.__new__(Launcher)
    launcher.selector = selectors.DefaultSelector()
    launcher.sandboxes, launcher.dying = {}, []
    sandbox = Instance("a", "nowhere", [])
    sandbox.info_fd, write_end = os.pipe()
    held = os.dup(sandbox.info_fd)  # as a worker that was forked just now has it
    launcher.watch(sandbox.info_fd, lambda fd: launcher.on_info(sandbox))
    os.close(write_end)  # bubblewrap has ended
    for key, _ in launcher.selector.select(0):
        key.data(key.fd)
    fresh = os.pipe()  # takes the number that is free again
    launcher.watch(fresh[0], lambda fd: None)
    assert launcher.selector.select(0) == []
    for fd in (*fresh, held):
        os.close(fd)
    launcher.selector.close()
