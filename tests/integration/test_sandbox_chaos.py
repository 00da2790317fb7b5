"""Nothing is left and nothing mixed up, whatever is killed when. `PART=chaos` is the long form."""

import asyncio
import contextlib
import os
import random
import signal
from pathlib import Path

import pytest

from turngym.errors import SandboxClosed, SandboxDied, SandboxFault, SandboxFileError
from turngym.sandbox import Limits, SandboxSpec
from turngym.sandbox.backends import channel
from turngym.sandbox.backends.bubblewrap import BubblewrapBackend
from turngym.sandbox.backends.channel import Channel
from turngym.sandbox.backends.guest_sandbox import GuestSandbox
from turngym.sandbox.backends.launcher_client import LauncherGone, base_folder
from turngym.sandbox.checks.host_attacks import guests_of
from turngym.sandbox.launcher import cgroups

pytestmark = pytest.mark.extra("bwrap")

FULL = os.environ.get("TURNGYM_CHAOS") == "full"
OPERATIONS, STARTS, KILLS = (500, 1000, 150) if FULL else (60, 20, 15)
AT_ONCE = 100 if FULL else 6
SPEC = SandboxSpec(
    limits=Limits(memory_bytes=64 << 20, disk_bytes=8 << 20, pids=32, enforce="best_effort")
)
GONE = (SandboxFault, SandboxClosed, SandboxFileError)


async def no_guest_is_left() -> None:
    """Wait until no process of a sandbox is left."""
    for _ in range(1000):
        if not guests_of(os.getpid()):
            break
        await asyncio.sleep(0.01)
    assert guests_of(os.getpid()) == []


async def nothing_is_left() -> None:
    """Wait until no process, and see that no mount, folder or control group is left."""
    await no_guest_is_left()
    for _ in range(20):  # others, too, may be killing launchers at this moment
        backend = BubblewrapBackend()  # a new launcher sweeps what a killed one could not
        await backend.sweep()
        await backend.close()
        if not (stale := groups_of_dead_launchers()):
            break
    assert stale == []
    base = Path(base_folder())
    assert f" {base}" not in Path("/proc/self/mountinfo").read_text()
    assert list(base.iterdir()) == []


def groups_of_dead_launchers() -> list[str]:
    """Return control groups of launchers that are gone; those of live ones are theirs."""
    return [
        str(folder)
        for parent in set(cgroups.find_parents().folders.values())
        for folder in parent.glob("turngym-*")
        if cgroups.is_gone(folder.name.removeprefix(cgroups.PREFIX))
    ]


async def life(backend: BubblewrapBackend, number: int, lottery: random.Random) -> int:
    """Live through random operations in a sandbox of one's own; return how many were done."""
    done = 0
    sandbox: GuestSandbox | None = None
    others: list[GuestSandbox] = []
    with contextlib.suppress(*GONE):
        sandbox = await backend.start(SPEC)
        await sandbox.write_file("id", b"%d" % number)
        for _ in range(8):
            done += 1
            kill_something(backend, lottery)
            choice = lottery.randrange(7)
            if choice == 0:
                forks = await sandbox.fork(1)
                others += [fork for fork in forks if not isinstance(fork, Exception)]
            elif choice == 1:
                await sandbox.exec("sleep 5 & sleep 5", timeout_s=0.05)
            elif choice == 2:
                await sandbox.spawn("setsid sleep 60")
            elif choice == 3 and lottery.random() < 0.5:
                await sandbox.exec("kill -9 -1", timeout_s=20)
            elif choice == 4:
                task = asyncio.ensure_future(sandbox.exec("sleep 60", timeout_s=60))
                await asyncio.sleep(lottery.random() * 0.02)
                task.cancel()
                await asyncio.wait([task])
            elif choice == 5 and lottery.random() < 0.3:
                break
            for box in (sandbox, *others):
                assert await box.read_file("id", max_bytes=9) == b"%d" % number, "cross-talk"
    for box in (sandbox, *others):
        if box is not None:
            await box.close()
    return done


def kill_something(backend: BubblewrapBackend, lottery: random.Random) -> None:
    """Now and then kill somebody's sandbox from outside, or the launcher with all it has."""
    throw = lottery.random()
    guests = guests_of(os.getpid()) if throw < 0.1 else []
    launcher = backend._launcher
    with contextlib.suppress(ProcessLookupError):
        if throw < 0.015 and launcher is not None:
            os.kill(launcher.pid, signal.SIGKILL)
        elif guests:
            os.kill(lottery.choice(guests), signal.SIGKILL)


