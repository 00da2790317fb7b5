"""Calls submitted functions inside the judge's sandbox; one process for each submission.

Standard library only. Read as text by ``env.py`` and run as ``python3 -I -S -B -c``. This process
imports nothing that was submitted; other processes of the sandbox cannot read it. It gets files
and calls, and forks a child that runs the files, makes the calls and reports what each gave. What
they should give never enters the sandbox. When the child is done, or late, whatever it left ends.
"""

# ruff: noqa: BLE001, D103, PTH123
import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import time
from typing import Any

PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36
MAX_ANSWER = 1 << 16


def main() -> None:
    orders = os.fdopen(os.dup(0), "r", encoding="utf-8")
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for line in orders:
        order = json.loads(line)
        values = run(order, {orders.fileno(), answer.fileno()})
        answer.write(json.dumps(values) + "\n")
        answer.flush()


def run(order: dict[str, Any], secret_fds: set[int]) -> list[Any]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            for number in (reading, *secret_fds):
                os.close(number)
            os.setsid()
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.write(writing, json.dumps(answers(order)).encode())
        except BaseException:
            os._exit(1)
        os._exit(0)
    os.close(writing)
    data = read_all(reading, time.monotonic() + order["seconds"])
    os.close(reading)
    kill_children()
    try:
        values = json.loads(data)
    except ValueError:
        values = None
    count = len(order["calls"])
    return values if isinstance(values, list) and len(values) == count else [None] * count


def answers(order: dict[str, Any]) -> list[Any]:
    """Run the files in one namespace and make the calls; only a child does this."""
    names: dict[str, Any] = {"__name__": "project"}
    for path, text in order["files"]:
        try:
            exec(compile(text, path, "exec"), names)
        except Exception:
            continue  # calls of what it defines fail
    return [value_of(names, name, arguments) for name, arguments in order["calls"]]


def value_of(names: dict[str, Any], name: str, arguments: list[int]) -> Any:
    try:
        value = names[name](*arguments)
    except Exception as error:
        return type(error).__name__
    return value if type(value) is int and abs(value) < 1 << 60 else str(value)[:40]


def read_all(reading: int, deadline: float) -> bytes:
    data = b""
    while len(data) < MAX_ANSWER:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([reading], [], [], left)[0]:
            return b""
        chunk = os.read(reading, 1 << 14)
        if not chunk:
            return data
        data += chunk
    return b""


def kill_children() -> None:
    """End every process that came of this one; orphans are its children too (subreaper)."""
    for _ in range(1000):
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            children = file.read().split()
        if not children:
            return
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, 0)


main()
