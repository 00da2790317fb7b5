"""Every promise about files: in, out, what changed, snapshots and forks."""

from __future__ import annotations

import asyncio
import os
import tempfile
from dataclasses import replace
from pathlib import Path

from turngym.errors import SandboxFileError, SandboxFileTooLarge
from turngym.sandbox.base import Sandbox
from turngym.sandbox.checks.context import CheckContext, output, raises, want


async def files_of_any_name_and_content_come_back(sandbox: Sandbox) -> None:
    data = bytes(range(256)) * 40_000
    for name in ("a", "x/y/z", "sp ace\nline", os.fsdecode(b"not-\xff-utf8"), "-rf"):
        await sandbox.write_file(name, data, mode=0o755)
        want(await sandbox.read_file(name, max_bytes=1 << 24) == data, f"{name!r} differs")
        await sandbox.write_file(name, b"")
        want(await sandbox.read_file(name, max_bytes=0) == b"", f"{name!r} did not shrink")
    want(await output(sandbox, "stat -c %a a") == "644", "the mode is not as given")


async def what_is_no_regular_file_is_refused_at_once(sandbox: Sandbox) -> None:
    await output(
        sandbox, "mkfifo fifo; mkdir dir; ln -s loop loop; truncate -s 1T huge; ln -s /dev/zero z"
    )
    for name in ("fifo", "dir", "loop", "missing", "z", "/dev/zero"):
        await raises(SandboxFileError, sandbox.read_file(name, max_bytes=10), f"reading {name!r}")
    for name in ("dir", "fifo", "loop", "/dev/zero/x"):
        await raises(SandboxFileError, sandbox.write_file(name, b"x"), f"writing {name!r}")
    await raises(SandboxFileTooLarge, sandbox.read_file("huge", max_bytes=1 << 20), "reading 1 TB")
    await raises(ValueError, sandbox.read_file("", max_bytes=1), "an empty path")
    await raises(ValueError, sandbox.write_file("a\0b", b""), "a path with a NUL")


async def a_folder_goes_in_and_comes_out_the_same(sandbox: Sandbox) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        source = Path(temporary, "in")
        (source / "sub" / "empty").mkdir(parents=True)
        (source / "sub" / "big").write_bytes(os.urandom(5 << 20))
        (source / "run.sh").write_text("#!/bin/sh\necho ran")
        (source / "run.sh").chmod(0o755)
        (source / "link").symlink_to("sub/big")
        (source / os.fsdecode(b"\xfe")).write_text("odd")
        await sandbox.put_tree(source, "tree")
        text = await output(sandbox, "tree/run.sh; ls tree | wc -l")
        want(text == "ran\n4", f"put_tree lost some: {text!r}")
        target = Path(temporary, "out")
        report = await sandbox.get_tree("tree", target, max_bytes=1 << 24, max_files=100)
        want((report.files, report.skipped) == (3, ()), f"{report}")
        for path in source.rglob("*"):
            other = target / path.relative_to(source)
            want(other.is_symlink() == path.is_symlink(), f"{path.name} is of another kind")
            want(not path.is_file() or other.read_bytes() == path.read_bytes(), f"{path.name}")
        want(os.access(target / "run.sh", os.X_OK), "the mode was lost")
        await raises(SandboxFileError, sandbox.get_tree("tree", target, max_bytes=1, max_files=9),
                     "a target that exists")  # fmt: skip
        for most, files in ((1 << 20, 100), (1 << 24, 2)):
            other = Path(temporary, "small")
            copied = sandbox.get_tree("tree", other, max_bytes=most, max_files=files)
            await raises(SandboxFileTooLarge, copied, f"{files} files of {most} bytes at most")
            want(not other.exists(), "a part of it was left")
        await raises(SandboxFileError, sandbox.put_tree(Path(temporary, "none"), "x"), "no source")


async def diff_reports_what_was_written_and_deleted(context: CheckContext) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        for name in ("same", "edited", "deleted", "dir/inner"):
            path = Path(temporary, name)
            path.parent.mkdir(exist_ok=True)
            path.write_text(name)
        layer = await context.backend.import_folder(Path(temporary))
    sandbox = await context.start(replace(context.spec(), workspace=layer))
    want(await sandbox.diff() == [], "a new sandbox has changes")
    await output(sandbox, "echo x >> edited; rm deleted; mkdir new; echo > new/file; rm dir/inner")
    found = [str(change) for change in await sandbox.diff()]
    wanted = ["deleted deleted", "deleted dir/inner", "written edited", "written new/file"]
    want(found == wanted, f"{found}")
    await sandbox.snapshot()
    await output(sandbox, "rm new/file; echo y > later")
    paths = {change.path: change.kind for change in await sandbox.diff()}
    want(paths.get("later") == "written" and paths.get("edited") == "written", f"{paths}")
    await context.backend.drop(layer)


