"""What a host makes once for all that ask."""

import asyncio
import shutil
import tempfile

import pytest

from turngym.environments.workspace.host import SandboxHost
from turngym.errors import SandboxRefused


@pytest.fixture
def host():
    return SandboxHost("bubblewrap")


async def test_the_first_who_asks_makes_it_and_the_others_wait(host):
    made = []

    async def make():
        made.append(1)
        await asyncio.sleep(0)
        return len(made)

    assert await asyncio.gather(*(host.shared("a", make) for _ in range(5))) == [1] * 5


async def test_where_the_first_is_cancelled_another_one_makes_it(host):
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def never():
        begun.set()
        await go_on.wait()

    async def make():
        return "made"

    first = asyncio.create_task(host.shared("a", never))
    await begun.wait()
    others = [asyncio.create_task(host.shared("a", make)) for _ in range(3)]
    await asyncio.sleep(0)
    first.cancel()
    assert await asyncio.gather(*others) == ["made"] * 3


async def test_what_cannot_be_made_is_tried_again_by_the_next(host):
    async def fail():
        raise OSError("full")

    async def make():
        return 1

    with pytest.raises(OSError, match="full"):
        await host.shared("a", fail)
    assert await host.shared("a", make) == 1


async def test_a_copy_of_packages_goes_with_its_owner(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    for name in ("temporary", "packages"):
        (tmp_path / name).mkdir()
    (tmp_path / "packages/one.py").write_text("1")
    host = SandboxHost.lease("bubblewrap")
    copy = host._mountable(tmp_path / "packages")
    assert copy.name.startswith("turngym-owned-")  # what the next process removes after a kill
    assert (copy / "one.py").read_text() == "1"
    await host.release()
    assert not copy.exists()


async def test_a_copy_for_which_there_is_no_room_is_refused_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    full = [("one.py", "copy/one.py", "[Errno 28] No space left on device")]

    def copytree(*_, **__):
        raise shutil.Error(full * 1_000)

    monkeypatch.setattr(shutil, "copytree", copytree)
    host = SandboxHost.lease("bubblewrap")
    with pytest.raises(
        SandboxRefused, match=r"cannot be copied .*No space.* or set TMPDIR"
    ) as error:
        host._mountable(tmp_path)
    assert len(str(error.value)) < 500
    assert not list(tmp_path.iterdir())
    await host.release()
