"""What every engine has to do that a model is trained on.

An engine of one's own joins by a line in ``ENGINES``: a context manager that makes it with a
context of 64 tokens and 4 sessions, and a function that returns some weights for it, others for
each number.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import numpy as np
import pytest
import torch

from helpers import models, servers
from helpers.bigram_engine import VOCABULARY, BigramEngine
from turngym.agents.engine.local import LocalEngine
from turngym.agents.engine.protocol import Generation, Sampling, Session, TrainableEngine
from turngym.agents.policy import ContextOverflow
from turngym.errors import ConfigError, PolicyFault

PROMPT = [7, 3, 6, 12, 9]


@asynccontextmanager
async def _local() -> AsyncIterator[TrainableEngine]:
    yield LocalEngine(models.model(), models.tokenizer(), context=64, max_sessions=4)


@asynccontextmanager
async def _bigram() -> AsyncIterator[TrainableEngine]:
    yield BigramEngine()


def _local_weights(number: int) -> Mapping[str, Any]:
    state = models.model().state_dict()
    return {name: value + 0.02 * number * torch.sin(value * 90) for name, value in state.items()}


def _wide_weights(number: int) -> Mapping[str, Any]:
    state = servers.wide_model().state_dict()
    return {name: value + 0.02 * number * torch.sin(value * 90) for name, value in state.items()}


def _bigram_weights(number: int) -> Mapping[str, Any]:
    shape = (VOCABULARY, VOCABULARY)
    return {"logits": torch.randn(shape, generator=torch.Generator().manual_seed(number))}


Made = AbstractAsyncContextManager[TrainableEngine]
ENGINES: dict[str, tuple[Callable[[], Made], Callable[[int], Mapping[str, Any]]]] = {
    "local": (_local, _local_weights),
    "bigram": (_bigram, _bigram_weights),
    "server": (servers.engine_on_a_server, _local_weights),
    "vllm": (servers.engine_on_vllm, _wide_weights),
}
NOT_RUN = pytest.mark.skipif(not servers.VLLM, reason="make proof PART=vllm installs vLLM for it")


@pytest.fixture(
    params=[pytest.param(name, marks=[NOT_RUN] if name == "vllm" else []) for name in ENGINES]
)
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[TrainableEngine]:
    make, weights = ENGINES[request.param]
    async with make() as made:
        await made.publish(weights(0), 0)
        yield made


@pytest.fixture
def weights(request: pytest.FixtureRequest) -> Callable[[int], Mapping[str, Any]]:
    return ENGINES[request.node.callspec.params["engine"]][1]


async def generate(session: Session, ids: Sequence[int] = PROMPT, **sampling: Any) -> Generation:
    return await session.generate(ids, Sampling(**{"max_new_tokens": 8, **sampling}))


async def test_logprobs_are_those_of_the_published_weights(engine: TrainableEngine) -> None:
    session, ids = engine.open(3), list[int]()
    for turn in range(3):
        ids += PROMPT[turn:]
        found = await generate(session, PROMPT[turn:])
        ids += found.token_ids
        [scored] = await engine.score([ids])
        assert scored.shape == (len(ids) - 1,)
        expected = scored[-len(found.token_ids) :]
        np.testing.assert_allclose(found.logprobs, expected, atol=1e-4)


async def test_greedy_takes_the_likeliest_token_with_logprob_zero(engine: TrainableEngine) -> None:
    one, other = [await generate(engine.open(seed), temperature=0.0) for seed in (1, 2)]
    assert one == other
    assert set(one.logprobs) == {0.0}


async def test_equal_seeds_sample_alike_whatever_runs_beside(engine: TrainableEngine) -> None:
    if not engine.traits.deterministic:
        pytest.skip("the engine does not claim it")
    first = engine.open(11)
    alone = await generate(first)
    first.close()
    mine, *others = [engine.open(seed) for seed in (11, 1, 2)]
    crowded, *_ = await asyncio.gather(*(generate(one) for one in (mine, *others)))
    assert crowded.token_ids == alone.token_ids
    assert (await generate(engine.open(4))).token_ids != alone.token_ids


async def test_a_session_that_took_over_tokens_goes_on_as_the_first_one(
    engine: TrainableEngine,
) -> None:
    played, resumed = engine.open(5), engine.open(5)
    before = await generate(played)
    resumed.read([*PROMPT, *before.token_ids], sampled=len(before.token_ids))
    one, other = await generate(played, [1, 2]), await generate(resumed, [1, 2])
    [scored] = await engine.score([[*PROMPT, *before.token_ids, 1, 2, *other.token_ids]])
    np.testing.assert_allclose(other.logprobs, scored[-len(other.token_ids) :], atol=1e-4)
    if engine.traits.deterministic:
        assert one.token_ids == other.token_ids


async def test_new_weights_under_way_show_in_versions_and_logprobs(
    engine: TrainableEngine, weights: Callable[[int], Mapping[str, Any]]
) -> None:
    session = engine.open(2)
    request = asyncio.create_task(generate(session, max_new_tokens=24))
    while engine.stats.sampled_tokens < 2:
        await asyncio.sleep(0)
    await engine.publish(weights(1), 1)
    assert engine.version == 1
    found = await request
    assert list(found.versions) == sorted(found.versions)
    assert set(found.versions) <= {0, 1}
    assert found.versions[0] == 0
    later = await generate(engine.open(2))
    assert set(later.versions) == {1}
    [scored] = await engine.score([[*PROMPT, *later.token_ids]])
    np.testing.assert_allclose(later.logprobs, scored[len(PROMPT) - 1 :], atol=1e-4)


async def test_published_weights_may_change_afterwards(
    engine: TrainableEngine, weights: Callable[[int], Mapping[str, Any]]
) -> None:
    mine = {name: value.clone() for name, value in weights(1).items()}
    await engine.publish(mine, 1)
    before = await engine.score([PROMPT])
    for value in mine.values():
        value.add_(1.0)
    np.testing.assert_array_equal((await engine.score([PROMPT]))[0], before[0])


async def test_nothing_is_sampled_in_a_pause(engine: TrainableEngine) -> None:
    free = await generate(engine.open(6), max_new_tokens=12)
    request = asyncio.create_task(generate(engine.open(6), max_new_tokens=12))
    await asyncio.sleep(0)
    await engine.pause()
    sampled = engine.stats.sampled_tokens
    late = asyncio.create_task(generate(engine.open(7)))
    for _ in range(20):
        await asyncio.sleep(0)
    assert engine.stats.sampled_tokens <= sampled + 1
    assert not request.done()
    assert not late.done()
    await engine.resume()
    assert (await request).token_ids == free.token_ids
    await late


async def test_a_full_context_cuts_the_action_and_then_overflows(engine: TrainableEngine) -> None:
    session = engine.open(1)
    full = [7] * (engine.context - 2)
    found = await generate(session, full)
    assert len(found.token_ids) <= 2
    with pytest.raises(ContextOverflow):
        await generate(session, [1, 1])


async def test_sessions_are_counted_and_come_back(engine: TrainableEngine) -> None:
    sessions = [engine.open(seed) for seed in range(engine.free_sessions)]
    assert engine.free_sessions == 0
    with pytest.raises(ConfigError):
        engine.open(9)
    for session in [*sessions, *sessions]:  # twice is once
        if (closing := session.close()) is not None:
            await closing
    assert engine.free_sessions == len(sessions) == 4
    with pytest.raises(PolicyFault):
        await generate(sessions[0])


async def test_a_cancelled_request_harms_no_other(engine: TrainableEngine) -> None:
    doomed = asyncio.create_task(generate(engine.open(1), max_new_tokens=40))
    living = asyncio.create_task(generate(engine.open(2)))
    await asyncio.sleep(0)
    doomed.cancel()
    assert (await living).token_ids
    assert (await generate(engine.open(3))).token_ids


async def test_a_closed_engine_ends_what_runs(engine: TrainableEngine) -> None:
    request = asyncio.create_task(generate(engine.open(1), max_new_tokens=40))
    await asyncio.sleep(0)
    await engine.close()
    await engine.close()
    with pytest.raises(PolicyFault):
        await request


async def test_statistics_count_tokens(engine: TrainableEngine) -> None:
    found = await generate(engine.open(1))
    assert engine.stats.sampled_tokens == len(found.token_ids)
    assert engine.stats.read_tokens == len(PROMPT)
