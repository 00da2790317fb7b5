"""Rules for the whole suite: no network, no surprise, and a skip is never taken for a pass.

A test of an optional game engine carries `@pytest.mark.extra(...)`, naming what it needs, modules
or programs alike:

    @pytest.mark.extra("scienceworld", "java")

Where one of them is missing the test is skipped. Every such skip is listed at the end as `NOT RUN:
<reason>`, and makes the session fail when CI=true.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from hypothesis import settings

from turngym import registry
from turngym.registry import find_program

# Before anything imports torch or a hub client.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("MPLBACKEND", "Agg")
if "TURNGYM_CONFORMANCE" not in os.environ:  # at full length Java's second compiler pays
    os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

IN_CI = os.environ.get("CI") == "true"

# Examples are timed by pytest-timeout; a deadline per example fails on a busy machine.
settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if IN_CI else "local")

not_run = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    """Start the list of what did not run."""
    config.stash[not_run] = []
    config.pluginmanager.register(NotRun(config), "turngym-not-run")


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Let the garbage collector pass over the tests themselves and all that they import."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose `extra` marker names something that this machine lacks."""
    for marker in item.iter_markers("extra"):
        missing = [need for need in marker.args if not is_there(need)]
        if missing:
            pytest.skip(f"needs {', '.join(missing)}: make extras")


def is_there(need: str) -> bool:
    """Say whether `need` is a module that can be found or a program on PATH."""
    return find_spec(need) is not None or find_program(need) is not None


class NotRun:
    """Collects skips of `extra` tests and of whole modules, reports them, and fails them in CI.

    A skip whose reason names a PART= of `make proof` is none of them: that test runs on request.
    Works under pytest-xdist: reports reach the main process, which alone prints and decides.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.reasons = config.stash[not_run]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a skipped test that carries the marker."""
        if not report.skipped or "extra" not in report.keywords or hasattr(report, "wasxfail"):
            return
        if "PART=" not in (reason := reason_of(report)):
            self.reasons.append(f"{report.nodeid}: {reason}")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a module that skipped itself, where no marker can be seen."""
        if report.skipped:
            self.reasons.append(f"{report.nodeid}: {reason_of(report)}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Turn a pass with parts that did not run into a failure, in CI."""
        if self.reasons and IN_CI and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """List what did not run, above the closing line."""
        if not self.reasons:
            return
        terminalreporter.section("not run")
        for reason in sorted(set(self.reasons)):
            terminalreporter.write_line(f"NOT RUN: {reason}")
        if IN_CI:
            terminalreporter.write_line("CI=true: a part that did not run fails the session.")


def reason_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return the reason of a skip, without the location and the word before it."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


@pytest.fixture(autouse=True)
def forget_what_was_loaded() -> Iterator[None]:
    """Forget environments that a test loads from files and classes.

    Each process that plays would load them again, with all that their module imports.
    """
    before = set(registry._entries)
    yield
    for id, entry in list(registry._entries.items()):
        if id not in before and entry.source is not None:
            del registry._entries[id]
            gymnasium.registry.pop(entry.id, None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Share one browser among all tests of a file."""
    from turngym.environments.web.browser import BrowserHost

    host = BrowserHost.lease()
    yield host
    host.release()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Work in an empty folder; what is registered and imported there is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    games, modules = dict(gymnasium.registry), set(sys.modules)
    yield tmp_path
    gymnasium.registry.clear()
    gymnasium.registry.update(games)
    for name in set(sys.modules) - modules:
        file = getattr(sys.modules[name], "__file__", None)
        if file is not None and Path(file).is_relative_to(tmp_path):
            del sys.modules[name]
