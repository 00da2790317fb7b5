"""What is said of servers that are away."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from turngym.agents.engine.config import VllmEngineConfig
from turngym.agents.engine.vllm import fleet
from turngym.agents.engine.vllm.children import Child, cause
from turngym.agents.engine.vllm.replica import Replica, ReplicaError

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


async def test_what_a_server_said_that_never_served_is_kept(tmp_path: Path) -> None:
    config = VllmEngineConfig.model_validate({"type": "vllm", "server": "turngym"})
    says = "import time; print('head of 12 channels', flush=True); time.sleep(600)"
    child = Child([sys.executable, "-c", says], {}, tmp_path / f"{tmp_path.name}.log")
    await child.start()
    while "head" not in (tmp_path / f"{tmp_path.name}.log").read_text():
        await asyncio.sleep(0.01)
    member = fleet.Member(Replica("http://near:1", config), child=child)
    one = fleet.Fleet([member], config, lambda: ("", ""))
    await one._failed(member, "500: see above")
    await one.close()
    found = re.search(r"near:1: 500: see above \(see (.*)\)$", one.lost)
    assert found is not None
    assert Path(found[1]).read_text() == "head of 12 channels\n"
    Path(found[1]).unlink()


async def test_a_death_that_a_failed_request_was_quicker_to_notice_is_said_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = VllmEngineConfig.model_validate({"type": "vllm", "server": "turngym"})
    child = Child([sys.executable, "-c", "raise SystemExit(3)"], {}, tmp_path / "engine.log")
    await child.start()
    await child.died()
    member = fleet.Member(Replica("http://near:1", config), child=child, ever_served=True)
    one = fleet.Fleet([member], config, lambda: ("", ""))
    starts = list[Child]()
    monkeypatch.setattr(Child, "start", starts.append)
    with pytest.raises(ReplicaError, match="ended with code 3"):
        await one._bring_up(member)
    assert not starts
    await one.close()


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
