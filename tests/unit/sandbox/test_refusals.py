"""What cannot be made safe is refused with what was seen and what to do; tried with real causes."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from helpers import plain_user
from turngym.cli.main import main
from turngym.errors import ConfigError, SandboxRefused, SandboxUnavailable, UnknownNameError
from turngym.sandbox import Limits, Quota, ReadOnlyMount, SandboxSpec, open_backend
from turngym.sandbox.backends import bubblewrap, images, refusals, runtime
from turngym.sandbox.backends.unsafe_local import RISK, UnsafeLocalBackend

SMALL = SandboxSpec(limits=Limits(memory_bytes=64 << 20, disk_bytes=8 << 20, enforce="best_effort"))
TRY = """
import asyncio, sys
from turngym.errors import TurnGymError
from turngym.sandbox import Limits, SandboxSpec, open_backend
async def main():
    backend = open_backend("bubblewrap")
    try:
        await backend.start(SandboxSpec(limits=Limits(enforce=sys.argv[1])))
        print("STARTED")
    except TurnGymError as error:
        print(type(error).__name__, error)
    await backend.close()
asyncio.run(main())
"""
CHECK = """
import asyncio
from turngym.sandbox import Limits, SandboxSpec, open_backend
from turngym.sandbox.checks.host_attacks import nothing_of_the_host_can_be_written
async def main():
    backend = open_backend("bubblewrap")
    sandbox = await backend.start(SandboxSpec(limits=Limits(enforce="best_effort")))
    await nothing_of_the_host_can_be_written(sandbox)
    print("HELD")
    await sandbox.close()
    await backend.close()
