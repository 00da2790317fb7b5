"""Every promise of `turngym.sandbox.base`, one check each; a function's name is the promise."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from dataclasses import replace
from pathlib import Path

from turngym.check_report import NotRun
from turngym.errors import SandboxClosed, SandboxDied, SandboxFileError, SandboxRefused
from turngym.sandbox.base import ReadOnlyMount, Sandbox
from turngym.sandbox.checks.context import CheckContext, output, raises, said, want
from turngym.sandbox.processes import Process


async def a_program_runs_with_its_arguments_and_no_shell(sandbox: Sandbox) -> None:
    result = await sandbox.exec(["printf", "%s|", "a b", "$HOME", "*"], timeout_s=30)
    want(result.stdout == b"a b|$HOME|*|" and result.ok, said(result))


async def a_string_runs_in_bash(sandbox: Sandbox) -> None:
    text = await output(sandbox, "x=(1 2 3); echo ${#x[@]} | tr 3 4")
    want(text == "4", text)


async def exit_code_signal_and_both_streams_are_distinct(sandbox: Sandbox) -> None:
    result = await sandbox.exec("echo out; echo err >&2; exit 7", timeout_s=30)
    want((result.exit_code, result.signal) == (7, None), said(result))
    want((result.stdout, result.stderr) == (b"out\n", b"err\n"), said(result))
    result = await sandbox.exec("kill -SEGV $$", timeout_s=30)
    want((result.exit_code, result.signal) == (None, signal.SIGSEGV), said(result))


async def a_missing_program_is_127_and_one_that_cannot_be_executed_126(sandbox: Sandbox) -> None:
    result = await sandbox.exec(["no-such-program"], timeout_s=30)
    want(result.exit_code == 127 and b"No such file" in result.stderr, said(result))
    await sandbox.write_file("plain", b"text")
    result = await sandbox.exec(["./plain"], timeout_s=30)
    want(result.exit_code == 126, said(result))


async def directory_environment_and_input_are_as_given(context: CheckContext) -> None:
    sandbox = await context.start(replace(context.spec(), env={"A": "1", "B": "2"}))
    await sandbox.exec(["mkdir", "-p", "deep/er"], timeout_s=30)
    result = await sandbox.exec(
        'printf "%s %s %s " "$A" "$B" "${PWD##*/}"; cat',
        timeout_s=30, cwd="deep/er", env={"B": "3"}, stdin=b"in\xff\0put",
    )  # fmt: skip
    want(result.stdout == b"1 3 er in\xff\0put", said(result))
    result = await sandbox.exec("pwd", timeout_s=30, cwd="no/such")
    want(result.exit_code == 127, said(result))


async def nothing_of_the_hosts_environment_is_inherited(context: CheckContext) -> None:
    os.environ["TURNGYM_SECRET_OF_HOST"] = "x"
    try:
        sandbox = await context.start()
        text = await output(sandbox, "env")
    finally:
        del os.environ["TURNGYM_SECRET_OF_HOST"]
    want("TURNGYM_SECRET" not in text, text)


async def large_input_and_a_script_longer_than_an_argument_arrive(sandbox: Sandbox) -> None:
    data = os.urandom(3 << 20)
    result = await sandbox.exec(["wc", "-c"], timeout_s=60, stdin=data)
    want(result.stdout.strip() == b"%d" % len(data), said(result))
    script = "true\n" * 60_000 + "echo done"
    want(await output(sandbox, script) == "done", "a script of 300 kB did not run")
    result = await sandbox.exec(["echo", "x" * 200_000], timeout_s=30)
    want(result.exit_code == 126 and b"too long" in result.stderr.lower(), said(result))
    too_long = sandbox.exec(["echo", "x" * (20 << 20)], timeout_s=30)
    await raises(ValueError, too_long, "20 MB argument")
    await raises(ValueError, sandbox.exec(["a\0b"], timeout_s=30), "an argument with a NUL")
    await raises(ValueError, sandbox.exec([], timeout_s=30), "an empty command")


async def output_that_is_no_text_comes_as_it_is(sandbox: Sandbox) -> None:
    result = await sandbox.exec(r"printf '\377\000\376'; printf '\200' >&2", timeout_s=30)
    want((result.stdout, result.stderr) == (b"\xff\0\xfe", b"\x80"), said(result))


async def long_output_keeps_its_ends_and_its_true_length(sandbox: Sandbox) -> None:
    result = await sandbox.exec("seq 1 100000; seq 1 10 >&2", timeout_s=60, max_output=1000)
    want(result.truncated and len(result.stdout) == 1000, f"{len(result.stdout)} bytes kept")
    want(result.stdout_total == 588895, f"total {result.stdout_total}")
    want(result.stdout.startswith(b"1\n2\n") and result.stdout.endswith(b"\n100000\n"), "ends lost")
    want(result.stderr_total == len(result.stderr) == 21, said(result))


async def a_time_out_keeps_the_output_and_leaves_the_sandbox_usable(sandbox: Sandbox) -> None:
    result = await sandbox.exec("echo before; sleep 100; echo after", timeout_s=1)
    want(result.timed_out and result.stdout == b"before\n", said(result))
    want(await output(sandbox, "echo next") == "next", "the sandbox cannot be used")
    want((await sandbox.stats()).processes == 0, "processes are left")


async def silence_can_be_limited_apart_from_time(sandbox: Sandbox) -> None:
    result = await sandbox.exec("echo a; sleep 100", timeout_s=60, idle_timeout_s=0.5)
    want(result.idle_timed_out and not result.timed_out and result.stdout == b"a\n", said(result))
    script = "for i in 1 2 3 4; do echo $i; sleep 0.2; done"
    result = await sandbox.exec(script, timeout_s=60, idle_timeout_s=30)
    want(result.ok and not result.idle_timed_out, said(result))


async def what_a_command_leaves_running_ends_with_it(sandbox: Sandbox) -> None:
    result = await sandbox.exec("sleep 100 & setsid sleep 100 & echo ok", timeout_s=30)
    want(result.ok and result.killed_leftovers == 2, f"{said(result)}, {result.killed_leftovers}")
    want((await sandbox.stats()).processes == 0, "processes are left")


async def background_processes_stay_when_asked(sandbox: Sandbox) -> None:
    script = "(for i in $(seq 1 500); do echo $i > n; sleep 0.02; done) & echo started"
    result = await sandbox.exec(script, timeout_s=30, keep_background=True)
    want(result.stdout == b"started\n" and result.killed_leftovers == 0, said(result))
    script = (
        "a=$(cat n 2>/dev/null); for i in $(seq 1 500); do "
        '[ "$(cat n)" != "$a" ] && exit 0; sleep 0.02; done; exit 1'
    )
    await output(sandbox, script)


async def cancelling_a_command_ends_it(sandbox: Sandbox) -> None:
    task = asyncio.ensure_future(sandbox.exec("sleep 100", timeout_s=60))
    while (await sandbox.stats()).processes == 0:
        await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait([task])
    want(task.cancelled(), "the caller was not cancelled")
    want((await sandbox.stats()).processes == 0, "the command goes on")
    want(await output(sandbox, "echo next") == "next", "the sandbox cannot be used")


async def commands_can_run_at_the_same_time(sandbox: Sandbox) -> None:
    commands = [output(sandbox, f"sleep 0.2; echo {n}") for n in range(8)]
    want(await asyncio.gather(*commands) == [str(n) for n in range(8)], "answers were mixed up")


async def a_process_can_be_talked_to(sandbox: Sandbox) -> None:
    script = "while read line; do echo got $line; done; echo end >&2"
    async with await sandbox.spawn(script) as process:
        await process.write(b"one\n")
        want(await process.read() == b"got one\n", "no answer")
        await process.write(b"two\n")
        want(await process.read() == b"got two\n", "no second answer")
        await process.write_eof()
        end = await process.wait(30)
        want(await process.read() == b"" and await process.read_stderr() == b"end\n", "no end")
        want(end.exit_code == 0, f"{end}")


async def a_process_can_be_signalled_and_killed(sandbox: Sandbox) -> None:
    process = await sandbox.spawn("trap 'echo caught' USR1; echo up; while :; do sleep 0.05; done")
    want(await process.read() == b"up\n", "it did not start")
    await process.signal(signal.SIGUSR1)
    want(await process.read() == b"caught\n", "the signal did not arrive")
    await raises(TimeoutError, process.wait(0.1), "wait for one that goes on")
    end = await process.kill()
    want(end.signal == signal.SIGKILL, f"{end}")
    await raises(SandboxFileError, process.signal(signal.SIGUSR1), "signal after the end")
    await process.close()
    await raises(SandboxFileError, sandbox.spawn(["no-such-program"]), "spawn of a missing program")


async def a_slow_reader_holds_a_process_up_and_loses_nothing(sandbox: Sandbox) -> None:
    process = await sandbox.spawn(["seq", "1", "300000"])
    data = b""
    while part := await process.read():
        data += part
    want(data == b"".join(b"%d\n" % n for n in range(1, 300001)), f"{len(data)} bytes came")
    want((await process.wait(30)).exit_code == 0, "it failed")
    await process.close()


async def a_terminal_is_one(sandbox: Sandbox) -> None:
    pty = await sandbox.open_pty(["bash", "--norc", "-c", "tty; stty size; read x; stty size"],
                                 rows=30, cols=90)  # fmt: skip
    text = b""
    while b"30 90" not in text and (part := await pty.read()):
        text += part
    await pty.resize(10, 20)
    await pty.write(b"\n")
    while part := await pty.read():
        text += part
    want(b"/dev/pts/" in text and b"30 90" in text and b"10 20" in text, repr(text))
    await pty.close()


async def a_session_keeps_directory_variables_and_functions(sandbox: Sandbox) -> None:
    session = sandbox.session()
    script = "mkdir d; cd d; a='1 2'; export B=\"it's\"; f() { echo f$a; }; l=(x y)"
    await session.run(script, timeout_s=30)
    result = await session.run('echo "${PWD##*/} $a $B $(f) ${l[1]}"; exit 5', timeout_s=30)
    want(result.stdout == b"d 1 2 it's f1 2 y\n" and result.exit_code == 5, said(result))
    result = await session.run("unset B; cd /no/such; echo ${PWD##*/}", timeout_s=30)
    want(result.stdout == b"d\n", said(result))
    result = await session.run("sleep 100; a=9", timeout_s=0.5)
    result = await session.run("echo $a${B-gone}", timeout_s=30)
    want(result.stdout == b"1 2gone\n", said(result))


async def no_input_gets_a_session_out_of_step(sandbox: Sandbox) -> None:
    session = sandbox.session()
    await session.run("x=kept", timeout_s=30)
    awkward = [
        "cat", "read y", "echo 'open", 'echo "open', "exec true", "exit 3", "set -e; false",
        "exec 1>/dev/null", "exec 0<&- 1>&- 2>&-", "trap 'echo D' DEBUG; true",
        "printf() { :; }; declare() { :; }; unset -f printf declare", "cat <<END\nno end", "(((",
        "kill -9 $$",
        "trap : EXIT", "set -u; echo $nothing", "echo \\",
        "readonly __turngym_script=1 POSIXLY_CORRECT", "set -o posix", "enable -n eval unset trap",
        "for f in eval exec trap set unset shopt declare printf; do eval \"$f() { :; }\"; done",
        "shopt -s expand_aliases; alias eval=no if=no", "__turngym_keep() { exit 1; }",
        "echo \"'\" >&9; echo '(((' >&9", "big=$(head -c 9000000 /dev/zero | tr '\\0' x)",
    ]  # fmt: skip
    for script in awkward:
        result = await session.run(script, timeout_s=30)
        want(not result.timed_out, f"{script!r} hangs")
        result = await session.run("echo $x", timeout_s=30)
        want(result.stdout == b"kept\n", f"after {script!r}: {said(result)}")


async def a_server_in_the_sandbox_can_be_reached(sandbox: Sandbox) -> None:
    if (await sandbox.exec(["python3", "-c", "pass"], timeout_s=60)).exit_code != 0:
        raise NotRun("the image has no python3 to serve with")
    script = (
        "import socket\ns = socket.socket()\ns.bind(('127.0.0.1', 0))\ns.listen()\n"
        "print(s.getsockname()[1], flush=True)\nc, _ = s.accept()\n"
        "while d := c.recv(99999): c.sendall(d.upper())\n"
    )
    process = await sandbox.spawn(["python3", "-c", script])
    port = int(await process.read())
    async with await sandbox.dial(port) as stream:
        await stream.write(b"hello")
        want(await stream.read() == b"HELLO", "no answer")
    await process.close()
    await raises(SandboxFileError, sandbox.dial(1), "a port where no process listens")
    await raises(ValueError, sandbox.dial(0), "port 0")


async def a_paused_sandbox_stands_still(sandbox: Sandbox) -> None:
    process = await sandbox.spawn("while read x; do echo $x; done")
    await process.write(b"1\n")
    want(await process.read() == b"1\n", "no answer before the pause")
    await sandbox.pause()
    # Frozen by the kernel no process answers at all; stopped by a signal the guest still does.
    answer = asyncio.ensure_future(_exchange(process, b"2\n"))
    done, _ = await asyncio.wait([answer], timeout=1.0)
    want(not done, "it answered while paused")
    await sandbox.resume()
    want(await answer == b"2\n", "no answer after the pause")
    await process.close()


async def _exchange(process: Process, data: bytes) -> bytes:
    await process.write(data)
    return await process.read()


async def stats_count_what_runs_and_what_was_written(sandbox: Sandbox) -> None:
    process = await sandbox.spawn("sleep 100 & sleep 100 & echo up; wait")
    await process.read()
    await sandbox.write_file("data", bytes(3 << 20))
    stats = await sandbox.stats()
    want(stats.processes >= 3 and stats.memory_bytes > 0, f"{stats}")
    want(stats.disk_bytes is None or stats.disk_bytes >= 3 << 20, f"{stats}")
    await process.close()


async def a_closed_sandbox_says_so(sandbox: Sandbox) -> None:
    running = asyncio.ensure_future(sandbox.exec("sleep 100", timeout_s=60))
    await asyncio.sleep(0.05)
    await asyncio.gather(sandbox.close(), sandbox.close())
    await sandbox.close()
    await raises(SandboxClosed, running, "a command that ran")
    await raises(SandboxClosed, sandbox.exec(["true"], timeout_s=1), "exec")
    await raises(SandboxClosed, sandbox.read_file("a", max_bytes=1), "read_file")
    await raises(SandboxClosed, sandbox.snapshot(), "snapshot")
    await raises(SandboxClosed, sandbox.fork(1), "fork")
    await raises(SandboxClosed, sandbox.stats(), "stats")


async def a_lifetime_is_kept(context: CheckContext) -> None:
    sandbox = await context.start(context.spec(lifetime_s=1.0))
    error = await raises(SandboxDied, sandbox.exec("sleep 100", timeout_s=60), "after its lifetime")
    want("1 s" in str(error), str(error))


async def isolation_and_limits_are_what_the_back_end_claims(
    context: CheckContext, sandbox: Sandbox
) -> None:
    claimed = dict(context.capabilities.limits)
    want(dict(sandbox.enforced) == claimed, f"{dict(sandbox.enforced)}, claimed {claimed}")
    if any(how != "exact" for how in claimed.values()):
        strict = context.spec(enforce="strict")
        error = await raises(SandboxRefused, context.start(strict), "limits that cannot be held")
        want("best_effort" in str(error), f"no word of what to do: {error}")


async def an_image_that_does_not_exist_is_refused(context: CheckContext) -> None:
    spec = replace(context.spec(), image="/no/such/image")
    error = await raises(SandboxRefused, context.start(spec), "an unknown image")
    want("/no/such/image" in str(error) or not context.is_isolating, str(error))


async def a_mount_can_be_read_and_not_written(context: CheckContext) -> None:
    if not context.capabilities.mounts:
        raise NotRun("it has no mounts")
    with tempfile.TemporaryDirectory() as temporary:
        Path(temporary).chmod(0o755)
        Path(temporary, "a").write_text("given")
        mount = ReadOnlyMount(source=Path(temporary), target="/mnt/given")
        sandbox = await context.start(replace(context.spec(), mounts=[mount]))
        want(await output(sandbox, "cat /mnt/given/a") == "given", "it cannot be read")
        result = await sandbox.exec("echo x > /mnt/given/a; echo x > /mnt/given/b", timeout_s=30)
        want(not result.ok and os.listdir(temporary) == ["a"], "it was written")
        want(Path(temporary, "a").read_text() == "given", "it was written")
