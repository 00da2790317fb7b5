"""Attacks from inside, through the public interface; a function's name is what must hold.

Each attack says what got through. Against a back end that isolates, nothing may. Against
``unsafe-local`` the same attack must get through (`control`), or else it would prove nothing; where
that cannot be shown there, the check itself shows that it bites when what holds it is taken away.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from turngym.check_report import Broken, NotRun
from turngym.errors import SandboxDied, SandboxFileError, SandboxFileTooLarge
from turngym.sandbox.backends import seccomp
from turngym.sandbox.backends.catalogue import backend_names
from turngym.sandbox.backends.runtime import cache_folder
from turngym.sandbox.base import Backend, ReadOnlyMount, Sandbox
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


async def nothing_of_the_host_can_be_written(sandbox: Sandbox) -> None:
    with Targets() as target:
        name = f"{target.secret}.txt"
        places = [target.folder]
        if isolates(sandbox):
            places += map(Path, ["/etc", "/usr", "/home", "/root", "/var", "/proc", "/sys"])
        paths = [place / name for place in places] + [target.file]
        through = await attack(sandbox, programs.WRITE, *paths)
        for place in places:
            if os.path.exists(place / name):  # False where only root may look
                through.append(f"{place} of the host was written")
                (place / name).unlink()
        is_whole = target.file.read_text() == target.secret
        want(is_whole or not isolates(sandbox), "the canary changed")
        judge(sandbox, through)


async def nothing_secret_of_the_host_can_be_read(sandbox: Sandbox) -> None:
    with Targets() as target:
        paths = [target.file, "/etc/shadow", "/root/.bashrc", "/root/.profile"]
        judge(sandbox, await attack(sandbox, programs.READ, *paths))


async def the_kernels_command_line_is_covered(context: CheckContext, sandbox: Sandbox) -> None:
    through = await attack(sandbox, programs.READ, "/proc/cmdline")
    if "command line" in context.capabilities.gaps:
        want(bool(through), "it is covered, so the back end should not declare this gap")
    else:
        judge(sandbox, through)


async def a_sandbox_does_not_see_another(context: CheckContext) -> None:
    with Targets() as target:
        first, second = await context.start(), await context.start()
        await first.write_file("secret", target.secret.encode())
        await first.write_file("/tmp/turngym-secret", target.secret.encode())
        process = await first.spawn(["sleep", "600"], env={"SECRET": target.secret})
        roots = ["/workspace", "/tmp", "/home", "/var/tmp", "/run", "/dev/shm", first.workspace]
        through = await attack(second, programs.SEARCH, target.secret, *roots)
        await first.exec(["rm", "-f", "/tmp/turngym-secret"], timeout_s=30)
        await process.close()
        judge(second, through)


async def memory_that_another_sandbox_shares_is_not_reached(context: CheckContext) -> None:
    key = random.randrange(1 << 20, 1 << 30)
    first, second = await context.start(), await context.start()
    code = f"id = libc.shmget({key}, 4096, %s)\n"
    share = code % "0o1666" + "os.write(1, b'made' if id >= 0 else b'none'); time.sleep(600)"
    reach = code % "0" + "print('reached' * (id >= 0)); libc.shmctl(id, 0, 0)"
    process = await first.spawn(program(first, share))
    want(await process.read() in (b"made", b"none"), "it did not start")
    through = await attack(second, reach)
    await process.close()
    judge(second, through)


async def no_process_shows_the_hosts_variables_or_paths(sandbox: Sandbox) -> None:
    with Targets() as target:
        through = await attack(sandbox, programs.SEARCH, target.secret)
        through += await attack(sandbox, programs.SEARCH, str(cache_folder()))
        judge(sandbox, through)


async def no_socket_of_the_host_can_be_reached(context: CheckContext, sandbox: Sandbox) -> None:
    with Targets() as target:
        places = (target.port, target.abstract, target.socket_path)
        judge(sandbox, await attack(sandbox, programs.CONNECT, *places))


async def there_is_no_network(sandbox: Sandbox) -> None:
    interfaces = Path("/proc/net/dev").read_text().splitlines()[2:]
    found = await attack(sandbox, programs.NETWORK)
    judge(sandbox, found, control=any(not line.strip().startswith("lo:") for line in interfaces))


async def only_sockets_that_know_namespaces_can_be_made(sandbox: Sandbox) -> None:
    judge(sandbox, await attack(sandbox, programs.FAMILIES), control=os.geteuid() == 0)


async def no_process_of_the_host_can_be_signalled(sandbox: Sandbox) -> None:
    with Targets() as target:
        through = await attack(sandbox, programs.SIGNAL, target.process.pid)
        if not isolates(sandbox):
            judge(sandbox, through)
            return
        want(target.process.poll() is None, "a process of the host was killed")
        # Only where an own process 1 is certain: everything the sandbox can see, and process 1.
        await sandbox.exec("kill -9 -1; kill -9 1; kill -15 1", timeout_s=30)
        want(await output(sandbox, "echo alive") == "alive", "process 1 was killed")
        want(target.process.poll() is None, "a process of the host was killed")


async def no_process_outside_and_not_the_guest_can_be_traced(sandbox: Sandbox) -> None:
    with Targets() as target:
        victim = 1 if isolates(sandbox) else target.process.pid
        judge(sandbox, await attack(sandbox, programs.PTRACE, target.process.pid, victim))


async def the_kernel_grants_no_namespace_mount_or_handle(sandbox: Sandbox) -> None:
    code = programs.KERNEL
    if not isolates(sandbox):  # only what leaves no trace outside its child
        code = "\n".join(
            line for line in code.splitlines() if "mounted" not in line and "/tmp" not in line
        )
    judge(sandbox, await attack(sandbox, code))


async def no_device_or_switch_of_the_kernel_can_be_opened(sandbox: Sandbox) -> None:
    judge(sandbox, await attack(sandbox, programs.DEVICES))


async def dangerous_system_calls_are_not_reached(sandbox: Sandbox) -> None:
    at = seccomp.machine()
    tables = seccomp.DENIED | seccomp.ABSENT | seccomp.DEBUGGING
    # Not tried where they could work: they would change the machine.
    harmful = {
        "reboot", "swapoff", "vhangup", "settimeofday", "sethostname", "setdomainname", "unshare",
        "acct", "umount2", "chroot", "pivot_root", "adjtimex", "clock_adjtime", "kexec_load",
    }  # fmt: skip
    calls = [
        f"{name}={numbers[at]}"
        for name, numbers in tables.items()
        if numbers[at] is not None and (isolates(sandbox) or name not in harmful)
    ]
    judge(sandbox, await attack(sandbox, programs.SYSCALLS, *calls))


async def what_is_left_in_the_workspace_cannot_hurt_the_host(sandbox: Sandbox) -> None:
    with Targets() as target, tempfile.TemporaryDirectory() as temporary:
        script = f"""
            mkdir -p t/deep; cd t; echo fine > ok
            ln -s {target.file} absolute; ln -s ../../../../../../..{target.file} up
            ln -s ok inside
            ln -s / root; ln -s . self; mkfifo fifo; ln ok hard; echo x > $'new\\nline'
            printf x > $'\\377\\376'; truncate -s 1T /tmp/huge
        """
        await output(sandbox, script)
        await attack(sandbox, programs.SOCKET_AND_DEPTH, 3000 if isolates(sandbox) else 300)
        out = Path(temporary, "out")
        report = await sandbox.get_tree("t", out, max_bytes=1 << 20, max_files=2000)
        want((out / "ok").read_text() == "fine\n" and report.files == 4, f"{report}")
        want(len(report.skipped) == 6, f"skipped {report.skipped}")
        links = [path for path in out.rglob("*") if path.is_symlink()]
        escaped = [str(p) for p in links if not p.resolve().is_relative_to(out.resolve())]
        want(not escaped, f"links lead out: {escaped}")
        want(sorted(os.listdir(temporary)) == ["out"], "something was written beside the target")
        await output(sandbox, "mkdir h; truncate -s 1T h/huge")
        copied = sandbox.get_tree("h", Path(temporary, "h"), max_bytes=1 << 20, max_files=10)
        await raises(SandboxFileTooLarge, copied, "a file of 1 TB")
        if isolates(sandbox):
            for name in ("t/absolute", "t/up"):
                what = "a link to a file of the host"
                await raises(SandboxFileError, sandbox.read_file(name, max_bytes=100), what)
                await raises(SandboxFileError, sandbox.write_file(name, b"x"), what)
            want(target.file.read_text() == target.secret, "the host's file was written")
        else:
            naive = Path(sandbox.workspace, "t/absolute").read_text()
            want(naive == target.secret, "the link does not bite: who just opens it sees nothing")


async def swapping_folders_for_links_during_a_copy_gains_nothing(sandbox: Sandbox) -> None:
    with Targets() as target, tempfile.TemporaryDirectory() as temporary:
        await output(
            sandbox, "mkdir -p w/a real; for i in $(seq 1 200); do echo fine > w/a/$i; done"
        )
        swap = f"while :; do mv w/a w/b; ln -s {target.folder} w/a; rm w/a; mv w/b w/a; done"
        process = await sandbox.spawn(swap)
        for number in range(3):
            out = Path(temporary, str(number))
            try:
                await sandbox.get_tree("w", out, max_bytes=1 << 20, max_files=2000)
            except SandboxFileError:
                continue
            leaked = [p for p in out.rglob("*") if p.is_file() and target.secret in p.read_text()]
            judge(sandbox, map(str, leaked), control=False)
        await process.close()
        await output(sandbox, "rm -rf w")


async def starts_that_are_given_up_leave_nothing(context: CheckContext) -> None:
    before, backend = set(guests_of(os.getpid())), context.make()
    lottery = random.Random(7)
    try:
        for _ in range(25):
            task = asyncio.ensure_future(backend.start(context.spec()))
            await asyncio.sleep(lottery.uniform(0, 0.03))
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled() and task.exception() is None:
                await task.result().close()
    finally:
        await backend.close()
    await _nothing_left(lambda: set(guests_of(os.getpid())) - before, context.backend)


async def _nothing_left(find: Callable[[], Collection[int]], backend: Backend) -> None:
    """Wait until ``find`` finds no guests any more."""
    for _ in range(500):
        if not (left := sorted(find())):
            return
        await asyncio.sleep(0.02)
        await backend.sweep()
    raise Broken(f"guests are left: {left}")


def guests_of(owner: int) -> list[int]:
    """Return guests that are marked as started by process ``owner``."""
    mark = f"owner={owner}'".encode()
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if mark in Path("/proc", name, "cmdline").read_bytes():
                    found.append(int(name))
            except OSError:
                continue
    return found


async def sandboxes_end_with_an_owner_that_is_killed(context: CheckContext) -> None:
    code = (
        "import asyncio, sys, json\nfrom turngym.sandbox import open_backend, SandboxSpec, Limits\n"
        "async def main():\n    backend = open_backend(sys.argv[1], **json.loads(sys.argv[2]))\n"
        "    spec = SandboxSpec(limits=Limits(enforce='best_effort', memory_bytes=64 << 20))\n"
        "    sandboxes = [await backend.start(spec) for _ in range(3)]\n"
        "    await sandboxes[0].spawn('setsid sleep 600 & sleep 600')\n"
        "    await sandboxes[1].pause()\n"
        "    print('up', flush=True)\n    await asyncio.sleep(600)\nasyncio.run(main())\n"
    )
    if context.backend.name not in backend_names():
        raise NotRun("only for back ends that can be opened by name")
    arguments = [sys.executable, "-c", code, context.backend.name, json.dumps(context.options)]
    owner = subprocess.Popen(arguments, stdout=subprocess.PIPE)
    try:
        assert owner.stdout is not None
        line = await asyncio.to_thread(owner.stdout.readline)
        want(line == b"up\n", "the owner did not start")
        want(len(guests_of(owner.pid)) > 0, "its guests cannot be found, so nothing can be said")
    finally:
        owner.kill()
        owner.wait()
        if owner.stdout is not None:
            owner.stdout.close()
    await _nothing_left(lambda: guests_of(owner.pid), context.backend)


async def a_sandbox_outlives_the_thread_that_started_it(context: CheckContext) -> None:
    backend = context.make()
    before = len(guests_of(os.getpid()))
    with ThreadPoolExecutor(1) as thread:
        starting = thread.submit(lambda: asyncio.run(backend.start(context.spec())))
        started = await asyncio.wrap_future(starting)
    await asyncio.sleep(0.2)
    alive = len(guests_of(os.getpid())) > before
    await backend.close()
    await started.close()
    want(alive, "it died with the thread that started it")


async def a_command_cannot_forge_its_result(sandbox: Sandbox) -> None:
    result = await sandbox.exec(program(sandbox, programs.FORGE), timeout_s=30)
    want(result.exit_code == 7, f"forged: {said(result)}")
    seen = [line for line in result.stdout.decode().splitlines() if "can see" in line]
    judge(sandbox, seen, control=False)
    want(await output(sandbox, "echo alive") == "alive", "the sandbox cannot be used")


async def a_command_that_kills_or_stops_its_parent_only_harms_itself(sandbox: Sandbox) -> None:
    try:
        result = await sandbox.exec("sleep 600 & kill -9 $PPID; sleep 600", timeout_s=30)
        want(result.signal == 9 and not result.timed_out, said(result))
        result = await sandbox.exec("kill -STOP $PPID; sleep 600", timeout_s=1)
        want(result.timed_out, said(result))
        want((await sandbox.stats()).processes == 0, "processes are left")
        want(await output(sandbox, "echo alive") == "alive", "the sandbox cannot be used")
    except SandboxDied:
        pass  # harsh, but typed


async def a_grade_is_not_changed_by_what_was_planted(context: CheckContext) -> None:
    if not context.is_isolating:
        raise NotRun("it has no mounts to grade with")
    with tempfile.TemporaryDirectory() as tests:
        Path(tests).chmod(0o755)
        Path(tests, "grade.sh").write_text(
            "ls /workspace/answer >/dev/null 2>&1 && echo 1 || echo 0\n"
        )
        policy = await context.start()
        await output(
            policy,
            "echo 'echo 1; exit 0' > ls; chmod +x ls; mkdir -p ~/bin; cp ls ~/bin;"
            "echo 'echo 1' > ~/.bashrc;"
            "echo 'raise SystemExit(0)' > sitecustomize.py; echo 1 > reward; cp ls /tmp",
        )
        daemon = "while :; do echo 1 > reward; touch answer; rm -f answer; done"
        await policy.spawn(daemon)
        mount = ReadOnlyMount(source=Path(tests), target="/mnt/tests")
        naive = await context.start(replace(context.spec(), mounts=[mount]))
        await naive.spawn(daemon)
        graded = [await output(naive, ["bash", "/mnt/tests/grade.sh"]) for _ in range(50)]
        want("1" in graded, "the daemon does not bite: it changes no grade in its own sandbox")
        layer = await policy.snapshot()
        await output(policy, "rm -f answer")
        grader = await context.start(replace(context.spec(), workspace=layer, mounts=[mount]))
        await output(grader, "rm -f answer")
        want(await output(grader, ["bash", "/mnt/tests/grade.sh"]) == "0", "the grade was changed")
        want((await grader.stats()).processes == 0, "a process of the policy is in the grader")
        await context.backend.drop(layer)


async def a_set_uid_program_gains_nothing(sandbox: Sandbox) -> None:
    await output(sandbox, "cp /bin/bash own; chmod 6755 own")
    judge(sandbox, await attack(sandbox, programs.GAIN), control=False)
    gained = await output(sandbox, "./own -p -c 'id -u'")
    want(gained == await output(sandbox, "id -u"), "a user was gained")


async def many_sandboxes_at_once_do_not_mix(context: CheckContext, sandbox: Sandbox) -> None:
    lottery = random.Random(11)
    mixed: list[str] = []

    async def one(number: int) -> None:
        own = await context.start()
        await own.write_file("id", b"%d" % number)
        for turn in range(4):
            text = await output(
                own, f"cat id; echo -{turn}; echo {number} >> /tmp/log; sort -u /tmp/log"
            )
            mixed.extend([] if text == f"{number}-{turn}\n{number}" else [f"{number}: {text!r}"])
            if lottery.random() < 0.1:
                await own.close()
                return

    await asyncio.gather(*(one(number) for number in range(12)))
    if not isolates(sandbox):
        Path("/tmp/log").unlink(missing_ok=True)
    judge(sandbox, mixed)


async def a_debugger_works_only_when_allowed(context: CheckContext, sandbox: Sandbox) -> None:
    code = "print(libc.ptrace(0, 0, None, None))"
    [denied] = await attack(sandbox, code)
    allowing = await context.start(replace(context.spec(), allow_ptrace=True))
    [allowed] = await attack(allowing, code)
    is_denied = denied == "-1" or not isolates(sandbox)
    want(is_denied and allowed == "0", f"{denied}, allowed {allowed}")
