"""Runs tests inside the judge's sandbox and reports to the host what became of each.

Standard library and pytest only, Python 3.7 and later. Read as text by ``test_runner.py``, run as
``python3 -I -S -B -c``. This process, the supervisor, never imports submitted code. It makes itself
unreadable for other processes of the sandbox, forks a child for the tests, and believes it only as
far as it goes: a test counts as passed when the child reported that its set-up, call and tear-down
passed, reported the end of the session, and ended by itself with a matching exit code. What
submitted code prints goes nowhere. It has no descriptor on which the supervisor answers.
"""

# ruff: noqa: BLE001, D103, F401, PTH123
from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import time
import traceback
from typing import Any

PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36


def main() -> None:
    order = json.load(sys.stdin)
    answer = os.fdopen(os.dup(1), "w")
    os.set_inheritable(answer.fileno(), False)
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    # No process of the sandbox can read this one's memory or descriptors from here on.
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    sys.dont_write_bytecode = True
    sys.path[:] = [path for path in sys.path if path] + order["packages"]
    import_pytest()
    os.chdir(order["workspace"])
    sys.path += order["roots"]
    os.environ["PYTHONPATH"] = os.pathsep.join(order["packages"] + order["roots"])
    deadline = time.monotonic() + order["total_s"]
    answer.write(json.dumps(run(order, deadline, answer.fileno())) + "\n")
    answer.write('"end"\n')
    answer.flush()


def import_pytest() -> None:
    """Import now what tests need of pytest, so that nothing submitted can stand in for it."""
    import unittest.mock

    import _pytest.assertion.rewrite
    import _pytest.doctest
    import _pytest.junitxml
    import _pytest.python
    import _pytest.unittest
    import pytest


def run(order: dict[str, Any], deadline: float, secret_fd: int) -> dict[str, Any]:
    reading, writing = os.pipe()
    # What trusted code prints says why its tests cannot run; what others print goes nowhere.
    output = os.memfd_create("output") if order["is_traced"] else 0
    child = os.fork()
    if child == 0:
        code = 70
        try:
            os.close(reading)
            os.close(secret_fd)
            os.setsid()
            for number in (1, 2) if output else ():
                os.dup2(output, number)
            code = run_child(order, writing)
        except BaseException:
            code = 71
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(code)
    os.close(writing)
    lines, is_late = read_lines(reading, deadline)
    os.close(reading)
    status = -signal.SIGKILL if is_late else exit_code(os.waitpid(child, 0)[1])
    kill_children()
    printed = tail_of(output) if output else ""
    return {"late": is_late, "status": status, "lines": lines, "printed": printed}


def tail_of(file: int) -> str:
    """Return the end of what was written to a file."""
    size = os.fstat(file).st_size
    return os.pread(file, 4096, max(size - 4096, 0)).decode("utf-8", "replace")


def exit_code(status: int) -> int:
    """Return the exit code, or the negated signal; images may have a Python older than ours."""
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


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


def read_lines(reading: int, deadline: float) -> tuple[list[Any], bool]:
    """Return what a child reported at ``reading``, and whether the deadline cut it off."""
    data = b""
    while len(data) < 64 << 20:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([reading], [], [], left)[0]:
            return parsed(data), True
        chunk = os.read(reading, 1 << 16)
        if not chunk:
            return parsed(data), False
        data += chunk
    return [], True


def parsed(data: bytes) -> list[Any]:
    lines = []
    for line in data.decode("utf-8", "replace").splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:
            return []  # only an intruder writes such a line
    return lines


def run_child(order: dict[str, Any], writing: int) -> int:
    """Run the tests of ``order``, results to ``writing``; only here submitted code is imported."""
    import random

    import pytest

    # Far away from the numbers that a program meets when it tries a few.
    place = random.SystemRandom().randrange(200, 900)
    os.dup2(writing, place, inheritable=False)
    os.close(writing)
    plugin = Reporter(place, order)
    return int(pytest.main([*order["options"], *order["files"]], plugins=[plugin]))


class Reporter:
    """Writes a line for each phase of each test, and one for the end of the session."""

    def __init__(self, fd: int, order: dict[str, Any]) -> None:
        self._ids, self._numbers = set(order["ids"]), order["numbers"]
        self._is_traced, self._root = order["is_traced"], order["workspace"] + "/"
        write, dumps, encode = os.write, json.dumps, str.encode

        def tell(*values: object) -> None:
            write(fd, encode(dumps(values)) + b"\n")

        self._tell = tell

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        kept: list[Any] = []
        counts: dict[str, int] = {}
        for item in items:
            base = item.nodeid.partition("[")[0]
            number = counts[base] = counts.get(base, -1) + 1
            is_asked = item.nodeid in self._ids or number in self._numbers.get(base, ())
            if is_asked or not (self._ids or self._numbers):
                kept.append(item)
                if self._is_traced:
                    self._tell(item.nodeid, "place", number, self._code_of(item), 0)
        items[:] = kept
        with contextlib.suppress(Exception):
            # Tests of hypothesis try the same examples every time, and make no failure small.
            found = sys.modules.get("hypothesis")
            if found is not None:
                phases = [one for one in found.Phase if one.name in ("explicit", "generate")]
                found.settings.register_profile(
                    "judge", phases=phases, derandomize=True, database=None, deadline=None,
                    report_multiple_bugs=False,
                )  # fmt: skip
                found.settings.load_profile("judge")

    def _code_of(self, item: Any) -> list[Any]:
        """Return file and first line of the function of a test."""
        import inspect

        function = getattr(item, "function", None)
        inner = getattr(getattr(function, "hypothesis", None), "inner_test", function)
        code = getattr(inspect.unwrap(inner), "__code__", None) if inner else None
        if code is None:
            return ["", 0]
        return [code.co_filename.replace(self._root, ""), code.co_firstlineno]

    def pytest_runtest_logreport(self, report: Any) -> None:
        text = ""
        if report.failed:
            crash = getattr(getattr(report, "longrepr", None), "reprcrash", None)
            text = str(getattr(crash, "message", "") or report.longrepr or "")[:600]
            if self._is_traced:
                self._tell(report.nodeid, "trace", "", trace_of(report), 0)
        is_plain = not hasattr(report, "wasxfail")
        outcome = report.outcome if is_plain else "xfail"
        self._tell(report.nodeid, report.when, outcome, text, report.duration)

    def pytest_internalerror(self, excrepr: Any) -> None:
        self._tell("", "internal", "pytest", str(excrepr)[-600:], 0)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._tell("", "collect", str(report.nodeid), str(report.longrepr)[-600:], 0)

    def pytest_sessionfinish(self, session: Any, exitstatus: int) -> None:
        self._tell("", "end", int(exitstatus), "", 0)


def trace_of(report: Any) -> list[Any]:
    """Return file and line of each call that led to a failure."""
    entries = getattr(getattr(report.longrepr, "reprtraceback", None), "reprentries", [])
    places = [getattr(one, "reprfileloc", None) for one in entries]
    return [[str(one.path), int(one.lineno)] for one in places if one is not None][:50]


main()
