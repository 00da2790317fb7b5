"""Attacks on what a sandbox may use, on the host code that copies its files, and on itself.

What a command does to its own sandbox must end as its own failure, never as a fault: a fault has no
reward, so a command that can make one takes a bad grade out of the count.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

from turngym.check_report import NotRun
from turngym.errors import SandboxDied, SandboxFileError, SandboxFileTooLarge, SandboxRefused
from turngym.sandbox.base import Sandbox
from turngym.sandbox.checks import attack_programs as programs
from turngym.sandbox.checks.context import (
    CheckContext,
    Targets,
    attack,
    isolates,
    judge,
    output,
    program,
    raises,
    said,
    want,
)
from turngym.sandbox.processes import ExecResult


async def a_fork_bomb_stops_at_the_limit_and_harms_no_sibling(
    context: CheckContext, sandbox: Sandbox
) -> None:
    # Where only a watch bounds memory it shall not be what stops the bomb.
    spec = context.spec() if isolates(sandbox) else context.spec(memory_bytes=8 << 30)
    bomb, sibling = await context.start(spec), sandbox
    pids = spec.limits.pids
    running = asyncio.ensure_future(attack(bomb, programs.FORKS, 400))
    for _ in range(5):
        await output(sibling, "for i in 1 2 3 4 5; do sleep 0.01 & done; wait")
    [count] = await running
    judge(sandbox, [f"{count} processes, limit {pids}"] if int(count) > pids else [])
    want(await output(bomb, "echo alive") == "alive", "the sandbox cannot be used")
    shell = "f() { f | f & }; f; sleep 600"
    if isolates(sandbox):
        result = await bomb.exec(shell, timeout_s=2.0)
        want((await bomb.stats()).processes == 0, f"the bomb lives on: {said(result)}")
        want(await output(bomb, "echo alive") == "alive", "the sandbox cannot be used")


async def a_memory_bomb_is_stopped(context: CheckContext) -> None:
    roomy = await context.start(context.spec(memory_bytes=1 << 30, disk_bytes=1 << 20))
    held = await attack(roomy, programs.MEMORY, 400, 0.1)
    want(held == ["held 400 MB"], f"the bomb does not bite: with room enough it said {held}")
    sandbox = await context.start(context.spec(memory_bytes=96 << 20, disk_bytes=1 << 20))
    judge(sandbox, await attack(sandbox, programs.MEMORY, 400, 0.2), control=False)
    want(await output(sandbox, "echo alive") == "alive", "the sandbox cannot be used")


async def memory_of_many_processes_is_bounded_together(context: CheckContext) -> None:
    held, _ = await _held_by_six(await context.start(context.spec(memory_bytes=1 << 30)))
    want(held == 6, f"the bomb does not bite: with room enough {held} of 6 held their memory")
    sandbox = await context.start(context.spec(memory_bytes=128 << 20, disk_bytes=1 << 20))
    held, result = await _held_by_six(sandbox)
    if sandbox.enforced["memory"] in ("exact", "watched"):
        want(held <= 2, f"{held} of 6 processes held 60 MB each under a limit of 128 MB")
        want(result.oom_killed, f"nothing says that memory ran out: {said(result)}")
    else:
        judge(sandbox, [f"{held} of 6 held their memory"] if held > 2 else [])
    want(await output(sandbox, "echo alive") == "alive", "the sandbox cannot be used")


async def _held_by_six(sandbox: Sandbox) -> tuple[int, ExecResult]:
    """Return how many of six processes could hold 60 MB each at the same time."""
    one = program(sandbox, programs.MEMORY, 60, 1.0)
    quoted = " ".join("'" + part.replace("'", "'\\''") + "'" for part in one)
    result = await sandbox.exec(f"for i in 1 2 3 4 5 6; do {quoted} & done; wait", timeout_s=60)
    return result.stdout.count(b"held"), result


async def a_full_disk_is_full_at_the_limit(context: CheckContext) -> None:
    if not await _is_held(context, "disk"):
        return
    limit = 24 << 20
    roomy = await context.start(context.spec(disk_bytes=4 * limit))
    written = await attack(roomy, programs.FILL, "/tmp/fill", 2 * limit)
    want(written == [str(2 * limit)], f"the attack does not bite: with room it wrote {written}")
    sandbox = await context.start(context.spec(disk_bytes=limit))
    places = ("/workspace", "/tmp", "/home/agent", "/var/tmp", "/dev/shm", "/run")
    total = 0
    for place in places:
        [count] = await attack(sandbox, programs.FILL, f"{place}/fill", 2 * limit) or ["0"]
        total += int(count)
    want(total <= limit + (1 << 20), f"{total} bytes fitted under a limit of {limit}")
    await output(sandbox, "rm -f /workspace/fill /tmp/fill")
    await _usable(sandbox, "filling the disk")


async def _is_held(context: CheckContext, limit: str) -> bool:
    """Say whether ``limit`` is held; one that is not must be a refusal for who relies on it."""
    if not context.is_isolating:
        raise NotRun("it would fill the host's own disk")
    if context.capabilities.limits[limit] == "exact":
        return True
    error = await raises(SandboxRefused, context.start(context.spec(enforce="strict")), limit)
    want(limit in str(error), f"the refusal does not name {limit}: {error}")
    return False


async def empty_files_stop_at_the_limit(context: CheckContext) -> None:
    if not await _is_held(context, "inodes"):
        return
    roomy = await context.start(context.spec(inodes=2000))
    made = await attack(roomy, programs.INODES, "/tmp/n", 1000)
    want(made == ["1000"], f"the attack does not bite: with room it made {made} files")
    sandbox = await context.start(context.spec(inodes=500))
    total = 0
    for place in ("/workspace", "/tmp", "/dev/shm"):
        [count] = await attack(sandbox, programs.INODES, f"{place}/many", 5000)
        total += int(count)
    want(total <= 500, f"{total} files under a limit of 500")


async def a_child_that_keeps_the_output_open_blocks_no_caller(sandbox: Sandbox) -> None:
    result = await sandbox.exec("sleep 600 & setsid sleep 600 & echo done", timeout_s=30)
    want(result.stdout == b"done\n" and not result.timed_out, said(result))


async def a_flood_is_cut_and_counted_and_the_host_stays_small(sandbox: Sandbox) -> None:
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


async def daemons_that_ignore_signals_end_with_a_time_out(sandbox: Sandbox) -> None:
    result = await sandbox.exec(program(sandbox, programs.OUTLIVE), timeout_s=1.0)
    want(result.timed_out, said(result))
    want((await sandbox.stats()).processes == 0, "daemons are left")
    want(await output(sandbox, "echo alive") == "alive", "the sandbox cannot be used")


async def orphans_are_reaped(sandbox: Sandbox) -> None:
    through = await attack(sandbox, programs.ORPHANS, 300)
    want(not isolates(sandbox) or not through, f"{len(through)} zombies")


async def links_that_lead_out_through_other_links_are_left_behind(sandbox: Sandbox) -> None:
    script = """
        mkdir -p t/x/y/z t/d; cd t; echo fine > ok
        ln -s ../../.. x/y/z/top; ln -s x/y/z/top/../secret leak; ln -s x/y/z/top/.. over
        ln -s over/secret late; ln -s b a; ln -s a b; ln -s a/../.. around
        ln -s ../x/y/z/top/ok d/inside; ln -s none/of/these dangling
    """
    await output(sandbox, script)
    with tempfile.TemporaryDirectory() as temporary:
        Path(temporary, "secret").write_text("outside")
        if isolates(sandbox):
            out = Path(temporary, "out")
            report = await sandbox.get_tree("t", out, max_bytes=1 << 20, max_files=100)
            left = sorted(entry.partition(":")[0] for entry in report.skipped)
            want(left == ["a", "around", "b", "late", "leak", "over"], f"{report}")
            want((out / "d" / "inside").read_text() == "fine\n", "a harmless link was lost")
            want(_leaks(out) == [], f"links lead out: {_leaks(out)}")
        else:
            naive = Path(temporary, "naive")
            shutil.copytree(Path(sandbox.workspace, "t"), naive, symlinks=True)
            want((naive / "leak").read_text() == "outside", "the link does not bite")


def _leaks(out: Path) -> list[str]:
    """Return the links below ``out`` that end elsewhere."""
    links = [path for path in out.rglob("*") if path.is_symlink()]
    return [str(p) for p in links if not Path(os.path.realpath(p)).is_relative_to(out.resolve())]


async def links_that_come_and_go_during_a_copy_only_leave_themselves_out(sandbox: Sandbox) -> None:
    with Targets() as target, tempfile.TemporaryDirectory() as temporary:
        await output(sandbox, "mkdir w; for i in $(seq 1 30); do echo fine > w/f$i; done")
        process = await sandbox.spawn(program(sandbox, programs.LINKS, target.file))
        for number in range(20):
            out = Path(temporary, str(number))
            report = await sandbox.get_tree("w", out, max_bytes=1 << 20, max_files=2000)
            want(report.files == 30, f"{report.files} of 30 files came")
            want(not any(path.is_symlink() for path in out.iterdir()), "a link leads out")
        await process.close()
        await output(sandbox, "rm -rf w")


async def a_tree_of_long_names_is_listed_in_pieces(context: CheckContext) -> None:
    # More than a frame of the guest holds, had it to come at once.
    sandbox = await context.start(context.spec(inodes=40_000, disk_bytes=256 << 20))
    depth = 14 if context.is_isolating else 2
    made = await attack(sandbox, programs.LONG_PATHS, "long", depth, 25_000)
    want(made == ["25000"], f"the attack does not bite: {made} files")
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary, "o")
        limits = {"max_bytes": 1 << 20, "max_files": 20_000}
        await raises(SandboxFileTooLarge, sandbox.get_tree("long", out, **limits), "25,000 files")
    want(await output(sandbox, "echo alive") == "alive", "the sandbox cannot be used")


async def a_file_of_nothing_is_too_large_and_no_fault(sandbox: Sandbox) -> None:
    script = "mkdir h; truncate -s 7E h/huge || truncate -s 15T h/huge"
    result = await sandbox.exec(script, timeout_s=30)
    want(result.ok, "the attack does not bite: no such file can be made")
    with tempfile.TemporaryDirectory() as temporary:
        read = sandbox.read_file("h/huge", max_bytes=1 << 20)
        await raises(SandboxFileTooLarge, read, "reading it")
        copied = sandbox.get_tree("h", Path(temporary, "o"), max_bytes=1 << 20, max_files=10)
        await raises(SandboxFileTooLarge, copied, "copying it")
    want(await output(sandbox, "echo alive") == "alive", "the sandbox cannot be used")


async def names_cannot_write_on_a_terminal(sandbox: Sandbox) -> None:
    await output(sandbox, r"mkdir n; mkfifo n/$'\e]0;owned\a\n\r\u202e'; echo > $'\e[2J\nx'")
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary, "o")
        report = await sandbox.get_tree("n", out, max_bytes=1 << 20, max_files=10)
    shown = [*report.skipped, *map(str, await sandbox.diff())]
    want(len(report.skipped) == 1 and len(shown) > 1, f"{shown}")
    want(all(text.isprintable() for text in shown), f"control characters: {shown!r}")
    name = os.fsdecode(b"\x1b[2J\nx")
    want(await sandbox.read_file(name, max_bytes=9) == b"\n", "the path is not as it was")


async def process_one_cannot_be_changed(sandbox: Sandbox) -> None:
    if isolates(sandbox):
        judge(sandbox, await attack(sandbox, programs.HARM_THE_GUEST, 1, "user"))
        for script in ("prlimit --pid 1 --data=1:1", "prlimit --pid 1 --nofile=3:3"):
            await sandbox.exec(script, timeout_s=30)
            await _usable(sandbox, script)
        return
    victim = subprocess.Popen(["sleep", "600"])
    try:
        judge(sandbox, await attack(sandbox, programs.HARM_THE_GUEST, victim.pid))
    finally:
        victim.kill()
        victim.wait()


async def _usable(sandbox: Sandbox, after: str) -> None:
    want(await output(sandbox, "echo alive") == "alive", f"after {after!r}: it cannot be used")


async def no_signal_ends_process_one(sandbox: Sandbox) -> None:
    kills = "for i in $(seq 1 31) $(seq 34 64); do kill -$i $victim; done 2>/dev/null"
    ours, other = "victim=1", "sleep 600 & victim=$!"
    left, ended = "kill -0 1 && echo there", "wait $victim; [ $? -gt 128 ] || echo there"
    script = (ours, kills, left) if isolates(sandbox) else (other, kills, ended)
    result = await sandbox.exec("\n".join(script), timeout_s=30)
    want((result.stdout == b"there\n") == isolates(sandbox), said(result))
    await _usable(sandbox, "every signal")


async def its_own_limits_still_let_a_program_change_itself(sandbox: Sandbox) -> None:
    changed = await attack(sandbox, programs.CHANGE_ITSELF)
    want(changed == ["55 19"], f"{changed}")


async def a_command_that_would_be_spared_is_killed_first(context: CheckContext) -> None:
    # The memory is a file that belongs to a program far smaller than the guest.
    for _ in range(4):
        sandbox = await context.start(context.spec(memory_bytes=96 << 20, disk_bytes=4 << 20))
        most = 300_000_000 if sandbox.enforced["memory"] == "exact" else 1_000_000
        try:
            result = await sandbox.exec(program(sandbox, programs.BE_SPARED, most), timeout_s=60)
            want(not result.timed_out, said(result))
            await _usable(sandbox, "filling the memory")
        except SandboxDied:
            want("spared commands" in context.capabilities.gaps, "the guest was killed first")
        await sandbox.close()


async def what_system_v_keeps_without_an_owner_is_bounded(context: CheckContext) -> None:
    # Memory, messages and semaphores outlive their makers, so no kill gives that memory back.
    for kind, exact, small in (("shm", 300, 4), ("msg", 8000, 2), ("sem", 60, 1)):
        sandbox = await context.start(context.spec(memory_bytes=96 << 20, disk_bytes=4 << 20))
        count = exact if sandbox.enforced["memory"] == "exact" else exact // 6
        code = program(
            sandbox, programs.LEAVE_BEHIND, kind, count if context.is_isolating else small
        )
        result = await sandbox.exec(code, timeout_s=60)
        want(not result.timed_out, said(result))
        await _usable(sandbox, f"leaving {kind} behind")
        ids = [] if context.is_isolating else result.stdout.decode().split()[2:]
        left = await attack(sandbox, programs.LEFT_BEHIND, kind, *ids)
        want(len(left) == 1, f"no memory is left after leaving {kind} behind")
        most = 4 << 20 if context.is_isolating else 0
        judge(sandbox, [f"{left[0]} bytes of {kind} are left"] if int(left[0]) > most else [])
        await sandbox.close()


async def a_snapshot_of_exabytes_of_nothing_is_quick_and_small(
    context: CheckContext, sandbox: Sandbox
) -> None:
    if not await _is_held(context, "disk"):
        return
    script = "mkdir h; printf a > h/huge; truncate -s 7E h/huge; echo b >> h/huge"
    size = int(await output(sandbox, f"{script}; stat -c %s h/huge"))
    want(size > 1 << 40, f"the attack does not bite: {size} bytes")
    background = await sandbox.spawn("sleep 600")
    busy = await sandbox.snapshot()
    await background.close()
    idle = await sandbox.snapshot()
    for layer in (busy, idle):
        started = await context.start(replace(context.spec(), workspace=layer))
        text = await output(started, "stat -c %s h/huge; head -c 1 h/huge; tail -c 2 h/huge")
        want(text == f"{size}\nab", f"another file came back: {text!r}")
    await sandbox.diff()
    for layer in (busy, idle):
        await context.backend.drop(layer)


async def folders_that_are_closed_or_too_deep_do_not_stop_a_snapshot(
    context: CheckContext, sandbox: Sandbox
) -> None:
    can_be_deep = isolates(sandbox)
    if "deep folders" in context.capabilities.gaps:
        can_be_deep = False
        await _too_deep(context)
    for number, depth, name in ((1, 60, "d" * 100), (2, 3000, "e")):
        depth = depth if can_be_deep else 5  # what cleans up after it could not
        made = await attack(sandbox, programs.DEEP, f"t{number}", depth, name)
        want(made == ["True"], f"the attack does not bite: {made}")
    if isolates(sandbox):
        paths = {change.path.split("/")[0] for change in await sandbox.diff()}
        want(paths == {"t1", "t2"}, f"a change is missing: {paths}")
        await output(sandbox, "mkdir -p c/in; echo x > c/in/a; chmod 000 c/in c /workspace")
        await sandbox.exec(["chmod", "000", "/tmp"], timeout_s=30, cwd="/")  # root's on an engine
    background = await sandbox.spawn(["sleep", "600"], cwd="/")
    layers = [await sandbox.snapshot()]
    await background.close()
    layers.append(await sandbox.snapshot())
    for layer in layers:
        started = await context.start(replace(context.spec(), workspace=layer))
        result = await started.exec("echo alive", timeout_s=30)
        want(result.exit_code == (126 if isolates(sandbox) else 0), said(result))
        opened = await started.exec("chmod 755 /workspace; echo alive", timeout_s=30, cwd="/")
        want(opened.stdout == b"alive\n" or not isolates(sandbox), said(opened))
        want(await output(started, "ls | wc -l") >= "2", "the tree is not in the snapshot")
        await context.backend.drop(layer)


async def _too_deep(context: CheckContext) -> None:
    """With this gap a snapshot cuts such a folder, and what changed is too much to tell."""
    sandbox = await context.start()
    await attack(sandbox, programs.DEEP, "t", 60, "d" * 100)
    await raises(SandboxFileTooLarge, sandbox.diff(), "the changes of a folder that is too deep")
    layer = await sandbox.snapshot()
    for each in (sandbox, await context.start(replace(context.spec(), workspace=layer))):
        await _usable(each, "a folder that is too deep")


async def every_change_is_reported_or_none(context: CheckContext) -> None:
    sandbox = await context.start(context.spec(inodes=150_000, disk_bytes=256 << 20))
    count = 34_000 if context.is_isolating else 50
    for number in range(4):
        [made] = await attack(sandbox, programs.INODES, f"many{number}", count)
        want(int(made) == count, f"the attack does not bite: {made} files")
    try:
        changes = await sandbox.diff()
    except SandboxFileTooLarge:
        return
    want(len(changes) == 4 * count, f"{len(changes)} of {4 * count} changes")


async def an_attribute_is_not_taken_for_the_overlays_own(context: CheckContext) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        Path(temporary, "d").mkdir()
        Path(temporary, "d", "a").write_text("1")
        layer = await context.backend.import_folder(Path(temporary))
    sandbox = await context.start(replace(context.spec(), workspace=layer))
    code = (
        "import os\nfor name in ('user', 'trusted'):\n"
        "    try: os.setxattr('d', name + '.overlay.opaque', b'y')\n    except OSError: pass\n"
        "open('d/b', 'w').close()"
    )
    await attack(sandbox, code)
    found = [change.path for change in await sandbox.diff()]
    want(found == ["d/b"], f"{found}")
    background = await sandbox.spawn(["sleep", "600"])
    copied = await sandbox.snapshot()
    await background.close()
    started = await context.start(replace(context.spec(), workspace=copied))
    want(await output(started, "ls d") == "a\nb", "a file of the layer below is hidden")
    for made in (layer, copied):
        await context.backend.drop(made)


async def a_full_port_blocks_no_caller(sandbox: Sandbox) -> None:
    server = await sandbox.spawn(program(sandbox, programs.FULL_PORT))
    port = int(await server.read())
    dials = [asyncio.ensure_future(sandbox.dial(port)) for _ in range(40)]
    await _usable(sandbox, "dialling a full port")  # answered while they wait
    held = sum(not dial.done() for dial in dials)
    want(held > 0, "the attack does not bite: the port took them all")
    for dial in dials:
        dial.cancel()
    for outcome in await asyncio.gather(*dials, return_exceptions=True):
        if not isinstance(outcome, BaseException):
            await outcome.close()
    await raises(SandboxFileError, sandbox.dial(port), "a port that accepts no connection")
    await server.close()
