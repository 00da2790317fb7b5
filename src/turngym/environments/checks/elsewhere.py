"""Episodes in another process, with another hash seed or a clock that is ahead."""

from __future__ import annotations

import datetime
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from contextlib import suppress
from tempfile import TemporaryFile
from typing import Any

from turngym.check_report import Broken

_DATE = '() { command date -d "@$(($(command date +%s) + AHEAD))" "$@"; }'
"""A function of bash that stands for ``date`` in every shell that inherits it."""

_PLAY = "from turngym.environments.checks.elsewhere import play_from_stdin; play_from_stdin()"


def play_elsewhere(request: bytes, hash_seed: str, timeout_s: float) -> list[list[dict[str, Any]]]:
    """Return the plain steps of episodes that a fresh process plays.

    Args:
        request: Pickle of what was loaded from files, the pickled Gymnasium spec and the (seed,
            actions) pairs.
        hash_seed: ``PYTHONHASHSEED`` of the process.
        timeout_s: Seconds that it may take.

    Raises:
        Broken: It failed or took too long.
    """
    path = os.pathsep.join(folder for folder in sys.path if folder)
    with TemporaryFile() as ask, TemporaryFile() as answer, TemporaryFile() as complaint:
        ask.write(request)
        ask.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-c", _PLAY],
            stdin=ask,
            stdout=answer,
            stderr=complaint,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path},
            start_new_session=True,
        )
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise Broken(f"the fresh process took more than {timeout_s:g} s") from error
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what it left behind, too
            process.wait()
        if code != 0:
            complaint.seek(0)
            last = complaint.read().decode(errors="replace").strip().splitlines()[-1:]
            raise Broken(f"the fresh process failed: {''.join(last)}")
        answer.seek(0)
        played: list[list[dict[str, Any]]] = pickle.load(answer)
        return played


def play_from_stdin() -> None:
    """Play what ``play_elsewhere`` asks for; the main function of its process."""
    import gymnasium

    from turngym import registry
    from turngym.environments.checks.probes import plain_steps, replay

    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the environment prints is no part of the answer
    sources, spec, wanted = pickle.load(sys.stdin.buffer)
    with registry.loaded(sources):
        env = gymnasium.make(pickle.loads(spec))
    played = []
    for seed, actions in wanted:
        played.append(plain_steps(replay(env, actions, name=f"seed {seed}", seed=seed).steps))
    env.close()
    with answer:
        pickle.dump(played, answer)


def main() -> None:
    """Read what is asked from standard input, play it, print what came of it."""
    asked = json.load(sys.stdin)
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the environment prints is no part of the answer
    if asked["clock_s"]:
        move_clock(asked["clock_s"])
    from turngym.environments.checks.task import play
    from turngym.environments.gym.registration import make
    from turngym.tasks.check.subject import as_expert

    env = make(asked["target"])
    try:
        task: Any = env.get_wrapper_attr("find_task")(asked["task"])
        played = play(env, task, as_expert, name="elsewhere")
    finally:
        env.close()
    found = {
        name: getattr(played, name)
        for name in ("score", "prompt", "key", "truth", "fault", "refused", "problem")
    }
    with answer:
        print(json.dumps(found), file=answer)


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
