"""What is read of the files that were written: contents, what is gone, and nothing of the rest."""

import errno
from types import SimpleNamespace
from typing import Any

import pytest

from turngym.environments.terminal.env import TerminalEnv
from turngym.environments.workspace import base
from turngym.errors import SandboxFileError, SandboxFileTooLarge
from turngym.sandbox.base import Change

FILES = {
    "a": b"1",
    "sly": base._ODD[:3] + base._ODD[3:],
    "gone": None,
    "fifo": errno.EINVAL,
    "closed": errno.EACCES,
    "big": "big",
}


class FakeSandbox:
    async def diff(self) -> list[Change]:
        return [Change(path=path, kind="written") for path in FILES]

    async def read_file(self, path: str, *, max_bytes: int) -> bytes:
        held = FILES[path]
        if isinstance(held, bytes):
            return bytes(bytearray(held))
        if held == "big":
            raise SandboxFileTooLarge("more than that")
        raise SandboxFileError(held or errno.ENOENT, "not read")

    async def exec(self, command: list[str], **options: Any) -> Any:
        assert command[-1] == "big"
        return SimpleNamespace(stdout=b"9\nabc  -\n")


async def test_all_that_was_written_is_read_whatever_it_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(TerminalEnv, "sandbox", FakeSandbox())
    monkeypatch.setattr(base, "_AT_A_TIME", 2)
    found = await TerminalEnv(kind="sum_column").changed_files()
    large = b"\0too large: 9\nabc  -\n"
    assert found == {"a": b"1", "sly": base._ODD, "gone": None, "fifo": None, "big": large}


async def test_a_turn_that_cannot_write_reads_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    env = TerminalEnv(kind="sum_column")
    reads = []

    async def digest() -> str:
        reads.append(1)
        return "key"

    async def call(action: object) -> base.Done:
        return base.Done(text="")

    monkeypatch.setattr(env, "_digest", digest)
    monkeypatch.setattr(env, "call", call)
    for said in ("view a", "search b", "bash ls"):
        await env.turn(env.action_format.parse(said))
    assert len(reads) == 1
