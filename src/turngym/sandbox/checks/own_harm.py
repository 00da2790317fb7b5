"""What a command does to its own sandbox ends as its own failure, never as a fault.

A fault has no reward, so a command that can make one takes a bad grade out of the count.
"""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

from turngym.check_report import NotRun
from turngym.errors import SandboxDied, SandboxFileError, SandboxFileTooLarge
from turngym.sandbox.base import Sandbox
from turngym.sandbox.checks import attack_programs as programs
from turngym.sandbox.checks.attack_targets import attack, judge, program
from turngym.sandbox.checks.check import Bench, Check, output, raises, said, want
from turngym.sandbox.checks.limit_attacks import refused_when_strict


async def process_one_cannot_be_changed(bench: Bench) -> None:
    sandbox = await bench.start()
    if bench.is_isolating:
        judge(bench, await attack(sandbox, programs.HARM_THE_GUEST, 1, "user"))
        for script in ("prlimit --pid 1 --data=1:1", "prlimit --pid 1 --nofile=3:3"):
            await sandbox.exec(script, timeout_s=30)
            await _usable(sandbox, script)
        return
    victim = subprocess.Popen(["sleep", "600"])
    try:
        judge(bench, await attack(sandbox, programs.HARM_THE_GUEST, victim.pid))
    finally:
        victim.kill()
        victim.wait()


async def _usable(sandbox: Sandbox, after: str) -> None:
    want(await output(sandbox, "echo alive") == "alive", f"after {after!r}: it cannot be used")


async def no_signal_ends_process_one(bench: Bench) -> None:
    sandbox = await bench.start()
    kills = "for i in $(seq 1 31) $(seq 34 64); do kill -$i $victim; done 2>/dev/null"
    ours, other = "victim=1", "sleep 600 & victim=$!"
    left, ended = "kill -0 1 && echo there", "wait $victim; [ $? -gt 128 ] || echo there"
    script = (ours, kills, left) if bench.is_isolating else (other, kills, ended)
    result = await sandbox.exec("\n".join(script), timeout_s=30)
    want((result.stdout == b"there\n") == bench.is_isolating, said(result))
    await _usable(sandbox, "every signal")


async def its_own_limits_still_let_a_program_change_itself(bench: Bench) -> None:
    sandbox = await bench.start()
    changed = await attack(sandbox, programs.CHANGE_ITSELF)
    want(changed == ["55 5"], f"{changed}")


async def a_command_that_would_be_spared_is_killed_first(bench: Bench) -> None:
    # The memory is a file that belongs to a program far smaller than the guest.
    for _ in range(4):
        sandbox = await bench.start(bench.spec(memory_bytes=96 << 20, disk_bytes=4 << 20))
        most = 300_000_000 if sandbox.enforced["memory"] == "exact" else 1_000_000
        try:
            result = await sandbox.exec(program(sandbox, programs.BE_SPARED, most), timeout_s=60)
            want(not result.timed_out, said(result))
            await _usable(sandbox, "filling the memory")
        except SandboxDied:
            want("spared commands" in bench.capabilities.gaps, "the guest was killed first")
        await sandbox.close()


async def what_system_v_keeps_for_nobody_is_bounded(bench: Bench) -> None:
    # Memory, messages and semaphores outlive their makers, so no kill gives that memory back.
    for kind, exact, small in (("shm", 300, 4), ("msg", 8000, 2), ("sem", 60, 1)):
        sandbox = await bench.start(bench.spec(memory_bytes=96 << 20, disk_bytes=4 << 20))
        count = exact if sandbox.enforced["memory"] == "exact" else exact // 6
        code = program(sandbox, programs.LEAVE_BEHIND, kind, count if bench.is_isolating else small)
        result = await sandbox.exec(code, timeout_s=60)
        want(not result.timed_out, said(result))
        await _usable(sandbox, f"leaving {kind} behind")
        ids = [] if bench.is_isolating else result.stdout.decode().split()[2:]
        left = await attack(sandbox, programs.LEFT_BEHIND, kind, *ids)
        want(len(left) == 1, f"no memory is left after leaving {kind} behind")
        most = 4 << 20 if bench.is_isolating else 0
        judge(bench, [f"{left[0]} bytes of {kind} are left"] if int(left[0]) > most else [])
        await sandbox.close()


