"""A pool hands each sandbox out once, keeps to its caps, and leaves nothing."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from turngym.errors import SandboxClosed, SandboxDied, SandboxUnavailable
from turngym.sandbox import Limits, Quota, SandboxPool, SandboxSpec
from turngym.sandbox.backends.bubblewrap import BubblewrapBackend
from turngym.sandbox.backends.unsafe_local import RISK, UnsafeLocalBackend
from turngym.sandbox.checks.host_attacks import guests_of

SPEC = SandboxSpec(limits=Limits(memory_bytes=64 << 20, disk_bytes=8 << 20, enforce="best_effort"))
Backend = BubblewrapBackend | UnsafeLocalBackend
Make = Callable[..., Backend]


@pytest.fixture(
    params=[pytest.param("bubblewrap", marks=pytest.mark.extra("bwrap")), "unsafe-local"]
)
async def make(request: pytest.FixtureRequest) -> AsyncIterator[Make]:
    made: list[Backend] = []

    def one(**caps: int) -> Backend:
        quota = Quota(**caps)
        made.append(
            BubblewrapBackend(quota=quota)
            if request.param == "bubblewrap"
            else UnsafeLocalBackend(accept_risk=RISK, quota=quota)
        )
        return made[-1]

    yield one
    for backend in made:
        await backend.close()
    assert [backend.quota.used["sandboxes"] for backend in made] == [0] * len(made)


async def full(pool: SandboxPool, count: int) -> None:
    while pool.num_ready < count:
        await asyncio.sleep(0.01)


async def test_warm_sandboxes_are_handed_out_once_and_replaced(make: Make) -> None:
    async with SandboxPool(make(), SPEC, warm=2) as pool:
        await full(pool, 2)
        taken = [await pool.acquire() for _ in range(3)]
        assert len({sandbox.id for sandbox in taken}) == 3
        for sandbox in taken:
            assert (await sandbox.exec("ls", timeout_s=60)).stdout == b""
            await sandbox.close()
        await full(pool, 2)


async def test_no_more_run_than_the_cap_allows_and_who_waits_gets_one(make: Make) -> None:
    backend = make(max_sandboxes=2)
    async with SandboxPool(backend, SPEC, warm=1) as pool:
        first, second = await pool.acquire(), await pool.acquire()
        with pytest.raises(SandboxUnavailable, match=r"within 0\.05 s"):
            await pool.acquire(timeout_s=0.05)
        [outcome] = await second.fork(1)
        assert isinstance(outcome, SandboxUnavailable), "forks count, too"
        waiting = asyncio.ensure_future(pool.acquire())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await first.close()
        third = await waiting
        assert (await third.exec(["true"], timeout_s=60)).ok
        await third.close()
        await second.close()


async def test_who_waits_gets_the_warm_one_that_took_the_last_room(make: Make) -> None:
    backend = make(max_sandboxes=2)
    async with SandboxPool(backend, SPEC, warm=1) as pool:
        first = await pool.acquire()
        second = await pool.acquire(timeout_s=60)  # the refill may hold the last room by now
        await first.close()
        await second.close()


async def test_a_warm_sandbox_that_died_is_not_handed_out(make: Make) -> None:
    async with SandboxPool(make(), SPEC, warm=1) as pool:
        await full(pool, 1)
        for pid in guests_of(os.getpid()):
            os.kill(pid, signal.SIGKILL)
        sandbox = await pool.acquire()
        assert (await sandbox.exec(["true"], timeout_s=60)).ok
        await sandbox.close()


async def test_a_sandbox_can_start_from_a_layer(make: Make, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    backend = make(max_sandboxes=1)
    layer = await backend.import_folder(tmp_path)
    async with SandboxPool(backend, SPEC, warm=1) as pool:
        await full(pool, 1)
        sandbox = await pool.acquire(workspace=layer)  # the warm one makes room
        assert await sandbox.read_file("a", max_bytes=9) == b"1"
        await sandbox.close()
    await backend.drop(layer)


async def test_a_closed_pool_says_so_and_what_never_fits_is_refused(make: Make) -> None:
    pool = SandboxPool(make(), SPEC, warm=0)
    await pool.open()
    await pool.close()
    with pytest.raises(SandboxClosed):
        await pool.acquire()
    big = replace(SPEC, limits=Limits(memory_bytes=1 << 30))
    with pytest.raises(ValueError, match="more than the quota"):
        SandboxPool(make(max_memory_bytes=1 << 20), big)


@pytest.mark.extra("bwrap")
async def test_a_sandbox_that_its_launcher_no_longer_knows_has_died() -> None:
    backend = BubblewrapBackend()
    try:
        sandbox = await backend.start(SPEC)
        started = sandbox.running()
        await started.launcher.call("kill", id=started.id)
        with pytest.raises(SandboxDied):
            await sandbox._disk_use()
        with pytest.raises(SandboxDied):
            await sandbox.stats()
        await sandbox.close()
    finally:
        await backend.close()
