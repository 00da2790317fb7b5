"""A training run in a process of its own, which tells where it is and can be killed for real.

python train_process.py OUT SOURCE...
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from helpers.signals import register_signals
from turngym.config import load_config
from turngym.errors import Interrupted
from turngym.trainers.loop import train
from turngym.trainers.settings.train import TrainConfig


class Telling:
    """Prints ``<phase> <steps>`` as the run goes on."""

    name = ""

    def phase(self, name: str, total: int | None) -> None:
        self.name = name
        print(name, 0, flush=True)

    def advance(self, done: int, metrics: Mapping[str, float]) -> None:
        print(self.name, done, flush=True)

    def note(self, text: str) -> None:
        pass


def stop_at(
    out: Path, sources: list[str], *, line: str, number: signal.Signals, delay_s: float = 0.0
) -> subprocess.CompletedProcess[str]:
    """Run in a process, send it ``number`` some time after it printed ``line``, and wait.

    Raises:
        AssertionError: It ended before it printed the line.
    """
    command = [sys.executable, "-P", __file__, str(out), *sources]
    package = Path(sys.modules["turngym"].__file__ or "").parents[1]
    paths = os.pathsep.join([str(package), str(Path(__file__).parents[1])])
    variables = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        lines = []
        for printed in process.stdout:
            lines.append(printed.strip())
            if lines[-1] == line:
                time.sleep(delay_s)
                process.send_signal(number)
                break
        rest, errors = process.communicate(timeout=120)
        assert line in lines, f"ended without {line!r}: {lines[-3:]} {errors[-2000:]}"
        return subprocess.CompletedProcess(command, process.returncode, rest, errors)


def main() -> int:
    """Train, and report an interruption as the command line does."""
    register_signals()
    out, *sources = sys.argv[1:]
    try:
        train(load_config(TrainConfig, sources), out, progress=Telling())
    except Interrupted as wish:
        print(wish, file=sys.stderr)
        return wish.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