async def a_fork_has_the_files_and_goes_its_own_way(context: CheckContext) -> None:
    parent = await context.start()
    await output(parent, "mkdir -p d; echo 1 > d/a; echo 2 > b; ln -s b l; echo x > gone")
    first, second = await context.fork(parent, 2)
    for sandbox, name in ((parent, "p"), (first, "f"), (second, "s")):
        want(await output(sandbox, "cat d/a b l gone") == "1\n2\n2\nx", f"{name} lacks files")
        await output(sandbox, f"rm gone; rm -r d; mkdir d; echo {name} > d/own; echo {name} > b")
    [child] = await context.fork(first)
    for sandbox, name in ((parent, "p"), (first, "f"), (second, "s"), (child, "f")):
        text = await output(sandbox, "ls d; cat d/own b l; ls gone 2>/dev/null || echo none")
        want(text == f"own\n{name}\n{name}\n{name}\nnone", f"{name}: {text!r}")


async def a_fork_outlives_its_parent(context: CheckContext) -> None:
    parent = await context.start()
    await parent.write_file("a", b"1")
    [child] = await context.fork(parent)
    await parent.close()
    want(await child.read_file("a", max_bytes=9) == b"1", "the file went with the parent")
    [grandchild] = await context.fork(child)
    want(await grandchild.read_file("a", max_bytes=9) == b"1", "the grandchild lacks it")


async def a_parent_goes_on_after_its_forks_are_gone(context: CheckContext) -> None:
    parent = await context.start()
    for turn in range(3):
        await parent.write_file(str(turn), b"x")
        [child] = await context.fork(parent)
        await child.close()
        await asyncio.sleep(0.05)
    want(await output(parent, "ls | wc -l") == "3", "files were lost with the forks")


async def a_snapshot_never_changes_and_says_what_is_in_it(
    context: CheckContext, sandbox: Sandbox
) -> None:
    await sandbox.write_file("a", b"1")
    first = await sandbox.snapshot()
    await sandbox.write_file("a", b"2")
    second = await sandbox.snapshot()
    want(first.digest != second.digest, "two contents, one digest")
    for layer, data in ((first, b"1"), (second, b"2"), (first, b"1")):
        started = await context.start(replace(context.spec(), workspace=layer))
        want(await started.read_file("a", max_bytes=9) == data, "the snapshot has changed")
        await started.write_file("a", b"3")
    want(await sandbox.read_file("a", max_bytes=9) == b"2", "the parent has changed")
    for layer in (first, second):
        await context.backend.drop(layer)


async def background_processes_live_through_a_snapshot(
    context: CheckContext, sandbox: Sandbox
) -> None:
    process = await sandbox.spawn("echo up > file; while read x; do echo $x; done")
    while "file" not in await output(sandbox, "ls"):
        await asyncio.sleep(0.01)
    layer = await sandbox.snapshot()
    await process.write(b"alive\n")
    want(await process.read() == b"alive\n", "the process did not live through it")
    copy = await context.start(replace(context.spec(), workspace=layer))
    want(await copy.read_file("file", max_bytes=9) == b"up\n", "the file is not in the snapshot")
    await process.close()


async def nothing_is_lost_by_snapshots_beside_commands(
    context: CheckContext, sandbox: Sandbox
) -> None:
    wanted = "".join(f"{turn}\n" for turn in range(12))

    async def write() -> None:
        for turn in range(12):
            await output(sandbox, f"echo {turn} >> commands")
            await sandbox.write_file("large", bytes(9 << 20))

    async def keep() -> None:
        for _ in range(6):
            await context.backend.drop(await sandbox.snapshot())

    await asyncio.gather(write(), keep(), keep(), keep(), sandbox.stats(), sandbox.diff())
    text = (await sandbox.read_file("commands", max_bytes=999)).decode()
    want(text == wanted, f"commands lost: {text!r}")
    want(await output(sandbox, "stat -c %s large") == str(9 << 20), "a file is not whole")


async def a_paused_sandbox_can_be_kept(context: CheckContext, sandbox: Sandbox) -> None:
    await sandbox.write_file("a", b"1")
    await sandbox.pause()
    layer = await sandbox.snapshot()
    await sandbox.resume()
    copy = await context.start(replace(context.spec(), workspace=layer))
    want(await copy.read_file("a", max_bytes=9) == b"1", "the file is not in the snapshot")
    want(await output(sandbox, "cat a") == "1", "it does not go on")
    await context.backend.drop(layer)


async def folders_are_imported_once_and_stay_as_they_were(context: CheckContext) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        Path(temporary, "a").write_text("1")
        Path(temporary, "sub").mkdir()
        Path(temporary, "sub", "b").write_text("2")
        layer = await context.backend.import_folder(Path(temporary))
        again = await context.backend.import_folder(Path(temporary))
        want(layer.digest == again.digest, "one content, two digests")
        Path(temporary, "a").write_text("changed")
        one = await context.start(replace(context.spec(), workspace=layer))
        await output(one, "echo x > a; rm -r sub; echo y > own")
        two = await context.start(replace(context.spec(), workspace=layer))
        want(await output(two, "cat a sub/b; ls") == "12a\nsub", "the layer has changed")
        want(Path(temporary, "a").read_text() == "changed", "the host's folder has changed")
