"""Speed and size of sandboxes beside a raw subprocess, raw bubblewrap, Docker's API and SWE-ReX.

    sandbox.py                  everything, 30 rounds
    sandbox.py --rounds 5       a quick look
    sandbox.py --publish        also rewrite benchmarks/results/sandbox.json and docs/security.md

One run prints a table, each figure beside its target. Rounds are interleaved and ratios paired by
round, so that a busy machine hurts both sides alike. A peer that is missing is NOT RUN. DOCKER_HOST
names an engine (scripts/sandbox_engines.sh start docker); `benchmarks/setup.sh swe-rex` installs
SWE-ReX. The exit status is 1 when a target is missed.
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
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what all parts share

from harness import RESULTS, ROOT, machine, peer_python, put_section, versions
from turngym.errors import TurnGymError
from turngym.sandbox import Limits, SandboxPool, SandboxSpec
from turngym.sandbox.backends.bubblewrap import BubblewrapBackend
from turngym.sandbox.backends.guest_sandbox import DEFAULT_ENV, GuestSandbox

SPEC = SandboxSpec(
    limits=Limits(memory_bytes=128 << 20, disk_bytes=64 << 20, pids=64, enforce="best_effort")
)
RAW = ["bash", "-c", "/bin/true"]
ENV = {name: DEFAULT_ENV[name] for name in ("PATH", "LANG")}
"""Of the raw process, as in a sandbox: bash reads a dozen files of a locale."""
NAIVE = ["bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--dev", "/dev",
         "--proc", "/proc", *RAW]  # fmt: skip
DOCS = ROOT / "docs" / "security.md"
Case = Callable[[], Awaitable[float]]
Found = dict[str, list[float]]
"""Seconds of every round, by case."""


class Table:
    """Rows of measure, value, target and verdict."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def add(
        self, name: str, value: float, unit: str, target: str = "", met: bool | None = None
    ) -> None:
        """Note one figure."""
        verdict = "" if met is None else ("met" if met else "missed")
        row = {"measure": name, "value": value, "unit": unit, "target": target, "verdict": verdict}
        self.rows.append(row)
        print(f"{name:52} {value:10.2f} {unit:5} {target:18} {verdict}", flush=True)

    def time(self, name: str, seconds: list[float]) -> None:
        """Note the median of a time."""
        self.add(f"{name}, p50", statistics.median(seconds) * 1e3, "ms")

    def most(self, name: str, value: float, unit: str, most: float) -> None:
        """Note a figure that should be small."""
        self.add(name, value, unit, f"at most {most:g} {unit}", value <= most)

    def least(self, name: str, value: float, unit: str, least: float) -> None:
        """Note a figure that should be large."""
        self.add(name, value, unit, f"at least {least:g} {unit}", value >= least)

    def ratio(self, name: str, above: list[float], below: list[float], *, most: float) -> None:
        """Note a ratio of paired rounds that should be small."""
        self.most(name, _paired(above, below), "x", most)

    def faster(self, name: str, slow: list[float], fast: list[float], *, least: float) -> None:
        """Note how many times faster; it should be large."""
        self.least(name, _paired(slow, fast), "x", least)

    def not_run(self, name: str, reason: str) -> None:
        """Note what was not measured."""
        self.rows.append({"measure": name, "verdict": f"NOT RUN: {reason}"})
        print(f"{name:52} NOT RUN: {reason}", flush=True)


