"""Nothing that the launcher starts outlives it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

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