asyncio.run(main())
"""
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="root sets the stage")


def attempt_argv(enforce: str) -> list[str]:
    """Return the command that tries to start a sandbox and prints what came of it."""
    return [sys.executable, "-c", TRY, enforce]


def attempt(*, before: str = ":", enforce: str = "best_effort", cache: str | None = None) -> str:
    """Try to start a sandbox as a plain user after ``before``; return what came of it."""
    command = plain_user.command(attempt_argv(enforce), cache, before=before)
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


@as_root
@pytest.mark.extra("bwrap", "setpriv", "unshare")
def test_forbidden_user_namespaces_are_a_refusal_that_says_how_to_allow_them() -> None:
    # Forbidden for the plain user only: a user namespace of our own in between has the switch.
    before = "mount -t tmpfs none /mnt"
    told = attempt(before=before)
    assert told == "STARTED", "the stage itself must work"
    forbid = 'echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"'
    without_rights = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    command = plain_user.command(
        ["unshare", "-Ur", "sh", "-c", forbid, "sh", *without_rights, *attempt_argv("best_effort")]
    )
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.stdout.startswith("SandboxRefused"), run.stdout + run.stderr
    assert "namespace" in run.stdout
    assert "STARTED" not in run.stdout


@as_root
@pytest.mark.extra("bwrap", "setpriv", "unshare")
def test_limits_that_a_plain_user_cannot_hold_are_refused_in_strict_mode() -> None:
    told = attempt(enforce="strict")
    if told == "STARTED":
        pytest.skip("this plain user has control groups")
    assert told.startswith("SandboxRefused")
    assert "memory" in told
    assert "best_effort" in told


@as_root
@pytest.mark.extra("bwrap", "setpriv", "unshare")
def test_a_plain_user_checks_folders_that_only_root_may_look_into() -> None:
    closed = "mount -t tmpfs -o mode=700 none /var"
    command = plain_user.command([sys.executable, "-c", CHECK], before=closed)
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.stdout == "HELD\n", run.stderr


@as_root
@pytest.mark.extra("bwrap", "setpriv", "unshare")
def test_a_full_disk_is_one_clear_error(tmp_path: Path) -> None:
    cache = f"/var/tmp/turngym-full-{os.getpid()}"
    try:
        told = attempt(
            before=f"mount -t tmpfs -o size=1m,mode=777,uid={plain_user.UID} none {cache}",
            cache=cache,
        )
    finally:
        Path(cache).rmdir()
    assert told.startswith("SandboxRefused")
    assert "No space left" in told
    assert "TURNGYM_CACHE" in told


async def test_without_bubblewrap_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap.shutil, "which", lambda name, path=None: None)
    backend = bubblewrap.BubblewrapBackend()
    with pytest.raises(SandboxRefused, match="apt-get install bubblewrap") as caught:
        await backend.start(SMALL)
    assert "no program bwrap" in caught.value.evidence


def test_a_cache_that_cannot_be_written_or_that_others_can_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    for place in (str(tmp_path / "file"), "/proc/none"):  # where not even root can write
        monkeypatch.setenv("TURNGYM_CACHE", place)
        with pytest.raises(SandboxRefused, match=r"cannot be made.*TURNGYM_CACHE"):
            runtime.cache_folder()
    monkeypatch.setenv("TURNGYM_CACHE", str(tmp_path / "open"))
    runtime.cache_folder().chmod(0o777)
    with pytest.raises(SandboxRefused, match="written by others"):
        runtime.cache_folder()


@pytest.mark.parametrize(
    ("message", "kind", "word"),
    [
        ("bwrap: setting up uid map: Permission denied", SandboxRefused, "namespaces"),
        (
            "bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted",
            SandboxRefused,
            "namespaces",
        ),
        ("bwrap: pivot_root: Operation not permitted", SandboxRefused, "namespaces"),
        ("limits not held: memory", SandboxRefused, "best_effort"),
        ("bwrap: Can't find source path /x: No such file", SandboxRefused, "spec.mounts"),
        ("fork: Resource temporarily unavailable", SandboxUnavailable, "now"),
        ("", SandboxUnavailable, "without a word"),
    ],
)
def test_each_message_of_a_failed_start_becomes_one_error(
    message: str, kind: type[Exception], word: str
) -> None:
    error = refusals.of_start(message, SMALL)
    assert type(error) is kind
    assert word in str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("found", "word"),
    [
        ({"/proc/sys/user/max_user_namespaces": "0"}, "max_user_namespaces="),
        ({"/proc/sys/kernel/unprivileged_userns_clone": "0"}, "unprivileged_userns_clone=1"),
        ({"/proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1"}, "AppArmor"),
        ({"/proc/1/cgroup": "0::/docker/abc"}, "systempaths=unconfined"),
        ({}, "'docker'"),
    ],
)
def test_the_hint_fits_what_the_machine_shows(
    found: dict[str, str], word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "_read", lambda path: found.get(path, ""))
    monkeypatch.setattr(refusals.os.path, "exists", lambda path: False)
    assert word in refusals.hint()


GOOD = {
    "pid": "1", "uid": "1000", "caps": "0" * 16, "bounding": "0" * 16, "seccomp": "2",
    "no_new_privs": "1", "uid_map": "1000 0 1", "routes": "0", "interfaces": "lo",
    "shm_rmid_forced": "1",
    "limits": f"{SMALL.limits.pids + 1},{64 << 20},1024,0,-1",
}  # fmt: skip


def test_a_cage_as_wanted_is_accepted() -> None:
    assert len(refusals.check_greeting(GOOD, SMALL, host_uid=5, wanted_uid=5)) == len(GOOD)


@pytest.mark.parametrize(
    "change",
    [
        {"caps": "000001ffffffffff"}, {"bounding": "1"}, {"seccomp": "0"}, {"no_new_privs": "0"},
        {"pid": "2"}, {"uid": "0"}, {"routes": "1"}, {"interfaces": "eth0,lo"},
        {"uid_map": "0 0 4294967295"}, {"uid_map": ""}, {"limits": "-1,-1,-1,-1,-1"},
        {"shm_rmid_forced": "0"}, {"shm_rmid_forced": ""},
    ],
)  # fmt: skip
def test_a_cage_that_came_up_otherwise_is_refused(change: dict[str, str]) -> None:
    with pytest.raises(SandboxRefused):
        refusals.check_greeting({**GOOD, **change}, SMALL, host_uid=5, wanted_uid=5)


def test_a_sandbox_that_runs_as_another_user_outside_is_refused() -> None:
    with pytest.raises(SandboxRefused, match="user 0 outside"):
        refusals.check_greeting(GOOD, SMALL, host_uid=0, wanted_uid=5)


@pytest.mark.parametrize("words", ["", "yes", "I accept"])
def test_no_isolation_takes_the_full_words(words: str) -> None:
    with pytest.raises(SandboxRefused, match="isolates nothing"):
        open_backend("unsafe-local", accept_risk=words)


async def test_no_isolation_refuses_what_it_cannot_give() -> None:
    backend = UnsafeLocalBackend(accept_risk=RISK)
    for spec, word in (
        (SandboxSpec(), "best_effort"),
        (SandboxSpec(image="/x", limits=SMALL.limits), "no root"),
    ):
        with pytest.raises(SandboxRefused, match=word):
            await backend.start(spec)
    await backend.close()


def test_unknown_names_and_options_are_said_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'bubblewrap'"):
        open_backend("bublewrap")
    with pytest.raises(ConfigError, match=r"sandbox 'bubblewrap'.*colour"):
        open_backend("bubblewrap", colour="red")
    assert main(["check", "sandbox", "bublewrap"]) == 2
    assert "Did you mean 'bubblewrap'" in capsys.readouterr().err
    assert main(["check", "sandbox", "bubblewrap", "--option", "x"]) == 2
    assert "KEY=VALUE" in capsys.readouterr().err


def test_a_back_end_that_cannot_start_is_not_run_and_that_fails(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check", "sandbox", "unsafe-local", "--json"]) == 1
    [report] = json.loads(capsys.readouterr().out)["reports"]
    [result] = report["results"]
    assert (result["status"], result["required"]) == ("not-run", True)


@pytest.mark.extra("docker")
async def test_a_missing_daemon_is_a_refusal_with_the_socket_in_it(tmp_path: Path) -> None:
    backend = open_backend("docker", base_url=f"unix://{tmp_path}/none.sock")
    with pytest.raises(SandboxRefused, match=r"none\.sock.*Start Docker"):
        await backend.start(SMALL)
    await backend.close()
    backend = open_backend("docker", base_url="tcp://127.0.0.1:1")
    with pytest.raises(SandboxRefused, match="on this machine"):
        await backend.start(SMALL)


@pytest.mark.parametrize(
    "values",
    [{"memory_bytes": 1}, {"pids": 0}, {"cpus": 0}, {"disk_bytes": -1}, {"inodes": 0},
     {"open_files": 1}, {"file_bytes": 0}, {"lifetime_s": 0}, {"enforce": "maybe"}],
)  # fmt: skip
def test_limits_without_sense_are_refused(values: dict[str, object]) -> None:
    [name] = values
    with pytest.raises(ValueError, match=f"Limits.{name}"):
        Limits(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize("target", ["/etc", "mnt/x", "/mnt", "/mnt/../etc", "/opt/a/../../etc", ""])
def test_mounts_go_to_their_places_only(target: str) -> None:
    with pytest.raises(ValueError, match="below /mnt or /opt"):
        ReadOnlyMount(source=Path("/usr"), target=target)


@pytest.mark.parametrize("env", [{"": "x"}, {"a=b": "x"}, {"a": "\0"}])
def test_variables_without_a_name_are_refused(env: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="no name and value"):
        SandboxSpec(env=env)


@as_root
@pytest.mark.extra("bwrap")
@pytest.mark.parametrize(
    ("option", "found"), [("-n 64", "open_files=1024"), ("-u 200", "pids=256")]
)
def test_a_limit_that_this_process_cannot_have_is_refused_by_name(option: str, found: str) -> None:
    said = attempt(before=f"ulimit {option}")
    assert said.startswith(f"SandboxRefused the limit {found} is more than this process may have")
    assert f"(found: {option.split()[1]} (ulimit -H))" in said


def test_images_that_are_none_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNGYM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "no.tar").write_bytes(b"this is no tar")
    for image, word in (("nowhere", "no such file"), (str(tmp_path / "no.tar"), "unpacked")):
        with pytest.raises(SandboxRefused, match=word):
            images.unpacked(image)
    with pytest.raises(SandboxRefused, match="no shell"):
        images.root_entries(tmp_path)
    with pytest.raises(SandboxRefused, match="cannot be read"):
        images.root_entries(tmp_path / "none")


def test_the_folder_for_etc_is_made_once_and_again_where_the_cache_was_emptied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNGYM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", "/proc/none")  # nothing is written but to the cache
    first = images.host_etc()
    (first / "hostname").write_text("kept\n")
    assert (images.host_etc() / "hostname").read_text() == "kept\n"
    shutil.rmtree(first)
    assert (images.host_etc() / "hostname").read_text() == "sandbox\n"


def test_a_folder_for_etc_that_finds_no_room_names_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise shutil.Error([("/etc/a", "b", "[Errno 28] No space: '/etc/a'"), ("/etc/c", "d", "e")])

    monkeypatch.setenv("TURNGYM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(shutil, "copytree", fail)
    with pytest.raises(SandboxRefused, match=r"\(found: \[Errno 28\] No space: '/etc/a'\)"):
        images.host_etc()


def test_a_quota_counts_down_and_up_and_never_twice() -> None:
    quota = Quota(max_sandboxes=2, max_memory_bytes=100 << 20)
    freed: list[int] = []
    quota.when_freed.append(lambda: freed.append(1))
    first = quota.take(SMALL.limits)
    with pytest.raises(SandboxUnavailable, match="memory_bytes is used up"):
        quota.take(SMALL.limits)
    first()
    first()
    assert quota.used == {"sandboxes": 0, "memory_bytes": 0, "disk_bytes": 0}
    assert freed == [1]
    assert not quota.can_ever_take(Limits(memory_bytes=200 << 20))
    with pytest.raises(ValueError, match="max_sandboxes"):
        Quota(max_sandboxes=0)


def test_a_quota_holds_under_threads() -> None:
    quota = Quota(max_sandboxes=5)
    taken: list[object] = []

    def take() -> None:
        with contextlib.suppress(SandboxUnavailable):
            taken.append(quota.take(SMALL.limits))

    threads = [threading.Thread(target=take) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == quota.used["sandboxes"] == 5


def test_a_plug_in_that_ends_the_program_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "bad_box-1.0.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text("[turngym.sandboxes]\nbox = bad_box_module:Box\n")
    (tmp_path / "bad_box_module.py").write_text("raise SystemExit(4)")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"sandbox 'box': SystemExit: 4 \(bad_box_module\.py:1"):
        open_backend("box")
