"""A training run in a process of its own, which tells where it is and can be killed for real."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing import Pipe
from pathlib import Path

from helpers import warm
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
    reader, writer = Pipe(duplex=False)
    errors = out.parent / "errors.txt"
    errors.write_text("")
    process = warm.start(main, [str(out), *sources], out=writer, err=errors)
    writer.close()
    lines = []
    with open(reader.fileno(), closefd=False) as printed:
        for each in printed:
            lines.append(each.strip())
            if lines[-1] == line:
                time.sleep(delay_s)
                os.kill(process.pid or 0, number)
                break
        rest = printed.read()
    reader.close()
    process.join(120)
    said = errors.read_text()
    assert line in lines, f"ended without {line!r}: {lines[-3:]} {said[-2000:]}"
    return subprocess.CompletedProcess(sources, process.exitcode or 0, rest, said)


def main(arguments: Sequence[str]) -> int:
    """Train, and report an interruption as the command line does."""
    register_signals()
    out, *sources = arguments
    try:
        train(load_config(TrainConfig, sources), out, progress=Telling())
    except Interrupted as wish:
        print(wish, file=sys.stderr)
        return wish.exit_code
    return 0
