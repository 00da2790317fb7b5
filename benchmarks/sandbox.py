"""Speed and size of sandboxes beside a raw subprocess, raw bubblewrap, Docker's API and SWE-ReX.

Usage: python benchmarks/sandbox.py [--rounds 30] [--json FILE]

One run prints a table, each figure beside its target. Rounds are interleaved and ratios paired by
round, so that a busy machine hurts both sides alike. A peer that is missing is
NOT RUN. DOCKER_HOST names an engine (scripts/sandbox_engines.sh start docker); SWE-ReX runs where
`pip install swe-rex` has put it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from turngym.errors import TurnGymError
from turngym.sandbox import Limits, SandboxPool, SandboxSpec
from turngym.sandbox.bubblewrap import BubblewrapBackend
from turngym.sandbox.guest_sandbox import GuestSandbox

SPEC = SandboxSpec(
    limits=Limits(memory_bytes=128 << 20, disk_bytes=64 << 20, pids=64, enforce="best_effort")
)
RAW = ["bash", "-c", "/bin/true"]
NAIVE = ["bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--dev", "/dev",
         "--proc", "/proc", *RAW]  # fmt: skip
Case = Callable[[], Awaitable[float]]


class Table:
    """Rows of measure, value, target and verdict."""

    def __init__(self) -> None:
        self.rows: list[dict[str, object]] = []

    def add(
        self, name: str, value: float, unit: str, target: str = "", met: bool | None = None
    ) -> None:
        """Note one figure."""
        verdict = "" if met is None else ("met" if met else "MISSED")
        row = {"measure": name, "value": value, "unit": unit, "target": target, "verdict": verdict}
        self.rows.append(row)
        print(f"{name:62} {value:10.2f} {unit:8} {target:22} {verdict}", flush=True)

    def ratio(self, name: str, above: list[float], below: list[float], *, most: float) -> None:
        """Note a ratio of paired rounds that should be small."""
        value = statistics.median(a / b for a, b in zip(above, below, strict=True))
        self.add(name, value, "x", f"at most {most:g}", value <= most)

    def faster(self, name: str, slow: list[float], fast: list[float], *, least: float) -> None:
        """Note how many times faster; it should be large."""
        value = statistics.median(a / b for a, b in zip(slow, fast, strict=True))
        self.add(name, value, "x", f"at least {least:g}", value >= least)

    def not_run(self, name: str, reason: str) -> None:
        """Note what was not measured."""
        self.rows.append({"measure": name, "verdict": f"NOT RUN: {reason}"})
        print(f"{name:62} NOT RUN: {reason}", flush=True)


async def timed(action: Awaitable[object]) -> float:
    """Return the seconds that ``action`` takes."""
    start = time.perf_counter()
    await action
    return time.perf_counter() - start


async def rounds(cases: dict[str, Case], count: int) -> dict[str, list[float]]:
    """Run every case ``count`` times, one of each in turn, after one round that is dropped."""
    values: dict[str, list[float]] = {name: [] for name in cases}
    names = list(cases)
    for number in range(count + 1):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            cost = await cases[name]()
            if number:
                values[name].append(cost)
    return values


def spawn(command: list[str]) -> Case:
    """Return a case that runs a command to its end."""

    async def case() -> float:
        start = time.perf_counter()
        subprocess.run(command, check=True, env={"PATH": "/usr/bin:/bin"}, stdin=subprocess.DEVNULL)
        return time.perf_counter() - start

    return case


async def start_and_exec(
    backend: BubblewrapBackend, table: Table, count: int
) -> dict[str, list[float]]:
    """Measure starts, commands and forks."""
    running = await backend.start(SPEC)
    await running.write_file("file", b"x" * 100_000)
    pool = SandboxPool(backend, SPEC, warm=2)
    await pool.open()

    async def start() -> float:
        begun = time.perf_counter()
        sandbox = await backend.start(SPEC)
        took = time.perf_counter() - begun
        await sandbox.close()
        return took

    async def pooled() -> float:
        while pool.num_ready < 1:
            await asyncio.sleep(0.001)
        begun = time.perf_counter()
        sandbox = await pool.acquire()
        took = time.perf_counter() - begun
        await sandbox.close()
        return took

    async def execute() -> float:
        return await timed(running.exec(RAW, timeout_s=60))

    async def fork() -> float:
        begun = time.perf_counter()
        [child] = await running.fork(1)
        took = time.perf_counter() - begun
        if isinstance(child, Exception):
            raise child
        await child.close()
        await running.stats()  # the parent starts again outside the measured time
        return took

    async def close() -> float:
        sandbox = await backend.start(SPEC)
        await sandbox.spawn("setsid sleep 60 & sleep 60")
        return await timed(sandbox.close())

    found = await rounds(
        {
            "raw": spawn(RAW), "naive": spawn(NAIVE), "start": start, "pooled": pooled,
            "exec": execute, "fork": fork, "close": close,
        },
        count,
    )  # fmt: skip
    await pool.close()
    await running.close()
    for name in ("raw", "naive", "start", "pooled", "exec", "fork", "close"):
        table.add(f"{name}, p50", statistics.median(found[name]) * 1e3, "ms")
    table.ratio("start with guest, cold / raw bash", found["start"], found["raw"], most=20)
    table.ratio("start with guest, pooled / raw bash", found["pooled"], found["raw"], most=2)
    table.ratio("exec of bash -c / raw bash", found["exec"], found["raw"], most=2)
    late = p95(found["exec"]) / statistics.median(found["raw"])
    table.add("exec p95 / raw p50", late, "x", "at most 3", late <= 3)
    table.ratio("fork / start", found["fork"], found["start"], most=1.5)
    table.add("end of all processes, p95", p95(found["close"]) * 1e3, "ms", "at most 50",
              p95(found["close"]) <= 0.05)  # fmt: skip
    return found


def p95(values: list[float]) -> float:
    """Return the 95th percentile."""
    return sorted(values)[min(len(values) - 1, int(len(values) * 0.95))]


async def many(backend: BubblewrapBackend, table: Table) -> None:
    """Measure forks per second, a hundred sandboxes at once, and what one weighs."""
    start = time.perf_counter()
    for _ in range(100):
        subprocess.run(["bash", "-c", "true"], check=True)
    raw_rate = 100 / (time.perf_counter() - start)
    parent = await backend.start(SPEC)
    await parent.write_file("file", b"x")
    start = time.perf_counter()
    forks = await parent.fork(64)
    rate = 64 / (time.perf_counter() - start)
    await close_all([parent, *forks])
    table.add("raw bash spawns", raw_rate, "1/s")
    table.add("forks of 64 at once", rate, "1/s")
    table.add("forks per raw spawn", rate / raw_rate, "x", "at least 0.25", rate / raw_rate >= 0.25)
    start = time.perf_counter()
    boxes = await asyncio.gather(*(backend.start(SPEC) for _ in range(100)))
    took = time.perf_counter() - start
    table.add("100 sandboxes up", took, "s", "at most 6", took <= 6)
    size = weight() / 2**20
    table.add("memory of one (PSS)", size, "MiB", "at most 8", size <= 8)
    await close_all(list(boxes))


def weight() -> int:
    """Return the proportional memory of one guest and one bubblewrap, in bytes: medians of all."""
    sizes: dict[bool, list[int]] = {True: [], False: []}
    mark = f"owner={os.getpid()}'".encode()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes()
            if mark not in words or not words.startswith((b"bwrap", b"/.turngym")):
                continue
            lines = (path / "smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        size = sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
        sizes[words.startswith(b"bwrap")].append(size)
    return round(statistics.median(sizes[True]) + statistics.median(sizes[False]))


async def close_all(boxes: list[GuestSandbox | Exception]) -> None:
    """Close what was started."""
    await asyncio.gather(*(box.close() for box in boxes if isinstance(box, GuestSandbox)))


async def repository(backend: BubblewrapBackend, table: Table) -> None:
    """Measure a workspace of 50 MB in 3000 files: copied, and as a layer."""
    with tempfile.TemporaryDirectory() as temporary:
        source = Path(temporary, "repo")
        for number in range(3000):
            path = source / str(number % 100) / f"{number}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(os.urandom(17_000))
        start = time.perf_counter()
        shutil.copytree(source, Path(temporary, "copy"))
        copy = time.perf_counter() - start
        imported = await timed(backend.import_folder(source))
        layer = await backend.import_folder(source)
    empty, full = [], []
    for _ in range(8):
        for workspace, values in ((None, empty), (layer, full)):
            start = time.perf_counter()
            spec = SandboxSpec(limits=SPEC.limits, workspace=workspace)
            sandbox = await backend.start(spec)
            values.append(time.perf_counter() - start)
            await sandbox.close()
    extra = max(1e-4, statistics.median(full) - statistics.median(empty))
    table.add("copy of 50 MB in 3000 files", copy * 1e3, "ms")
    table.add("import of the same, once", imported * 1e3, "ms")
    table.add("start on top of it, more than an empty start", extra * 1e3, "ms")
    table.add("copy / start on top of it", copy / extra, "x", "at least 50", copy / extra >= 50)
    parent = await backend.start(SandboxSpec(limits=SPEC.limits, workspace=layer))
    [child] = await parent.fork(1)
    await close_all([parent, child])
    await backend.drop(layer)


async def flood(backend: BubblewrapBackend, table: Table) -> None:
    """Measure how fast output is drained that nobody keeps."""
    sandbox = await backend.start(SPEC)
    size = 1 << 30
    took = await timed(sandbox.exec(f"head -c {size} /dev/zero", timeout_s=600))
    table.add("flood drained", size / took / 1e6, "MB/s", "at least 200", size / took >= 200e6)
    await sandbox.close()


async def against_docker(table: Table, found: dict[str, list[float]], count: int) -> None:
    """Measure an engine's own calls, and our guest in its container."""
    try:
        from turngym.sandbox.docker_engine import DockerBackend

        backend = DockerBackend()
        sandbox = await backend.start(SPEC)
    except TurnGymError as error:
        table.not_run("Docker", str(error))
        return
    container = sandbox._container

    async def api_exec() -> float:
        start = time.perf_counter()
        container.exec_run(RAW)
        return time.perf_counter() - start

    async def own_exec() -> float:
        return await timed(sandbox.exec(RAW, timeout_s=60))

    async def start() -> float:
        begun = time.perf_counter()
        other = await backend.start(SPEC)
        took = time.perf_counter() - begun
        await other.close()
        return took

    async def fork() -> float:
        begun = time.perf_counter()
        forks = await sandbox.fork(1)
        took = time.perf_counter() - begun
        await close_all(forks)
        return took

    cases = {"raw": spawn(RAW), "api": api_exec, "own": own_exec, "start": start, "fork": fork}
    docker = await rounds(cases, max(3, count // 4))
    n = len(docker["api"])
    table.add("Docker: API exec, p50", statistics.median(docker["api"]) * 1e3, "ms")
    table.add("Docker: create and start, p50", statistics.median(docker["start"]) * 1e3, "ms")
    table.faster("start: Docker / bubblewrap", docker["start"], found["start"][:n], least=6)
    table.faster("exec: Docker API / bubblewrap", docker["api"], found["exec"][:n], least=15)
    table.ratio("Docker through our guest / raw bash", docker["own"], docker["raw"], most=3)
    table.faster("fork: Docker / bubblewrap", docker["fork"], found["fork"][:n], least=20)
    await backend.close()


async def against_swe_rex(table: Table, found: dict[str, list[float]], count: int) -> None:
    """Measure a command in SWE-ReX's local session, which isolates nothing."""
    if find_spec("swerex") is None:
        table.not_run("SWE-ReX local", "pip install swe-rex")
        return
    from swerex.deployment.local import LocalDeployment
    from swerex.runtime.abstract import BashAction, CreateBashSessionRequest

    deployment = LocalDeployment()
    await deployment.start()
    await deployment.runtime.create_session(CreateBashSessionRequest())

    async def case() -> float:
        return await timed(deployment.runtime.run_in_session(BashAction(command="/bin/true")))

    took = (await rounds({"rex": case}, count))["rex"]
    await deployment.stop()
    table.add("SWE-ReX local: command, p50", statistics.median(took) * 1e3, "ms")
    table.faster("exec: SWE-ReX local / bubblewrap", took, found["exec"], least=1)


async def measure(table: Table, count: int) -> None:
    """Measure everything."""
    backend = BubblewrapBackend()
    await backend.launcher()
    found = await start_and_exec(backend, table, count)
    await many(backend, table)
    await repository(backend, table)
    await flood(backend, table)
    await backend.close()
    await against_docker(table, found, count)
    await against_swe_rex(table, found, count)


def main() -> int:
    """Run the benchmark; 0 when every target that was measured is met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    table = Table()
    load = os.getloadavg()[0]
    asyncio.run(measure(table, arguments.rounds))
    after = os.getloadavg()[0]
    print(f"{os.cpu_count()} cores, load {load:.1f} before and {after:.1f} after")
    if arguments.json:
        record = {"load": [load, after], "cores": os.cpu_count(), "rows": table.rows}
        arguments.json.write_text(json.dumps(record, indent=1))
    return int(any(row["verdict"] == "MISSED" for row in table.rows))


if __name__ == "__main__":
    sys.exit(main())
