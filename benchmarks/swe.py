"""How fast SWE episodes are: reset, step, fork, many at once; beside a git worktree and SWE-ReX.

    python benchmarks/swe.py [--rounds N] [--json PATH]

Every round runs each case once, in turning order, so that load hits all alike. `benchmarks/setup.sh
swe-rex` installs SWE-ReX; where it is missing its rows say NOT RUN. The peers do less: a worktree
and a shell isolate nothing, and SWE-ReX's local deployment neither.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from harness import PEERS
from turngym.environments.swe.env import SweEnv
from turngym.environments.swe.tasksets import sample_project
from turngym.environments.workspace.host import WorkHost

TASK = "bugs-sample/train/0"
SHELL = "grep -c def src/tally/money.py"
Case = Callable[[], Awaitable[None]]


async def timed(case: Case) -> float:
    """Return the milliseconds that one call takes."""
    begun = time.perf_counter()
    await case()
    return 1e3 * (time.perf_counter() - begun)


async def rounds(cases: dict[str, Case], count: int) -> dict[str, list[float]]:
    """Run every case `count` times after one round that is dropped."""
    found: dict[str, list[float]] = {name: [] for name in cases}
    names = list(cases)
    for number in range(count + 1):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            value = await timed(cases[name])
            if number:
                found[name].append(value)
    return found


class Worktree:
    """A git worktree for each episode, and a process for each command."""

    def __init__(self, folder: Path) -> None:
        self.repo, self.place = folder / "repo", folder / "work"
        self.repo.mkdir()
        sample_project().write(self.repo)
        self.git("init", "-q")
        self.git("add", ".")
        self.git("-c", "user.name=b", "-c", "user.email=b@e.org", "commit", "-q", "-m", "one")

    def git(self, *words: str) -> None:
        subprocess.run(["git", *words], cwd=self.repo, check=True, capture_output=True)

    async def reset(self) -> None:
        if self.place.exists():
            self.git("worktree", "remove", "--force", str(self.place))
        self.git("worktree", "add", "-q", "--detach", str(self.place))

    async def step(self) -> None:
        process = await asyncio.create_subprocess_exec(
            "bash", "-c", SHELL, cwd=self.place, stdout=asyncio.subprocess.DEVNULL
        )
        assert await process.wait() == 0


class Rex:
    """SWE-ReX's local deployment, in its own interpreter; it times its own commands."""

    def __init__(self) -> None:
        self.python = PEERS / "swe-rex" / "bin" / "python"
        self.process: subprocess.Popen[str] | None = None
        self.started_ms = 0.0

    def start(self) -> None:
        script = Path(__file__).with_name("swe_rex_peer.py")
        self.process = subprocess.Popen(
            [str(self.python), str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.started_ms = 1e3 * float(self.process.stdout.readline())

    async def step(self) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        await asyncio.to_thread(self.process.stdout.readline)

    def stop(self) -> None:
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
            self.process.wait()


async def concurrent(number: int) -> float:
    """Return the seconds of `number` whole episodes at once: reset, look, edit, submit."""

    async def episode() -> None:
        env = SweEnv(tasks="sample")
        try:
            await env.reset(seed=0, options={"task": TASK})
            await env.step(env.say("bash", command=SHELL))
            done = False
            while not done:
                _, reward, done, _, _ = await env.step(env.oracle_action())
            assert reward == 1.0
        finally:
            await env.close()

    begun = time.perf_counter()
    await asyncio.gather(*(episode() for _ in range(number)))
    return time.perf_counter() - begun


async def measure(count: int) -> dict[str, object]:
    host = WorkHost.lease()
    env, rex, rows = SweEnv(tasks="sample"), Rex(), dict[str, object]()
    children: list[SweEnv] = []

    async def reset() -> None:
        await env.reset(seed=0, options={"task": TASK})

    async def step() -> None:
        await env.step(env.say("bash", command=SHELL))

    async def fork() -> None:
        children.extend(await env.fork(1))

    try:
        with tempfile.TemporaryDirectory() as folder:
            tree = Worktree(Path(folder))
            await reset()
            cases: dict[str, Case] = {
                "ours: reset": reset,
                "ours: step": step,
                "ours: fork in mid-episode": fork,
                "git worktree: reset": tree.reset,
                "git worktree: step": tree.step,
            }
            if rex.python.exists():
                rex.start()
                rows["SWE-ReX local: start, once"] = rex.started_ms
                cases["SWE-ReX local: step"] = rex.step
            else:
                rows["SWE-ReX local"] = "NOT RUN: benchmarks/setup.sh swe-rex"
            for name, values in (await rounds(cases, count)).items():
                rows[f"{name}, p50"] = statistics.median(values)
        rows["ours: 20 whole episodes at once"] = 1e3 * await concurrent(20)
    finally:
        rex.stop()
        for child in children:
            await child.close()
        await env.close()
        await host.release()
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    rows = asyncio.run(measure(arguments.rounds))
    for name, value in rows.items():
        print(f"{name:40} " + (value if isinstance(value, str) else f"{value:10.1f} ms"))
    print(f"load before: {load:.1f}, rounds: {arguments.rounds}")
    if arguments.json is not None:
        record = {"rounds": arguments.rounds, "load": load, "ms": rows}
        arguments.json.write_text(json.dumps(record, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
