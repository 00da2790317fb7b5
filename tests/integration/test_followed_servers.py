"""Another process of a run samples on servers whose weights it does not publish."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from helpers import models
from helpers.servers import CONTEXT, engine_on_a_server
from turngym.agents.engine.config import VllmEngineConfig
from turngym.agents.engine.protocol import Sampling
from turngym.agents.engine.vllm.engine import VllmEngine
from turngym.agents.engine.vllm.replica import ReplicaError, version_of
from turngym.agents.engine.vllm.sampling import FleetView, FollowedServers, ServerSampler
from turngym.errors import ConfigError, EnginesLost, PolicyFault

PROMPT = [7, 3, 6, 12, 9]
SAMPLING = Sampling(max_new_tokens=8)
CONFIG = VllmEngineConfig(type="vllm")


@pytest.fixture
async def engine() -> AsyncIterator[VllmEngine]:
    async with engine_on_a_server() as engine:
        yield engine


def follower(engine: VllmEngine) -> tuple[FollowedServers, ServerSampler, list[tuple[int, str]]]:
    reports: list[tuple[int, str]] = []
    servers = FollowedServers(CONFIG, lambda number, error: reports.append((number, error)))
    sampler = ServerSampler(
        servers, engine.run, end_ids=engine.end_ids, context=CONTEXT, max_sessions=2
    )
    return servers, sampler, reports


async def test_tokens_are_those_of_the_engine_and_carry_its_version(engine: VllmEngine) -> None:
    await engine.publish(models.model().state_dict(), 3)
    servers, sampler, _ = follower(engine)
    servers.follow(engine.view())
    own = await engine.open(5).generate(PROMPT, SAMPLING)
    found = await sampler.open(5).generate(PROMPT, SAMPLING)
    assert found == own
    assert set(found.versions) == {3}
    second = sampler.open(6)
    with pytest.raises(ConfigError, match="2 sessions are open"):
        sampler.open(7)
    second.close()
    await engine.publish(models.model().state_dict(), 4)
    servers.follow(engine.view())
    assert set((await sampler.open(7).generate(PROMPT, SAMPLING)).versions) == {4}
    await sampler.close()
    with pytest.raises(PolicyFault, match="closed"):
        await second.generate(PROMPT, SAMPLING)
    await servers.close()


async def test_a_request_waits_for_news_of_the_servers(engine: VllmEngine) -> None:
    servers, sampler, reports = follower(engine)
    views: list[FleetView] = []
    engine.watch(lambda: views.append(engine.view()))
    waiting = asyncio.create_task(sampler.open(0).generate(PROMPT, SAMPLING))
    await engine.publish(models.model().state_dict(), 1)
    assert not views[0].servers[0].label  # it gets no requests before it has the weights
    assert version_of(views[-1].servers[0].label, engine.run) == 1
    servers.follow(views[0])
    await asyncio.sleep(0)
    assert not waiting.done()
    servers.follow(views[-1])
    assert (await waiting).token_ids
    servers.suspect(servers.members[0], ReplicaError("gone"))
    servers.suspect(servers.members[0], ReplicaError("gone"))
    assert reports == [(0, "gone")]
    engine.suspect(*reports[0])
    assert not views[-1].servers[0].label
    assert engine.metrics()["engine/retried_requests"] == 1
    while not views[-1].servers[0].label:  # it is looked at, and serves again
        await asyncio.sleep(0.01)
    servers.follow(FleetView(servers=(), lost="no engine is left: it died"))
    servers.members[0].serves = None
    with pytest.raises(EnginesLost, match="it died"):
        await servers.pick(None)
    await servers.close()


def test_labels_of_others_have_no_version() -> None:
    assert version_of("ab12.3.7", "ab12") == 7
    assert [version_of(label, "ab12") for label in ("cd34.3.7", "ab12.3", "initial")] == [None] * 3