def _paired(above: list[float], below: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


async def timed(action: Awaitable[object]) -> float:
    """Return the seconds that ``action`` takes."""
    start = time.perf_counter()
    await action
    return time.perf_counter() - start


async def rounds(cases: dict[str, Case], count: int) -> Found:
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
        subprocess.run(command, check=True, env=ENV, stdin=subprocess.DEVNULL)
        return time.perf_counter() - start

    return case


class Cases:
    """What is measured of bubblewrap, each a coroutine that returns seconds."""

    def __init__(self, backend: BubblewrapBackend) -> None:
        self.backend = backend

    async def open(self) -> None:
        """Start what the cases use."""
        self.running = await self.backend.start(SPEC)
        await self.running.write_file("file", b"x" * 100_000)
        self.pool = SandboxPool(self.backend, SPEC, warm=2)
        await self.pool.open()

    async def shut(self) -> None:
        """Close it."""
        await self.pool.close()
        await self.running.close()

    async def start(self) -> float:
        """Start a sandbox until its guest answers."""
        return await start_once(self.backend, SPEC)

    async def pooled(self) -> float:
        """Get one out of a pool that has one ready."""
        while self.pool.num_ready < 2:
            await asyncio.sleep(0.001)
        begun = time.perf_counter()
        sandbox = await self.pool.acquire()
        took = time.perf_counter() - begun
        await sandbox.close()
        while self.pool.num_ready < 2:  # what it starts in the background hurts no other case
            await asyncio.sleep(0.001)
        return took

    async def execute(self) -> float:
        """Run a command."""
        return await timed(self.running.exec(RAW, timeout_s=60))

    async def fork(self) -> float:
        """Fork once."""
        return await fork_once(self.running)

    async def end(self) -> float:
        """Close a sandbox in which processes run."""
        sandbox = await self.backend.start(SPEC)
        await sandbox.spawn("setsid sleep 60 & sleep 60")
        return await timed(sandbox.close())


async def start_once(backend: Any, spec: SandboxSpec) -> float:
    """Start a sandbox once; its end is not counted."""
    begun = time.perf_counter()
    sandbox = await backend.start(spec)
    took = time.perf_counter() - begun
    await sandbox.close()
    return took


async def fork_once(parent: GuestSandbox) -> float:
    """Fork a sandbox once; its own new start is not counted."""
    begun = time.perf_counter()
    [child] = await parent.fork(1)
    took = time.perf_counter() - begun
    if isinstance(child, Exception):
        raise child
    await child.close()
    await parent.stats()
    return took


async def start_and_exec(cases: Cases, table: Table, count: int) -> None:
    """Measure starts, commands and forks."""
    found = await rounds(
        {
            "raw": spawn(RAW), "naive": spawn(NAIVE), "start": cases.start, "pooled": cases.pooled,
            "exec": cases.execute, "fork": cases.fork, "close": cases.end,
        },
        count,
    )  # fmt: skip
    raw = statistics.median(found["raw"])
    for name, words in (
        ("raw", "`bash -c /bin/true`"), ("naive", "the same in a naive bubblewrap"),
        ("start", "start, cold, until the guest answers"), ("pooled", "start out of a warm pool"),
        ("exec", "`bash -c /bin/true` in a sandbox"), ("fork", "fork"),
        ("close", "end of a sandbox with processes"),
    ):  # fmt: skip
        table.time(words, found[name])
    table.ratio("start, cold / raw bash", found["start"], found["raw"], most=20)
    table.ratio("start, pooled / raw bash", found["pooled"], found["raw"], most=2)
    table.ratio("exec / raw bash", found["exec"], found["raw"], most=2)
    table.most("exec, p95 / raw bash, p50", p95(found["exec"]) / raw, "x", 3)
    table.ratio("fork / start", found["fork"], found["start"], most=1.5)
    table.most("end of all processes, p95", p95(found["close"]) * 1e3, "ms", 50)


def p95(values: list[float]) -> float:
    """Return the 95th percentile."""
    return sorted(values)[min(len(values) - 1, int(len(values) * 0.95))]


async def many(backend: BubblewrapBackend, table: Table) -> None:
    """Measure forks per second, a hundred sandboxes at once, and what one weighs."""
    begun = time.perf_counter()
    for _ in range(100):
        subprocess.run(["bash", "-c", "true"], check=True)
    raw_rate = 100 / (time.perf_counter() - begun)
    parent = await backend.start(SPEC)
    await parent.write_file("file", b"x")
    begun = time.perf_counter()
    forks = await parent.fork(64)
    rate = 64 / (time.perf_counter() - begun)
    await close_all([parent, *forks])
    table.add("raw bash spawns", raw_rate, "1/s")
    table.add("forks, 64 at once", rate, "1/s")
    table.least("forks per raw spawn", rate / raw_rate, "x", 0.25)
    begun = time.perf_counter()
    boxes = await asyncio.gather(*(backend.start(SPEC) for _ in range(100)))
    table.most("100 sandboxes up", time.perf_counter() - begun, "s", 6)
    table.most("memory of one (proportional)", weight() / 2**20, "MiB", 8)
    await close_all(list(boxes))


def weight() -> int:
    """Return the proportional memory of one guest and one bubblewrap in bytes, means of all."""
    sizes: dict[bool, list[int]] = {True: [], False: []}
    mark = f"owner={os.getpid()}'".encode()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes()
            if mark not in words:
                continue
            lines = (path / "smaps_rollup").read_text().splitlines()
        except OSError:
            continue  # it has just ended
        size = sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
        sizes[words.startswith(b"bwrap")].append(size)
    return round(sum(statistics.mean(values) for values in sizes.values()))


async def close_all(boxes: list[GuestSandbox | Exception]) -> None:
    """Close what was started."""
    await asyncio.gather(*(box.close() for box in boxes if isinstance(box, GuestSandbox)))


async def repository(cases: Cases, table: Table) -> None:
    """Measure a workspace of 50 MB in 3000 files: copied, as a layer, and forked."""
    backend = cases.backend
    with tempfile.TemporaryDirectory() as temporary:
        source = Path(temporary, "repo")
        for number in range(3000):
            path = source / str(number % 100) / f"{number}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(os.urandom(17_000))
        begun = time.perf_counter()
        shutil.copytree(source, Path(temporary, "copy"))
        copy = time.perf_counter() - begun
        begun = time.perf_counter()
        layer = await backend.import_folder(source)
        imported = time.perf_counter() - begun
    spec = SandboxSpec(limits=SPEC.limits, workspace=layer)
    parent = await backend.start(spec)

    async def full() -> float:
        return await start_once(backend, spec)

    async def fork() -> float:
        return await fork_once(parent)

    found = await rounds(
        {"empty": cases.start, "full": full, "fork": fork, "small": cases.fork}, 10
    )
    extra = max(1e-4, statistics.median(found["full"]) - statistics.median(found["empty"]))
    table.add("copy of 50 MB in 3000 files", copy * 1e3, "ms")
    table.add("import of the same, once", imported * 1e3, "ms")
    table.add("start on it, more than an empty start", extra * 1e3, "ms")
    table.least("copy / start on it", copy / extra, "x", 50)
    table.ratio("fork with it / fork without", found["fork"], found["small"], most=1.5)
    await parent.close()
    await backend.drop(layer)


async def flood(backend: BubblewrapBackend, table: Table) -> None:
    """Measure how fast output is drained that nobody keeps, and what that costs the host."""
    sandbox = await backend.start(SPEC)
    size, before = 1 << 30, _resident_bytes()
    took = await timed(sandbox.exec(f"head -c {size} /dev/zero", timeout_s=600))
    table.least("flood of 1 GiB, drained", size / took / 1e6, "MB/s", 200)
    table.most("flood, growth of the host", (_resident_bytes() - before) / 2**20, "MiB", 17)
    await sandbox.close()


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def against_docker(table: Table, cases: Cases, count: int) -> None:
    """Measure an engine's own calls, our guest in its container, and bubblewrap beside them."""
    try:
        from turngym.sandbox.backends.docker import DockerBackend

        backend = DockerBackend()
        sandbox = await backend.start(SPEC)
    except TurnGymError as error:
        table.not_run("Docker", str(error))
        return
    container = sandbox._container

    async def api_exec() -> float:
        begun = time.perf_counter()
        container.exec_run(RAW)
        return time.perf_counter() - begun

    async def own_exec() -> float:
        return await timed(sandbox.exec(RAW, timeout_s=60))

    async def start() -> float:
        return await start_once(backend, SPEC)

    async def fork() -> float:
        return await fork_once(sandbox)

    found = await rounds(
        {
            "raw": spawn(RAW), "api": api_exec, "own": own_exec, "start": start, "fork": fork,
            "our start": cases.start, "our exec": cases.execute, "our fork": cases.fork,
        },
        max(3, count // 3),
    )  # fmt: skip
    table.time("Docker: exec by its API", found["api"])
    table.time("Docker: create and start, until our guest answers", found["start"])
    table.time("Docker: commit, create and start", found["fork"])
    table.faster("start: Docker / bubblewrap", found["start"], found["our start"], least=6)
    table.faster("exec: Docker's API / bubblewrap", found["api"], found["our exec"], least=15)
    table.faster("fork: Docker / bubblewrap", found["fork"], found["our fork"], least=20)
    table.ratio("exec by our guest in Docker / raw bash", found["own"], found["raw"], most=3)
    await sandbox.close()
    await backend.close()


async def against_swe_rex(table: Table, cases: Cases, count: int) -> None:
    """Measure a command in SWE-ReX's local session, which isolates nothing."""
    python = peer_python("swe-rex")
    if python is None:
        table.not_run("SWE-ReX local", "benchmarks/setup.sh swe-rex")
        return
    script = Path(__file__).with_name("swe_rex_peer.py")
    peer = await asyncio.create_subprocess_exec(
        str(python), str(script), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    asked, told = peer.stdin, peer.stdout
    assert asked is not None
    assert told is not None
    started = float(await told.readline())

    async def rex() -> float:
        asked.write(b"\n")
        return float(await told.readline())

    found = await rounds({"rex": rex, "our exec": cases.execute}, count)
    asked.close()
    await peer.wait()
    table.add("SWE-ReX local: start with a session", started * 1e3, "ms")
    table.time("SWE-ReX local: `bash -c /bin/true`", found["rex"])
    table.faster("exec: SWE-ReX local / bubblewrap", found["rex"], found["our exec"], least=1)


async def measure(table: Table, count: int) -> None:
    """Measure everything."""
    backend = BubblewrapBackend()
    cases = Cases(backend)
    await cases.open()
    await start_and_exec(cases, table, count)
    await repository(cases, table)
    await against_docker(table, cases, count)
    await against_swe_rex(table, cases, count)
    await cases.shut()
    await many(backend, table)
    await flood(backend, table)
    await backend.close()


def report(record: dict[str, Any]) -> str:
    """Return the table in Markdown."""
    here = record["machine"]
    before, after = record["load_average"]
    found = ", ".join(f"{name} {number}" for name, number in record["versions"].items())
    lines = [
        f"{here['cores']} cores of {here['cpu']}, Python {here['python']}, {record['user']}, load "
        f"{before} to {after}, {record['rounds']} rounds; {found}.",
        "",
        "| measure | found | target | |",
        "|---|---|---|---|",
    ]
    for row in record["rows"]:
        verdict = row["verdict"].replace("missed", "**missed**")
        if "value" not in row:
            lines.append(f"| {row['measure']} | | | {verdict} |")
            continue
        number = f"{row['value']:.3g}" if row["value"] < 1000 else f"{row['value']:,.0f}"
        lines.append(f"| {row['measure']} | {number} {row['unit']} | {row['target']} | {verdict} |")
    return "\n".join(lines)


def main() -> int:
    """Run the benchmark; 0 when every target that was measured is met."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--publish", action="store_true")
    arguments = parser.parse_args()
    table = Table()
    before = os.getloadavg()[0]
    asyncio.run(measure(table, arguments.rounds))
    record = {
        "machine": machine(),
        "user": "root" if os.geteuid() == 0 else "a plain user",
        "rounds": arguments.rounds,
        "versions": versions("turngym", "docker") | programs(),
        "load_average": [round(before, 2), round(os.getloadavg()[0], 2)],
        "rows": table.rows,
    }
    if arguments.json:
        arguments.json.write_text(json.dumps(record, indent=2) + "\n")
    if arguments.publish:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "sandbox.json").write_text(json.dumps(record, indent=2) + "\n")
        put_section(DOCS, "speed", report(record))
    return int(any(row["verdict"] == "missed" for row in table.rows))


def programs() -> dict[str, str]:
    """Return the versions of the programs that are measured."""
    found = {}
    for name in ("bwrap", "dockerd"):
        if shutil.which(name):
            told = subprocess.run([name, "--version"], capture_output=True, text=True, check=False)
            found[name] = next(word for word in told.stdout.replace(",", " ").split()
                               if word[0].isdigit())  # fmt: skip
    if (python := peer_python("swe-rex")) is not None:
        code = "import importlib.metadata as m; print(m.version('swe-rex'))"
        told = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
        found["swe-rex"] = told.stdout.strip()
    return found


if __name__ == "__main__":
    sys.exit(main())