async def test_random_operations_and_random_kills_leave_nothing_and_mix_nothing() -> None:
    backend = BubblewrapBackend()
    done = number = 0
    while done < OPERATIONS:
        lives = [life(backend, number + n, random.Random(number + n)) for n in range(AT_ONCE)]
        number += AT_ONCE
        done += sum(await asyncio.gather(*lives))
    await backend.close()
    await nothing_is_left()


@pytest.mark.parametrize("is_idle", [True, False])
async def test_a_sandbox_that_died_unnoticed_is_no_failed_snapshot(
    is_idle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher learns of a death before the channel does, or after."""
    backend = BubblewrapBackend()
    sandbox = await backend.start(SPEC)

    async def dies() -> bool:
        started = sandbox.running()
        for guest in guests_of(os.getpid()):
            os.kill(guest, signal.SIGKILL)
        with contextlib.suppress(LauncherGone):
            while await started.launcher.call("usage", id=started.id):
                await asyncio.sleep(0.01)
        return is_idle

    monkeypatch.setattr(sandbox, "_is_idle", dies)
    monkeypatch.setattr(Channel, "is_alive", True)
    with pytest.raises(SandboxDied):
        await sandbox.snapshot()
    monkeypatch.undo()
    await sandbox.close()
    await backend.close()
    await nothing_is_left()


async def test_many_starts_and_stops_leave_nothing() -> None:
    backend = BubblewrapBackend()

    async def one() -> None:
        async with await backend.start(SPEC) as sandbox:
            assert (await sandbox.exec(["true"], timeout_s=60)).ok

    for _ in range(0, STARTS, 10):
        await asyncio.gather(*(one() for _ in range(10)))
    assert backend.quota.used["sandboxes"] == 0
    await backend.close()
    await nothing_is_left()


async def test_kills_during_the_start_leave_nothing() -> None:
    lottery = random.Random(3)
    backend = BubblewrapBackend()
    async with await backend.start(SPEC):
        pass
    struck = 0
    for number in range(KILLS):
        task = asyncio.ensure_future(backend.start(SPEC))
        struck += await strike(backend, task, number, lottery.uniform(0, 0.012))
        await asyncio.wait([task])
        if not task.cancelled() and task.exception() is None:
            await task.result().close()
        elif not task.cancelled():
            assert isinstance(task.exception(), GONE), task.exception()
    assert struck > KILLS * 0.8, "most starts were over before they were struck"
    await no_guest_is_left()
    assert backend.quota.used["sandboxes"] == 0
    await backend.close()
    await nothing_is_left()


async def test_a_guest_that_dies_before_its_greeting_is_noticed_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = BubblewrapBackend()
    async with await backend.start(SPEC):
        pass
    await no_guest_is_left()  # or that one would be struck instead of the next
    wait_for_greeting = Channel.open

    async def open_to_the_dead(guest: Channel) -> dict[str, str]:
        while not (guests := guests_of(os.getpid())):  # it is seen once its program is bwrap's
            await asyncio.sleep(0)
        for pid in guests:
            os.kill(pid, signal.SIGKILL)
        return await wait_for_greeting(guest)

    monkeypatch.setattr(Channel, "open", open_to_the_dead)
    monkeypatch.setattr(channel, "HELLO_TIMEOUT_S", 1e6)
    with pytest.raises(GONE):
        async with await asyncio.wait_for(backend.start(SPEC), 60) as quick:  # it had greeted
            await quick.exec("true", timeout_s=1e6)
    await backend.close()
    await nothing_is_left()


async def strike(
    backend: BubblewrapBackend, task: "asyncio.Task[GuestSandbox]", number: int, patience_s: float
) -> bool:
    """Give a start up, or kill bubblewrap or the launcher; return whether something was hit."""
    if number % 3 == 0:
        await asyncio.sleep(patience_s)
        return task.cancel()
    while not (guests := guests_of(os.getpid())) and not task.done():
        await asyncio.sleep(0)
    await asyncio.sleep(patience_s)
    launcher = backend._launcher
    assert launcher is not None
    if number % 10 == 1:
        guests = [launcher.pid]
    elif number % 3 == 1:  # the first is bubblewrap's monitor, the second what it makes
        guests = guests[:1]
    for pid in guests:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return bool(guests)
