"""Many training runs as processes of their own, some at a time, each resumable."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from turngym.coroutines import cancelled_by_signals
from turngym.errors import Interrupted
from turngym.trainers.runs.comparison import Heat, PlannedRun
from turngym.trainers.runs.run_folder import is_locked

logger = logging.getLogger(__name__)

_SECONDS_BETWEEN_LOOKS = 1.0
_GRACE_S = 60.0
"""How long a run that is asked to stop may take to save itself."""

OnProgress = Callable[[int, str], None]
"""Told the number of updates done in all runs, and which run now."""


def run_heats(heats: Sequence[Heat], *, jobs: int, advance: OnProgress) -> dict[str, str]:
    """Train everything that is not done yet, and return what went wrong: label to reason.

    One failure stops no other run, except those that would begin with the model it should have
    made. So many ``jobs`` run at a time, and ``advance`` watches.

    Raises:
        Interrupted: SIGINT or SIGTERM arrived. The runs have saved themselves and can go on.
    """
    return asyncio.run(_run_heats(heats, jobs=jobs, advance=advance))


async def _run_heats(heats: Sequence[Heat], *, jobs: int, advance: OnProgress) -> dict[str, str]:
    crew = _Crew(jobs, heats, advance)
    try:
        with cancelled_by_signals():
            watch = asyncio.create_task(crew.watch())
            try:
                async with asyncio.TaskGroup() as group:
                    for heat in heats:
                        group.create_task(crew.run_heat(heat))
            finally:
                watch.cancel()
    except asyncio.CancelledError:
        raise Interrupted("interrupted and saved; the same command goes on from here") from None
    crew.look()
    return crew.failures


class _Crew:
    """Runs processes, at most so many at a time."""

    def __init__(self, jobs: int, heats: Sequence[Heat], advance: OnProgress) -> None:
        self.failures: dict[str, str] = {}
        self._seats = asyncio.Semaphore(jobs)
        self._runs = [run for heat in heats for run in heat.runs]
        self._done = dict.fromkeys((run.label for run in self._runs), 0)
        self._running: dict[str, PlannedRun] = {}
        self._advance = advance

    async def run_heat(self, heat: Heat) -> None:
        """Make the start, then run what begins with it."""
        first = heat.warm_start
        if first is not None and not heat.start.exists():
            if not await self._run(first):
                reason = f"not started, because its {first.name} failed"
                self.failures |= {run.label: reason for run in heat.runs}
                return
            heat.keep_start()
        async with asyncio.TaskGroup() as group:
            for run in heat.runs:
                group.create_task(self._run(run))

    async def watch(self) -> None:
        """Tell how far the runs are, again and again."""
        while True:
            self.look()
            await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)

    def look(self) -> None:
        """Tell how far the runs are."""
        for run in self._running.values():
            self._done[run.label] = _updates(run.folder)
        now = next(iter(self._running), "")
        others = f" and {len(self._running) - 1} more" if len(self._running) > 1 else ""
        self._advance(sum(self._done[run.label] for run in self._runs), now + others)

    async def _run(self, run: PlannedRun) -> bool:
        """Run to the end, unless it is done; say whether that went well."""
        async with self._seats:
            if not run.is_done:
                run.write_settings()
                self._running[run.label] = run
                code = await _train_alone(run)
                del self._running[run.label]
                if code:
                    said = run.log_file.read_text(encoding="utf-8", errors="replace").splitlines()
                    errors = [line for line in said if line.strip()]
                    last = errors[-1].removeprefix("error: ") if errors else "it said nothing"
                    self.failures[run.label] = f"exit code {code}: {last} (see {run.log_file})"
            self._done[run.label] = _updates(run.folder)
        return run.label not in self.failures


async def _train_alone(run: PlannedRun) -> int:
    """Train as ``_train`` does, after the end of any other process that trains the same.

    A comparison that was killed leaves one behind, and the same comparison may run twice.
    """
    code, is_said = 1, False
    while code and not run.is_done:
        if not is_locked(run.folder):
            code = await _train(run)
            if not is_locked(run.folder):
                return code
        if not is_said:
            logger.warning("%s: is trained by another process; waiting for its end", run.folder)
            is_said = True
        await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)
    return 0


async def _train(run: PlannedRun) -> int:
    """Run one training process to its end and return its exit code; stop it when cancelled."""
    command = [sys.executable, "-m", "turngym", "train", str(run.settings_file)]
    with run.log_file.open("a", encoding="utf-8") as log:
        process = await asyncio.create_subprocess_exec(
            *command,
            "--out",
            str(run.folder),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=_environment(),
            start_new_session=True,  # so that Ctrl-C reaches it once, through us
        )
        try:
            return await process.wait()
        except asyncio.CancelledError:
            await _stop(process)
            raise


async def _stop(process: Process) -> None:
    """Ask a process to save itself and end; end it when it takes too long."""
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGINT)
    try:
        async with asyncio.timeout(_GRACE_S):
            await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _environment() -> dict[str, str]:
    """Return the variables of a child: one thread, and the same ``turngym`` as ours."""
    source = str(Path(__file__).parents[2])
    paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}


def _updates(folder: Path) -> int:
    """Return the number of updates that a run has logged."""
    file = folder / "metrics.jsonl"  # not parsed: it is looked at each second, and grows
    return file.read_bytes().count(b'"rollout/episodes"') if file.exists() else 0
