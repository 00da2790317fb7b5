"""Attacks on the host code that copies files out of a sandbox or asks what changed in it."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from turngym.errors import SandboxFileTooLarge
from turngym.sandbox.checks import attack_programs as programs
from turngym.sandbox.checks.attack_targets import attack, program, targets
from turngym.sandbox.checks.check import Bench, Check, output, raises, want


async def links_that_lead_out_through_other_links_are_left_behind(bench: Bench) -> None:
    sandbox = await bench.start()
    script = """
        mkdir -p t/x/y/z t/d; cd t; echo fine > ok
        ln -s ../../.. x/y/z/top; ln -s x/y/z/top/../secret leak; ln -s x/y/z/top/.. over
        ln -s over/secret late; ln -s b a; ln -s a b; ln -s a/../.. around
        ln -s ../x/y/z/top/ok d/inside; ln -s none/of/these dangling
    """
    await output(sandbox, script)
    with tempfile.TemporaryDirectory() as temporary:
        Path(temporary, "secret").write_text("outside")
        if bench.is_isolating:
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


async def links_that_come_and_go_during_a_copy_only_leave_themselves_out(bench: Bench) -> None:
    with targets() as target, tempfile.TemporaryDirectory() as temporary:
        sandbox = await bench.start()
        await output(sandbox, "mkdir w; for i in $(seq 1 30); do echo fine > w/f$i; done")
        process = await sandbox.spawn(program(sandbox, programs.LINKS, target.file))
        for number in range(20):
            out = Path(temporary, str(number))
            report = await sandbox.get_tree("w", out, max_bytes=1 << 20, max_files=2000)
            want(report.files == 30, f"{report.files} of 30 files came")
            want(not any(path.is_symlink() for path in out.iterdir()), "a link leads out")
        await process.close()
        await output(sandbox, "rm -rf w")


async def a_tree_of_long_names_is_listed_in_pieces(bench: Bench) -> None:
    # More than a frame of the guest holds, had it to come at once.
    sandbox = await bench.start(bench.spec(inodes=40_000, disk_bytes=256 << 20))
    made = await attack(
        sandbox, programs.LONG_PATHS, "long", 14 if bench.is_isolating else 2, 25_000
    )
    want(made == ["25000"], f"the attack does not bite: {made} files")
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary, "o")
        limits = {"max_bytes": 1 << 20, "max_files": 20_000}
        await raises(SandboxFileTooLarge, sandbox.get_tree("long", out, **limits), "25,000 files")
    want(await output(sandbox, "echo alive") == "alive", "the sandbox cannot be used")


async def a_file_of_nothing_is_too_large_and_no_fault(bench: Bench) -> None:
    sandbox = await bench.start()
    result = await sandbox.exec(
        "mkdir h; truncate -s 7E h/huge || truncate -s 15T h/huge", timeout_s=30
    )
    want(result.ok, "the attack does not bite: no such file can be made")
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary, "o")
        too_large = SandboxFileTooLarge
        await raises(too_large, sandbox.read_file("h/huge", max_bytes=1 << 20), "reading it")
        copied = sandbox.get_tree("h", out, max_bytes=1 << 20, max_files=10)
        await raises(too_large, copied, "copying it")
    want(await output(sandbox, "echo alive") == "alive", "the sandbox cannot be used")


async def names_cannot_write_on_a_terminal(bench: Bench) -> None:
    sandbox = await bench.start()
    await output(sandbox, r"mkdir n; mkfifo n/$'\e]0;owned\a\n\r\u202e'; echo > $'\e[2J\nx'")
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary, "o")
        report = await sandbox.get_tree("n", out, max_bytes=1 << 20, max_files=10)
    shown = [*report.skipped, *map(str, await sandbox.diff())]
    want(len(report.skipped) == 1 and len(shown) > 1, f"{shown}")
    want(all(text.isprintable() for text in shown), f"control characters: {shown!r}")
    name = os.fsdecode(b"\x1b[2J\nx")
    want(await sandbox.read_file(name, max_bytes=9) == b"\n", "the path is not as it was")


CHECKS: list[Check] = [
    links_that_lead_out_through_other_links_are_left_behind,
    links_that_come_and_go_during_a_copy_only_leave_themselves_out,
    a_tree_of_long_names_is_listed_in_pieces,
    a_file_of_nothing_is_too_large_and_no_fault,
    names_cannot_write_on_a_terminal,
]
