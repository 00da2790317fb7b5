"""More changes than can be told are the agent's own doing, and no fault."""

import logging

import pytest

from turngym.environments.terminal.env import TerminalEnv
from turngym.errors import SandboxFileTooLarge


class FakeSandbox:
    """A sandbox in which too much was changed."""

    async def diff(self) -> None:
        raise SandboxFileTooLarge("diff: more than 250000 changes")


async def test_changes_that_cannot_be_told_are_logged_and_end_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    env = TerminalEnv(kind="sum_column")
    env._touched = frozenset({"noted before"})
    monkeypatch.setattr(TerminalEnv, "sandbox", FakeSandbox())
    monkeypatch.setattr(TerminalEnv, "name", "terminal/test", raising=False)
    with caplog.at_level(logging.WARNING):
        await env._note_changes()
    assert env._touched == {"noted before"}
    assert "more than 250000 changes" in caplog.text
