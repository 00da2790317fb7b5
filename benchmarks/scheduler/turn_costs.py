"""What turns cost: by window of processor time, and by the part of the program that took it."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

Numbers = dict[str, Any]


class Windows:
    """Turns a second of wall time, of the process's time and of the loop's thread, by window."""

    def __init__(self, seconds: float, count: int) -> None:
        self._seconds, self._count = seconds, count
        self.rows: list[Numbers] = []

    async def watch(self, turns: Callable[[], int], *, after: int) -> None:
        """Measure until there are enough windows, from so many turns on."""
        while turns() < after:
            await asyncio.sleep(self._seconds / 8)
        before = (time.perf_counter(), time.process_time(), time.thread_time(), turns())
        while len(self.rows) < self._count:
            end = time.process_time() + self._seconds
            while time.process_time() < end:  # wall time may bring next to none, beside others
                await asyncio.sleep(self._seconds / 8)
            now = (time.perf_counter(), time.process_time(), time.thread_time(), turns())
            wall, process, loop, done = (b - a for a, b in zip(before, now, strict=True))
            self.rows.append(
                {
                    "turns": done,
                    "wall_s": wall,
                    "turns_per_wall_s": done / wall,
                    "turns_per_cpu_s": done / process,
                    "turns_per_loop_cpu_s": done / loop,
                    "loop_us_per_turn": 1e6 * loop / done,
                    "other_threads_us_per_turn": 1e6 * (process - loop) / done,
                    "load": os.getloadavg()[0],
                }
            )
            before = now

    def summary(self) -> Numbers:
        """Return the medians of the windows."""
        return {
            name: statistics.median(row[name] for row in self.rows)
            for name in self.rows[0]
            if name not in ("turns", "wall_s")
        }


PARTS = {
    "agents/rendering": "policy session",
    "agents/chat/": "policy session",
    "agents/engine/": "policy session",
    "transformers": "policy session",
    "tokenizers": "policy session",
    "jinja2": "policy session",
    "<template>": "policy session",
    "environments/": "environment core",
    "gymnasium": "environment core",
    "CounterEnv": "environment core",
    "rollouts/scheduler/ledger": "ledger",
    "rollouts/scheduler/packing": "ledger",
    "rollouts/scheduler/": "scheduler",
    "rollouts/episode": "episode loop",
    "turngym/faults": "episode loop",
    "turngym/coroutines": "episode loop",
    "asyncio/": "event loop",
    "coordinator.py": "simulated replicas and benchmark",
}


class Sampler:
    """Samples where the event loop's thread stands, by processor time: parts, and single places."""

    def __init__(self) -> None:
        self.parts: Counter[str] = Counter()
        self.places: Counter[str] = Counter()

    @contextmanager
    def running(self) -> Iterator[None]:
        before = signal.signal(signal.SIGPROF, self._note)
        signal.setitimer(signal.ITIMER_PROF, 0.002, 0.002)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code.co_filename.endswith("selectors.py"):
            return  # the loop waits, and another thread computes
        first = frame
        while frame is not None:
            code = frame.f_code
            where = f"{code.co_filename} {code.co_qualname}"
            for mark, part in PARTS.items():
                if mark in where:
                    self.parts[part] += 1
                    if first is not None:
                        inner = first.f_code
                        name = f"{Path(inner.co_filename).name} {inner.co_qualname}"
                        self.places[name] += 1
                    return
            frame = frame.f_back
        self.parts["other"] += 1

    def seconds_by_part(self, loop_us_per_turn: float) -> Numbers:
        """Return microseconds of a turn by part; the parts sum to ``loop_us_per_turn``."""
        total = max(self.parts.total(), 1)
        return {name: loop_us_per_turn * n / total for name, n in self.parts.most_common()}
