"""Episodes in another process, with another hash seed or a clock that is ahead."""

from __future__ import annotations

import datetime
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from tempfile import TemporaryFile
from typing import Any, TypeVar

from turngym.check_report import Broken

T = TypeVar("T")
_DATE = '() { command date -d "@$(($(command date +%s) + AHEAD))" "$@"; }'
"""A function of bash that stands for ``date`` in every shell that inherits it."""

_ANSWER = "from turngym.environments.checks.elsewhere import answer; answer()"


def call_elsewhere(
    work: Callable[..., T],
    *arguments: Any,
    hash_seed: int,
    timeout_s: float,
    clock_s: float = 0.0,
    env: Mapping[str, str] | None = None,
) -> T:
    """Return what a function of a module gives in a fresh process.

    Args:
        work: The function.
        arguments: Of it; what can be pickled.
        hash_seed: ``PYTHONHASHSEED`` of the process.
        timeout_s: Seconds that it may take.
        clock_s: How far its clock is ahead, from before the function is imported.
        env: More variables of the process.

    Raises:
        Broken: It failed or took too long.
    """
    path = os.pathsep.join(folder for folder in sys.path if folder)
    variables = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": path, **(env or {})}
    # A thread hears nothing of Ctrl-C, so that what it waits for must.
    is_alone = threading.current_thread() is threading.main_thread()
    with TemporaryFile() as asked, TemporaryFile() as given, TemporaryFile() as complaint:
        pickle.dump(clock_s, asked)
        pickle.dump((work, arguments), asked)
        asked.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-c", _ANSWER], stdin=asked, stdout=given, stderr=complaint,
            env=variables, start_new_session=is_alone,
        )  # fmt: skip
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise Broken(f"the other process took more than {timeout_s:g} s") from error
        finally:
            with suppress(ProcessLookupError):
                if is_alone:
                    os.killpg(process.pid, signal.SIGKILL)  # what it left behind, too
            process.kill()
            process.wait()
        if code != 0:
            complaint.seek(0)
            lines = complaint.read().decode(errors="replace").strip().splitlines()
            raise Broken(f"the other process failed: {(lines or ['no message'])[-1][:300]}")
        given.seek(0)
        found: T = pickle.load(given)
        return found


def answer() -> None:
    """Do what ``call_elsewhere`` asks for; the main function of its process."""
    given = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the environment prints is no part of the answer
    if clock_s := pickle.load(sys.stdin.buffer):
        move_clock(clock_s)
    work, arguments = pickle.load(sys.stdin.buffer)
    with given:
        pickle.dump(work(*arguments), given)


def play_again(
    sources: list[str], spec: bytes, wanted: Sequence[tuple[int, list[str]]]
) -> list[list[dict[str, Any]]]:
    """Return the plain steps of episodes of one environment.

    Args:
        sources: What was loaded from files.
        spec: Of Gymnasium, pickled.
        wanted: Seed and actions of each episode.
    """
    import gymnasium

    from turngym import registry
    from turngym.environments.checks.probes import plain_steps, replay

    with registry.loaded(sources):
        env = gymnasium.make(pickle.loads(spec))
    with closing(env):
        return [
            plain_steps(replay(env, actions, name=f"seed {seed}", seed=seed).steps)
            for seed, actions in wanted
        ]


def move_clock(ahead_s: float) -> None:
    """Put the clock of this process ahead, and that of ``date`` in the shells of its sandboxes."""
    real, real_ns, real_date = time.time, time.time_ns, datetime.datetime
    time.time = lambda: real() + ahead_s
    time.time_ns = lambda: real_ns() + int(ahead_s * 1e9)
    local, utc, text, of = time.localtime, time.gmtime, time.strftime, time.asctime
    time.localtime = lambda seconds=None: local(time.time() if seconds is None else seconds)
    time.gmtime = lambda seconds=None: utc(time.time() if seconds is None else seconds)
    time.ctime = lambda seconds=None: of(time.localtime(seconds))
    time.asctime = lambda tuple=None: of(time.localtime() if tuple is None else tuple)
    time.strftime = lambda form, tuple=None: text(
        form, time.localtime() if tuple is None else tuple
    )

    class Ahead(real_date):  # type: ignore[valid-type, misc]  # a class in a variable
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return real_date.now(tz) + datetime.timedelta(seconds=ahead_s)

        @classmethod
        def utcnow(cls) -> Any:
            return real_date.now(datetime.UTC).replace(tzinfo=None) + datetime.timedelta(
                seconds=ahead_s
            )

        @classmethod
        def today(cls) -> Any:
            return cls.now()

    class AheadDate(datetime.date):
        @classmethod
        def today(cls) -> Any:
            return (real_date.now() + datetime.timedelta(seconds=ahead_s)).date()

    datetime.datetime, datetime.date = Ahead, AheadDate  # type: ignore[misc]
    shell = {"BASH_FUNC_date%%": _DATE.replace("AHEAD", str(int(ahead_s)))}
    from turngym.sandbox.backends import guest_sandbox

    guest_sandbox.DEFAULT_ENV = {**guest_sandbox.DEFAULT_ENV, **shell}
