"""Attacks on what a sandbox may use: processes, memory, disk, output, time."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from turngym.check_report import NotRun
from turngym.errors import SandboxRefused
from turngym.sandbox.base import ExecResult, Sandbox
from turngym.sandbox.checks import attack_programs as programs
from turngym.sandbox.checks.attack_targets import attack, judge, program
from turngym.sandbox.checks.check import Bench, Check, output, raises, said, want


async def a_fork_bomb_stops_at_the_limit_and_harms_no_sibling(bench: Bench) -> None:
    # Where only a watch bounds memory it shall not be what stops the bomb.
    spec = bench.spec() if bench.is_isolating else bench.spec(memory_bytes=8 << 30)
    bomb, sibling = await bench.start(spec), await bench.start()
    pids = spec.limits.pids
    running = asyncio.ensure_future(attack(bomb, programs.FORKS, 400))
    for _ in range(5):
        await output(sibling, "for i in 1 2 3 4 5; do sleep 0.01 & done; wait")
    [count] = await running
    judge(bench, [f"{count} processes, limit {pids}"] if int(count) > pids else [])
    want(await output(bomb, "echo alive") == "alive", "the sandbox cannot be used")
    shell = "f() { f | f & }; f; sleep 600"
    if bench.is_isolating:
        result = await bomb.exec(shell, timeout_s=2.0)
        want((await bomb.stats()).processes == 0, f"the bomb lives on: {said(result)}")
        want(await output(bomb, "echo alive") == "alive", "the sandbox cannot be used")


async def a_memory_bomb_is_stopped(bench: Bench) -> None:
    roomy = await bench.start(bench.spec(memory_bytes=1 << 30, disk_bytes=1 << 20))
    held = await attack(roomy, programs.MEMORY, 400, 0.1)
    want(held == ["held 400 MB"], f"the bomb does not bite: with room enough it said {held}")
    sandbox = await bench.start(bench.spec(memory_bytes=96 << 20, disk_bytes=1 << 20))
    judge(bench, await attack(sandbox, programs.MEMORY, 400, 0.2), control=False)
    want(await output(sandbox, "echo alive") == "alive", "the sandbox cannot be used")


async def memory_of_many_processes_is_bounded_together(bench: Bench) -> None:
    held, _ = await _held_by_six(await bench.start(bench.spec(memory_bytes=1 << 30)))
    want(held == 6, f"the bomb does not bite: with room enough {held} of 6 held their memory")
    sandbox = await bench.start(bench.spec(memory_bytes=128 << 20, disk_bytes=1 << 20))
    held, result = await _held_by_six(sandbox)
    if sandbox.enforced["memory"] in ("exact", "watched"):
        want(held <= 2, f"{held} of 6 processes held 60 MB each under a limit of 128 MB")
        want(result.oom_killed, f"nothing says that memory ran out: {said(result)}")
    else:
        judge(bench, [f"{held} of 6 held their memory"] if held > 2 else [])
    want(await output(sandbox, "echo alive") == "alive", "the sandbox cannot be used")


async def _held_by_six(sandbox: Sandbox) -> tuple[int, ExecResult]:
    """Return how many of six processes could hold 60 MB each at the same time."""
    one = program(sandbox, programs.MEMORY, 60, 1.0)
    quoted = " ".join("'" + part.replace("'", "'\\''") + "'" for part in one)
    result = await sandbox.exec(f"for i in 1 2 3 4 5 6; do {quoted} & done; wait", timeout_s=60)
    return result.stdout.count(b"held"), result


async def a_full_disk_is_full_at_the_limit(bench: Bench) -> None:
    if not bench.is_isolating:
        raise NotRun("it would fill the host's own disk")
    if bench.capabilities.limits["disk"] != "exact":
        await refused_when_strict(bench, "disk")
        return
    limit = 24 << 20
    roomy = await bench.start(bench.spec(disk_bytes=4 * limit))
    written = await attack(roomy, programs.FILL, "/tmp/fill", 2 * limit)
    want(written == [str(2 * limit)], f"the attack does not bite: with room it wrote {written}")
    sandbox = await bench.start(bench.spec(disk_bytes=limit))
    places = ("/workspace", "/tmp", "/home/agent", "/var/tmp", "/dev/shm", "/run")
    total = 0
    for place in places:
        [count] = await attack(sandbox, programs.FILL, f"{place}/fill", 2 * limit) or ["0"]
        total += int(count)
    want(total <= limit + (1 << 20), f"{total} bytes fitted under a limit of {limit}")
    want(
        await output(sandbox, "rm -f /workspace/fill /tmp/fill; echo alive") == "alive", "unusable"
    )


async def refused_when_strict(bench: Bench, limit: str) -> None:
    """A limit that is not held must be a refusal for whoever relies on it."""
    error = await raises(SandboxRefused, bench.start(bench.spec(enforce="strict")), limit)
    want(limit in str(error), f"the refusal does not name {limit}: {error}")


async def empty_files_stop_at_the_limit(bench: Bench) -> None:
    if not bench.is_isolating:
        raise NotRun("it would fill the host's own disk")
    if bench.capabilities.limits["inodes"] != "exact":
        await refused_when_strict(bench, "inodes")
        return
    made = await attack(await bench.start(bench.spec(inodes=2000)), programs.INODES, "/tmp/n", 1000)
    want(made == ["1000"], f"the attack does not bite: with room it made {made} files")
    sandbox = await bench.start(bench.spec(inodes=500))
    total = 0
    for place in ("/workspace", "/tmp", "/dev/shm"):
        [count] = await attack(sandbox, programs.INODES, f"{place}/many", 5000)
        total += int(count)
    want(total <= 500, f"{total} files under a limit of 500")


async def a_child_that_keeps_the_output_open_holds_nobody_up(bench: Bench) -> None:
    sandbox = await bench.start()
    result = await sandbox.exec("sleep 600 & setsid sleep 600 & echo done", timeout_s=30)
    want(result.stdout == b"done\n" and not result.timed_out, said(result))


async def a_flood_is_cut_and_counted_and_the_host_stays_small(bench: Bench) -> None:
    sandbox = await bench.start()
    before = _own_memory()
    result = await sandbox.exec(
        "head -c 300000000 /dev/zero & head -c 100000000 /dev/zero | tr '\\0' x >&2; wait",
        timeout_s=100, max_output=1 << 20,
    )  # fmt: skip
    growth = _own_memory() - before
    want(result.stdout_total == 300_000_000, f"stdout total {result.stdout_total}")
    want(result.stderr_total == 100_000_000, f"stderr total {result.stderr_total}")
    want(len(result.stdout) == len(result.stderr) == 1 << 20, "the cap was not kept")
    want(growth < 40 << 20, f"the host grew by {growth >> 20} MB")


def _own_memory() -> int:
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


async def daemons_that_ignore_signals_end_with_a_time_out(bench: Bench) -> None:
    sandbox = await bench.start()
    result = await sandbox.exec(program(sandbox, programs.OUTLIVE), timeout_s=1.0)
    want(result.timed_out, said(result))
    want((await sandbox.stats()).processes == 0, "daemons are left")
    want(await output(sandbox, "echo alive") == "alive", "the sandbox cannot be used")


async def orphans_are_reaped(bench: Bench) -> None:
    sandbox = await bench.start()
    through = await attack(sandbox, programs.ORPHANS, 300)
    want(not bench.is_isolating or not through, f"{len(through)} zombies")


CHECKS: list[Check] = [
    a_fork_bomb_stops_at_the_limit_and_harms_no_sibling,
    a_memory_bomb_is_stopped,
    memory_of_many_processes_is_bounded_together,
    a_full_disk_is_full_at_the_limit,
    empty_files_stop_at_the_limit,
    a_child_that_keeps_the_output_open_holds_nobody_up,
    a_flood_is_cut_and_counted_and_the_host_stays_small,
    daemons_that_ignore_signals_end_with_a_time_out,
    orphans_are_reaped,
]