async def a_snapshot_of_exabytes_of_nothing_is_quick_and_small(bench: Bench) -> None:
    if not bench.is_isolating:
        raise NotRun("it would be copied to the host's own disk")
    if bench.capabilities.limits["disk"] != "exact":
        await refused_when_strict(bench, "disk")
        return
    sandbox = await bench.start()
    script = "mkdir h; printf a > h/huge; truncate -s 7E h/huge; echo b >> h/huge"
    size = int(await output(sandbox, f"{script}; stat -c %s h/huge"))
    want(size > 1 << 40, f"the attack does not bite: {size} bytes")
    background = await sandbox.spawn("sleep 600")
    busy = await sandbox.snapshot()
    await background.close()
    idle = await sandbox.snapshot()
    for layer in (busy, idle):
        started = await bench.start(replace(bench.spec(), workspace=layer))
        text = await output(started, "stat -c %s h/huge; head -c 1 h/huge; tail -c 2 h/huge")
        want(text == f"{size}\nab", f"another file came back: {text!r}")
    await sandbox.diff()
    for layer in (busy, idle):
        await bench.backend.drop(layer)


async def folders_that_are_closed_or_too_deep_do_not_stop_a_snapshot(bench: Bench) -> None:
    can_be_deep = bench.is_isolating
    if "deep folders" in bench.capabilities.gaps:
        can_be_deep = False
        await _too_deep(bench)
    sandbox = await bench.start()
    for number, depth, name in ((1, 60, "d" * 100), (2, 3000, "e")):
        depth = depth if can_be_deep else 5  # what cleans up after it could not
        made = await attack(sandbox, programs.DEEP, f"t{number}", depth, name)
        want(made == ["True"], f"the attack does not bite: {made}")
    if bench.is_isolating:
        paths = {change.path.split("/")[0] for change in await sandbox.diff()}
        want(paths == {"t1", "t2"}, f"a change is missing: {paths}")
        await output(sandbox, "mkdir -p c/in; echo x > c/in/a; chmod 000 c/in c /workspace")
        await sandbox.exec(["chmod", "000", "/tmp"], timeout_s=30, cwd="/")  # root's on an engine
    background = await sandbox.spawn(["sleep", "600"], cwd="/")
    layers = [await sandbox.snapshot()]
    await background.close()
    layers.append(await sandbox.snapshot())
    for layer in layers:
        started = await bench.start(replace(bench.spec(), workspace=layer))
        result = await started.exec("echo alive", timeout_s=30)
        want(result.exit_code == (126 if bench.is_isolating else 0), said(result))
        opened = await started.exec("chmod 755 /workspace; echo alive", timeout_s=30, cwd="/")
        want(opened.stdout == b"alive\n" or not bench.is_isolating, said(opened))
        want(await output(started, "ls | wc -l") >= "2", "the tree is not in the snapshot")
        await bench.backend.drop(layer)


async def _too_deep(bench: Bench) -> None:
    """With this gap a snapshot cuts such a folder, and what changed is too much to tell."""
    sandbox = await bench.start()
    await attack(sandbox, programs.DEEP, "t", 60, "d" * 100)
    await raises(SandboxFileTooLarge, sandbox.diff(), "the changes of a folder that is too deep")
    layer = await sandbox.snapshot()
    for each in (sandbox, await bench.start(replace(bench.spec(), workspace=layer))):
        await _usable(each, "a folder that is too deep")


async def every_change_is_told_or_none(bench: Bench) -> None:
    sandbox = await bench.start(bench.spec(inodes=150_000, disk_bytes=256 << 20))
    count = 34_000 if bench.is_isolating else 50
    for number in range(4):
        [made] = await attack(sandbox, programs.INODES, f"many{number}", count)
        want(int(made) == count, f"the attack does not bite: {made} files")
    try:
        changes = await sandbox.diff()
    except SandboxFileTooLarge:
        return
    want(len(changes) == 4 * count, f"{len(changes)} of {4 * count} changes")


async def an_attribute_is_not_taken_for_the_overlays_own(bench: Bench) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        Path(temporary, "d").mkdir()
        Path(temporary, "d", "a").write_text("1")
        layer = await bench.backend.import_folder(Path(temporary))
    sandbox = await bench.start(replace(bench.spec(), workspace=layer))
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
    started = await bench.start(replace(bench.spec(), workspace=copied))
    want(await output(started, "ls d") == "a\nb", "a file of the layer below is hidden")
    for made in (layer, copied):
        await bench.backend.drop(made)


async def a_full_port_holds_nobody_up(bench: Bench) -> None:
    sandbox = await bench.start()
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
    await raises(SandboxFileError, sandbox.dial(port), "a port that accepts nobody")
    await server.close()


CHECKS: list[Check] = [
    process_one_cannot_be_changed,
    no_signal_ends_process_one,
    its_own_limits_still_let_a_program_change_itself,
    a_command_that_would_be_spared_is_killed_first,
    what_system_v_keeps_for_nobody_is_bounded,
    a_snapshot_of_exabytes_of_nothing_is_quick_and_small,
    folders_that_are_closed_or_too_deep_do_not_stop_a_snapshot,
    every_change_is_told_or_none,
    an_attribute_is_not_taken_for_the_overlays_own,
    a_full_port_holds_nobody_up,
]
