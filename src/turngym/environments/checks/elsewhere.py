"""The expert's episode in another process, with another hash seed or a clock that is ahead."""

from __future__ import annotations

import datetime
import json
import os
import sys
import time
from typing import Any

_DATE = '() { command date -d "@$(($(command date +%s) + AHEAD))" "$@"; }'
"""A function of bash that stands for ``date`` in every shell that inherits it."""


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
