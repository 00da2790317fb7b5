"""ScienceWorld's simulator in a Java process of its own, started and ended by us."""

from __future__ import annotations

import os
import subprocess
import threading
from contextlib import suppress
from typing import Any

OPTIONS = (
    "-Xmx512m -XX:+IgnoreUnrecognizedVMOptions -XX:+UnlockExperimentalVMOptions -XX:hashCode=2"
)
"""Without a limit the Java process takes about 4 GB; with this one 0.4 GB.

ScienceWorld lists things in the order of hash sets whose hashes are drawn at random, so texts
differ from run to run. With a constant hash the order is that of insertion, at 1.3 times the cost
of a step.
"""

_STARTING = threading.Lock()
_LEAVE_SECONDS = 5.0


def start_engine() -> Any:
    """Return a running ``ScienceWorldEnv`` that never ends an episode by its own step limit."""
    from scienceworld import ScienceWorldEnv

    with _STARTING:  # ScienceWorld passes no options on, so they go through the environment
        before = os.environ.get("JAVA_TOOL_OPTIONS")
        os.environ["JAVA_TOOL_OPTIONS"] = f"{before or ''} {OPTIONS}".strip()
        try:
            return ScienceWorldEnv(envStepLimit=1 << 30)
        finally:
            if before is None:
                del os.environ["JAVA_TOOL_OPTIONS"]
            else:
                os.environ["JAVA_TOOL_OPTIONS"] = before


def process_of(engine: Any) -> Any:
    """Return the ``subprocess.Popen`` of an engine's Java process."""
    return engine._gateway.java_process  # py4j hands it over; ScienceWorld has no accessor


def stop_engine(engine: Any) -> None:
    """End the Java process of ``engine`` and wait for it, also when it is dead already."""
    process = process_of(engine)
    with suppress(Exception):  # a dead process answers nothing
        engine.close()
    engine.close = lambda: None  # ScienceWorld closes once more when it is collected
    with suppress(OSError):
        engine._obj_tree_tempdir.cleanup()
    with suppress(OSError):
        process.stdin.close()
    try:
        process.wait(_LEAVE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
