"""The traps are real: what looks sensible falls into them.

`check_sandbox` shows that our back ends do not. Its attacks are tried against ``unsafe-local``;
those that cannot show there that they bite are shown here, against a naive use of bubblewrap, of a
shell, of a pipe, of a tar.
"""

import contextlib
import io
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from turngym.errors import SandboxRefused
from turngym.sandbox.backends import images

NAIVE = ["bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/",
         "--dev", "/dev", "--proc", "/proc"]  # fmt: skip
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="a trap of root")
with_bwrap = pytest.mark.extra("bwrap")


def marked(mark: str) -> list[int]:
    """Return the processes whose command line holds ``mark``."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (path / "cmdline").read_bytes() and int(path.name) != os.getpid():
                found.append(int(path.name))
    return found


@pytest.fixture
def mark() -> Iterator[str]:
    """Give a word for command lines; processes that still carry it are killed afterwards."""
    word = "naive-" + secrets.token_hex(8)
    yield word
    for pid in marked(word):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def ends(pid: int) -> bool:
    """Say whether a process ends within five seconds."""
    for _ in range(500):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                time.sleep(0.01)
                continue
        return True
    return False


@as_root
@with_bwrap
def test_bubblewrap_that_root_starts_naively_reads_shadow_and_opens_the_kernels_switches() -> None:
    code = (
        "import os; print(len(open('/etc/shadow').read(1)));"
        "os.close(os.open('/proc/sys/kernel/core_pattern', os.O_WRONLY)); print('opened')"
    )
    python = sys._base_executable  # type: ignore[attr-defined]  # below a virtual environment
    told = subprocess.run([*NAIVE, python, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "1\nopened\n"


@with_bwrap
def test_a_cleared_environment_can_be_read_from_process_one(mark: str) -> None:
    told = subprocess.run(
        [*NAIVE, "--clearenv", "/bin/cat", "/proc/1/environ"],
        env={"PATH": "/usr/bin:/bin", "SECRET": mark}, capture_output=True, check=True,
    )  # fmt: skip
    assert mark.encode() in told.stdout


@with_bwrap
def test_die_with_parent_means_the_thread(mark: str) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def work() -> None:
        argv = [*NAIVE, "/bin/bash", "-c", f": {mark}; echo up; sleep 60"]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        started.append(process)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    [process] = started
    assert process.wait(10) == -signal.SIGKILL
    assert process.stdout is not None
    process.stdout.close()


@with_bwrap
def test_a_kill_during_the_start_leaves_processes(mark: str) -> None:
    lottery = random.Random(5)
    for _ in range(200):
        process = subprocess.Popen([*NAIVE, "/bin/bash", "-c", f": {mark}; sleep 60"])
        time.sleep(lottery.uniform(0, 0.012))
        process.kill()
        process.wait()
        if left := [pid for pid in marked(mark) if not ends(pid)]:
            assert left
            return
    pytest.fail("200 kills left nothing")


@with_bwrap
def test_orphans_stay_when_the_first_process_does_not_reap(mark: str) -> None:
    script = f": {mark}; (sleep 0.1 &); echo up; exec sleep 60"
    argv = [*NAIVE, "--as-pid-1", "/bin/bash", "-c", script]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        [init] = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for _ in range(500):
            children = Path(f"/proc/{init}/task/{init}/children").read_text().split()
            states = [
                Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
                for child in children
            ]
            if states == ["Z"]:
                break
            time.sleep(0.01)
        assert states == ["Z"]
        process.kill()


def test_a_child_that_keeps_a_pipe_holds_its_reader_up(mark: str) -> None:
    argv = ["bash", "-c", f"bash -c ': {mark}; sleep 60; :' & echo done"]
    with pytest.raises(subprocess.TimeoutExpired):  # although the command has ended
        subprocess.run(argv, stdout=subprocess.PIPE, timeout=1.0, check=False)
    assert marked(mark)


def test_a_flood_that_is_kept_fills_the_host() -> None:
    code = (
        "import resource, subprocess;"
        "subprocess.run(['head', '-c', '100000000', '/dev/zero'], stdout=subprocess.PIPE);"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert int(told.stdout) > 100_000, "KiB"


def test_a_time_out_leaves_daemons(mark: str) -> None:
    argv = ["bash", "-c", f"setsid bash -c ': {mark}; sleep 60; :' & sleep 60"]
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run(argv, timeout=1.0, check=False)
    assert marked(mark)


def test_a_shell_on_a_pipe_is_out_of_step_after_a_command_that_reads() -> None:
    with subprocess.Popen(["bash"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as shell:
        told, _ = shell.communicate(b"cat\necho next\n")
    assert told == b"echo next\n", "the second command was taken for input of the first"


def test_a_result_that_travels_with_the_output_is_forged() -> None:
    command = "echo 'END 0'; exit 7"
    told = subprocess.run(
        ["bash", "-c", f"({command}); echo END $?"], capture_output=True, text=True, check=True
    )
    assert told.stdout.partition("END ")[2].split()[0] == "0"


@as_root
@pytest.mark.extra("setpriv")
def test_a_set_uid_program_gains_root_where_nothing_forbids_it() -> None:
    folder = Path(tempfile.mkdtemp(prefix="turngym-naive-"))
    try:
        folder.chmod(0o755)
        if os.statvfs(folder).f_flag & os.ST_NOSUID:
            pytest.skip("the temporary folder is mounted nosuid")
        shutil.copy("/bin/bash", folder / "own")
        (folder / "own").chmod(0o4755)
        plain = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        told = subprocess.run(
            [*plain, folder / "own", "-p", "-c", "id -u"], capture_output=True, check=True
        )
    finally:
        shutil.rmtree(folder)
    assert told.stdout == b"0\n"


def evil_tars() -> dict[str, list[tarfile.TarInfo]]:
    """Return archives that write a file ``escaped`` outside the folder they are unpacked in."""
    up, absolute, pax = (tarfile.TarInfo(name) for name in ("../escaped", "/escaped", "fine"))
    pax.pax_headers = {"path": "../escaped"}
    link, through = tarfile.TarInfo("link"), tarfile.TarInfo("link/escaped")
    link.type, link.linkname = tarfile.SYMTYPE, ".."
    return {"up": [up], "absolute": [absolute], "pax": [pax], "link": [link, through]}


@pytest.mark.parametrize("name", ["up", "absolute", "pax", "link"])
def test_an_image_cannot_write_outside_its_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNGYM_CACHE", str(tmp_path / "cache"))
    with tarfile.open(tmp_path / "image.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        for member in evil_tars()[name]:
            member.size = 0 if member.issym() else 4
            archive.addfile(member, io.BytesIO(b"evil"))
    with contextlib.suppress(SandboxRefused):
        inside = images.unpacked(str(tmp_path / "image.tar"))
        assert [path.name for path in inside.rglob("escaped")] == ["escaped"]
    caches = tmp_path / "cache" / "sandbox"
    outside = [path for path in tmp_path.rglob("escaped") if path.parent.parent != caches]
    assert outside == []
    assert not Path("/escaped").exists()
    if name != "absolute":  # the control would write into the host's root
        with tarfile.open(tmp_path / "image.tar") as archive:
            (tmp_path / "naive" / "in").mkdir(parents=True)
            archive.extractall(tmp_path / "naive" / "in", filter="fully_trusted")
        assert (tmp_path / "naive" / "escaped").exists(), "the archive does not bite"
