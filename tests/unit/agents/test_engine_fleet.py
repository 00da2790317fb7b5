"""What is said of servers that are away."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from turngym.agents.engine.config import VllmEngineConfig
from turngym.agents.engine.vllm import fleet
from turngym.agents.engine.vllm.children import cause
from turngym.agents.engine.vllm.replica import Replica

pytestmark = pytest.mark.extra("aiohttp")


async def test_a_server_of_others_that_stays_away_is_said_ever_more_rarely(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 0.0
    monkeypatch.setattr(fleet, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(fleet, "_LOOK_S", 0.0)
    config = VllmEngineConfig.model_validate({"type": "vllm", "server": "turngym"})
    member = fleet.Member(Replica("http://far:1", config), last_seen=0.0)
    one = fleet.Fleet([member], config, lambda: ("", ""))
    said: dict[float, str] = {}
    for now in map(float, range(0, 260, 10)):
        with caplog.at_level(logging.WARNING):
            await one._failed(member, "no route" if now < 200 else "connection refused")
        for record in caplog.records:
            said[now] = record.getMessage()
        caplog.clear()
    assert list(said) == [0, 10, 40, 160, 200]
    assert said[160] == "engine http://far:1: no route"
    assert said[200] == "engine http://far:1: connection refused"
    assert not member.is_left_out


def test_a_dead_server_is_named_with_its_first_error() -> None:
    log = (
        "(APIServer pid=26) WARNING 11-27 13:10:50 [a.py:255] OSError: a warning\n"
        "(Worker pid=27) ERROR 11-27 13:11:11 [b.py:953]     raise ValueError(msg)\n"
        "(Worker pid=27) ERROR 11-27 13:11:11 [b.py:953] ValueError: no parameter named 'x'\n"
        "RuntimeError: Engine core initialization failed. See root cause above.\n"
    )
    assert cause(log) == "ValueError: no parameter named 'x'"
    assert cause("loading\nKilled\n") == "Killed"
    assert cause("") == "it said nothing"
