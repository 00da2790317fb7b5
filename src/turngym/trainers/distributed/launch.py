"""One command that starts all ranks of a learner on this machine, and ends them together.

Rank 0 is the command itself, with its output. When a rank ends early so do the others; a run loses
no more by that than by ``kill -9``. Imports no torch.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from types import FrameType
from typing import IO

from turngym.coroutines import leave_terminal
from turngym.errors import ConfigError, TrainingError

_GRACE_S = 10.0
"""For ranks to end by themselves."""
JOINED = threading.Event()
"""Set when this rank has met the others."""
_PIPE = "TURNGYM_LAUNCHER"
_WITH_SIZE = ("RANK", "MASTER_ADDR", "MASTER_PORT")
"""What a launcher sets beside WORLD_SIZE; a batch script or a pod may have set that alone."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_RANK_MIB = 250
"""What one rank has of its own in main memory, its share of a model aside; measured."""


def rank_here() -> int | None:
    """Return the number of this process among the ranks; None where it is none of them.

    It ends with its launcher from then on, and only rank 0 answers signals.

    Raises:
        ConfigError: It is said to be one, and not which.
    """
    if "WORLD_SIZE" not in os.environ:
        return None
    if missing := [name for name in _WITH_SIZE if not os.environ.get(name)]:
        raise ConfigError(
            f"the environment has WORLD_SIZE, as in a rank that torchrun started, and no "
            f"{missing[0]}: unset WORLD_SIZE, or start the ranks with torchrun"
        )
    rank = int(os.environ["RANK"])
    if pipe := os.environ.get(_PIPE):
        threading.Thread(target=_end_with, args=(int(pipe), rank), daemon=True).start()
    for number in _SIGNALS if rank else ():
        signal.signal(number, signal.SIG_IGN)
    return rank


def check_size(ranks: int) -> None:
    """Make sure that this is one of ``ranks`` processes.

    Raises:
        ConfigError: It is not.
    """
    found = os.environ.get("WORLD_SIZE", "1" if ranks == 1 else None)
    if found is None:
        raise ConfigError(
            f"learner.ranks={ranks} wants a process for each rank: start it with 'turngym train', "
            "or with torchrun"
        )
    if found != str(ranks):
        raise ConfigError(
            f"learner.ranks={ranks}, and {found} processes were started, by WORLD_SIZE: make them "
            "equal, or unset that"
        )


def launch(ranks: int, arguments: Sequence[str], *, stdout: IO[str] | None = None) -> int:
    """Run ``turngym`` as ``ranks`` processes and return the exit code of the run.

    SIGINT, SIGTERM and SIGHUP go to rank 0, which saves the run.

    Args:
        ranks: How many.
        arguments: Of the command line.
        stdout: Of rank 0; None for that of this process.

    Raises:
        ConfigError: So many do not fit into main memory.
        TrainingError: A rank was killed, or ended without having said why.
    """
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    if (wanted := ranks * _RANK_MIB) > found:
        raise ConfigError(
            f"learner.ranks={ranks}: so many processes take {wanted / 1024:.3g} GiB before they "
            f"hold anything, and this machine has {found / 1024:.3g} GiB: lower it"
        )
    reader, writer = os.pipe()  # closed by the end of this process, however it comes
    port = free_port()
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "turngym", *arguments],
            env=os.environ | rank_environment(rank, ranks, port) | {_PIPE: str(reader)},
            stdout=subprocess.DEVNULL if rank else stdout,
            stdin=None if rank == 0 else subprocess.DEVNULL,
            pass_fds=[reader],
            start_new_session=True,  # Ctrl-C is for rank 0 alone, once
        )
        for rank in range(ranks)
    ]
    os.close(reader)

    def forward(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            leave_terminal()
        processes[0].send_signal(number)

    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # under nohup
    numbers = _SIGNALS[: 2 if ignored else 3]
    before = {number: signal.signal(number, forward) for number in numbers}
    try:
        return _wait(processes)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(writer)


def _end_with(pipe: int, rank: int) -> None:
    """End this process when its launcher is gone; rank 0 in order, the others at once."""
    os.read(pipe, 1)
    if rank:
        os._exit(1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_S)
    if not JOINED.is_set():  # torch waits for ranks that are gone, and hears of no signal
        os._exit(1)


def _wait(processes: Sequence[subprocess.Popen[bytes]]) -> int:
    """Wait for all ranks, when one failed or rank 0 is done for a while only; return the code."""
    ended: dict[int, int] = {}
    """Codes of those that ended by themselves."""
    until = float("inf")
    while len(ended) < len(processes) and time.monotonic() < until:
        time.sleep(0.05)
        ended |= {rank: p.returncode for rank, p in enumerate(processes) if p.poll() is not None}
        failed = any(ended.values())
        if until == float("inf") and (failed or 0 in ended):
            until = time.monotonic() + _GRACE_S * (not ended.get(0))
            if failed:
                processes[0].terminate()
    for process in processes:
        process.kill()
        process.wait()
    killed = [rank for rank, code in ended.items() if code < 0]
    if not killed and ended.get(0):
        return ended[0]  # it has said what is wrong
    lost = killed or [rank for rank in range(len(processes)) if ended.get(rank)]
    if not lost:
        return 0 if 0 in ended else 1
    code = ended[lost[0]]
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    raise TrainingError(
        f"rank {lost[0]} of the learner {how}; the same command resumes the run from its newest "
        "checkpoint"
    )


def rank_environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """Return what torchrun would set.

    Args:
        rank: Which of them, from 0.
        ranks: How many there are, all on this machine.
        port: Where the first listens for the others.
    """
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def free_port() -> int:
    """Return a port that nothing listens on now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
